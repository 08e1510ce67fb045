package reload_test

import (
	"fmt"

	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/reload"
)

// b.yaml is bad, so its domain stays as it was; that of a.yaml changes.
func ExampleLoader() {
	loader := reload.Loader{Format: filerules.Format()}
	for _, texts := range [][2]string{
		{
			"domain: a\ndescriptors: [{key: old, rate_limit: {unit: day, requests_per_unit: 1}}]",
			"domain: b\ndescriptors: [{key: old, rate_limit: {unit: day, requests_per_unit: 1}}]",
		},
		{"domain: a\ndescriptors: [{key: new, rate_limit: {unit: day, requests_per_unit: 1}}]", "domain: ["},
	} {
		var out reload.Result
		loader.Load([]reload.Part{{Name: "a.yaml", Data: []byte(texts[0])}, {Name: "b.yaml", Data: []byte(texts[1])}},
			nil, &out)
		for _, r := range out.Set.Rules() {
			fmt.Println(r.FullName)
		}
		fmt.Println("refused:", out.Err != nil)
	}
	// Output:
	// a.old
	// b.old
	// refused: false
	// a.new
	// b.old
	// refused: true
}
