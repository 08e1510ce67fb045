package rules_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/match"
)

// loaded returns the only domain of a rule file.
func loaded(t testing.TB, text string) (*rules.Domain, rules.Problems) {
	t.Helper()
	set, warnings, err := filerules.Load([]filerules.File{{Name: "a.yaml", Data: []byte(text)}}, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set.Domains()[0], warnings
}

const matchRules = `
domain: d
descriptors:
- {key: ip, rate_limit: &limit {unit: day, requests_per_unit: 1}, count_by_prefix: {v4: 24}}
- {key: ip, value: "10.1.*", rate_limit: *limit}
- {key: ip, regex: '^10\.1\.', rate_limit: *limit}
- {key: ip, cidr: [10.1.0.0/16, "2001:db8::/32"], count_by_prefix: {v6: 64}, rate_limit: *limit}
- {key: ip, cidr: 10.0.0.0/8, share_threshold: true, rate_limit: *limit}
- {key: ip, value: 10.1.1.1, rate_limit: *limit}
- {key: ip, regex: '^$', rate_limit: *limit}
- {key: "i*", rate_limit: *limit}
- {key: path, regex: '/v[12]/', share_threshold: true, rate_limit: *limit}
- {key: path, regex: '^/a', value_to_metric: true, rate_limit: *limit}
- {key: path, value: "^/a", value_to_metric: false, rate_limit: *limit}
- key: net
  cidr: 10.0.0.0/8
  count_by_prefix: {v4: 16}
  descriptors:
  - {key: user, detailed_metric: true, rate_limit: *limit}
  - {key: path, regex: x, share_threshold: true, rate_limit: *limit}
`

// TestValueMatches has the precedence of all ways to match a value, and the keys and names of what they count.
func TestValueMatches(t *testing.T) {
	t.Parallel()
	d, _ := loaded(t, matchRules)
	for _, tt := range []struct{ request, rule, key, name string }{
		{"ip=10.1.1.1", "d.ip_10.1.1.1", "ip_10.1.1.1_", "d.ip_10.1.1.1"},
		{"ip=10.1.1.2", "d.ip_10.1.0.0/16", "ip_10.1.1.2_", "d.ip_10.1.0.0/16"},
		{"ip=::ffff:10.1.1.2", "d.ip_10.1.0.0/16", "ip_%3A%3Affff%3A10.1.1.2_", "d.ip_10.1.0.0/16"},
		{"ip=10.2.1.2", "d.ip_10.0.0.0/8", "ip_ip:cidr:10.0.0.0/8_", "d.ip_10.0.0.0/8"},
		{"ip=2001:DB8::1:0:0:0:1", "d.ip_10.1.0.0/16", "ip_:2001%3Adb8%3A0%3A1%3A%3A/64_", "d.ip_10.1.0.0/16"},
		{"ip=10.1.1.2:80", `d.ip_^10\.1\.`, "ip_10.1.1.2%3A80_", `d.ip_^10\.1\.`},
		{"ip=", "d.ip_^$", "ip__", "d.ip_^$"},
		{"ip=192.0.2.9", "d.i*", "ip_192.0.2.9_", "d.ip_i*"},
		{"path=/b/v1/c", "d.path_/v[12]/", "path_path:regex:/v[12]/_", "d.path_/v[12]/"},
		{"path=/a/v3", "d.path_^/a", "path_/a/v3_", "d.path_/a/v3"},
		{"path=^/a", "d.path_^/a", "path_^/a_", "d.path_^/a"},
		{"path=b", "", "", ""},
		{"net=10.1.2.3,user=x", "d.net_10.0.0.0/8.user", "net_:10.1.0.0/16_user_x_", "d.net_10.1.0.0/16.user_x"},
		{"net=10.1.2.3,path=xx", "d.net_10.0.0.0/8.path_x", "net_:10.1.0.0/16_path_path:regex:x_", "d.net_10.0.0.0/8.path_x"},
		{"net=11.1.2.3,user=x", "", "", ""},
	} {
		request := parseEntries(tt.request)
		rule := lastLimit(find(d, request))
		if rule == nil {
			if tt.rule != "" {
				t.Errorf("%s: no rule, want %s", tt.request, tt.rule)
			}
			continue
		}
		key, _ := (&rules.KeyFormat{EscapeKeys: true}).AppendKey(nil, d, rule, request)
		if name := string(rule.AppendMetricName(nil, request, '.')); rule.FullName != tt.rule || string(key) != "d_"+tt.key ||
			name != tt.name {
			t.Errorf("%s: rule %s, key %s, name %s; want %s, d_%s, %s", tt.request, rule.FullName, key, name, tt.rule, tt.key,
				tt.name)
		}
	}
}

// TestCountedEntries has what operators are shown of a counter, and the starts of keys by which they find it.
func TestCountedEntries(t *testing.T) {
	t.Parallel()
	d, _ := loaded(t, matchRules)
	for request, want := range map[string]string{
		"net=10.1.2.3,user=x":  "net=10.1.0.0/16,user=x",
		"net=10.1.2.3,path=xx": "net=10.1.0.0/16,path=x",
		"ip=10.1.2.3":          "ip=10.1.2.3",
		"ip=2001:db8::1":       "ip=2001:db8::/64",
		"ip=10.2.3.4":          "ip=10.0.0.0/8",
		"path=/v1/x":           "path=/v[12]/",
	} {
		entries := parseEntries(request)
		var got []string
		for _, e := range lastLimit(find(d, entries)).AppendCounterEntries(nil, entries) {
			got = append(got, string(e.Key)+"="+string(e.Value))
		}
		if joined := strings.Join(got, ","); joined != want {
			t.Errorf("%s is shown as %s, want %s", request, joined, want)
		}
	}
	for entries, want := range map[string]string{
		"net=10.":             "d_net_10. d_net_:10.",
		"net=10.1.2.3,user=a": "d_net_:10.1.0.0/16_user_a",
		"net=x,user=a":        "d_net_x_user_a",
		"path=/":              "d_path_/",
	} {
		prefixes, err := (&rules.KeyFormat{EscapeKeys: true}).KeyPrefixes(d, parseEntries(entries))
		var got []string
		for _, p := range prefixes {
			got = append(got, string(p.Text))
		}
		if joined := strings.Join(got, " "); err != nil || joined != want {
			t.Errorf("%s: the prefixes are %s, %v, want %s", entries, joined, err, want)
		}
	}
}

// TestLongValues are cut for regular expressions, so that nobody escapes a limit with one.
func TestLongValues(t *testing.T) {
	t.Parallel()
	d, _ := loaded(
		t, "domain: d\ndescriptors:\n- {key: a, regex: '^x+$', rate_limit: {unit: day, requests_per_unit: 1}}\n")
	long := strings.Repeat("x", match.MaxRegexValue)
	for value, want := range map[string]bool{
		"x": true, "xy": false, long: true, long[1:] + "y": false, long + "y": true,
		"y" + long: false,
	} {
		if got := find(d, []rules.Entry{{[]byte("a"), []byte(value)}}) != nil; got != want {
			t.Errorf("%d bytes that end with %q match: %t, want %t", len(value), value[len(value)-1:], got, want)
		}
	}
}

// TestBoundsOfRegexes refuses what would cost too much.
func TestBoundsOfRegexes(t *testing.T) {
	t.Parallel()
	many := func(n int, format string) (list []compile.DescriptorConfig) {
		for i := range n {
			list = append(list, compile.DescriptorConfig{
				Key:   "a",
				Regex: &compile.Positioned[string]{Value: fmt.Sprintf(format, i)},
			})
		}
		return list
	}
	for _, tt := range []struct {
		list []compile.DescriptorConfig
		want string
	}{
		{many(compile.MaxRegexes, "^%d$"), ""},
		{many(compile.MaxRegexes+1, "^%d$"), "more than 100 regular expressions on one level"},
		{many(5, "x{450}.{450}%d"), ""},
		{many(6, "x{450}.{450}%d"), "more than 5000 steps"},
		{many(1, strings.Repeat("x", compile.MaxRegexLength+1)+"%d"), "longer than 1000 bytes"},
		{many(1, "((x{10}){10}){10}%d"), "steps, and 1000 are the most"},
	} {
		_, _, err := compile.Compile([]compile.DomainConfig{{Domain: "d", Descriptors: tt.list}}, compile.Options{})
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%d expressions like %.20s: %v, want %s", len(tt.list), tt.list[0].Regex.Value, err, tt.want)
		}
	}
}

