// Package api holds formats for other programs: protobuf messages and a JSON Schema of rules, and JSON Schemas of what commands print.
package api

import _ "embed"

// Schema is the JSON Schema (draft 7) of rule files. Tests of the YAML reader hold it to what the
// service accepts.
//
//go:embed ratelimit.schema.json
var Schema []byte
