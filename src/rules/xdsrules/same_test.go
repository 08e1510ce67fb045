package xdsrules

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/yamlrules"
)

var places = regexp.MustCompile(`a\.yaml:\d+:\d+|xds resource 1(: [a-z_]+(\[\d+\])?(\.[a-z_]+(\[\d+\])?)*)?`)

// said are problems without their places, which differ.
func said(problems rules.Problems) (list []string) {
	for _, p := range problems {
		list = append(list, places.ReplaceAllString(p.Message+"; "+p.Fix, "@"))
	}
	slices.Sort(list)
	return list
}

var atLine = regexp.MustCompile(`(?m)^  at: .*$`)

// dump is a set as /rlconfig shows it, in both forms.
func dump(t testing.TB, set *rules.Set) string {
	t.Helper()
	var all bytes.Buffer
	if err := yamlrules.Write(&all, set); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.Write(atLine.ReplaceAll(all.Bytes(), nil))
	for _, r := range set.Rules() {
		fmt.Fprintln(&b, r)
	}
	for _, d := range set.Domains() {
		fmt.Fprintln(&b, d.Name, d.DescriptorNames)
	}
	return b.String()
}

// sameAsFile fails if a resource does not mean what the same rules mean in a
// file. It reports whether they are good.
func sameAsFile(t testing.TB, m *configv3.RateLimitConfig) bool {
	t.Helper()
	m.Name = "" // of no consequence, and in the way of comparing
	set, warnings, err := Load([]*anypb.Any{anyOf(t, m)}, compile.Options{})
	var problems rules.Problems
	errors.As(err, &problems)
	if wireOnly(m) {
		if err == nil {
			t.Fatalf("%v has no form in YAML, but was taken", m)
		}
		return false
	}
	file := inYAML(m)
	set2, warnings2, err2 := filerules.Load([]filerules.File{{Name: "a.yaml", Data: file}}, compile.Options{})
	var problems2 rules.Problems
	errors.As(err2, &problems2)
	if !slices.Equal(said(problems), said(problems2)) {
		t.Fatalf("%v is refused:\n%s\nbut as a file:\n%s\n%s", m, strings.Join(said(problems), "\n"),
			strings.Join(said(problems2), "\n"), file)
	}
	if err != nil {
		return false
	}
	if !slices.Equal(said(warnings), said(warnings2)) {
		t.Fatalf("%v is warned of:\n%s\nbut as a file:\n%s\n%s", m, strings.Join(said(warnings), "\n"),
			strings.Join(said(warnings2), "\n"), file)
	}
	if got, want := dump(t, set), dump(t, set2); got != want {
		t.Fatalf("%v becomes\n%s\nbut as a file\n%s\n%s", m, got, want, file)
	}
	return true
}

// FuzzLoad reads whatever comes as a resource: nothing may panic, each problem
// has a place, the same bytes give the same result twice, and the result is that
// of the same rules in a file.
func FuzzLoad(f *testing.F) {
	for i := range 50 {
		b := builder{rand.New(rand.NewPCG(2, uint64(i)))}
		f.Add(wire(f, b.anyOf()))
	}
	f.Add(levels(101))
	f.Add([]byte("\x1a\x00\x1a\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		resources := []*anypb.Any{{TypeUrl: TypeURL, Value: data}}
		set, warnings, err := Load(resources, compile.Options{})
		set2, warnings2, err2 := Load(resources, compile.Options{})
		if fmt.Sprint(err) != fmt.Sprint(err2) || !reflect.DeepEqual(warnings, warnings2) || (set == nil) != (set2 == nil) ||
			(set == nil) != (err != nil) {
			t.Fatalf("two loads differ: %v, %v, %v, and %v, %v, %v", set, warnings, err, set2, warnings2, err2)
		}
		var problems rules.Problems
		if err != nil && !errors.As(err, &problems) {
			t.Fatal(err)
		}
		for _, p := range slices.Concat(problems, warnings) {
			if !strings.HasPrefix(p.File, "xds resource ") || p.Message == "" {
				t.Fatalf("the problem %q has no place or no words", p)
			}
		}
		var m configv3.RateLimitConfig
		if proto.Unmarshal(data, &m) != nil {
			return
		}
		if len(data) < 10_000 {
			sameAsFile(t, &m)
		}
	})
}