// FuzzParseAddress compares with net/netip.
func FuzzParseAddress(f *testing.F) {
	for _, text := range []string{
		"10.1.2.3", "010.1.2.3", "1.2.3", "1.2.3.4.5", "1.2.3.256", "::", ":", "::1", "1::", "1:::2", "1::2::3",
		"1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8:9",
		"1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1:2:3:4::5:6:7:8", "::ffff:1.2.3.4", "1:2:3:4:5:6:1.2.3.4",
		"1:2:3:4:5:6:7:1.2.3.4", "::1.2.3", "12345::", "fe80::1%eth0",
		"::ffff:0:0", "1.2.3.4:80", "[::1]", "ABCD:ef01::", "1:2:3:4:5:6:7", ":1", "1:", "::1.2.3.4:5", "::00001",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		want, err := netip.ParseAddr(string(text))
		got, ok := rules.ParseAddress(text)
		if ok != (err == nil && want.Zone() == "") || ok && got != want.Unmap() {
			t.Fatalf("%q is %v, %t, want %v, %v", text, got, ok, want, err)
		}
	})
}

// These are the parts of FuzzValueMatch.
var (
	matchValues = []string{
		"10.1.2.3", "10.1.2.200", "10.9.0.1", "::ffff:10.1.2.3", "2001:db8::1", "2001:DB8:0::2", "2001:db8:1::",
		"fe80::1%eth0", "10.1.2.3:80", "", "x", "/api",
		"/api/v1", "10.01.2.3", "192.0.2.1", "10.0.0.0/8",
	}
	matchNetworks = []string{
		"0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/9", "10.128.0.0/9", "10.1.0.0/16", "10.1.2.0/24", "10.1.2.3/32", "::/0",
		"2001:db8::/32", "2001:db8::/64", "2001:db8:1::/48",
	}
	matchRegexes = []string{
		"^/api", "^/api/v1", "v1$", `^10\.`, "x|y", ".*", "^$", "(?i)^X$", "^x$",
		"10.0.0.0/8", "^/a?",
	}
	matchWildcards = []string{"10.*", "*", "/api*", "*1", "10.0.0.0/8*"}
)

