package yamlrules

import (
	"fmt"
	"strings"
	"testing"

	"ratelimit/src/rules/compile"
)

// scalars are what comes of a text where a rule file wants text, a number, and a
// truth value. "-" is refused.
var scalars = []struct{ yaml, text, number, flag string }{
	// plain words
	{`a`, "a", "-", "-"},
	{`a b`, "a b", "-", "-"},
	{`truely`, "truely", "-", "-"},
	{`_1`, "_1", "-", "-"},
	{`+`, "+", "-", "-"},
	{`.`, ".", "-", "-"},
	{`=`, "=", "-", "-"},
	{`10.0.0.1`, "10.0.0.1", "-", "-"},
	{`1.2.3`, "1.2.3", "-", "-"},
	{`5a`, "5a", "-", "-"},
	{`0xZZ`, "0xZZ", "-", "-"},
	{`::1`, "::1", "-", "-"},
	{`2001-01-01`, "2001-01-01", "-", "-"},
	{`2001-01-01T10:00:00Z`, "2001-01-01T10:00:00Z", "-", "-"},
	{`12:30:45`, "12:30:45", "-", "-"},
	{`0x1p4`, "0x1p4", "-", "-"},
	// nothing
	{``, "", "0", "false"},
	{`~`, "", "0", "false"},
	{`null`, "", "0", "false"},
	{`Null`, "", "0", "false"},
	{`NULL`, "", "0", "false"},
	{`nULL`, "nULL", "-", "-"},
	{`# remark`, "", "0", "false"},
	// numbers
	{`0`, "0", "0", "-"},
	{`5`, "5", "5", "-"},
	{`+5`, "+5", "5", "-"},
	{`010`, "010", "8", "-"},
	{`0o10`, "0o10", "8", "-"},
	{`0x10`, "0x10", "16", "-"},
	{`0b101`, "0b101", "5", "-"},
	{`1_000`, "1_000", "1000", "-"},
	{`4294967295`, "4294967295", "4294967295", "-"},
	{`281474976710656`, "281474976710656", "281474976710656", "-"},
	{`281474976710657`, "281474976710657", "-", "-"},
	{`-1`, "-1", "-", "-"},
	{`9223372036854775807`, "9223372036854775807", "-", "-"},
	{`9223372036854775808`, "-", "-", "-"},
	{`-9223372036854775809`, "-", "-", "-"},
	{`08`, "-", "-", "-"}, // eight is no octal digit: a fraction to YAML 1.1
	{`1.0`, "-", "-", "-"},
	{`.5`, "-", "-", "-"},
	{`5.`, "-", "-", "-"},
	{`1e3`, "-", "-", "-"},
	{`1_0.5`, "-", "-", "-"},
	{`.nan`, "-", "-", "-"},
	{`-.inf`, "-", "-", "-"},
	{`123456789012345678901234567890`, "-", "-", "-"},
	// truth values of YAML 1.1
	{`true`, "true", "-", "true"},
	{`True`, "True", "-", "true"},
	{`TRUE`, "TRUE", "-", "true"},
	{`tRUE`, "tRUE", "-", "-"},
	{`yes`, "yes", "-", "true"},
	{`Yes`, "Yes", "-", "true"},
	{`YES`, "YES", "-", "true"},
	{`on`, "on", "-", "true"},
	{`On`, "On", "-", "true"},
	{`ON`, "ON", "-", "true"},
	{`y`, "y", "-", "true"},
	{`Y`, "Y", "-", "true"},
	{`false`, "false", "-", "false"},
	{`no`, "no", "-", "false"},
	{`No`, "No", "-", "false"},
	{`NO`, "NO", "-", "false"},
	{`off`, "off", "-", "false"},
	{`Off`, "Off", "-", "false"},
	{`OFF`, "OFF", "-", "false"},
	{`n`, "n", "-", "false"},
	{`N`, "N", "-", "false"},
	// quoted: text, whatever it looks like
	{`"5"`, "5", "-", "-"},
	{`'1.5'`, "1.5", "-", "-"},
	{`"yes"`, "yes", "-", "-"},
	{`""`, "", "-", "-"},
	{`"~"`, "~", "-", "-"},
	{`"a\tb\x41\u00e9\0"`, "a\tbAé\x00", "-", "-"},
	{`'it''s'`, "it's", "-", "-"},
	{"|\n      5\n", "5\n", "-", "-"},
	{">-\n      a\n      b\n", "a b", "-", "-"},
	// tagged
	{`!!str 5`, "5", "-", "-"},
	{`!!str yes`, "yes", "-", "-"},
	{`!!int "5"`, "5", "5", "-"},
	{`!!bool "yes"`, "yes", "-", "true"},
	{`!!float 5`, "-", "-", "-"},
	{`!!null ""`, "", "0", "false"},
	{`!!binary aGk=`, "hi", "-", "-"},
	{`!mine 5`, "5", "-", "-"},
}

func TestScalars(t *testing.T) {
	for _, test := range scalars {
		text, number, flag := "-", "-", "-"
		if d, ok := parsed(t, "value: "+test.yaml); ok {
			text = d.Value
		}
		if d, ok := parsed(t, "rate_limit:\n    unit: day\n    requests_per_unit: "+test.yaml); ok {
			number = fmt.Sprint(d.RateLimit.RequestsPerUnit)
		}
		if d, ok := parsed(t, "shadow_mode: "+test.yaml); ok {
			flag = fmt.Sprint(d.ShadowMode)
		}
		if text != test.text || number != test.number || flag != test.flag {
			t.Errorf("%s is text %q, number %s, flag %s; want %q, %s, %s",
				strings.TrimSpace(test.yaml), text, number, flag, test.text, test.number, test.flag)
		}
	}
}

// parsed reads a rule file of one descriptor.
func parsed(t *testing.T, descriptor string) (d compile.DescriptorConfig, ok bool) {
	t.Helper()
	cfg, problems, _ := Parse("a.yaml", []byte("domain: d\ndescriptors:\n- key: k\n  "+descriptor+"\n"))
	if len(problems) > 0 {
		return d, false
	}
	if len(cfg.Descriptors) != 1 {
		t.Fatalf("%q: %d descriptors", descriptor, len(cfg.Descriptors))
	}
	return cfg.Descriptors[0], true
}
