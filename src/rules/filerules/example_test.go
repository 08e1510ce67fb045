package filerules_test

import (
	"fmt"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
)

// Files of all formats become one set of rules.
func ExampleLoad() {
	set, warnings, err := filerules.Load([]filerules.File{
		{Name: "shop.yaml", Data: []byte("domain: shop\ndescriptors:\n  - key: path\n    rate_limit: {unit: second, " +
			"requests_per_unit: 100}\n")},
		{Name: "kitchen.ini", Data: []byte("[default]\ncreditLimit = 5\nresetSeconds = 60\n")},
	}, compile.Options{})
	if err != nil || len(warnings) > 0 {
		fmt.Println(warnings, err)
		return
	}
	for _, rule := range set.Rules() {
		fmt.Println(rule.FullName, rule.RequestsPerUnit(), "per", rule.Limit.Period)
	}
	// Output:
	// shop.path 100 per 1s
	// kitchen.default 5 per 1m0s
}

// Everything that is wrong is reported at once, with its place and how to fix it.
func ExampleLoad_problems() {
	_, _, err := filerules.Load([]filerules.File{{Name: "a.yaml", Data: []byte(`domain: a
descriptors:
  - key: user
    rate_limit:
      unit: minutes
      requests_per_unit: 1.5
`)}}, compile.Options{})
	for _, p := range rules.ProblemsOf(err) {
		fmt.Printf("%v: %s\n  %s\n", p.Pos, p.Message, p.Fix)
	}
	// Output:
	// a.yaml:5:13: unit "minutes" is not known
	//   did you mean `minute`?
	// a.yaml:6:26: requests_per_unit is a fraction: "1.5"
	//   write a whole number; for less than one per unit use a longer unit or unit_multiplier
}
