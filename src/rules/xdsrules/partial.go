package xdsrules

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/anypb"

	"ratelimit/src/rules"
)

// inPart returns the resources that may be in force when some of a response have
// problems: those that touch no domain of a bad one as they were sent, the others as
// they were before. It reports false if that changes nothing, or if the response
// is bad as a whole.
func inPart(now, before []received, err error) ([]*anypb.Any, bool) {
	var problems rules.Problems
	if !errors.As(err, &problems) {
		return nil, false
	}
	names := make(map[string]string, len(now)) // by place
	for _, r := range now {
		names[r.place] = r.Name
	}
	bad := make(map[string]bool, len(problems))
	for _, p := range problems {
		name, found := ownerOf(p.File, names)
		if !found {
			return nil, false
		}
		bad[name] = true
	}
	kept := rules.Partial(now, before, func(r received) rules.Source { return r.Source }, bad)
	if len(kept) == 0 || sameResources(kept, before) {
		return nil, false
	}
	list := make([]*anypb.Any, 0, len(kept))
	for _, r := range kept {
		list = append(list, r.any)
	}
	return list, true
}

// ownerOf returns the name of the resource that a place is in: the place itself, or
// what stands before one of its colons.
func ownerOf(place string, names map[string]string) (string, bool) {
	for end := len(place); end >= 0; end = strings.LastIndex(place[:end], ": ") {
		if name, found := names[place[:end]]; found {
			return name, true
		}
	}
	return "", false
}

// sameResources ignores the order.
func sameResources(a, b []received) bool {
	byName := func(list []received) []received {
		list = slices.Clone(list)
		slices.SortFunc(list, func(a, b received) int {
			if c := strings.Compare(a.Name, b.Name); c != 0 {
				return c
			}
			return bytes.Compare(a.any.GetValue(), b.any.GetValue())
		})
		return list
	}
	return slices.EqualFunc(byName(a), byName(b), func(a, b received) bool {
		return a.Name == b.Name && bytes.Equal(a.any.GetValue(), b.any.GetValue())
	})
}