// FuzzValueMatch builds descriptors of one key from bytes, and compares what two requests find, and whether they share
// a counter, with a search one by one.
func FuzzValueMatch(f *testing.F) {
	f.Add([]byte("\x00\x41\x82\xc3\x44\x85\xc6\x07"), uint8(0), uint8(3))
	draw := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		list := make([]byte, 1+draw.IntN(12))
		for i := range list {
			list[i] = byte(draw.IntN(256))
		}
		f.Add(list, uint8(draw.IntN(16)), uint8(draw.IntN(16)))
	}
	f.Fuzz(func(t *testing.T, list []byte, one, other uint8) {
		if len(list) > 40 {
			return
		}
		cfg := matchConfig(list)
		set, warnings, err := compile.Compile([]compile.DomainConfig{{Domain: "d", Descriptors: cfg}}, compile.Options{})
		if err != nil {
			t.Fatalf("%+v: %v", cfg, err)
		}
		d := set.Domains()[0]
		var keys, identities [2]string
		for i, value := range []string{matchValues[one&15], matchValues[other&15]} {
			request := []rules.Entry{{[]byte("a"), []byte(value)}}
			r, want := find(d, request), slowMatch(cfg, value)
			switch {
			case explain(d, request).Found != r:
				t.Fatalf("%s in %v: Explain finds another rule than %v", value, cfg, r)
			case r == nil && want == nil:
				return
			case r == nil || want == nil || r.Pos != want.Pos:
				t.Fatalf("%s in %v finds %v, want %v", value, cfg, r, want)
			}
			for _, w := range warnings {
				if w.Line == r.Pos.Line && (strings.HasPrefix(w.Message, "no request") ||
					strings.HasPrefix(w.Message, "no address")) {
					t.Fatalf("%s in %v finds what was warned of: %v", value, cfg, w)
				}
			}
			key, _ := (&rules.KeyFormat{EscapeKeys: true}).AppendKey(nil, d, lastLimit(r), request)
			keys[i], identities[i] = string(key), slowIdentity(want, value)
		}
		if (keys[0] == keys[1]) != (identities[0] == identities[1]) {
			t.Fatalf("%s and %s in %v have the keys %s and %s, and count by %s and %s", matchValues[one&15],
				matchValues[other&15], cfg, keys[0], keys[1], identities[0], identities[1])
		}
	})
}

