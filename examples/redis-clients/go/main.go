// Command redisclient asks a service with go-redis: redisclient PORT PROTOCOL NAME. It prints what ../client.py prints.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"github.com/redis/go-redis/v9"
)

func main() {
	protocol, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	ctx, name := context.Background(), os.Args[3]
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1], Protocol: protocol, Password: "open", PoolSize: 1, MaxRetries: -1})
	var results []any
	add := func(v any, err error) {
		if err != nil {
			v = "error: " + err.Error()
		}
		results = append(results, v)
	}
	add(c.Ping(ctx).Result())
	for range 3 {
		add(c.Do(ctx, "RATELIMIT", "api", "user", name).Result())
	}
	add(c.Do(ctx, "CL.THROTTLE", name, 15, 30, 60).Result())
	add(c.Do(ctx, "RATELIMIT.TREE", "limits", 1, "user", name, "trade").Result())
	commands, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for range 4 {
			p.Do(ctx, "RATELIMIT", "api", "user", name+" in a pipeline")
		}
		return nil
	})
	for _, cmd := range commands {
		add(cmd.(*redis.Cmd).Val(), err)
	}
	_, err = c.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.Ping(ctx).Err() })
	add("executed", err)
	s := c.Subscribe(ctx, "news")
	_, err = s.Receive(ctx)
	add("subscribed", err)
	if err := s.Close(); err != nil {
		panic(err)
	}
	add(c.Get(ctx, "foo").Result())
	add(c.Echo(ctx, "still here").Result())
	text, err := json.Marshal(results)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
}
