package xdsrules

import (
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/src/algorithm"
)

type builder struct{ *rand.Rand }

// one in n.
func (b builder) one(n int) bool { return b.IntN(n) == 0 }

func pick[T any](b builder, list ...T) T { return list[b.IntN(len(list))] }

func (b builder) anyOf() *configv3.RateLimitConfig {
	m := &configv3.RateLimitConfig{Domain: "d", Descriptors: b.descriptors(3)}
	if b.one(30) {
		m.Domain = pick(b, "", "é\n\x00", "1.5")
	}
	if b.one(4) {
		m.Charge = configv3.Charge(b.IntN(3))
	}
	if b.one(4) {
		m.OnReject = configv3.OnReject(b.IntN(3))
	}
	if b.one(4) {
		m.OnStoreFailure = configv3.OnStoreFailure(b.IntN(5))
	}
	if b.one(4) {
		m.Counting, m.OnContention = configv3.Counting(b.IntN(3)), configv3.OnContention(b.IntN(3))
	}
	if b.one(5) {
		m.Notify = b.notify()
	}
	m.QuotaBuckets = b.one(10)
	if b.one(100) {
		m.Counting, m.OnContention = configv3.Counting(pick[int32](b, 1, 3)), configv3.OnContention(pick[int32](b, 1, 3))
		m.Charge, m.OnReject, m.OnStoreFailure = -1, 77, configv3.OnStoreFailure(pick[int32](b, 1, 5))
	}
	if b.one(3) {
		m.Rules = b.rules()
		if !b.one(20) {
			m.Descriptors = nil
		}
	}
	return m
}

func (b builder) notify() *configv3.Notify {
	m := &configv3.Notify{
		Url:    pick(b, "", "", "https://hooks.example.com/a", "$NOTIFY_URL_A", "$NOTIFY_URL_A"),
		Format: configv3.NotifyFormat(b.IntN(4)),
	}
	for at := uint32(b.IntN(60)); at < 100; at += uint32(10 + b.IntN(60)) {
		m.At = append(m.At, at+1)
	}
	if b.one(40) { // something that is wrong
		m.At, m.Url = append(m.At, pick[uint32](b, 0, 1, 101)), pick(b, "", "ftp://a", "$HOME", "https://a:b@c")
	}
	return m
}

func (b builder) rules() (list []*configv3.RateLimitRule) {
	for range b.IntN(5) {
		m := &configv3.RateLimitRule{
			Match:      make(map[string]string),
			ShadowMode: b.one(3),
			QuotaMode:  b.one(5),
			OnReject:   configv3.OnReject(max(0, b.IntN(8)-5)),
		}
		for range 1 + b.IntN(3) {
			m.Match[pick(b, "a", "b", "c", "", "<<", "5")] = pick(b, "", "*", "v", "w", "v*", "*w", "5", "x y", "é\n", "true")
		}
		if b.one(10) {
			m.Match = nil
		}
		for range b.IntN(3) {
			m.Per = append(m.Per, pick(b, "a", "b", "d", "e", "f", "", "5"))
		}
		if b.one(6) {
			m.Metadata = b.metadata()
		}
		switch b.IntN(8) {
		case 0:
			m.RateLimits = append(m.RateLimits, b.limit(), b.limit())
		default:
			m.RateLimit = b.limit()
		}
		if b.one(50) {
			m.RateLimit = nil
		}
		list = append(list, m)
	}
	return list
}

func (b builder) descriptors(depth int) (list []*configv3.RateLimitDescriptor) {
	if depth == 0 {
		return nil
	}
	for range b.IntN(4) {
		m := &configv3.RateLimitDescriptor{
			Key:            pick(b, "a", "b", "c", "true", "x*"),
			Value:          pick(b, "", "", "v", "w", "5", "v*", "*", "😀"),
			ShadowMode:     b.one(5),
			QuotaMode:      b.one(5),
			DetailedMetric: b.one(5),
			ValueToMetric:  b.one(5),
			Charge:         configv3.Charge(max(0, b.IntN(8)-5)),
			OnReject:       configv3.OnReject(max(0, b.IntN(8)-5)),
			Descriptors:    b.descriptors(depth - 1),
		}
		if b.one(6) {
			b.valueMatch(m)
		}
		m.ShareThreshold = strings.Contains(m.Key+m.Value, "*") && b.one(3) || b.one(100)
		if b.one(100) {
			m.Key = ""
		}
		if b.one(200) {
			m.Charge, m.OnReject = 9, -9
		}
		if b.one(6) {
			m.Metadata = b.metadata()
		}
		switch b.IntN(4) {
		case 0:
		case 1:
			for range b.IntN(3) {
				m.RateLimits = append(m.RateLimits, b.limit())
			}
		default:
			m.RateLimit = b.limit()
		}
		if b.one(100) {
			m.RateLimits = append(m.RateLimits, b.limit())
		}
		list = append(list, m)
	}
	return list
}