// matchConfig returns descriptors of the key a, each with another way to match. Two bits of a byte are its kind.
func matchConfig(list []byte) (all []compile.DescriptorConfig) {
	seen := make(map[string]bool)
	for i, b := range list {
		at := rules.Pos{File: "a", Line: i + 1}
		text := func(s string) *compile.Positioned[string] { return &compile.Positioned[string]{Pos: at, Value: s} }
		d := compile.DescriptorConfig{Key: "a"}
		d.Pos, d.RateLimit, d.ShareThreshold = at, &compile.RateLimitConfig{Unit: "day"}, b&0x20 != 0
		n := int(b & 15)
		pick := func(list []string) string { return list[n%len(list)] }
		name := ""
		switch b >> 6 {
		case 0:
			d.Value, d.ShareThreshold = matchValues[n], false
			name = d.Value
		case 1:
			network := pick(matchNetworks)
			d.CIDR, name = &compile.Positioned[[]compile.Positioned[string]]{Value: []compile.Positioned[string]{*text(
				network)}}, "cidr "+network
			if bits := uint32(netip.MustParsePrefix(network).Bits()); b&0x10 != 0 && !d.ShareThreshold && bits < 30 {
				d.CountByPrefix = &compile.PrefixLengthsConfig{V4: &compile.Positioned[uint32]{Value: max(8, bits)}}
			}
		case 2:
			d.Regex = text(pick(matchRegexes))
			name = "regex " + d.Regex.Value
		default:
			d.Value = pick(matchWildcards)
			name = d.Value
		}
		if d.Value == "" && b>>6 == 0 && b&0x10 != 0 {
			d.CountByPrefix = &compile.PrefixLengthsConfig{
				V4: &compile.Positioned[uint32]{Value: 24},
				V6: &compile.Positioned[uint32]{Value: 32},
			}
		}
		if !seen[name] {
			all = append(all, d)
		}
		seen[name] = true
	}
	return all
}

// slowAddress returns the address that value is, by net/netip.
func slowAddress(value string) (netip.Addr, bool) {
	address, err := netip.ParseAddr(value)
	return address.Unmap(), err == nil && address.Zone() == ""
}

// slowMatch finds the descriptor for a value by the words of the documentation.
func slowMatch(list []compile.DescriptorConfig, value string) (found *compile.DescriptorConfig) {
	step := func(matches func(d *compile.DescriptorConfig) bool) {
		for i := range list {
			if found == nil && matches(&list[i]) {
				found = &list[i]
			}
		}
	}
	plain := func(d *compile.DescriptorConfig) bool { return d.CIDR == nil && d.Regex == nil }
	step(func(d *compile.DescriptorConfig) bool { return plain(d) && value != "" && d.Value == value })
	if address, ok := slowAddress(value); ok {
		for bits := 128; bits >= 0; bits-- {
			step(func(d *compile.DescriptorConfig) bool {
				if d.CIDR == nil {
					return false
				}
				network := netip.MustParsePrefix(d.CIDR.Value[0].Value)
				return network.Bits() == bits && network.Contains(address)
			})
		}
	}
	step(func(d *compile.DescriptorConfig) bool {
		return d.Regex != nil && regexp.MustCompile(d.Regex.Value).MatchString(value)
	})
	step(func(d *compile.DescriptorConfig) bool {
		return plain(d) && strings.Contains(d.Value, "*") && glob(d.Value, value)
	})
	step(func(d *compile.DescriptorConfig) bool { return plain(d) && d.Value == "" })
	return found
}

// slowIdentity tells the counter of a value from all others.
func slowIdentity(d *compile.DescriptorConfig, value string) string {
	if d.ShareThreshold {
		return fmt.Sprintf("shared %v", d.Pos)
	}
	if address, ok := slowAddress(value); ok && d.CountByPrefix != nil {
		length := d.CountByPrefix.V4
		if address.Is6() {
			length = d.CountByPrefix.V6
		}
		if length != nil {
			network, _ := address.Prefix(int(length.Value))
			return fmt.Sprintf("network %v", network)
		}
	}
	return "value " + value
}

