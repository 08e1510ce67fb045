package xdsrules

import (
	"cmp"
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

// TypeURL is the type of the resources that the Watcher asks for.
const TypeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// maxPlaceBytes bounds the places of all parts of all resources together, in bytes: a message of two bytes that is nested deeply has a
// place of thousands. 100,000 rules with places of 100 bytes need 10 MB.
const maxPlaceBytes = 64 << 20

// Load compiles all resources of a response into one Set, as loading.Load compiles files. The error, if any, is rules.Problems
// with the problems of all resources. No resources are an accepted, empty set. Their order does not matter.
func Load(resources []*anypb.Any, opt rules.Options) (*rules.Set, rules.Problems, error) {
	return compileParts(partsOf(resources), opt)
}

func partsOf(resources []*anypb.Any) []reload.Part {
	parts := make([]reload.Part, 0, len(resources))
	for _, r := range resources {
		parts = append(parts, reload.Part{Name: r.GetTypeUrl(), Data: r.GetValue()})
	}
	return parts
}

// parsedResource is a part of a load, and the message that it holds.
type parsedResource struct {
	reload.PartIdentity
	message *configv3.RateLimitConfig // message is nil if it cannot be read.
}

// readResources reads the messages of parts, in their order. It adds problems to r. The place of a resource is its name, or its number
// if it has none or an earlier one has the same name. Its name is the Key of its part, or else that in the message.
func (r *reader) readResources(parts []reload.Part) []parsedResource {
	list := make([]parsedResource, len(parts))
	taken := make(map[string]bool) // taken has the places of earlier parts.
	for i, p := range parts {
		place := fmt.Sprintf("xds resource %d", i+1)
		useName := func(name string) {
			byName := fmt.Sprintf("xds resource %q", shortName(name))
			if taken[byName] {
				byName = fmt.Sprintf("%s, %q", place, shortName(name))
			}
			place, taken[byName] = byName, true
		}
		if p.Key != "" {
			useName(p.Key)
		}
		list[i] = parsedResource{PartIdentity: reload.PartIdentity{Name: cmp.Or(p.Key, place), ProblemPlace: place}}
		m := &configv3.RateLimitConfig{}
		inner, err := unwrapResource(p)
		if err == nil && !inner.MessageIs(m) {
			r.addProblem(place, "send "+TypeURL, "its type is %q", shortName(inner.GetTypeUrl()))
			continue
		}
		if err == nil {
			err = proto.Unmarshal(inner.GetValue(), m)
		}
		if err != nil {
			r.addProblem(place, "", "it cannot be read: %v", err)
			continue
		}
		name := cmp.Or(p.Key, m.GetName(), "\x00"+m.GetDomain()) // A resource without a name is identified by its domain.
		if p.Key == "" && m.GetName() != "" {
			useName(m.GetName())
		}
		list[i] = parsedResource{reload.PartIdentity{Name: name, Domain: m.GetDomain(), ProblemPlace: place}, m}
	}
	return list
}

// identifyParts returns the identities of parts.
func identifyParts(parts []reload.Part) []reload.PartIdentity {
	var r reader
	ids := make([]reload.PartIdentity, 0, len(parts))
	for _, one := range r.readResources(parts) {
		ids = append(ids, one.PartIdentity)
	}
	return ids
}

// compileParts does what Load does, for parts.
func compileParts(parts []reload.Part, opt rules.Options) (*rules.Set, rules.Problems, error) {
	r := reader{placeBytesLeft: maxPlaceBytes}
	list := slices.DeleteFunc(r.readResources(parts), func(one parsedResource) bool { return one.message == nil })
	// Servers keep resources in maps and send them in any order, which must not decide the outcome. So they are sorted by name;
	// resources without a name come last, in the order in which they were sent.
	slices.SortStableFunc(list, func(a, b parsedResource) int {
		x, y := a.message.GetName(), b.message.GetName()
		if x == "" || y == "" {
			return len(y) - len(x)
		}
		return strings.Compare(x, y)
	})
	configs := make([]rules.DomainConfig, 0, len(list))
	for _, one := range list {
		configs = append(configs, r.readDomain(one.ProblemPlace, one.message))
	}
	if r.placeBytesLeft < 0 { // Some messages were not read.
		return nil, nil, r.problems
	}
	set, warnings, err := rules.Compile(configs, opt)
	if r.problems = append(r.problems, rules.ProblemsOf(err)...); len(r.problems) > 0 {
		slices.SortStableFunc(r.problems, comparePlaces)
		// One mistake at one place is one problem, as with files.
		return nil, nil, slices.CompactFunc(r.problems, func(a, b rules.Problem) bool { return a.Pos == b.Pos })
	}
	slices.SortStableFunc(warnings, comparePlaces)
	return set, warnings, nil
}

// unwrapResource returns the resource that p holds. Servers that give resources a time to live send them in an envelope.
func unwrapResource(p reload.Part) (*anypb.Any, error) {
	whole := &anypb.Any{TypeUrl: p.Name, Value: p.Data}
	var envelope discovery.Resource
	if !whole.MessageIs(&envelope) {
		return whole, nil
	}
	if err := proto.Unmarshal(p.Data, &envelope); err != nil {
		return nil, err
	}
	return envelope.GetResource(), nil
}

// isHeartbeat returns whether a response only says that resources are still there, by envelopes with nothing in them.
func isHeartbeat(parts []reload.Part) bool {
	return slices.ContainsFunc(parts, func(p reload.Part) bool {
		inner, err := unwrapResource(p)
		return err == nil && inner == nil
	})
}

// shortName returns a name for a message, cut to 60 bytes.
func shortName(name string) string { return cutText(name, 60) }

// comparePlaces compares the places of two problems. descriptors[2] comes before descriptors[10].
func comparePlaces(a, b rules.Problem) int {
	x, y := a.File, b.File
	i := 0
	for i < len(x) && i < len(y) && x[i] == y[i] {
		i++
	}
	x, y = x[i:], y[i:]
	if n, m := digits(x), digits(y); n != m { // Of two numbers the longer one is larger.
		return n - m
	}
	return strings.Compare(x, y)
}

// digits returns how many digits text starts with.
func digits(text string) int { return len(text) - len(strings.TrimLeft(text, "0123456789")) }
