package simulate

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/mediocregopher/radix/v4"

	"ratelimit/src/backend/redis"
	"ratelimit/src/backend/remote"
)

// scanCount is the number of keys that Redis looks at for one SCAN, in far less than a millisecond.
const scanCount = "1000"

// deleteKeys deletes the keys that begin with prefix on all servers of the store. The brace of a hash tag may precede
// the prefix.
func deleteKeys(ctx context.Context, store *redis.Store, prefix string) error {
	addrs := store.Table().Addrs
	errs := make([]error, len(addrs))
	var servers sync.WaitGroup
	for i, addr := range addrs {
		servers.Go(func() {
			server := remote.NewLink(&store.Access, addr)
			defer server.Close()
			errs[i] = deleteKeysOf(ctx, server, prefix)
		})
	}
	servers.Wait()
	return remote.JoinErrors(errs)
}

// deleteKeysOf deletes the keys of one server that begin with prefix.
func deleteKeysOf(ctx context.Context, server *remote.Link, prefix string) error {
	for cursor := "0"; ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		var keys []string
		scan := radix.Cmd(&radix.Tuple{&cursor, &keys}, "SCAN", cursor, "MATCH", "*"+prefix+"*", "COUNT", scanCount)
		if err := server.Do(ctx, redis.Perform(scan)); err != nil {
			return err
		}
		keys = slices.DeleteFunc(keys, func(key string) bool {
			return !strings.HasPrefix(strings.TrimPrefix(key, "{"),
				prefix)
		})
		if len(keys) > 0 {
			unlink := radix.NewPipeline() // Keys of a cluster have different slots, so each needs a command of its own.
			for _, key := range keys {
				unlink.Append(radix.Cmd(nil, "UNLINK", key))
			}
			if err := server.Do(ctx, redis.Perform(unlink)); err != nil {
				return err
			}
		}
		if cursor == "0" {
			return nil
		}
	}
}
