package xdsrules

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/src/rules"
)

// TypeURL is the type of the resources, as it is asked for.
const TypeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// maxPlaces bounds the paths of all parts of all resources together, in bytes.
// A message of two bytes that is deep down has a path of thousands. 100,000
// rules with paths of 100 bytes need 10 MB.
const maxPlaces = 64 << 20

// received is a resource of a response.
type received struct {
	rules.Source
	place string // how problems call it
	any   *anypb.Any
}

// Load compiles all resources of a response into one Set, as loading.Load does
// files. The error, if any, is rules.Problems with all that is wrong in all of
// them. No resources at all are a good, empty set. Their order does not matter.
func Load(resources []*anypb.Any, opt rules.Options) (*rules.Set, rules.Problems, error) {
	set, warnings, _, err := load(resources, opt)
	return set, warnings, err
}

// load is Load, and returns what it knows of each resource.
func load(resources []*anypb.Any, opt rules.Options) (*rules.Set, rules.Problems, []received, error) {
	type numbered struct {
		*configv3.RateLimitConfig
		i int
	}
	r := reader{left: maxPlaces}
	list := make([]received, len(resources))
	messages := make([]numbered, 0, len(resources))
	for i, whole := range resources {
		place := fmt.Sprintf("xds resource %d", i+1)
		list[i] = received{Source: rules.Source{Name: place}, place: place, any: whole}
		m := &configv3.RateLimitConfig{}
		inner, err := unwrap(whole)
		switch {
		case err != nil:
			r.problem(place, "", "it cannot be read: %v", err)
			continue
		case !inner.MessageIs(m):
			r.problem(place, "send "+TypeURL, "its type is %q", short(inner.GetTypeUrl()))
			continue
		}
		if err := proto.Unmarshal(inner.GetValue(), m); err != nil {
			r.problem(place, "", "it cannot be read: %v", err)
			continue
		}
		messages = append(messages, numbered{m, i})
	}
	// Servers keep resources in maps and send them in any order; the outcome is to
	// be the same. Those without a name have no better order than that.
	slices.SortStableFunc(messages, func(a, b numbered) int {
		if (a.GetName() == "") != (b.GetName() == "") {
			return len(b.GetName()) - len(a.GetName())
		}
		return strings.Compare(a.GetName(), b.GetName())
	})
	configs := make([]rules.DomainConfig, 0, len(messages))
	named := make(map[string]bool)
	for _, m := range messages {
		known := &list[m.i]
		known.place = placeOf(m.GetName(), m.i, named)
		known.Source = sourceOf(m.RateLimitConfig)
		configs = append(configs, r.domain(known.place, m.RateLimitConfig))
	}
	if r.left < 0 { // not everything was read
		return nil, nil, nil, r.problems
	}
	set, warnings, err := rules.Compile(configs, opt)
	var refused rules.Problems
	if errors.As(err, &refused) {
		r.problems = append(r.problems, refused...)
	}
	if len(r.problems) > 0 {
		slices.SortStableFunc(r.problems, byPlace)
		// As with files, one mistake is one problem.
		return nil, nil, list, slices.CompactFunc(r.problems, func(a, b rules.Problem) bool { return a.Pos == b.Pos })
	}
	slices.SortStableFunc(warnings, byPlace)
	return set, warnings, list, nil
}

// sourceOf names a resource by its domain if it has no name of its own.
func sourceOf(m *configv3.RateLimitConfig) rules.Source {
	s := rules.Source{Name: m.GetName(), Domain: m.GetDomain()}
	if s.Name == "" {
		s.Name = "\x00" + s.Domain
	}
	return s
}

// unwrap is what a resource holds: servers that give resources a time to live
// send them in an envelope.
func unwrap(resource *anypb.Any) (*anypb.Any, error) {
	var envelope discovery.Resource
	if !resource.MessageIs(&envelope) {
		return resource, nil
	}
	if err := proto.Unmarshal(resource.GetValue(), &envelope); err != nil {
		return nil, err
	}
	return envelope.GetResource(), nil
}

// isHeartbeat tells that a response only says that resources are still there:
// in envelopes with nothing in them.
func isHeartbeat(resources []*anypb.Any) bool {
	for _, r := range resources {
		if inner, err := unwrap(r); err == nil && inner == nil {
			return true
		}
	}
	return false
}

// placeOf is how messages call the resource with that name and index: by its
// name, unless that is empty or another's, too.
func placeOf(name string, i int, named map[string]bool) string {
	if name == "" {
		return fmt.Sprintf("xds resource %d", i+1)
	}
	place := fmt.Sprintf("xds resource %q", short(name))
	if named[place] {
		place = fmt.Sprintf("xds resource %d, %q", i+1, short(name))
	}
	named[place] = true
	return place
}

// short is a name for a message.
func short(name string) string {
	const most = 60
	if len(name) > most {
		return strings.ToValidUTF8(name[:most], "") + "..."
	}
	return name
}

// byPlace orders descriptors[2] before descriptors[10].
func byPlace(a, b rules.Problem) int {
	x, y := a.File, b.File
	i := 0
	for i < len(x) && i < len(y) && x[i] == y[i] {
		i++
	}
	x, y = x[i:], y[i:]
	if n, m := digits(x), digits(y); n != m { // of two numbers the longer one is larger
		return n - m
	}
	return strings.Compare(x, y)
}

// digits is how many s begins with.
func digits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }
