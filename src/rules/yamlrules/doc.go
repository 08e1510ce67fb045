// Package yamlrules reads rule files in YAML, and writes rules as YAML.
//
// [Parse] turns the text of a file into a configuration for rules.Compile, and reports everything that is wrong with
// its place:
//
//	domain: shop                        rules.DomainConfig{Domain: "shop", Descriptors: {
//	descriptors:                            {Key: "path", Value: "/pay/*", RateLimit:
//	  - key: path                 ->            {Unit: "minute", RequestsPerUnit: 10}}}}
//	    value: /pay/*
//	    rate_limit: {unit: minute, requests_per_unit: 10}
//
// There are three kinds of documents, told apart by the keys at their top: with `domain` rules in Envoy's format, with
// `schema` a tree of limits, with `tests` tests of rules, which are not for this package. YAML is read by version 1.1,
// as envoyproxy/ratelimit does.
//
// [ReadValue] reads a file of any form, and [Write] writes the rules of a set.
package yamlrules
