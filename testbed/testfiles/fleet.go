package testfiles

import (
	"fmt"
	"iter"
)

// Fleet yields the names and texts of rule files for many tenants: each has a domain with so many rules.
func Fleet(domains, rulesPerDomain int) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for i := range domains {
			if name := fmt.Sprintf("tenant-%05d", i); !yield(name+".yaml", FleetFile(name, rulesPerDomain, 100)) {
				return
			}
		}
	}
}

// FleetFile returns a file of Fleet whose limits are the given number of requests and more.
func FleetFile(domain string, rules, requests int) []byte {
	text := fmt.Appendf(nil, "domain: %s\ndescriptors:\n", domain)
	for i := range rules {
		text = fmt.Appendf(text, "  - key: path\n    value: /v1/items/%d\n    rate_limit:\n      unit: minute\n      "+
			"requests_per_unit: %d\n", i, requests+i)
	}
	return text
}
