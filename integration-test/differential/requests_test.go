package differential

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// request is one request, for any domain.
type request struct {
	json    bool                    // over /json; otherwise over gRPC
	message *rlsv3.RateLimitRequest // its domain is set when it is sent
	domain  string                  // instead of that of the rules; unknownDomain or noDomain
	body    string                  // sent to /json instead of message; $domain stands for the domain
	get     bool                    // over /json, with the method GET
	badText bool                    // the bytes of badMark in message are replaced by some that are no UTF-8
}

const (
	unknownDomain = "nowhere.1"
	noDomain      = "-"

	badMark = "QZQZ"

	maxAddend = 1 << 48 // this service charges no more at once
)

// oddTexts are values of requests only.
var oddTexts = []string{
	"\x00", "new\nline", "tab\t", "*", strings.Repeat("long", 100), " ", "192.168.1.1:80",
	"1.2.3.4.5",
}

// badBytes replace badMark: a message of protobuf has a length before each text, so they are as many.
var badBytes = []byte{0xff, 0xfe, 'a', 0x80}

// bodies are sent to /json as they are.
var bodies = []string{
	"", "{}", "null", "[]", "x", `{"nonsense": 1}`, `{"domain": 5}`, `{"domain": "$domain"}`,
	`{"domain": "$domain", "descriptors": []}`,
	`{"domain": "$domain", "descriptors": [{}]}`, `{"domain": "$domain", "descriptors": [{"entries": [{"key": "a"}]}]}`,
	`{"domain": "$domain", "descriptors": [{"entries": [{"key": "a", "value": "x"}], "hits_addend": "2"}], "hitsAddend": "3"}`,
	`{"domain": "$domain", "descriptors": [{"entries": [{"key": "a", "value": "x"}]}], "hitsAddend": -1}`,
	`{"domain": "$domain", "descriptors": [{"entries": [{"key": "a", "value": "x"}]}]} {}`,
	`{"domain": "$domain", "domain": "x", "descriptors": [{"entries": [{"key": "a"}]}]}`,
	`{"domain": "$domain", "descriptors": [{"entries": [{"key": "a"}], "limit": {"requestsPerUnit": 5, "unit": "DAY"}}]}`,
	`{"domain": "$domain", "descriptors": null}`,
}

// randomRequests makes requests, most of which match some of the rules.
func randomRequests(r *rand.Rand, all *rules) []*request {
	list := make([]*request, 0, 24)
	for range 8 + r.IntN(16) {
		if len(list) > 0 && one(r, 3) {
			list = append(list, pick(r, list)) // a counter fills only if it is asked again
			continue
		}
		list = append(list, randomRequest(r, all))
	}
	return list
}

func randomRequest(r *rand.Rand, all *rules) *request {
	q := &request{json: one(r, 3), message: new(rlsv3.RateLimitRequest)}
	q.get = q.json && one(r, 150)
	if q.json && one(r, 10) {
		q.body = pick(r, bodies)
		return q
	}
	if one(r, 25) {
		q.domain = pick(r, []string{unknownDomain, noDomain})
	}
	if one(r, 2) {
		q.message.HitsAddend = uint32(r.IntN(6))
		if one(r, 20) {
			q.message.HitsAddend = pick(r, []uint32{100, 1 << 20, 1<<32 - 1})
		}
	}
	if !one(r, 50) {
		for range 1 + r.IntN(3) {
			q.message.Descriptors = append(q.message.Descriptors, randomQuestion(r, all))
		}
	}
	if !q.json && one(r, 120) {
		q.addBadText(r)
	}
	return q
}

// addBadText puts bytes that are no UTF-8 into one value.
func (q *request) addBadText(r *rand.Rand) {
	for _, d := range q.message.GetDescriptors() {
		if len(d.GetEntries()) > 0 {
			pick(r, d.GetEntries()).Value = badMark
			q.badText = true
			return
		}
	}
}