// BenchmarkMatch finds rules among many networks, and by regular expressions.
func BenchmarkMatch(b *testing.B) {
	const networks = 100_000
	draw := rand.New(rand.NewPCG(1, 2))
	list := compile.Positioned[[]compile.Positioned[string]]{}
	seen := make(map[netip.Prefix]bool)
	for len(seen) < networks {
		a := netip.AddrFrom4([4]byte{
			byte(1 + draw.IntN(223)), byte(draw.IntN(256)), byte(draw.IntN(256)),
			byte(draw.IntN(256)),
		})
		bits := 12 + draw.IntN(21)
		if len(seen)%4 == 0 {
			a = netip.AddrFrom16([16]byte{
				0x20, 0x01, byte(draw.IntN(32)), byte(draw.IntN(256)), byte(draw.IntN(256)),
				byte(draw.IntN(256)),
			})
			bits = 24 + draw.IntN(25)
		}
		if prefix, _ := a.Prefix(bits); !seen[prefix] {
			seen[prefix] = true
			list.Value = append(list.Value, compile.Positioned[string]{Value: prefix.String()})
		}
	}
	limit := &compile.RateLimitConfig{Unit: "day", RequestsPerUnit: 1}
	descriptors := []compile.DescriptorConfig{
		{Key: "ip", CIDR: &list, LimitsConfig: compile.LimitsConfig{RateLimit: limit}},
		{
			Key: "path", Regex: &compile.Positioned[string]{Value: "^/api/v[12]/"},
			LimitsConfig: compile.LimitsConfig{RateLimit: limit},
		},
	}
	set, _, err := compile.Compile([]compile.DomainConfig{{Domain: "d", Descriptors: descriptors}}, compile.Options{})
	if err != nil {
		b.Fatal(err)
	}
	d := set.Domains()[0]
	inside := make([]string, 1<<14)
	for i := range inside {
		prefix := netip.MustParsePrefix(list.Value[draw.IntN(networks)].Value)
		inside[i] = prefix.Addr().String()
	}
	for _, bench := range []struct {
		name, key string
		values    []string
	}{
		{"100,000 networks, found", "ip", inside},
		{"100,000 networks, one address", "ip", inside[:1]},
		{"100,000 networks, not found", "ip", []string{"240.1.2.3"}},
		{"100,000 networks, not an address", "ip", []string{"unix:/run/envoy.sock"}},
		{"regex, found", "path", []string{"/api/v1/items/7777"}},
		{"regex, not found", "path", []string{"/static/style.css"}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			var scratch rules.SearchScratch
			request := []rules.Entry{{[]byte(bench.key), nil}}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				request[0].Value = append(request[0].Value[:0], bench.values[i&(len(bench.values)-1)]...)
				d.FindRule(request, &scratch)
				i++
			}
		})
	}
}

// TestSampleValues matches each level with the value that tools show for it.
func TestSampleValues(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`^/api/v[12]/`, `[^a-z]+$`, `(a|b)c{2,3}d?`, `\bfoo\b`, `^\d{3}-\w+$`, `(?i)^GET`, `.`} {
		cfg := compile.DescriptorConfig{Key: "a", Regex: &compile.Positioned[string]{Value: text}}
		cfg.RateLimit = &compile.RateLimitConfig{Unit: "day"}
		set, _, err := compile.Compile([]compile.DomainConfig{{Domain: "d", Descriptors: []compile.DescriptorConfig{cfg}}},
			compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if sample := set.Rules()[0].Path[0].SampleValue(); !regexp.MustCompile(text).MatchString(sample) {
			t.Errorf("%s does not match %q", text, sample)
		}
	}
	d, _ := loaded(t, matchRules)
	if r := find(d, parseEntries("ip=2001:db8::1")); slices.ContainsFunc(r.Path,
		func(l rules.Level) bool { return l.SampleValue() != "10.1.0.0" }) {
		t.Errorf("the samples of %v", r)
	}
}
