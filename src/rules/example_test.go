package rules_test

import (
	"fmt"

	"ratelimit/src/rules"
	"ratelimit/src/rules/loading"
)

// A rule file is loaded, and two requests ask which rule applies to them.
func Example() {
	file := loading.File{Name: "shop.yaml", Data: []byte(`
domain: shop
descriptors:
  - key: path
    value: /pay/*
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 10}
  - key: path
    rate_limit: {unit: second, requests_per_unit: 100}
`)}
	set, warnings, err := loading.Load([]loading.File{file}, rules.Options{})
	if err != nil {
		fmt.Println(err) // every problem, a line each
		return
	}
	for _, w := range warnings {
		fmt.Println("warning:", w)
	}

	shop := set.Domain([]byte("shop"))
	var scratch []byte
	fmt.Println(shop.Find([]rules.Entry{
		{Key: []byte("path"), Value: []byte("/pay/card")},
		{Key: []byte("user"), Value: []byte("alex")},
	}, &scratch))
	fmt.Println(shop.Find([]rules.Entry{
		{Key: []byte("path"), Value: []byte("/search")},
	}, &scratch))
	// Output:
	// shop.path_/pay/*.user: unit=MINUTE requests_per_unit=10, shadow_mode: false, quota_mode: false
	// shop.path: unit=SECOND requests_per_unit=100, shadow_mode: false, quota_mode: false
}

// Everything that is wrong is told at once, with its place and how to mend it.
func ExampleLoad_problems() {
	_, _, err := loading.Load([]loading.File{{Name: "a.yaml", Data: []byte(`domain: a
descriptors:
  - key: user
    rate_limit:
      unit: minutes
      requests_per_unit: 1.5
`)}}, rules.Options{})
	fmt.Println(err)
	// Output:
	// a.yaml:5:13: unit "minutes" is not known; write second, minute, hour, day, week, month or year
	// a.yaml:6:26: requests_per_unit is a fraction: "1.5"; write a whole number; for less than one per unit use a longer unit or unit_multiplier
}
