package xdsrules

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/src/rules"
	"ratelimit/src/rules/reload"
)

// TypeURL is the type of the resources, as it is asked for.
const TypeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// maxPlaces bounds the paths of all parts of all resources together, in bytes: a message of two bytes that is nested deeply has a
// path of thousands. 100,000 rules with paths of 100 bytes need 10 MB.
const maxPlaces = 64 << 20

// Load compiles all resources of a response into one Set, as loading.Load compiles files. The error, if any, is rules.Problems
// with the problems of all resources. No resources are an accepted, empty set. Their order does not matter.
func Load(resources []*anypb.Any, opt rules.Options) (*rules.Set, rules.Problems, error) {
	return compile(partsOf(resources), opt)
}

// partsOf returns resources as parts of a load.
func partsOf(resources []*anypb.Any) []reload.Part {
	parts := make([]reload.Part, 0, len(resources))
	for _, r := range resources {
		parts = append(parts, reload.Part{Type: r.GetTypeUrl(), Data: r.GetValue()})
	}
	return parts
}

// resource is a part that has been read.
type resource struct {
	reload.Identity
	message *configv3.RateLimitConfig // nil: it cannot be read
}

// read reads parts, in their order. Problems are added to r.
func (r *reader) read(parts []reload.Part) []resource {
	list := make([]resource, len(parts))
	named := make(map[string]bool)
	for i, p := range parts {
		place := fmt.Sprintf("xds resource %d", i+1)
		list[i] = resource{Identity: reload.Identity{Name: place, Place: place}}
		m := &configv3.RateLimitConfig{}
		inner, err := unwrap(p)
		if err == nil && !inner.MessageIs(m) {
			r.problem(place, "send "+TypeURL, "its type is %q", short(inner.GetTypeUrl()))
			continue
		}
		if err == nil {
			err = proto.Unmarshal(inner.GetValue(), m)
		}
		if err != nil {
			r.problem(place, "", "it cannot be read: %v", err)
			continue
		}
		name := cmp.Or(m.GetName(), "\x00"+m.GetDomain()) // a resource without a name is identified by its domain
		list[i] = resource{reload.Identity{Name: name, Domain: m.GetDomain(), Place: placeOf(m.GetName(), i, named)}, m}
	}
	return list
}

// identify returns the identities of parts.
func identify(parts []reload.Part) []reload.Identity {
	var r reader
	ids := make([]reload.Identity, 0, len(parts))
	for _, one := range r.read(parts) {
		ids = append(ids, one.Identity)
	}
	return ids
}

// compile compiles parts into one Set. The error is rules.Problems.
func compile(parts []reload.Part, opt rules.Options) (*rules.Set, rules.Problems, error) {
	r := reader{left: maxPlaces}
	list := slices.DeleteFunc(r.read(parts), func(one resource) bool { return one.message == nil })
	// Servers keep resources in maps and send them in any order, which must not decide the outcome. Resources without a name stay
	// in the order they were sent, at the end.
	slices.SortStableFunc(list, func(a, b resource) int {
		x, y := a.message.GetName(), b.message.GetName()
		if x == "" || y == "" {
			return len(y) - len(x)
		}
		return strings.Compare(x, y)
	})
	configs := make([]rules.DomainConfig, 0, len(list))
	for _, one := range list {
		configs = append(configs, r.domain(one.Place, one.message))
	}
	if r.left < 0 { // the rest was not read
		return nil, nil, r.problems
	}
	set, warnings, err := rules.Compile(configs, opt)
	if refused, ok := errors.AsType[rules.Problems](err); ok {
		r.problems = append(r.problems, refused...)
	}
	if len(r.problems) > 0 {
		slices.SortStableFunc(r.problems, byPlace)
		// As with files, one mistake is one problem.
		return nil, nil, slices.CompactFunc(r.problems, func(a, b rules.Problem) bool { return a.Pos == b.Pos })
	}
	slices.SortStableFunc(warnings, byPlace)
	return set, warnings, nil
}

// unwrap returns the resource that p holds: servers that give resources a time to live send them in an envelope.
func unwrap(p reload.Part) (*anypb.Any, error) {
	whole := &anypb.Any{TypeUrl: p.Type, Value: p.Data}
	var envelope discovery.Resource
	if !whole.MessageIs(&envelope) {
		return whole, nil
	}
	if err := proto.Unmarshal(p.Data, &envelope); err != nil {
		return nil, err
	}
	return envelope.GetResource(), nil
}

// isHeartbeat returns whether a response only says that resources are still there: in envelopes with nothing in them.
func isHeartbeat(parts []reload.Part) bool {
	return slices.ContainsFunc(parts, func(p reload.Part) bool {
		inner, err := unwrap(p)
		return err == nil && inner == nil
	})
}

// placeOf returns what problems call the resource with that name and index: its name, unless that is empty or another resource
// has it too.
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

// short cuts a name for a message.
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

// digits returns how many digits s begins with.
func digits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }
