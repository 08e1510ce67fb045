//go:build linux

package siege

import (
	native "encoding/binary" // binary is the program
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"ratelimit/testbed/harness"
)

// clockAttacks move the clock of the store.
var clockAttacks = []attack{
	{
		letter: "K", name: "Redis' clock jumps",
		does: "the clock of Redis goes a day ahead, calls use up their limits, and it goes back; no refusal " +
			"lasts longer than a window",
		rules: clockRules(), quiet: true, tolerant: true, prepare: redisWithClock, strike: clockJumps,
	},
}

var clockAlgorithms = []string{"first_hit_window", "fixed_window", "sliding_window", "sliding_window_counter", "gcra"}

// clockWindow is the window of the limits, of clockLimit calls each.
const (
	clockWindow = 2 * time.Second
	clockLimit  = 5
)

func clockRules() string {
	var b strings.Builder
	for _, a := range clockAlgorithms {
		fmt.Fprintf(&b, "- {key: %s, rate_limit: {algorithm: %s, period: %v, requests_per_unit: %d}}\n", a, a, clockWindow,
			clockLimit)
	}
	return b.String()
}

// clockSource makes a library that adds the seconds in a file to the clock of the
// program that it is loaded into.
const clockSource = `#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile const long *ahead;

__attribute__((constructor)) static void map(void) {
	int fd = open(getenv("CLOCK_AHEAD"), O_RDONLY);
	void *at = fd < 0 ? MAP_FAILED : mmap(0, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) abort();
	ahead = at;
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
	static int (*real)(struct timeval *, void *);
	if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
	int result = real(tv, tz);
	if (ahead) tv->tv_sec += *ahead;
	return result;
}

time_t time(time_t *t) {
	struct timeval tv;
	gettimeofday(&tv, 0);
	if (t) *t = tv.tv_sec;
	return tv.tv_sec;
}
`

// redisWithClock starts a Redis whose clock the test moves. The state of the trial
// is the file that says how far.
func redisWithClock(x *trial, o *options) {
	dir := x.TempDir()
	source, library, ahead := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so"), filepath.Join(dir, "ahead")
	x.put(source, clockSource)
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, source, "-ldl").CombinedOutput(); err != nil {
		x.result.unmeasured = fmt.Sprintf("no clock to move without a C compiler: %v: %s", err, out)
		return
	}
	x.put(ahead, strings.Repeat("\x00", 8))
	x.state = ahead
	port, err := harness.FreePort()
	if err != nil {
		x.Fatal(err)
	}
	server := &harness.Process{
		Path: harness.Program(x, "redis-server", "redis-server"), Log: filepath.Join(dir, "log"),
		Args: []string{"--bind", "127.0.0.1", "--port", fmt.Sprint(port), "--save", "", "--dir", dir},
		Env:  append(os.Environ(), "LD_PRELOAD="+library, "CLOCK_AHEAD="+ahead),
	}
	if err := server.Start(); err != nil {
		x.Fatal(err)
	}
	x.Cleanup(server.Stop)
	o.env = append(o.env, "BACKEND_TYPE=redis", fmt.Sprintf("REDIS_URL=127.0.0.1:%d", port),
		"REDIS_TIMEOUT="+x.storeTimeout.String())
}

// setClock moves the clock of Redis so far ahead of the true one.
func (x *trial) setClock(ahead time.Duration) {
	// In place: Redis has the file mapped.
	file, err := os.OpenFile(x.state.(string), os.O_WRONLY, 0)
	if err == nil {
		_, err = file.Write(native.NativeEndian.AppendUint64(nil, uint64(ahead/time.Second)))
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		x.Fatal(err)
	}
}

func clockJumps(x *trial) {
	for _, ahead := range []time.Duration{24 * time.Hour, 0} {
		x.setClock(ahead)
		time.Sleep(300 * time.Millisecond) // Redis looks at its clock now and then
		for _, algorithm := range clockAlgorithms {
			for range clockLimit + 1 {
				x.askClock(algorithm)
			}
		}
	}
	var waiting sync.WaitGroup
	for _, algorithm := range clockAlgorithms {
		waiting.Go(func() { x.waitAsTold(algorithm) })
	}
	waiting.Wait()
}

// askClock returns whether a call passes, and the time that the answer tells.
func (x *trial) askClock(algorithm string) (passes bool, told time.Duration) {
	answer, err := x.neighbour.client.ShouldRateLimit(x.ctx, request([2]string{algorithm, "1"}))
	if err != nil {
		x.suspect("%s: %v", algorithm, err)
		return true, 0
	}
	return answer.GetOverallCode() == pb.RateLimitResponse_OK, answer.GetStatuses()[0].GetDurationUntilReset().AsDuration()
}

// waitAsTold waits until a call of an algorithm should pass, and checks that it does.
func (x *trial) waitAsTold(algorithm string) {
	longest := clockWindow
	if algorithm == "sliding_window_counter" {
		longest *= 2 // it looks at two windows
	}
	passes, told := x.askClock(algorithm)
	if told > longest {
		x.complain("%s: after the clock went back, a window of %v ends in %v", algorithm, clockWindow,
			told.Round(time.Millisecond))
	}
	if passes {
		return
	}
	time.Sleep(told + 50*time.Millisecond)
	if passes, again := x.askClock(algorithm); !passes {
		x.complain("%s: after the clock went back, a caller was told to wait for %v, and then for %v more", algorithm, told,
			again.Round(time.Millisecond))
	}
}
