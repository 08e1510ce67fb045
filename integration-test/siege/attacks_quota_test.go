//go:build linux

package siege

import (
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/protobuf/encoding/protowire"
)

const streamQuotas = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas"

// Attacks on the streams of quotas.
var quotaAttacks = []attack{
	{
		letter: "D", name: "quota buckets without end",
		does:  "streams that report new quota buckets with names of 3 KiB, more than fit into memory",
		rules: quotaRules, strike: newBuckets,
	},
	{
		letter: "K", name: "floods of quota reports",
		does: "streams that report 2^63 requests of each of 1,000 quota buckets, again and again, and read no " +
			"answer",
		rules: quotaRules, strike: reportFlood,
	},
	{
		letter: "D", name: "long quota reports",
		does: "reports of the greatest length, compressed, unfinished, and too long, on eight streams of each " +
			"connection",
		rules: quotaRules, strike: longReports,
	},
}

const quotaRules = "- {key: bucket, rate_limit: {unit: second, requests_per_unit: 100}}\nquota_buckets: true\n"

// usage is a BucketQuotaUsage with n allowed requests.
func usage(bucket string, n uint64) string {
	id := field(1, field(1, "bucket")+field(2, bucket))
	numbers := protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), n)
	return field(2, field(1, id)+string(numbers))
}

// newBuckets reports buckets that nobody has reported before.
func newBuckets(x *trial) {
	list := x.wires(pick(x, 8, 16), true)
	defer hangUp(list)
	const inMessage, nameBytes = 20, 3 << 10                          // A report is less than 64 KiB long.
	each := (320 << 20) / (inMessage * nameBytes) / max(len(list), 1) // more than the memory, together
	var sent, closed atomic.Int64
	together(list, func(i int, w *wire) {
		stream, err := w.open(streamQuotas)
		for n := 0; n < each && err == nil; n++ {
			var b strings.Builder
			b.WriteString(field(1, "siege"))
			for k := range inMessage {
				b.WriteString(usage(fmt.Sprintf("%d %d %d %s", i, n, k, strings.Repeat("v", nameBytes)), 1))
			}
			if err = w.data(stream, message(false, []byte(b.String())), false); err == nil {
				sent.Add(inMessage)
			}
		}
		if err != nil {
			closed.Add(1)
		}
	})
	x.awaitSample()
	x.note("%d buckets were reported, %d of %d connections were closed for it", sent.Load(), closed.Load(), len(list))
}

// reportFlood reports the largest numbers for the same buckets. Half of the connections give answers no window.
func reportFlood(x *trial) {
	list := append(x.wires(pick(x, 3, 8), true),
		x.wires(pick(x, 3, 8), true, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})...)
	silent := x.wires(len(list), true)
	defer hangUp(append(list, silent...))
	for _, w := range silent {
		for range 20 { // more than a connection may have
			if _, err := w.open(streamQuotas); err != nil {
				break
			}
		}
	}
	report := field(1, "siege")
	for k := range 1000 {
		report += usage(fmt.Sprint(k), math.MaxInt64+1)
	}
	content := message(false, []byte(report))
	end := time.Now().Add(pick(x, time.Second, 10*time.Second))
	var reports atomic.Int64
	together(list, func(_ int, w *wire) {
		stream, err := w.open(streamQuotas)
		for err == nil && time.Now().Before(end) {
			if err = w.data(stream, content, false); err == nil {
				reports.Add(1)
			}
		}
	})
	x.note("%d reports of 1,000 buckets were sent", reports.Load())
}

// longReports reports the same long names again and again. What stays unfinished is sent once.
func longReports(x *trial) {
	list := x.wires(pick(x, 8, 60), true)
	defer hangUp(list)
	report := func(bytes int) []byte {
		text := field(1, "siege")
		for n := 0; len(text)+3<<10 < bytes; n++ {
			text += usage(fmt.Sprint(n, strings.Repeat("v", 3000)), 1)
		}
		return []byte(text)
	}
	const unfinished = 3
	long := message(false, report(64<<10))
	contents := [8][]byte{
		long, message(false, report(4<<20)), message(true, gzipped(report(64<<10))), unfinished: long[:len(long)-1],
		4: message(true, gzipped(report(1<<20))), 5: long, 6: long, 7: long,
	}
	end := time.Now().Add(pick(x, time.Second, 10*time.Second))
	var sent atomic.Int64
	together(list, func(_ int, w *wire) {
		var streams [len(contents)]uint32
		var err error
		for n := 0; err == nil && time.Now().Before(end); n++ {
			k := n % len(streams)
			if stream := streams[k]; stream == 0 || w.isAnswered(stream) {
				streams[k], err = w.open(streamQuotas, "grpc-encoding", []string{"identity", "gzip"}[contents[k][0]])
			} else if k == unfinished {
				continue
			}
			if err == nil {
				err = w.data(streams[k], contents[k], false)
				sent.Add(1)
			}
		}
	})
	x.note("%d reports were sent", sent.Load())
}
