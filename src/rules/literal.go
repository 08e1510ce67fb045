package rules

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
)

// maskedKey is the key of the entries that Envoy's action masked_remote_address sends. Their values are networks without host bits.
const maskedKey = "masked_remote_address"

// ownText are the keys of entries whose values are written in Envoy's configuration, so that any text may be meant.
var ownText = map[string]bool{"generic_key": true, "header_match": true, "query_match": true}

// warnLiteral warns of a value that was probably meant as a network or a regular expression. Values match as they are written,
// except for `*`, so no request would match.
func (c *Compiler) warnLiteral(at Pos, key, value string) {
	if ownText[key] {
		return
	}
	if strings.Contains(value, "/") {
		if network, err := netip.ParsePrefix(value); err == nil {
			c.warnNetwork(at, key, value, network)
			return
		}
	}
	if !strings.ContainsAny(value, `^$\[(*+`) || !regexpSigns.MatchString(value) {
		return
	}
	fix := "write each value, use `*` for any text, or let Envoy match the expression and send a value of its own"
	if as, ok := fromRegexp(value); ok {
		fix = fmt.Sprintf("write %q", as)
	}
	c.warnings.Add(at, fix,
		"the value %s looks like a regular expression, and matches only as it is written: `*` stands for any text, all else for itself", Quote(value))
}

// warnNetwork warns of a value in CIDR notation.
func (c *Compiler) warnNetwork(at Pos, key, value string, network netip.Prefix) {
	masked := network.Masked()
	if key == maskedKey {
		if network != masked {
			c.warnings.Add(at, fmt.Sprintf("write %q", masked), "no request has the value %s: Envoy sends networks without host bits",
				Quote(value))
		}
		return
	}
	fix := fmt.Sprintf("`key: %s`, and use Envoy's action of that name with a prefix length of %d", maskedKey, masked.Bits())
	if as, ok := fromNetwork(masked); ok {
		fix = fmt.Sprintf("%q, or %s", as, fix)
	}
	c.warnings.Add(at, "write "+fix,
		"the value %s looks like a network, and matches only as it is written: no address of it does", Quote(value))
}

// fromNetwork returns the pattern that matches the addresses of a network as text, if there is one.
func fromNetwork(network netip.Prefix) (pattern string, ok bool) {
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

// regexpSigns are what regular expressions have and ordinary values do not.
var regexpSigns = regexp.MustCompile(
	`^\^|` + // an anchor
		`^/.*\$$|` +
		`(^|[/)\]])\.[*+]|` + // any text, where a value hardly has a dot
		`\.[*+]\$$|` +
		`\\[./-]|\\[dDwWsS][+*{]|` + // escapes
		`\[(\^|0-9|a-z|A-Z)|` + // classes
		`\(\?[:i]|\([^()]*\|[^()]*\)`) // groups

// fromRegexp returns the pattern that means what a simple regular expression does.
func fromRegexp(value string) (pattern string, ok bool) {
	s := strings.TrimSuffix(strings.TrimPrefix(value, "^"), "$")
	s = strings.NewReplacer(".*", "*", ".+", "*", `\.`, ".", `\/`, "/", `\-`, "-").Replace(s)
	if s == "" || strings.ContainsAny(s, `^$\[](){}|+?`) {
		return "", false
	}
	return s, true
}
