package rules

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"ratelimit/src/backend"
)

// Notification says when somebody is told that a subject has used much of a limit, and where. It is immutable.
type Notification struct {
	// At has percentages of the limit, 1 to 100, in ascending order. There is at least one in a Rule.
	At []uint32 `yaml:"at,flow" json:"at"`
	// URL is the address of the webhook, or `$` and the name of the environment variable that has the address. Empty
	// stands for that of the setting NOTIFY_URL.
	URL    string       `yaml:"url,omitempty" json:"url,omitempty"`
	Format NotifyFormat `yaml:"format,omitempty" json:"format,omitempty"`
}

// MaxNotifyThresholds is the most percentages of a Notification.
const MaxNotifyThresholds = 10

// NotifyFormat is the form of the body of a webhook.
type NotifyFormat uint8

const (
	NotifyJSON         NotifyFormat = iota // an object of this service
	NotifySlack                            // a message of Slack, which Mattermost and others accept, too
	NotifyAlertmanager                     // a list with one alert of Prometheus' Alertmanager
)

// NotifyFormats has the words of all formats.
var NotifyFormats = backend.NewWords[NotifyFormat]("format", "json", "slack", "alertmanager")

// String returns the word that rule files use.
func (f NotifyFormat) String() string { return NotifyFormats.Of(f) }

// MarshalText returns the result of String.
func (f NotifyFormat) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// String returns the notification on one line as in rule files: "{at: [80, 95], url: https://hooks.example.com}".
func (n *Notification) String() string {
	text := "{at: " + strings.ReplaceAll(fmt.Sprint(n.At), " ", ", ")
	if n.URL != "" {
		text += ", url: " + n.URL
	}
	if n.Format != NotifyJSON {
		text += ", format: " + n.Format.String()
	}
	return text + "}"
}

// Reached returns the index of the highest percentage in n.At of limit units that used units reach; -1 if they reach
// none.
func (n *Notification) Reached(used, limit uint64) int {
	reached := -1
	for i, percent := range n.At {
		if used*100 < uint64(percent)*limit {
			break
		}
		reached = i
	}
	return reached
}

// NotifyVariablePrefix is the start of the names of variables that rules may name as the url of a notification. Rules
// come from other people than variables: so they cannot have any variable sent.
const NotifyVariablePrefix = "NOTIFY_URL_"

var notifyVariable = regexp.MustCompile(`^\$` + NotifyVariablePrefix + `[A-Z0-9_]+$`)

// WhyNoWebhook says why address is not the url of a notification, and how to fix it. Both are empty if it is. The
// texts have no part of an address that could be a secret.
func WhyNoWebhook(address string) (why, fix string) {
	const example = "write an address such as https://hooks.example.com/limits"
	if strings.HasPrefix(address, "$") {
		if notifyVariable.MatchString(address) {
			return "", ""
		}
		return fmt.Sprintf("%s names no variable for addresses", Quote(address)),
			"write `$" + NotifyVariablePrefix + "` and capital letters, such as $" + NotifyVariablePrefix + "OPS"
	}
	u, err := url.Parse(address)
	switch {
	case address == "":
		return "it is empty", "remove it to use NOTIFY_URL, or " + example
	case err != nil:
		return "it is no address", example
	case u.Scheme != "https" && u.Scheme != "http":
		return "it does not begin with https://", example
	case u.Hostname() == "":
		return "it has no host", example
	case u.User != nil:
		return "it has a password, and everybody may read rules",
			"put the address into a variable, such as $" + NotifyVariablePrefix + "OPS"
	case u.Fragment != "":
		return "it has a fragment, which is not sent", "remove what begins with #"
	}
	return "", ""
}
