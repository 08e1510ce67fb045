package yamlrules_test

import (
	"fmt"

	"ratelimit/src/rules/yamlrules"
)

// A rule file becomes a configuration; what is wrong with it has a place.
func ExampleParse() {
	cfg, problems, _ := yamlrules.Parse("shop.yaml", []byte(`domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 10}
  - kay: path
`))
	fmt.Println(cfg.Domain, cfg.Descriptors[0].Key, cfg.Descriptors[0].RateLimit.RequestsPerUnit)
	fmt.Println(problems)
	// Output:
	// shop user 10
	// shop.yaml:5:5: unknown key "kay"; did you mean `key`?
}
