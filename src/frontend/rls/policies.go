package rls

import (
	"slices"
	"strconv"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
)

// The headers RateLimit-Policy and RateLimit, as defined by draft-ietf-httpapi-ratelimit-headers-11 (23 May 2026). Both
// are lists of Structured Fields (RFC 9651). For example, after 3 of 10 hits per minute a caller gets:
//
//	RateLimit-Policy: "per-ip";q=10;w=60
//	RateLimit: "per-ip";r=7;t=42
const (
	policyHeader    = "RateLimit-Policy"
	rateLimitHeader = "RateLimit"
)

const (
	maxPolicies        = 10                  // in a header. With maxPolicyNameBytes, this bounds a header to 4 KB.
	maxPolicyNameBytes = 96                  // of a rule's name. Its end is sent, since key paths differ there.
	maxFieldInteger    = 999_999_999_999_999 // the largest Integer of a structured field: 15 digits.
)

// policy is a limit as these headers show it. descriptor is the index of its descriptor.
type policy struct {
	charge     *limiter.Charge
	descriptor int
}

// isStricter reports whether p refuses and other does not, or less remains.
func (p policy) isStricter(other policy) bool {
	if p.charge.Over != other.charge.Over {
		return p.charge.Over
	}
	return p.charge.Verdict.Remaining < other.charge.Verdict.Remaining
}

// policies appends the limits of a to list, in the order of the request, at most maxPolicies. Each rule appears once,
// with its strictest charge. The rule of shown is always in the list.
func policies(list []policy, a *limiter.Answer, shown *limiter.Status) []policy {
	var binding policy
	for i := range a.Statuses {
		st := &a.Statuses[i]
		if st == shown {
			binding = policy{st.BindingCharge, i}
		}
		for j := range st.Charges {
			p := policy{&st.Charges[j], i}
			switch at := slices.IndexFunc(list, p.hasSameRule); {
			case p.charge.IsCanary:
			case at >= 0 && p.isStricter(list[at]):
				list[at] = p
			case at < 0 && len(list) < maxPolicies:
				list = append(list, p)
			}
		}
	}
	if !slices.ContainsFunc(list, binding.hasSameRule) {
		list[maxPolicies-1] = binding
	}
	return list
}

// hasSameRule reports whether p and other have the same name in the headers. Limits that came with the request have no
// rule.
func (p policy) hasSameRule(other policy) bool {
	return p.charge.Rule == other.charge.Rule && (p.charge.Rule != nil || p.descriptor == other.descriptor)
}

// appendPolicyHeaders appends RateLimit-Policy and RateLimit. The first has all policies. The second leaves out limits
// that were decided without a counter, unless they refuse.
func appendPolicyHeaders(b []byte, a *limiter.Answer, shown *limiter.Status) []byte {
	var room [maxPolicies]policy
	list := policies(room[:0], a, shown)
	b = appendPolicyList(b, policyHeader, list, policy.appendPolicy)
	list = slices.DeleteFunc(list, func(p policy) bool {
		return !p.charge.HasCounterVerdict() && !p.charge.Verdict.Over
	})
	if len(list) == 0 {
		return b
	}
	return appendPolicyList(b, rateLimitHeader, list, func(p policy, b []byte) []byte {
		return p.appendServiceLimit(b, a)
	})
}

// appendPolicyList appends a header with an item for each policy.
func appendPolicyList(b []byte, name string, list []policy, appendItem func(policy, []byte) []byte) []byte {
	b, value := beginHeader(b, name)
	for i, p := range list {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = appendItem(p, b)
	}
	return value.end(b)
}

// appendPolicy appends the item of RateLimit-Policy: `"per-ip";q=10;w=60`. The window is rounded up to whole seconds. A
// window of the calendar has no w, because its length changes. A concurrency has none, and its own quota unit.
func (p policy) appendPolicy(b []byte) []byte {
	c := p.charge
	b = appendParameter(p.appendName(b), ";q=", c.Algorithm.Max)
	switch {
	case c.Algorithm.Kind == algorithm.Concurrency:
		b = append(b, `;qu="concurrent-requests"`...)
	case c.Algorithm.Calendar == nil:
		b = appendParameter(b, ";w=", uint64(limiter.SecondsRoundedUp(c.Algorithm.Period)))
	}
	if most := c.Algorithm.Capacity(); most != c.Algorithm.Max {
		b = appendParameter(b, ";ratelimit-at-once=", most)
	}
	return b
}

// appendServiceLimit appends the item of RateLimit: `"per-ip";r=7;t=42`. A limit that refuses for ever has no t.
// Neither has a window that ends after Retry-After, which must not be earlier than a t.
func (p policy) appendServiceLimit(b []byte, a *limiter.Answer) []byte {
	v := p.charge.Verdict
	b = appendParameter(p.appendName(b), ";r=", v.Remaining)
	window := v.ResetAfter
	if p.charge.Over {
		window = v.RetryAfter
	}
	if window == algorithm.Never {
		return b
	}
	if hasRetryAfter(a) && limiter.SecondsRoundedUp(window) > limiter.SecondsRoundedUp(a.RetryAfter) {
		return b
	}
	return appendParameter(b, ";t=", uint64(limiter.SecondsRoundedUp(max(window, 0))))
}

func appendParameter(b []byte, name string, value uint64) []byte {
	return strconv.AppendUint(append(b, name...), min(value, maxFieldInteger), 10)
}

// appendName appends the name of the policy as a String of structured fields: the name of the rule, or else its key
// path. A limit that came with the request is called "request.1" for the first descriptor.
func (p policy) appendName(b []byte) []byte {
	r := p.charge.Rule
	if r == nil {
		return append(strconv.AppendInt(append(b, `"request.`...), int64(p.descriptor)+1, 10), '"')
	}
	if r.Name != "" {
		return appendFieldString(b, r.Name)
	}
	return appendFieldString(b, p.charge.RuleName())
}

// appendFieldString appends s as a String of structured fields. Bytes that such a String must not have are written as
// %XX.
func appendFieldString(b []byte, s string) []byte {
	const hex = "0123456789ABCDEF"
	b = append(b, '"')
	for i := max(0, len(s)-maxPolicyNameBytes); i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c > '~':
			b = append(b, '%', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
