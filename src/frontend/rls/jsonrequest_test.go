package rls

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

func TestAppendJSONString(t *testing.T) {
	for _, text := range []string{"", "plain", "a\"b\\c", "line\nline", "\x00\x1f\x7f", "<&>'", "ümlaut 漢字 😀 \u2028"} {
		var back string
		got := string(AppendJSONString(nil, text))
		if err := json.Unmarshal([]byte(got), &back); err != nil || back != text {
			t.Errorf("%q: %s, %v", text, got, err)
		}
		if got != string(AppendJSONString(nil, []byte(text))) || strings.ContainsAny(got, "\n\x00\x7f") {
			t.Errorf("%q: %s", text, got)
		}
	}
	if got := string(AppendJSONString(nil, "a\xffb\xe2\x82")); got != "\"a\uFFFDb\uFFFD\uFFFD\"" {
		t.Errorf("not UTF-8: %+q", got)
	}
}

// requestsOfJSON are requests as AppendJSONRequest writes them.
var requestsOfJSON = []string{
	`{"domain":"d","descriptors":[]}`,
	`{"domain":"d","descriptors":[{"entries":[]}]}`,
	`{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"al\"ex\\\n"},{"key":"id"}]},{"entries":[{"key":"ip","value":"ü"}]}],"hitsAddend":7}`,
	`{"domain":"d","descriptors":[{"entries":[{"key":"a"}],"hitsAddend":"0"},{"entries":[{"key":"b"}],"hitsAddend":"18446744073709551615","isNegativeHits":true}]}`,
	`{"domain":"d","descriptors":[{"entries":[{"key":"a"}],"limit":{"requestsPerUnit":5,"unit":"MINUTE","unitMultiplier":3},"hitsAddend":"2"}]}`,
	`{"domain":"d","descriptors":[{"entries":[{"key":"a"}],"limit":{"unit":"YEAR"}},{"entries":[{"key":"a"}],"limit":{"unit":7,"unitMultiplier":0}},{"entries":[{"key":"a"}],"limit":{}}]}`,
}

// TestAppendJSONRequest checks that a request is written as it was read.
func TestAppendJSONRequest(t *testing.T) {
	t.Parallel()
	for _, text := range requestsOfJSON {
		req, err := ParseJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(AppendJSONRequest(nil, req)); got != text {
			t.Errorf("got  %s\nwant %s", got, text)
		}
	}
}

// FuzzAppendJSONRequest: what is written of any request is read as the same request, if its texts are UTF-8.
func FuzzAppendJSONRequest(f *testing.F) {
	for _, text := range requestsOfJSON {
		data, err := jsonToProtobuf([]byte(text))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var before, after callMemory
		if before.decodeRequest(data) != nil {
			return
		}
		text := AppendJSONRequest(nil, &before.req)
		wire, err := jsonToProtobuf(text)
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if err := after.decodeRequest(wire); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		again := AppendJSONRequest(nil, &after.req)
		if string(again) != string(text) {
			t.Errorf("%s is read as %s", text, again)
		}
		if utf8.Valid(data) && !reflect.DeepEqual(withoutEmpty(before.req), withoutEmpty(after.req)) {
			t.Errorf("%s: got %+v, want %+v", text, after.req, before.req)
		}
	})
}

// withoutEmpty returns req with nil for texts and lists that are empty.
func withoutEmpty(req limiter.Request) limiter.Request {
	if len(req.Domain) == 0 {
		req.Domain = nil
	}
	req.Descriptors = append([]limiter.Descriptor(nil), req.Descriptors...)
	for i := range req.Descriptors {
		d := &req.Descriptors[i]
		d.Entries = append([]rules.Entry(nil), d.Entries...)
		for j := range d.Entries {
			for _, text := range []*[]byte{&d.Entries[j].Key, &d.Entries[j].Value} {
				if len(*text) == 0 {
					*text = nil
				}
			}
		}
	}
	return req
}