// valueMatch gives m a cidr or a regex, which are mostly right, and counts by network.
func (b builder) valueMatch(m *configv3.RateLimitDescriptor) {
	m.Value = pick(b, "", "", "", "", "v")
	switch b.IntN(3) {
	case 0:
		m.Regex = pick(b, "^v", "[ab]+$", "v|w", "^v$", ".*", "(")
	case 1:
		m.Cidr = append(m.Cidr, pick(b, "10.0.0.0/8", "2001:db8::/32", "0.0.0.0/0", "10.0.0.1/8", "a"))
		if b.one(2) {
			m.Cidr = append(m.Cidr, pick(b, "10.1.0.0/16", "192.0.2.0/24", "::/0", ""))
		}
	}
	if b.one(5) {
		m.Exact = proto.String(pick(b, "", "v", "v*"))
	}
	if b.one(20) {
		m.ValuesFrom = "values.txt"
	}
	if b.one(20) {
		m.LimitsFrom = "limits.csv"
	}
	if m.Regex == "" && b.one(2) || b.one(10) {
		m.CountByPrefix = &configv3.PrefixLengths{V4: pick[uint32](b, 0, 24, 24, 7, 33), V6: pick[uint32](b, 0, 64, 64, 129)}
	}
}

func (b builder) metadata() *structpb.Struct {
	m := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for range b.IntN(3) {
		m.Fields[pick(b, "a", "b", "", "<<", "5", "é")] = pick(b,
			structpb.NewNullValue(), structpb.NewBoolValue(true), structpb.NewNumberValue(1.5), structpb.NewNumberValue(1e300),
			structpb.NewNumberValue(math.Copysign(0, -1)), structpb.NewStringValue("yes"), structpb.NewStringValue("\u2028\x7f"),
			structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewStructValue(&structpb.Struct{})}}),
			&structpb.Value{},
		)
	}
	if b.one(50) {
		m.Fields["x"] = structpb.NewNumberValue(math.Inf(1))
	}
	return m
}

