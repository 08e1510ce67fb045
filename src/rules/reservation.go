package rules

import (
	"encoding/json"
	"fmt"
	"time"
)

// Reservation says what a request that asks for 0 units, or for no amount, reserves, until a later request charges what
// was used. It is immutable.
type Reservation struct {
	Estimate uint64        // units; 0: learned from what was charged before
	For      time.Duration // a reservation that was not charged expires after it; the Hold of the limit
}

// learnedEstimate is the word of rule files for an estimate that is learned.
const learnedEstimate = "learned"

// estimate returns the estimate as rule files have it.
func (r *Reservation) estimate() any {
	if r.Estimate == 0 {
		return learnedEstimate
	}
	return r.Estimate
}

// String returns the reservation on one line as in rule files: "{estimate: 2000, for: 2m}".
func (r *Reservation) String() string {
	return fmt.Sprintf("{estimate: %v, for: %s}", r.estimate(), FormatDuration(r.For))
}

// fields returns the reservation as rule files have it.
func (r *Reservation) fields() any {
	return struct {
		Estimate any    `yaml:"estimate" json:"estimate"`
		For      string `yaml:"for" json:"for"`
	}{r.estimate(), FormatDuration(r.For)}
}

// MarshalYAML and MarshalJSON return the reservation as rule files have it.
func (r *Reservation) MarshalYAML() (any, error) { return r.fields(), nil }

// MarshalJSON is MarshalYAML for JSON.
func (r *Reservation) MarshalJSON() ([]byte, error) { return json.Marshal(r.fields()) }
