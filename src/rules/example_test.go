package rules_test

import (
	"fmt"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
)

// A configuration is compiled, and two requests are searched for in it.
func Example() {
	limit := func(unit string, n uint64) compile.LimitsConfig {
		return compile.LimitsConfig{RateLimit: &compile.RateLimitConfig{Unit: unit, RequestsPerUnit: n}}
	}
	set, warnings, err := compile.Compile([]compile.DomainConfig{{Domain: "shop", Descriptors: []compile.DescriptorConfig{
		{Key: "path", Value: "/pay/*", Descriptors: []compile.DescriptorConfig{{
			Key:          "user",
			LimitsConfig: limit("minute", 10),
		}}},
		{Key: "path", LimitsConfig: limit("second", 100)},
	}}}, compile.Options{})
	if err != nil || len(warnings) > 0 {
		fmt.Println(warnings, err)
		return
	}
	shop := set.Domain([]byte("shop"))
	var scratch rules.SearchScratch
	rule := shop.FindRule([]rules.Entry{
		{Key: []byte("path"), Value: []byte("/pay/card")},
		{Key: []byte("user"), Value: []byte("alex")},
	}, &scratch)
	fmt.Println(rule.Limits[0])
	rule = shop.FindRule([]rules.Entry{{Key: []byte("path"), Value: []byte("/search")}}, &scratch)
	fmt.Println(rule.Limits[0])
	// Output:
	// shop.path_/pay/*.user: unit=MINUTE requests_per_unit=10, shadow_mode: false, quota_mode: false
	// shop.path: unit=SECOND requests_per_unit=100, shadow_mode: false, quota_mode: false
}
