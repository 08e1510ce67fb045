package explain

import (
	"fmt"

	"ratelimit/src/rules"
)

// rateInWords returns the limit that came with a request: "2 per minute".
func rateInWords(r rules.Rate) string { return fmt.Sprintf("%d per %s", r.Requests, r.Window()) }
