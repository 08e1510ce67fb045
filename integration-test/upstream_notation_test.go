package integration

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// unitSeconds are the lengths of windows.
var unitSeconds = map[string]int64{
	"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 604800, "MONTH": 2592000, "YEAR": 31536000,
}

// unitNumbers are the numbers of units on the wire.
var unitNumbers = rlsv3.RateLimitResponse_RateLimit_Unit_value

// withOptions splits "entries [options]".
var withOptions = regexp.MustCompile(`^(.*?)(?: ?\[(.*)\])?$`)

// newRequest reads "key=value, key=value [options] + key=value": descriptors
// with a plus between them, each with its entries and, in brackets,
//
//	hits 3           its own hits_addend
//	refund           is_negative_hits
//	limit 5/YEAR     a limit of its own; 5/2 YEAR: every two years; 5/7: the unit by its number
//
// "nothing" is a descriptor without entries, and "" no descriptor at all.
func newRequest(domain, ask string) (*rlsv3.RateLimitRequest, error) {
	r := &rlsv3.RateLimitRequest{Domain: domain}
	if ask == "" {
		return r, nil
	}
	for text := range strings.SplitSeq(ask, " + ") {
		part := withOptions.FindStringSubmatch(text)
		d := new(commonv3.RateLimitDescriptor)
		for entry := range strings.SplitSeq(part[1], ", ") {
			if entry == "nothing" {
				continue
			}
			key, value, _ := strings.Cut(entry, "=")
			d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		for option := range strings.SplitSeq(part[2], ", ") {
			if err := setOption(d, option); err != nil {
				return nil, fmt.Errorf("%q: %w", ask, err)
			}
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r, nil
}

func setOption(d *commonv3.RateLimitDescriptor, option string) error {
	word, value, _ := strings.Cut(option, " ")
	switch word {
	case "":
	case "hits":
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return err
		}
		d.HitsAddend = wrapperspb.UInt64(n)
	case "refund":
		d.IsNegativeHits = true
	case "limit":
		max, unit, _ := strings.Cut(value, "/")
		n, err := strconv.ParseUint(max, 10, 32)
		if err != nil {
			return err
		}
		d.Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(n)}
		if count, name, ok := strings.Cut(unit, " "); ok {
			m, err := strconv.ParseUint(count, 10, 32)
			if err != nil {
				return err
			}
			d.Limit.UnitMultiplier, unit = wrapperspb.UInt32(uint32(m)), name
		}
		number, known := unitNumbers[unit]
		if !known && unit != "" {
			n, err := strconv.ParseInt(unit, 10, 32)
			if err != nil {
				return err
			}
			number = int32(n)
		}
		d.Limit.Unit = typev3.RateLimitUnit(number)
	default:
		return fmt.Errorf("option %q is not known", option)
	}
	return nil
}

// answerText writes an answer's statuses in the order of the descriptors:
//
//	OK 4/5 2 WEEK gold + OVER_LIMIT 0/3 YEAR + OK
//
// is four left of five in two weeks by the rule named gold, none left of three
// a year, and no limit. An overall code that does not follow from the statuses
// (over when any is) stands behind an arrow.
func answerText(answer *rlsv3.RateLimitResponse) string {
	texts := describe(answer)
	overall := rlsv3.RateLimitResponse_OK
	for i, s := range answer.GetStatuses() {
		if name := s.GetCurrentLimit().GetName(); name != "" {
			texts[i] += " " + name
		}
		if s.GetCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
			overall = s.GetCode()
		}
	}
	text := strings.Join(texts, " + ")
	if answer.GetOverallCode() != overall {
		text += " -> " + answer.GetOverallCode().String()
	}
	return text
}

// The prefixes of the counters that a step names.
const (
	serviceStats = "ratelimit.service."
	ruleStats    = serviceStats + "rate_limit."
)

// stats are all figures of /stats on the debug port.
func (u *upstream) stats(t *testing.T) map[string]int64 {
	t.Helper()
	text, err := get("http://" + u.debug + "/stats")
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]int64)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		colon := strings.LastIndex(line, ": ")
		if colon < 0 {
			t.Fatalf("/stats has the line %q", line)
		}
		if all[line[:colon]], err = strconv.ParseInt(line[colon+2:], 10, 64); err != nil {
			t.Fatalf("/stats: %v", err)
		}
	}
	return all
}

// counted says what is wrong with how the counters moved. A request is counted
// before or just after it is answered.
func (u *upstream) counted(t *testing.T, before map[string]int64, domain string, st step) []string {
	t.Helper()
	var found []string
	deadline := time.Now().Add(time.Second)
	for {
		after := u.stats(t)
		found = found[:0]
		if st.counts != "" {
			want, err := moves(st.counts)
			if err != nil {
				t.Fatal(err)
			}
			if got := moved(before, after, ruleStats+domain+"."); !maps.Equal(got, want) {
				found = append(found, fmt.Sprintf("counters moved %v\nwant           %v", got, want))
			}
		}
		if st.service != "" {
			want, err := moves(st.service)
			if err != nil {
				t.Fatal(err)
			}
			got := moved(before, after, serviceStats)
			maps.DeleteFunc(got, func(name string, _ int64) bool { return strings.HasPrefix(name, "rate_limit.") })
			if !maps.Equal(got, want) {
				found = append(found, fmt.Sprintf("the service's counters moved %v, want %v", got, want))
			}
		}
		if len(found) == 0 || time.Now().After(deadline) {
			return found
		}
		time.Sleep(pollEvery)
	}
}

// moved is by how much counters with that prefix grew.
func moved(before, after map[string]int64, prefix string) map[string]int64 {
	grown := make(map[string]int64)
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if short, ok := strings.CutPrefix(name, prefix); ok && after[name] != before[name] {
			grown[short] = after[name] - before[name]
		}
	}
	return grown
}

// moves reads what step.counts and step.service say.
func moves(text string) (map[string]int64, error) {
	all := make(map[string]int64)
	if text == "none" {
		return all, nil
	}
	for part := range strings.SplitSeq(text, "; ") {
		key, list := "", part
		if colon := strings.LastIndex(part, ": "); colon >= 0 {
			key, list = part[:colon]+".", part[colon+2:]
		}
		for item := range strings.SplitSeq(list, ", ") {
			name, value, _ := strings.Cut(item, " ")
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("counters %q: %w", text, err)
			}
			all[key+name] = n
		}
	}
	return all, nil
}

// reload makes a change to the rule files and waits until it has been counted
// as a load, good or refused.
func (u *upstream) reload(t *testing.T, change func(), counter string) {
	t.Helper()
	before := u.stats(t)
	change()
	u.until(t, "the rules are read again", func() error {
		switch got := moved(before, u.stats(t), serviceStats+"config_load"); {
		case len(got) == 0:
			return fmt.Errorf("nothing has been read")
		case got[strings.TrimPrefix(counter, "config_load")] == 0:
			t.Fatalf("reading the rules counted as %v, want %s", got, counter)
		}
		return nil
	})
}

// soon waits until a condition holds that only has to make its way out of the
// service.
func soon(t *testing.T, what string, holds func() error) {
	t.Helper()
	by(t, time.Now().Add(patience/2), what, holds)
}

// by is soon with the moment at which it is too late; one look is taken in any
// case.
func by(t *testing.T, deadline time.Time, what string, holds func() error) {
	t.Helper()
	for {
		err := holds()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waiting until %s: %v", what, err)
		}
		time.Sleep(pollEvery)
	}
}
