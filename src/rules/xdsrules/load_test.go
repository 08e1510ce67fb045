package xdsrules

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/src/rules/compile"
)

// outcome is all that comes of loading resources, as text.
func outcome(resources []*anypb.Any, opt compile.Options) string {
	set, warnings, err := Load(resources, opt)
	if err != nil {
		return err.Error() + "\n"
	}
	var b strings.Builder
	for _, r := range set.Rules() {
		fmt.Fprintf(&b, "%v: %v\n", r.Pos, r)
	}
	for _, w := range warnings {
		fmt.Fprintln(&b, "warning:", w)
	}
	if b.Len() == 0 {
		return "no rules\n"
	}
	return b.String()
}

func anyOf(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

var loadTests = []struct {
	name      string
	resources []string // as protobuf text
	merge     bool
	want      string
}{
	{name: "nothing at all", want: "no rules\n"},
	{
		name: "what envoyproxy/ratelimit's messages have",
		resources: []string{`
			name: "edge" domain: "edge"
			descriptors {
				key: "path" value: "/pay" shadow_mode: true quota_mode: true
				rate_limit { unit: MINUTE requests_per_unit: 100 name: "pay" replaces { name: "all" } }
				metadata { fields { key: "team" value { string_value: "pay" } } }
				descriptors { key: "user" rate_limit { unlimited: true } detailed_metric: true }
			}
			descriptors { key: "path" rate_limit { unit: WEEK requests_per_unit: 5 name: "all" } }
		`},
		want: `
			xds resource "edge": descriptors[0]: edge.path_/pay: unit=MINUTE requests_per_unit=100, shadow_mode: true, quota_mode: true
			xds resource "edge": descriptors[0].descriptors[0]: edge.path_/pay.user: unlimited, shadow_mode: false, quota_mode: false
			xds resource "edge": descriptors[1]: edge.path: unit=WEEK requests_per_unit=5, shadow_mode: false, quota_mode: false
			warning: xds resource "edge": descriptors[0].descriptors[0]: shadow_mode, quota_mode, detailed_metric and metadata have no effect on an unlimited rule; remove it
		`,
	},
	{
		name: "what ours have beyond them",
		resources: []string{`
			name: "edge" domain: "edge" charge: PATH on_reject: NONE
			descriptors {
				key: "user" value: "a*" share_threshold: true
				rate_limit { period { seconds: 1 nanos: 500000000 } requests_per_unit: 10 algorithm: SLIDING_WINDOW min_interval { nanos: 1000000 } count_blocked { value: false } }
				descriptors {
					key: "action" value_to_metric: true charge: LEAF on_reject: EACH
					rate_limits { unit: HOUR unit_multiplier: 2 requests_per_unit: 30 algorithm: GCRA burst { } }
					rate_limits { unit: DAY requests_per_unit: 100 name: "daily" }
				}
			}
		`},
		want: `
			xds resource "edge": descriptors[0]: edge.user_a*: unit=UNKNOWN requests_per_unit=10, shadow_mode: false, quota_mode: false, period: 1.5s, algorithm: sliding_window, min_interval: 1ms, charge: path, on_reject: none
			xds resource "edge": descriptors[0].descriptors[0].rate_limits[0]: edge.user_a*.action: unit=HOUR requests_per_unit=30, shadow_mode: false, quota_mode: false, unit_multiplier: 2, algorithm: gcra, burst: 0
			xds resource "edge": descriptors[0].descriptors[0].rate_limits[1]: edge.user_a*.action.daily: unit=DAY requests_per_unit=100, shadow_mode: false, quota_mode: false
			warning: xds resource "edge": charge: charge: path has no effect: nothing here has a limit on a level above it; remove it, or give a level above a rate_limit
			warning: xds resource "edge": on_reject: on_reject: none is about several limits, and no descriptor here is charged to more than one; remove it, or add limits with rate_limits or charge: path
		`,
	},
	{
		name: "limits that are too large",
		resources: []string{`
			name: "llm" domain: "llm"
			descriptors { key: "a" rate_limit { unit: MONTH requests_per_unit: 4294967295 large_requests_per_unit: 100000000000 } }
			descriptors { key: "b" rate_limit { unit: YEAR large_requests_per_unit: 5 algorithm: GCRA burst { value: 5000000000 } } }
		`, `
			name: "bad" domain: "bad"
			descriptors { key: "d" rate_limit { unit: YEAR large_requests_per_unit: 281474976710657 } }
			descriptors { key: "e" rate_limit { unlimited: true large_requests_per_unit: 18446744073709551615 } }
		`},
		want: `
			xds resource "bad": descriptors[0].rate_limit: requests_per_unit is out of range: "281474976710657"; write 0 to 281474976710656
			xds resource "bad": descriptors[1].rate_limit: requests_per_unit is out of range: "18446744073709551615"; write 0 to 281474976710656
			xds resource "llm": descriptors[1].rate_limit.burst: a burst of 5000000000 takes longer than 100 years to come back, with 5 in 8760h; write a smaller one
		`,
	},
	{
		name: "large limits",
		resources: []string{`
			name: "llm" domain: "llm"
			descriptors { key: "a" rate_limit { unit: MONTH requests_per_unit: 4294967295 large_requests_per_unit: 100000000000 } }
			descriptors { key: "b" rate_limit { unit: YEAR large_requests_per_unit: 100000000000 algorithm: GCRA burst { value: 5000000000 } } }
			descriptors { key: "c" rate_limit { unit: YEAR large_requests_per_unit: 281474976710656 } }
		`},
		want: `
			xds resource "llm": descriptors[0]: llm.a: unit=MONTH requests_per_unit=100000000000, shadow_mode: false, quota_mode: false
			xds resource "llm": descriptors[1]: llm.b: unit=YEAR requests_per_unit=100000000000, shadow_mode: false, quota_mode: false, algorithm: gcra, burst: 5000000000
			xds resource "llm": descriptors[2]: llm.c: unit=YEAR requests_per_unit=281474976710656, shadow_mode: false, quota_mode: false
		`,
	},
	{
		name: "everything wrong at once, in order",
		resources: []string{`
			name: "b" domain: "b"
			descriptors { key: "k0" } descriptors { key: "k1" } descriptors { key: "k2" rate_limit { } }
			descriptors { key: "k3" } descriptors { key: "k4" } descriptors { key: "k5" } descriptors { key: "k6" }
			descriptors { key: "k7" } descriptors { key: "k8" } descriptors { key: "k9" }
			descriptors { key: "k10" rate_limit { unit: 99 requests_per_unit: 1 } }
			descriptors { rate_limit { unit: DAY algorithm: 7 replaces { } } }
			descriptors { key: "k1" charge: 3 on_reject: -1 }
			descriptors { key: "p" rate_limit { period { seconds: 5 nanos: -1 } requests_per_unit: 1 } }
			descriptors { key: "q" rate_limit { period { seconds: 9223372036854775807 } requests_per_unit: 1 } }
			descriptors { key: "r" rate_limit { period { } unit: DAY requests_per_unit: 1 } }
			descriptors { key: "s" metadata { fields { key: "x" value { list_value { values { number_value: inf } } } } } }
			descriptors { key: "t" rate_limits { unit: DAY burst { value: 281474976710656 } } rate_limit { unlimited: true unit: DAY algorithm: GCRA } }
		`, `name: "a"`},
		want: `
			xds resource "a": the domain is missing or empty; add ` + "`domain: <name>`" + `, the name that callers ask for
			xds resource "b": descriptors[2].rate_limit: the rate_limit has no unit; add ` + "`unit: second`, minute, hour, day, week, month or year, or `unlimited: true`" + `
			xds resource "b": descriptors[10].rate_limit.unit: unit "99" is not known; write second, minute, hour, day, week, month or year
			xds resource "b": descriptors[11]: the descriptor has no key, or an empty one; add ` + "`key: <name>`" + `
			xds resource "b": descriptors[11].rate_limit.algorithm: the algorithm "7" is not known; write fixed_window, first_hit_window, sliding_window, sliding_window_counter, gcra or concurrency
			xds resource "b": descriptors[11].rate_limit.replaces[0]: an entry of replaces has no name; add ` + "`name: <the rule to replace>`" + `
			xds resource "b": descriptors[12]: descriptor "k1" is already defined at xds resource "b": descriptors[1], on the same level; remove one, or join their limits and descriptors
			xds resource "b": descriptors[12].charge: charge is neither leaf nor path: "3"; write leaf or path
			xds resource "b": descriptors[12].on_reject: on_reject is neither each nor none: "-1"; write each or none
			xds resource "b": descriptors[13].rate_limit.period: period is no duration: 5 seconds and -1 nanos; send less than a second as nanos, with the sign of seconds
			xds resource "b": descriptors[14].rate_limit.period: a period of 2562047h47m16.854775807s is longer than 100 years; write 876000h or less
			xds resource "b": descriptors[15].rate_limit.period: period and unit exclude each other; remove one of them
			xds resource "b": descriptors[16].metadata: metadata holds NaN or an infinite number, which cannot be sent in an answer; send finite numbers, or text
			xds resource "b": descriptors[17].rate_limit.algorithm: unlimited and algorithm exclude each other; remove one of them
			xds resource "b": descriptors[17].rate_limit.unit: unlimited and unit exclude each other; remove one of them
			xds resource "b": descriptors[17].rate_limits: rate_limit and rate_limits exclude each other; move the rate_limit into the list
			xds resource "b": descriptors[17].rate_limits[0].burst: burst means nothing to the algorithm fixed_window; write ` + "`algorithm: gcra`" + `, or remove it
		`,
	},
	{
		name:      "one domain in several resources",
		resources: []string{`name: "a" domain: "d"`, `name: "b" domain: "d"`, `name: "a" domain: "d"`, `domain: "d"`},
		want: `
			xds resource "b": domain "d" is already defined at xds resource "a"; join the two, rename one, or set MERGE_DOMAIN_CONFIG=true
			xds resource 3, "a": domain "d" is already defined at xds resource "a"; join the two, rename one, or set MERGE_DOMAIN_CONFIG=true
			xds resource 4: domain "d" is already defined at xds resource "a"; join the two, rename one, or set MERGE_DOMAIN_CONFIG=true
		`,
	},
	{
		name: "one domain in several resources, merged",
		resources: []string{
			`name: "a" domain: "d"`,
			`name: "b" domain: "d" descriptors { key: "k" rate_limit { unit: DAY requests_per_unit: 1 } }`,
		},
		merge: true,
		want:  `xds resource "b": descriptors[0]: d.k: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false`,
	},
	{
		name:      "a name of a megabyte, and one that is no line",
		resources: []string{`name: "` + strings.Repeat("é", 1<<19) + `"`, `name: "a\nb"`},
		want: `
			xds resource "a\nb": the domain is missing or empty; add ` + "`domain: <name>`" + `, the name that callers ask for
			xds resource "` + strings.Repeat("é", 30) + `...": the domain is missing or empty; add ` + "`domain: <name>`" + `, the name that callers ask for
		`,
	},
}

func TestLoad(t *testing.T) {
	for _, test := range loadTests {
		t.Run(test.name, func(t *testing.T) {
			var resources []*anypb.Any
			for _, text := range test.resources {
				var m configv3.RateLimitConfig
				if err := prototext.Unmarshal([]byte(text), &m); err != nil {
					t.Fatal(err)
				}
				resources = append(resources, anyOf(t, &m))
			}
			want := strings.TrimSpace(strings.ReplaceAll(test.want, "\n\t\t\t", "\n")) + "\n"
			if got := outcome(resources, compile.Options{MergeDomains: test.merge}); got != want {
				t.Errorf("got:\n%swant:\n%s", got, want)
			}
		})
	}
}

// What is no resource of the type is refused with its number; the rest is
// looked at all the same.
func TestLoadUnreadable(t *testing.T) {
	good := anyOf(t, &configv3.RateLimitConfig{Domain: "d"})
	tests := []struct {
		name string
		a    *anypb.Any
		want string
	}{
		{"nothing", nil, `its type is ""; send ` + TypeURL},
		{"no type", &anypb.Any{Value: good.Value}, `its type is ""; send ` + TypeURL},
		{
			"another type", anyOf(t, durationpb.New(5)),
			`its type is "type.googleapis.com/google.protobuf.Duration"; send ` + TypeURL,
		},
		{
			"a type of a megabyte", &anypb.Any{TypeUrl: strings.Repeat("a", 1<<20)},
			`its type is "` + strings.Repeat("a", 60) + `..."; send ` + TypeURL,
		},
		{"half a message", &anypb.Any{TypeUrl: TypeURL, Value: []byte{0x12, 0x05, 'd'}}, "it cannot be read: "},
		{
			"text that is not UTF-8", &anypb.Any{TypeUrl: TypeURL, Value: []byte{0x12, 0x01, 0xff}},
			"it cannot be read: string field contains invalid UTF-8",
		},
		{"10,001 levels", &anypb.Any{TypeUrl: TypeURL, Value: levels(10_001)}, "it cannot be read: "},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := outcome([]*anypb.Any{good, test.a, anyOf(t, &configv3.RateLimitConfig{Name: "last"})}, compile.Options{})
			lines := strings.Split(got, "\n")
			if len(lines) != 3 || !strings.HasPrefix(lines[0], `xds resource "last": the domain is missing`) ||
				!strings.HasPrefix(lines[1], "xds resource 2: "+test.want) ||
				strings.Contains(test.want, "send") && !strings.HasSuffix(lines[1], test.want) {
				t.Errorf("got:\n%s", got)
			}
		})
	}
}