func (b builder) limit() *configv3.RateLimitPolicy {
	if b.one(10) {
		m := &configv3.RateLimitPolicy{Unlimited: true, Name: pick(b, "", "n")}
		if b.one(8) {
			m.Unit, m.Burst, m.RequestsPerUnit = configv3.RateLimitUnit_DAY, wrapperspb.UInt64(1), 5
		}
		return m
	}
	m := &configv3.RateLimitPolicy{
		Unit:            configv3.RateLimitUnit(1 + b.IntN(7)),
		RequestsPerUnit: pick[uint32](b, 0, 1, 2, 10, 1000),
		Name:            pick(b, "", "", "n", "m"),
		Algorithm:       configv3.Algorithm(b.IntN(5)),
	}
	if b.one(8) {
		m.LargeRequestsPerUnit = pick[uint64](b, 1, 1e11, algorithm.MaxCapacity)
	}
	if b.one(4) {
		m.UnitMultiplier = pick[uint32](b, 1, 2, 50)
	}
	if b.one(4) {
		m.Unit, m.UnitMultiplier = 0, 0
		m.Period = durationpb.New(pick[time.Duration](b, 1, 1, 2, 90, 3600) * time.Second / pick[time.Duration](b, 1, 1,
			1, 1000))
	}
	if b.one(8) {
		b.calendar(m)
	}
	if b.one(6) {
		b.hold(m)
	}
	if m.Algorithm == configv3.Algorithm_GCRA && b.one(2) {
		m.Burst = wrapperspb.UInt64(pick[uint64](b, 0, 1, 9, algorithm.MaxCapacity-1))
	}
	if m.Algorithm == configv3.Algorithm_GCRA || m.Algorithm == configv3.Algorithm_SLIDING_WINDOW {
		if b.one(2) {
			m.MinInterval = durationpb.New(pick[time.Duration](b, 0, 1e3, 1e6, 1e9))
		}
	}
	if b.one(4) {
		m.CountBlocked = wrapperspb.Bool(b.one(2))
	}
	if b.one(4) {
		m.OnStoreFailure = configv3.OnStoreFailure(b.IntN(5))
	}
	if b.one(4) {
		m.Counting = configv3.Counting(b.IntN(3))
		if m.Counting == configv3.Counting_LEASED {
			m.OnContention = configv3.OnContention(b.IntN(3))
		}
	}
	if b.one(5) {
		m.Notify = b.notify()
	}
	if b.one(6) && m.Algorithm != configv3.Algorithm_CONCURRENCY {
		m.ReserveOnCheck = &configv3.ReserveOnCheck{Estimate: pick[uint64](b, 0, 0, 1, 1)}
		if m.Hold == nil {
			m.ReserveOnCheck.For = durationpb.New(pick(b, time.Second, time.Minute))
		}
	}
	if b.one(6) {
		m.EnforcePercent = wrapperspb.Double(pick(b, 0, 0.5, 10, 10, 99.9, 100))
	}
	if b.one(5) {
		m.Replaces = append(m.Replaces, &configv3.RateLimitReplace{Name: pick(b, "n", "m", "o")})
	}
	if b.one(40) { // something that is wrong
		switch b.IntN(10) {
		case 0:
			m.Unit = 0
		case 9:
			m.Unit, m.UnitMultiplier, m.Period = 0, 1, durationpb.New(time.Minute)
		case 1:
			m.Unit = 88
		case 2:
			m.Algorithm = 88
		case 3:
			m.UnitMultiplier = math.MaxUint32
		case 4:
			m.Period = &durationpb.Duration{Seconds: pick[int64](b, math.MaxInt64, math.MinInt64, -1, 0, 4e9)}
		case 5:
			m.Period = &durationpb.Duration{Seconds: 5, Nanos: pick[int32](b, -1, 1e9, math.MinInt32)}
		case 6:
			m.MinInterval = durationpb.New(pick[time.Duration](b, -1, 1, 4e18))
		case 7:
			m.Burst = wrapperspb.UInt64(7)
		case 8:
			m.Replaces = append(m.Replaces, &configv3.RateLimitReplace{Name: m.Name})
		}
	}
	return m
}

// calendar gives m a calendar, often with a setting that its unit does not have.
func (b builder) calendar(m *configv3.RateLimitPolicy) {
	m.Calendar = !b.one(10)
	m.TimeZone = pick(b, "", "", "UTC", "Europe/Berlin", "Asia/Gaza", "Europe/Berlni")
	if !b.one(5) {
		m.Unit, m.Period, m.Algorithm = pick(b, configv3.RateLimitUnit_DAY, configv3.RateLimitUnit_WEEK,
			configv3.RateLimitUnit_MONTH), nil, 0
	}
	if m.Unit == configv3.RateLimitUnit_MONTH || b.one(10) {
		m.AnchorDay = pick[uint32](b, 0, 1, 15, 28, 29)
	}
	if m.Unit == configv3.RateLimitUnit_WEEK || b.one(10) {
		m.WeekStarts = configv3.DayOfWeek(b.IntN(9))
	}
}

// hold gives m holds, often with a setting that they exclude.
func (b builder) hold(m *configv3.RateLimitPolicy) {
	if b.one(2) {
		m.Algorithm = configv3.Algorithm_CONCURRENCY
		if !b.one(10) {
			m.Unit, m.UnitMultiplier, m.Period = 0, 0, nil
		}
	}
	if !b.one(10) {
		m.Hold = durationpb.New(pick[time.Duration](b, 30, 30, 30, 0, -1, 100_000) * time.Second / pick[time.Duration](b, 1,
			1, 1, 7, 1000))
	}
	m.HoldId = pick(b, "id", "id", "id", "id", "call", "hold", "a", "")
	if m.Algorithm != configv3.Algorithm_CONCURRENCY || b.one(10) {
		m.Unsettled = configv3.Unsettled(b.IntN(4))
	}
}
