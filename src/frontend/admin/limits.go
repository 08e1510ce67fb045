package admin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"ratelimit/src/operator"
	"ratelimit/src/overrides"
)

// Limits shows and changes limits at run time. *operator.LimitEditor implements it.
type Limits interface {
	List(domain string) []overrides.Override
	History(ctx context.Context) ([]overrides.Record, error)
	WriteRules(w io.Writer, domain string) error
	Change(ctx context.Context, c operator.LimitChange, client operator.Client) (*operator.LimitReport, error)
}

type limitsAPI struct{ limits Limits }

// defaultListed is how many overrides or records a GET lists unless it asks for more. It may ask for maxListedLimits.
const (
	defaultListed   = 1000
	maxListedLimits = 100_000
)

// ServeHTTP lists the limits that were changed, or performs the change in the body of a POST.
func (a *limitsAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if r.Method == http.MethodPost {
		c, err := readBody[operator.LimitChange](w, r, "change of a limit")
		if err != nil {
			writeRefusal(w, err)
			return
		}
		report, err := a.limits.Change(r.Context(), c, clientOf(r))
		if err != nil {
			writeRefusal(w, err)
			return
		}
		writeJSON(w, http.StatusOK, report)
		return
	}
	q, err := parseLimitsQuery(r.URL.RawQuery)
	if err != nil {
		writeRefusal(w, err)
		return
	}
	if q.isYAML {
		var text bytes.Buffer
		if err := a.limits.WriteRules(&text, q.domain); err != nil {
			writeRefusal(w, err)
			return
		}
		streamPage(w, "application/yaml", func(w io.Writer) error {
			_, err := text.WriteTo(w)
			return err
		})
		return
	}
	list := operator.LimitList{Limits: a.limits.List(q.domain)}
	list.Count = len(list.Limits)
	list.Limits = append([]overrides.Override{}, list.Limits[:min(q.limit, list.Count)]...)
	if q.history {
		records, err := a.limits.History(r.Context())
		if err != nil {
			writeRefusal(w, err)
			return
		}
		records = slices.DeleteFunc(records, func(r overrides.Record) bool { return q.domain != "" && r.Domain != q.domain })
		list.History = records[:min(q.limit, len(records))]
	}
	writeJSON(w, http.StatusOK, list)
}

type limitsQuery struct {
	domain  string
	limit   int
	history bool
	isYAML  bool // asks for rules
}

func parseLimitsQuery(query string) (q limitsQuery, err error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return q, operator.BadChange("the query cannot be read: %v", err)
	}
	q.limit = defaultListed
	for name, list := range values {
		value := list[0]
		if len(list) > 1 {
			return q, operator.BadChange("give %.100q once", name)
		}
		err = nil
		switch name {
		case "domain":
			q.domain = value
		case "history":
			q.history, err = strconv.ParseBool(value)
		case "limit":
			q.limit, err = strconv.Atoi(value)
			if err == nil && (q.limit < 1 || q.limit > maxListedLimits) {
				err = errors.New("write 1 to 100000")
			}
		case "format":
			if q.isYAML = value == "yaml"; !q.isYAML {
				err = errors.New("write yaml, or leave it out for JSON")
			}
		default:
			return q, operator.BadChange("unknown parameter %.100q; write domain=D, limit=N, history=true or format=yaml", name)
		}
		if err != nil {
			return q, operator.BadChange("%s=%.100q: %v", name, value, err)
		}
	}
	if q.isYAML && q.domain == "" {
		return q, operator.BadChange("format=yaml needs domain=D")
	}
	return q, nil
}