// levels is a resource of so many descriptors, each in the one before, on the
// wire.
func levels(n int) []byte {
	below := []byte{}
	for i := range n {
		field := byte(4<<3 | 2) // descriptors of a descriptor
		if i == n-1 {
			field = 3<<3 | 2 // of the resource
		}
		one := append([]byte{}, 0x0a, 1, 'k') // the key
		one = append(one, below...)
		head := []byte{field}
		for size := len(one); ; size >>= 7 {
			if size < 0x80 {
				head = append(head, byte(size))
				break
			}
			head = append(head, byte(size)|0x80)
		}
		below = append(head, one...)
	}
	return append([]byte{0x12, 1, 'd'}, below...)
}

// Messages from the wire are never nil within lists, but those that a program
// made may be. Nil means empty.
func TestNilMessages(t *testing.T) {
	r := reader{placeBytesLeft: maxPlaceBytes}
	configs := []compile.DomainConfig{
		r.readDomain("a", nil),
		r.readDomain("b", &configv3.RateLimitConfig{Domain: "d", Descriptors: []*configv3.RateLimitDescriptor{
			nil,
			{Key: "k", RateLimits: []*configv3.RateLimitPolicy{
				nil,
				{Unit: configv3.RateLimitUnit_DAY, Replaces: []*configv3.RateLimitReplace{nil}},
			}},
		}}),
	}
	_, _, err := compile.Compile(configs, compile.Options{})
	const want = "a: the domain is missing or empty; add `domain: <name>`, the name that callers ask for\n" +
		"b: descriptors[0]: the descriptor has no key, or an empty one; add `key: <name>`\n" +
		"b: descriptors[1].rate_limits[0]: the rate_limit has no unit; add `unit: second`, minute, hour, day, week, month " +
		"or year, or `unlimited: true`\n" +
		"b: descriptors[1].rate_limits[1].replaces[0]: an entry of replaces has no name; add `name: <the rule to replace>`"
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}

func wire(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
