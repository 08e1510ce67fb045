package xdsrules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/reload"
)

// TypeURL is the type of the resources that the Watcher asks for.
const TypeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// Load compiles all resources of a response into one Set, for programs that check what they send. The error, if any, is
// rules.Problems with the problems of all resources. No resources are an accepted, empty set. Their order does not
// matter.
func Load(resources []*anypb.Any, opt compile.Options) (*rules.Set, rules.Problems, error) {
	return reload.Compile(format, partsOf(resources), opt)
}

// maxPlaceBytes bounds the places of all parts of all resources together, in bytes: a message of two bytes that is
// nested deeply has a place of thousands. 100,000 rules with places of 100 bytes need 10 MB.
const maxPlaceBytes = 64 << 20

// format is how resources are read.
var format = reload.Format{
	Identify:     identify,
	Read:         readPart,
	SortWarnings: func(list rules.Problems) { slices.SortStableFunc(list, comparePlaces) },
	ArrangeProblems: func(list rules.Problems) rules.Problems {
		slices.SortStableFunc(list, comparePlaces)
		// One mistake at one place is one problem, as with files.
		return slices.CompactFunc(list, func(a, b rules.Problem) bool { return a.Pos == b.Pos })
	},
	MaxPlaceBytes: maxPlaceBytes,
	TooLarge: rules.Problem{
		Pos: rules.Pos{File: "xds response"}, Fix: "use fewer levels, or fewer descriptors",
		Message: fmt.Sprintf("the set is too large: the paths of its parts are longer than %d MB together",
			maxPlaceBytes>>20),
	},
}

func partsOf(resources []*anypb.Any) []reload.Part {
	parts := make([]reload.Part, 0, len(resources))
	for _, r := range resources {
		parts = append(parts, reload.Part{Name: r.GetTypeUrl(), Data: r.GetValue()})
	}
	return parts
}

// identify identifies the resources, and sorts them by name, which is the order in which they are compiled: servers
// keep resources in maps and send them in any order. Those without a name come last, as they were sent. The place of a
// resource is its name, or its number if it has none or an earlier one has the same name. Its name is the Key of its
// part, or else that in the message. A resource without a name is identified by its domain.
func identify(parts []reload.Part) []reload.Part {
	taken := make(map[string]bool, len(parts)) // the places of earlier parts.
	for i := range parts {
		p := &parts[i]
		name, domain := namesOf(p)
		p.Place, p.SortKey = fmt.Sprintf("xds resource %d", i+1), "~"
		if name != "" {
			p.SortKey = "=" + name
		}
		if shown := cmp.Or(p.Key, name); shown != "" {
			place := fmt.Sprintf("xds resource %q", shortName(shown))
			if taken[place] {
				place = fmt.Sprintf("%s, %q", p.Place, shortName(shown))
			}
			p.Place, taken[place] = place, true
		}
		if p.ID = cmp.Or(p.Key, name, p.Place); p.ID == p.Place && domain != "" {
			p.ID = "\x00" + domain
		}
	}
	slices.SortStableFunc(parts, func(a, b reload.Part) int { return strings.Compare(a.SortKey, b.SortKey) })
	return parts
}

// namesOf returns the name and the domain of a resource; both are empty if it is of another type or damaged. It decodes
// nothing else, because most resources of a load are those of the last one.
func namesOf(p *reload.Part) (name, domain string) {
	resource, err := unwrapResource(*p)
	if err != nil || !resource.MessageIs((*configv3.RateLimitConfig)(nil)) {
		return "", ""
	}
	for data := resource.GetValue(); len(data) > 0; {
		number, wireType, size := protowire.ConsumeField(data)
		if size < 0 {
			return "", ""
		}
		_, _, tagSize := protowire.ConsumeTag(data)
		switch {
		case wireType == protowire.BytesType && number == nameNumber:
			name, _ = protowire.ConsumeString(data[tagSize:])
		case wireType == protowire.BytesType && number == domainNumber:
			domain, _ = protowire.ConsumeString(data[tagSize:])
		}
		data = data[size:]
	}
	return name, domain
}

// nameNumber and domainNumber are the numbers of fields of a RateLimitConfig.
const nameNumber, domainNumber = 1, 2

// readPart reads a resource.
func readPart(p *reload.Part) reload.ReadPart {
	r, m := reader{placeBytesLeft: maxPlaceBytes}, &configv3.RateLimitConfig{}
	inner, err := unwrapResource(*p)
	if err == nil && !inner.MessageIs(m) {
		return reload.ReadPart{Problems: wrongType(p.Place, inner.GetTypeUrl())}
	}
	if err == nil {
		err = proto.Unmarshal(inner.GetValue(), m)
	}
	if err != nil {
		r.addProblem(p.Place, "", "it cannot be read: %v", err)
		return reload.ReadPart{Problems: r.problems}
	}
	cfg := r.readDomain(p.Place, m)
	return reload.ReadPart{Config: &cfg, PlaceBytes: maxPlaceBytes - r.placeBytesLeft, Problems: r.problems}
}

// unwrapResource returns the resource that p holds. Servers that give resources a time to live send them in an
// envelope.
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
