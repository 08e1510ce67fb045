package compile

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"ratelimit/src/rules"
)

// maskedAddressKey is the key of entries that Envoy's action masked_remote_address sends. Their values are networks
// without host bits.
const maskedAddressKey = "masked_remote_address"

// freeTextKeys are the keys of entries whose values come from Envoy's configuration, where any text may be meant.
var freeTextKeys = map[string]bool{"generic_key": true, "header_match": true, "query_match": true}

// warnMisleadingValue warns of a value that was probably meant as a network or a regular expression. No request would
// match it, because values match as they are written, except for `*`. inList says that the value is in an ordered list,
// which has neither cidr nor regex.
func warnMisleadingValue(warnings *rules.Problems, at rules.Pos, key, value string, inList bool) {
	if freeTextKeys[key] {
		return
	}
	if strings.Contains(value, "/") {
		if network, err := netip.ParsePrefix(value); err == nil {
			warnNetworkValue(warnings, at, key, value, network, inList)
			return
		}
	}
	if !strings.ContainsAny(value, `^$\[(*+`) || !typicalRegexpParts.MatchString(value) {
		return
	}
	fix := "write each value, use `*` for any text, or let Envoy match the expression and send a value of its own"
	switch as, ok := regexpPattern(value); {
	case !inList:
		fix = "write `regex: '" + strings.ReplaceAll(value, "'", "''") + "'` instead of value"
		if ok {
			fix += fmt.Sprintf(", or `value: %q`, which is faster", as)
		}
	case ok:
		fix = fmt.Sprintf("write %q", as)
	}
	warnings.Add(at, fix,
		"the value %s looks like a regular expression, and matches only as it is written: `*` stands for any text, all "+
			"else for itself", rules.Quote(value))
}

// warnNetworkValue warns of a value in CIDR notation.
func warnNetworkValue(warnings *rules.Problems, at rules.Pos, key, value string, network netip.Prefix, inList bool) {
	masked := network.Masked()
	if key == maskedAddressKey {
		if network != masked {
			warnings.Add(at, fmt.Sprintf("write %q", masked),
				"no request has the value %s: Envoy sends networks without host bits", rules.Quote(value))
		}
		return
	}
	fix := fmt.Sprintf("`key: %s`, and use Envoy's action of that name with a prefix length of %d", maskedAddressKey,
		masked.Bits())
	if as, ok := networkPattern(masked); !inList {
		fix = fmt.Sprintf("`cidr: %v` instead of value", masked)
	} else if ok {
		fix = fmt.Sprintf("%q, or %s", as, fix)
	}
	warnings.Add(at, "write "+fix,
		"the value %s looks like a network, and matches only as it is written: no address of it does", rules.Quote(value))
}

// networkPattern returns the pattern that matches the addresses of a network as text; ok is false if there is none.
func networkPattern(network netip.Prefix) (pattern string, ok bool) {
	address, bits := network.Addr(), network.Bits()
	switch {
	case network.IsSingleIP():
		return address.String(), true
	case bits == 0:
		return "*", true
	case !address.Is4() || bits%8 != 0:
		return "", false
	}
	return strings.Join(strings.Split(address.String(), ".")[:bits/8], ".") + ".*", true
}

// typicalRegexpParts matches parts of regular expressions that ordinary values do not have: anchors, any text where a
// value hardly has a dot, escapes, character classes and groups.
var typicalRegexpParts = regexp.MustCompile(
	`^\^|^/.*\$$|` +
		`(^|[/)\]])\.[*+]|\.[*+]\$$|` +
		`\\[./-]|\\[dDwWsS][+*{]|` +
		`\[(\^|0-9|a-z|A-Z)|` +
		`\(\?[:i]|\([^()]*\|[^()]*\)`)

// regexpPattern returns the pattern with `*` that matches what a simple regular expression does; ok is false if there
// is none.
func regexpPattern(value string) (pattern string, ok bool) {
	s := strings.TrimSuffix(strings.TrimPrefix(value, "^"), "$")
	s = strings.NewReplacer(".*", "*", ".+", "*", `\.`, ".", `\/`, "/", `\-`, "-").Replace(s)
	if s == "" || strings.ContainsAny(s, `^$\[](){}|+?`) {
		return "", false
	}
	return s, true
}
