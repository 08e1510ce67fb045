package h2

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestManyAnswersShareAWindow has thousands of answers wait for the window of the connection, which the client enlarges
// with each 16 KiB that it has read, as grpc-go does. It is no flood, however often and however slowly the client does
// so; and the oldest answer ends first.
func TestManyAnswersShareAWindow(t *testing.T) {
	const calls, step = 3000, 16 << 10
	message := strings.Repeat("x", 4000)
	answerLong := func(b *Batch) {
		for i := range b.Calls {
			b.Reply(i, []byte(message))
		}
	}
	for name, tt := range map[string]struct {
		pause time.Duration // how long the client takes for 16 KiB
		grows bool          // true if the client measures the bandwidth, and doubles its windows.
	}{
		"fast":    {0, false},
		"slow":    {time.Second, false},
		"growing": {0, true},
	} {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, Config{Decide: answerLong}, func(t *testing.T, s *testServer) {
				c := s.connect()
				c.patience = time.Hour
				var ids []uint32
				for range calls {
					ids = append(ids, c.call("x"))
				}
				c.flush()
				unread, window := 0, uint32(firstWindow)
				for _, id := range ids {
					for a := c.answers[id]; a == nil || !a.isEnded; a = c.answers[id] {
						f, err := c.readFrame()
						if err != nil {
							t.Fatalf("%v; GOAWAYs: %v", err, c.goAways)
						}
						if d, ok := f.(*http2.DataFrame); ok {
							unread += int(d.Length)
						}
						if unread < step {
							continue
						}
						time.Sleep(tt.pause)
						c.frame(http2.FrameWindowUpdate, 0, 0, number(uint32(unread)))
						if unread = 0; tt.grows && window < 16<<20 {
							window *= 2
							c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, window))
						}
						c.flush()
					}
					if later := c.answers[id+2]; later != nil && later.isEnded {
						t.Fatalf("the answer after that of stream %d ended first", id)
					}
					c.expectAnswer(id, message)
				}
				if n := s.Flooding.Load() + s.Stalled.Load() + s.Invalid.Load(); n != 0 {
					t.Errorf("%d connections were ended", n)
				}
			})
		})
	}
}

// TestBlockedStreamsEnd checks that streams that end while they wait for the window of the connection leave nothing, in
// any order.
func TestBlockedStreamsEnd(t *testing.T) {
	inFakeTime(t, Config{}, func(t *testing.T, s *testServer) {
		c := s.connect()
		message := strings.Repeat("x", 10_000)
		var ids []uint32
		for range 100 {
			ids = append(ids, c.call(message))
		}
		c.sync()
		for i, id := range ids {
			if i >= 10 && i%2 == 0 {
				c.reset(id)
			}
		}
		c.sync()
		c.frame(http2.FrameWindowUpdate, 0, 0, number(1<<20))
		for i, id := range ids {
			if i < 10 || i%2 != 0 {
				c.expectAnswer(id, message)
			}
		}
		if k := s.onlyConn(); k.blocked != nil || len(k.streams) != 0 {
			t.Errorf("%d streams are blocked, %d open", len(k.blocked), len(k.streams))
		}
	})
}
