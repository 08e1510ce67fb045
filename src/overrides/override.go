package overrides

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Override is a Change for some subjects. It replaces the limits of the rules when requests are decided.
type Override struct {
	Domain string `json:"domain"`
	// Rule is the full name of a limit, or of a descriptor, all of whose limits are meant. It is empty for all limits of
	// the domain that have the subject.
	Rule string `json:"rule,omitempty"`
	// Subject is the text of a Pattern.
	Subject string `json:"subject"`
	// Limit is the text of a Change.
	Limit string `json:"limit"`
	// Until is when the override ends. It is zero for one that stays until it is removed.
	Until  time.Time `json:"until,omitzero"`
	Reason string    `json:"reason"`
	Who    string    `json:"who"`
	// Since is when the override was set.
	Since time.Time `json:"since"`
}

// Bounds on the texts of an override, in bytes.
const (
	maxNameBytes   = 1 << 10
	maxReasonBytes = 500
	maxWhoBytes    = 100
)

// ID is what tells an override from others: setting another one with the same ID replaces it.
type ID struct{ Domain, Rule, Subject string }

// ID returns what tells o from other overrides.
func (o *Override) ID() ID { return ID{o.Domain, o.Rule, o.Subject} }

// idSeparator is between the parts of the text of an ID. No part has it.
const idSeparator = "\n"

// text returns the ID as one text, which Redis has as the name of a field.
func (id ID) text() string { return id.Domain + idSeparator + id.Rule + idSeparator + id.Subject }

// parsed is an Override whose texts are parsed.
type parsed struct {
	Override
	pattern Pattern
	change  Change
}

// Canonical returns o with its Subject and Limit as Pattern and Change write them. The error says what is wrong with o.
func (o Override) Canonical() (Override, error) {
	p, err := o.parse()
	return p.Override, err
}

// parse checks o, and parses its texts.
func (o Override) parse() (p parsed, err error) {
	if p.pattern, err = ParsePattern(o.Subject); err != nil {
		return p, fmt.Errorf("subject: %w", err)
	}
	if p.change, err = ParseChange(o.Limit); err != nil {
		return p, fmt.Errorf("limit: %w", err)
	}
	if subject := p.pattern.String(); subject != o.Subject { // An equal text is kept only once.
		o.Subject = subject
	}
	o.Limit = p.change.String()
	o.Until, o.Since = o.Until.Truncate(time.Millisecond).UTC(), o.Since.Truncate(time.Millisecond).UTC()
	p.Override = o
	for _, text := range []struct {
		name, value string
		most        int
	}{
		{"domain", o.Domain, maxNameBytes},
		{"rule", o.Rule, maxNameBytes},
		{"reason", o.Reason, maxReasonBytes},
		{"who", o.Who, maxWhoBytes},
	} {
		switch {
		case len(text.value) > text.most:
			return p, fmt.Errorf("%s has %d bytes; at most %d are allowed", text.name, len(text.value), text.most)
		case !utf8.ValidString(text.value) || strings.ContainsFunc(text.value, isControl):
			return p, fmt.Errorf("%s has a control character, or is not UTF-8", text.name)
		}
	}
	if o.Domain == "" {
		return p, errors.New("domain is missing")
	}
	return p, nil
}

func isControl(c rune) bool { return c < ' ' || c == 0x7f }

// Note describes o for people: "x10 by anna until 2027-01-08T12:00:00Z: ticket 123".
func (o Override) Note() string {
	text := o.Limit + " by " + o.Who
	if !o.Until.IsZero() {
		text += " until " + o.Until.Format(time.RFC3339)
	}
	return text + ": " + o.Reason
}

// Record is one change of the overrides, for the history.
type Record struct {
	At     time.Time `json:"at"`
	Action string    `json:"action"` // set or unset
	Override
	// Before is the override that was replaced or removed; nil for none.
	Before *Override `json:"before,omitempty"`
	// By is the address of the client.
	By string `json:"by,omitempty"`
}

// The actions of a Record.
const (
	ActionSet   = "set"
	ActionUnset = "unset"
)

// MaxHistory is how many records are kept.
const MaxHistory = 1000

// decodeOverride decodes what encodeOverride returns. It is nil for an empty text.
func decodeOverride(text string) (o *Override, err error) {
	if text != "" && json.Unmarshal([]byte(text), &o) != nil {
		return nil, errReply
	}
	return o, nil
}

func encodeOverride(o *Override) string {
	text, err := json.Marshal(o)
	if err != nil { // Texts and times can always be encoded, but for years above 9999, which parse refuses.
		panic(err)
	}
	return string(text)
}