// randomQuestion makes a descriptor of a request.
func randomQuestion(r *rand.Rand, all *rules) *commonv3.RateLimitDescriptor {
	question := new(commonv3.RateLimitDescriptor)
	list := all.descriptors
	for len(list) > 0 {
		d := pick(r, list)
		question.Entries = append(question.Entries, randomEntry(r, d))
		list = d.children
		if d.limit != nil && one(r, 2) {
			break
		}
	}
	if one(r, 12) {
		question.Entries = append(question.Entries, randomEntry(r, &descriptor{key: pick(r, ruleKeys)}))
	}
	if one(r, 40) {
		question.Entries = nil
	}
	if one(r, 6) {
		question.HitsAddend = wrapperspb.UInt64(uint64(r.IntN(4)))
		if one(r, 12) {
			question.HitsAddend.Value = pick(r,
				[]uint64{1000, 1 << 33, maxAddend - 1, maxAddend, maxAddend + 1, 1 << 62, 1 << 63, 1<<64 - 1})
		}
	}
	if one(r, 20) {
		question.Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{
			RequestsPerUnit: uint32(r.IntN(8)),
			Unit:            typev3.RateLimitUnit(1 + r.IntN(6)),
		}
		if one(r, 20) {
			question.Limit.Unit = typev3.RateLimitUnit(pick(r, []int{0, 7, 8}))
		}
	}
	return question
}

// randomEntry makes an entry that the descriptor probably matches.
func randomEntry(r *rand.Rand, d *descriptor) *commonv3.RateLimitDescriptor_Entry {
	e := &commonv3.RateLimitDescriptor_Entry{Key: d.key, Value: d.value}
	if strings.Contains(e.Value, "*") && !one(r, 10) {
		e.Value = strings.ReplaceAll(e.Value, "*", pick(r, []string{"", "x", "10", "a/b", ".", "yy", "ü"}))
	}
	if strings.Contains(e.Key, "*") && !one(r, 4) {
		e.Key = strings.ReplaceAll(e.Key, "*", pick(r, []string{"", "x", "_b"}))
	}
	switch {
	case !d.hasValue && !one(r, 5):
		e.Value = pick(r, append(ruleValues, oddValues...))
	case one(r, 25):
		e.Value = pick(r, append(oddValues, oddTexts...))
	case one(r, 40):
		e.Key = pick(r, []string{"", "a_b", "unknown", "a.b", "A"})
	}
	// The joined text stays, and key and value differ.
	if before, after, found := strings.Cut(e.Value, "_"); found && one(r, 10) {
		e.Key, e.Value = e.Key+"_"+before, after
	}
	return e
}

// sent is the request with the domain of the rules in its place.
func (q *request) sent(domain string) *rlsv3.RateLimitRequest {
	m := proto.CloneOf(q.message)
	switch q.domain {
	case "":
		m.Domain = domain
	case noDomain:
	default:
		m.Domain = q.domain
	}
	return m
}

// wire is the request as bytes: a message of protobuf, or a body in JSON.
func (q *request) wire(domain string) ([]byte, error) {
	if q.body != "" {
		return []byte(strings.ReplaceAll(q.body, "$domain", domain)), nil
	}
	if q.json {
		return protojson.Marshal(q.sent(domain))
	}
	data, err := proto.Marshal(q.sent(domain))
	if q.badText {
		data = bytes.ReplaceAll(data, []byte(badMark), badBytes)
	}
	return data, err
}

// text shows the request to a reader.
func (q *request) text(domain string) string {
	switch {
	case q.get:
		return "GET /json"
	case q.body != "":
		return "POST /json " + strings.ReplaceAll(q.body, "$domain", domain)
	case q.json:
		return "/json " + prototext.MarshalOptions{}.Format(q.sent(domain))
	}
	text := "gRPC " + prototext.MarshalOptions{}.Format(q.sent(domain))
	if q.badText {
		text += fmt.Sprintf(" (%s stands for the bytes % x)", badMark, badBytes)
	}
	return text
}
