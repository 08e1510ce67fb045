package notify

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/rules"
)

// Body is the body of a message in the format rules.NotifyJSON.
type Body struct {
	ID        string    `json:"id"` // the same from all replicas, for the same subject, threshold and window
	At        time.Time `json:"at"` // when the threshold was reached
	Domain    string    `json:"domain"`
	Rule      string    `json:"rule"`
	Subject   string    `json:"subject"`   // such as "user=eve", as in the log and on the operator's page
	Threshold uint32    `json:"threshold"` // percent of the limit
	Used      uint64    `json:"used"`      // units
	Limit     uint64    `json:"limit"`     // units that pass at once
	LimitText string    `json:"limit_text"`
	Denied    bool      `json:"denied"`   // the hit that reached the threshold was over the limit
	Enforced  bool      `json:"enforced"` // false in shadow mode
	Reset     time.Time `json:"reset"`    // when the counter is empty again, if nothing else is charged
}

// message is a Body on its way.
type message struct {
	id   string
	body []byte
}

// send hands the message about r to the sender.
func (n *Notifier) send(r *reached) {
	address, err := n.address(r.rule.Notify)
	if err != nil {
		n.sender.fail("", err)
		return
	}
	r.ID = r.id()
	n.sender.add(address, message{r.ID, r.encode(r.rule.Notify.Format)})
}

// address returns where to send the messages of notification.
func (n *Notifier) address(notification *rules.Notification) (*url.URL, error) {
	text, from := notification.URL, "its url"
	if text == "" {
		text, from = n.cfg.DefaultURL, "NOTIFY_URL"
	} else if name, isVariable := strings.CutPrefix(text, "$"); isVariable {
		text, from = n.cfg.Variable(name), text
	}
	if text == "" {
		return nil, fmt.Errorf("%s is not set", from)
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%s is no address of a webhook", from) // It may be a secret.
	}
	return u, nil
}

// Problem says why nobody is told about a subject of r; it is empty if somebody is, or if the rule does not ask for
// it.
func (n *Notifier) Problem(r *rules.Rule) string {
	if r.Notify == nil {
		return ""
	}
	if _, err := n.address(r.Notify); err != nil {
		return err.Error()
	}
	return ""
}

// encode returns the body of a request.
func (b *Body) encode(f rules.NotifyFormat) []byte {
	var v any = b
	switch f {
	case rules.NotifySlack:
		v = map[string]string{"text": b.slackText()}
	case rules.NotifyAlertmanager:
		v = []any{b.alert()}
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // Texts, numbers and times always encode.
	}
	return text
}

// sentence returns what happened. code marks up a part that is verbatim.
func (b *Body) sentence(code func(string) string) string {
	verb := "has used"
	if b.Denied {
		verb = "is denied, with"
		if !b.Enforced {
			verb = "would be denied, with"
		}
	}
	return fmt.Sprintf("%s %s %d of %d (%d %%) of %s, %s, until %s.", code(b.Subject), verb, b.Used, b.Limit,
		percent(b.Used, b.Limit), code(b.Rule), b.LimitText, b.Reset.Format("2006-01-02 15:04:05 MST"))
}

func percent(used, limit uint64) uint64 {
	if limit == 0 {
		return 100
	}
	return used * 100 / limit
}

var slackEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "`", "'")

func (b *Body) slackText() string {
	return b.sentence(func(s string) string { return "`" + slackEscapes.Replace(s) + "`" })
}

// alert returns an alert that ends when the counter is empty again.
func (b *Body) alert() any {
	type texts map[string]string
	return struct {
		Labels      texts     `json:"labels"`
		Annotations texts     `json:"annotations"`
		StartsAt    time.Time `json:"startsAt"`
		EndsAt      time.Time `json:"endsAt"`
	}{
		texts{
			"alertname": "RateLimitReached", "domain": b.Domain, "rule": b.Rule, "subject": b.Subject,
			"threshold": strconv.FormatUint(uint64(b.Threshold), 10),
		},
		texts{
			"summary": b.sentence(func(s string) string { return s }), "used": strconv.FormatUint(b.Used, 10),
			"limit": strconv.FormatUint(b.Limit, 10), "denied": strconv.FormatBool(b.Denied), "id": b.ID,
		},
		b.At, b.Reset,
	}
}
