package rules

import (
	"encoding/binary"
	"net/netip"
)

// Addresses has the settings of a level that are about addresses.
type Addresses struct {
	Networks []netip.Prefix // those of `cidr`, in file order; empty for a level without it
	// V4Bits and V6Bits are the lengths of the networks that are counted, of count_by_prefix; 0 if each address is counted
	// by itself.
	V4Bits, V6Bits uint8
}

// CountsNetworks reports whether count_by_prefix is set. l may be nil.
func (l *Addresses) CountsNetworks() bool { return l != nil && l.V4Bits+l.V6Bits > 0 }

// countedNetwork returns the network by which value is counted; ok is false if it is counted by itself. l may be nil.
func (l *Addresses) countedNetwork(value []byte) (network netip.Prefix, ok bool) {
	if !l.CountsNetworks() {
		return netip.Prefix{}, false
	}
	address, ok := ParseAddress(value)
	if !ok {
		return netip.Prefix{}, false
	}
	bits := l.V6Bits
	if address.Is4() {
		bits = l.V4Bits
	}
	network, _ = address.Prefix(int(bits)) // The length fits the address.
	return network, bits > 0
}

// maxNetworkText is the length of the longest text of a network.
const maxNetworkText = maxAddressText + len("/128")

// maxAddressText is the length of the longest address: an IPv6 address that ends with an IPv4 address.
const maxAddressText = len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255")

// ParseAddress returns the IP address that text is, in one of the forms that netip.ParseAddr accepts, without a zone.
// An IPv4-mapped IPv6 address is returned as IPv4. Unlike netip.ParseAddr it allocates nothing, also not for text that
// is no address.
func ParseAddress(text []byte) (a netip.Addr, ok bool) {
	if len(text) < len("::") || len(text) > maxAddressText {
		return netip.Addr{}, false
	}
	for _, c := range text {
		switch c {
		case '.':
			ip, ok := parseIPv4(text)
			return netip.AddrFrom4(ip), ok
		case ':':
			ip, ok := parseIPv6(text)
			return netip.AddrFrom16(ip).Unmap(), ok
		}
	}
	return netip.Addr{}, false
}

// parseIPv4 returns an address of four decimal numbers without leading zeros.
func parseIPv4(text []byte) (ip [4]byte, ok bool) {
	part, digits, number := 0, 0, 0
	for _, c := range text {
		switch {
		case c == '.':
			if digits == 0 || part == 3 {
				return ip, false
			}
			ip[part] = byte(number)
			part, digits, number = part+1, 0, 0
		case c < '0' || c > '9' || digits > 0 && number == 0:
			return ip, false
		default:
			digits++
			if number = 10*number + int(c-'0'); number > 255 {
				return ip, false
			}
		}
	}
	ip[3] = byte(number)
	return ip, part == 3 && digits > 0
}

// parseIPv6 returns an address of eight groups of hexadecimal digits. Once, `::` may stand for one or more groups of
// zeros, and an IPv4 address for the last two groups.
func parseIPv6(text []byte) (ip [16]byte, ok bool) {
	n, gap := 0, -1 // the number of bytes of ip that are set, and gap the n at which `::` was.
	if text[0] == ':' {
		if len(text) < 2 || text[1] != ':' {
			return ip, false
		}
		gap, text = 0, text[2:]
	}
	for len(text) > 0 {
		group, digits := parseHexGroup(text)
		if digits == 0 || n == len(ip) {
			return ip, false
		}
		if digits < len(text) && text[digits] == '.' {
			v4, ok := parseIPv4(text)
			if !ok || n > len(ip)-len(v4) {
				return ip, false
			}
			n += copy(ip[n:], v4[:])
			break
		}
		binary.BigEndian.PutUint16(ip[n:], group)
		n += 2
		if text = text[digits:]; len(text) == 0 {
			break
		}
		if text[0] != ':' || len(text) == 1 {
			return ip, false
		}
		if text = text[1:]; text[0] == ':' {
			if gap >= 0 {
				return ip, false
			}
			gap, text = n, text[1:]
		}
	}
	if gap < 0 {
		return ip, n == len(ip)
	}
	if n == len(ip) {
		return ip, false
	}
	copy(ip[len(ip)-(n-gap):], ip[gap:n])
	clear(ip[gap : len(ip)-(n-gap)])
	return ip, true
}

// parseHexGroup returns the number that text begins with, of at most four hexadecimal digits, and the count of its
// digits.
func parseHexGroup(text []byte) (group uint16, digits int) {
	for ; digits < len(text) && digits < 4; digits++ {
		c := text[digits]
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return group, digits
		}
		group = group<<4 | uint16(c)
	}
	return group, digits
}
