package chaos

import (
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// refusals are faults in which the store answers, and does not count.
var refusals = []fault{
	{
		name: "read only", does: "the server becomes a replica of one that is not there, and refuses writes (READONLY)",
		short:  single,
		unlike: map[storeName]string{cluster: "see *failover*", memcached: onlyRedis},
		begin: func(t *testing.T, x *trial) outage {
			s := x.store.victim(t)
			s.Do(t, "REPLICAOF", "127.0.0.1", "1")
			return outage{end: func() { s.Do(t, "REPLICAOF", "NO", "ONE") }}
		},
	},
	{
		name: "out of memory", does: "`maxmemory` is reached and nothing is evicted (OOM); Memcached with `-M` is full",
		short: memcached, lost: 1,
		atLeast: period + period/4, // a counter that is there goes on; those of the next window find no room
		begin: func(t *testing.T, x *trial) outage {
			if x.store.name == memcached {
				end := repeat(100*time.Millisecond, func() { fill(t, x.store.memcached.Addr) })
				return outage{end: func() { end(); x.store.memcached.Flush(t) }}
			}
			s := x.store.victim(t)
			s.Do(t, "CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", 1)
			return outage{end: func() { s.Do(t, "CONFIG", "SET", "maxmemory", 0) }}
		},
	},
	{
		name: "loading", does: "the server reads its data from disk and answers LOADING", short: sentinel,
		unlike: map[storeName]string{cluster: "see *failover*", memcached: onlyRedis},
		begin: func(t *testing.T, x *trial) outage {
			return outage{end: x.store.victim(t).Loading(t)}
		},
	},
	{
		name: "wrong type", does: "counters turn into sets (WRONGTYPE), in Memcached into words; at the end they are deleted",
		short: cluster, lost: 1,
		begin: wrongType,
	},
	{
		name: "password changed", does: "all servers have another password, and end all connections; it ends when " +
			"`REDIS_AUTH_FILE` has it too", short: single, everywhere: true,
		unlike: map[storeName]string{memcached: "no password"},
		begin: func(t *testing.T, x *trial) outage {
			password := fmt.Sprint("password", time.Now().UnixNano())
			for _, s := range x.store.servers() {
				s.Do(t, "CONFIG", "SET", "requirepass", password)
				s.Do(t, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
			}
			return outage{end: func() { x.store.putPassword(t, password) }}
		},
	},
	{
		name: "disk full", does: "a snapshot fails at a limit on the size of files, and Redis refuses writes (MISCONF)",
		short:  single,
		unlike: map[storeName]string{memcached: "no disk"},
		begin:  diskFull,
	},
}

// turn makes all counters of ours sets. They have to be found again and again,
// since there is a new one for each window.
const (
	turn   = `for _, k in ipairs(redis.call('KEYS', '*` + domain + `_*')) do if redis.call('TYPE', k).ok ~= 'set' then redis.call('DEL', k) redis.call('SADD', k, 'x') end end`
	unturn = `for _, k in ipairs(redis.call('KEYS', '*` + domain + `_*')) do if redis.call('TYPE', k).ok == 'set' then redis.call('DEL', k) end end`
)

func wrongType(t *testing.T, x *trial) outage {
	t.Helper()
	if x.store.name == memcached {
		return wrongWords(t, x)
	}
	s := x.store.victim(t)
	end := repeat(20*time.Millisecond, func() {
		if _, err := s.Try("EVAL", turn, 0); err != nil {
			t.Errorf("turning counters into sets: %v", err)
		}
	})
	return outage{end: func() {
		end()
		s.Do(t, "EVAL", unturn, 0)
	}}
}

// wrongWords puts words where Memcached's counters are now and will be soon.
func wrongWords(t *testing.T, x *trial) outage {
	t.Helper()
	var names []string
	first := time.Now().Unix() / int64(period.Seconds()) * int64(period.Seconds())
	for _, k := range x.keys {
		if k.rule.kind == calendar {
			for _, at := range []time.Time{time.Now(), time.Now().Add(time.Hour)} {
				border, _ := calendar.windowAt(at)
				names = append(names, fmt.Sprintf("%s|fw:1day/%s:%d", hashTag(k.rule, k.value), calendarZone, border.Unix()))
			}
			continue
		}
		form := "fw"
		if strings.Contains(k.rule.yaml, "sliding_window_counter") {
			form = "sc"
		}
		for n := range int64(10) {
			names = append(names, fmt.Sprintf("%s|%s:%.0f:%d", hashTag(k.rule, k.value), form, period.Seconds(),
				first+n*int64(period.Seconds())))
		}
	}
	for _, name := range names {
		x.store.memcached.Set(t, name, "word")
	}
	return outage{end: func() {
		for _, name := range names {
			x.store.memcached.Delete(t, name)
		}
	}}
}

// fill stores items of all sizes that counters have, until there is no room.
func fill(t *testing.T, addr string) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", addr, harness.Deadline)
	if err != nil {
		t.Errorf("filling Memcached: %v", err)
		return
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(harness.Deadline)); err != nil {
		t.Errorf("filling Memcached: %v", err)
		return
	}
	reply := make([]byte, 4096)
	for size := 1; size <= 48; size += 4 {
		value := strings.Repeat("x", size)
		for n, room := 0, true; room; {
			var b strings.Builder
			for range 64 {
				fmt.Fprintf(&b, "set filler_that_is_as_long_as_counters_are_%06d_%02d 0 0 %d\r\n%s\r\n", n, size, size, value)
				n++
			}
			if _, err := conn.Write([]byte(b.String())); err != nil {
				t.Errorf("filling Memcached: %v", err)
				return
			}
			for lines := 0; lines < 64; {
				k, err := conn.Read(reply)
				if err != nil {
					t.Errorf("filling Memcached: %v", err)
					return
				}
				lines += strings.Count(string(reply[:k]), "\n")
				room = room && !strings.Contains(string(reply[:k]), "SERVER_ERROR")
			}
		}
	}
}

// diskFull has a snapshot fail that is larger than a file may be. The log, which
// is a file too, is not.
func diskFull(t *testing.T, x *trial) outage {
	t.Helper()
	prlimit := harness.Program(t, "prlimit", "util-linux")
	s := x.store.victim(t)
	fileSize := func(limit string) {
		if out, err := exec.Command(prlimit, "--pid", fmt.Sprint(s.PID()),
			"--fsize="+limit+":").CombinedOutput(); err != nil {
			t.Errorf("prlimit: %v: %s", err, out)
		}
	}
	// One key that no caller has, in a slot of this server, beyond 1 MiB.
	prefix := hashTag(x.keys[0].rule, x.keys[0].value) + "large"
	s.Do(t, "CONFIG", "SET", "save", "3600 1", "rdbcompression", "no", "stop-writes-on-bgsave-error", "yes")
	s.Do(t, "DEBUG", "POPULATE", 1, prefix, 2<<20)
	fileSize(fmt.Sprint(1 << 20))
	snapshot(t, s, "err")
	return outage{end: func() {
		fileSize("unlimited")
		snapshot(t, s, "ok")
		s.Do(t, "CONFIG", "SET", "save", "")
		s.Do(t, "DEL", prefix+":0")
	}}
}

// snapshot returns once one has ended as wanted.
func snapshot(t *testing.T, s *redistest.Server, want string) {
	t.Helper()
	harness.Await(t, harness.Deadline, "no snapshot ends with "+want, func() error {
		info := s.Info(t, "persistence")
		switch {
		case info["rdb_bgsave_in_progress"] != "0":
		case info["rdb_last_bgsave_status"] == want:
			return nil
		default:
			_, err := s.Try("BGSAVE")
			if err != nil {
				return err
			}
		}
		return errNotYet
	})
}
