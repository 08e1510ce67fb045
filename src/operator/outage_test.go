package operator

import (
	"testing"
	"time"
)

func TestOutageText(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 14, 30, 0, 0, time.Local)
	at := time.Date(2026, 1, 2, 14, 23, 7, 0, time.Local)
	redis := Outage{Store: "Redis", SilentServers: 1, Servers: 1, Since: at}
	for _, tt := range []struct {
		outages  []Outage
		requests RequestsPerSecond
		want     string
	}{
		{nil, RequestsPerSecond{Admitted: 3}, ""},
		{
			[]Outage{redis},
			RequestsPerSecond{Failed: 20},
			"Redis has not answered since 14:23:07; 100 % of requests get an error",
		},
		{
			[]Outage{redis},
			RequestsPerSecond{Admitted: 1, Failed: 999},
			"Redis has not answered since 14:23:07; more than 99 % of requests get an error",
		},
		{
			[]Outage{{Store: "Redis", SilentServers: 1, Servers: 1, Since: at.AddDate(0, 0, -1)}},
			RequestsPerSecond{Admitted: 50, Denied: 10, Fallback: 60, Failed: 40},
			"Redis has not answered since 2026-01-01 14:23:07; 40 % of requests get an error, 60 % of requests are decided " +
				"without the store",
		},
		{
			[]Outage{{Store: "Redis", SilentServers: 1, Servers: 3, Since: at}},
			RequestsPerSecond{Admitted: 999, Fallback: 1},
			"1 server of 3 of Redis has not answered since 14:23:07; less than 1 % of requests are decided without the store",
		},
		{
			[]Outage{{Store: "Memcached", SilentServers: 2, Servers: 3, Since: at}},
			RequestsPerSecond{Admitted: 9},
			"2 servers of 3 of Memcached have not answered since 14:23:07; no request of the last 10 s needed it",
		},
		{
			[]Outage{{Store: "Redis", SilentServers: 1, Servers: 1}, redis},
			RequestsPerSecond{},
			"Redis has not answered since this process started; Redis has not answered since 14:23:07; no requests in the " +
				"last 10 s",
		},
		{
			nil,
			RequestsPerSecond{Admitted: 3, Failed: 1},
			"Some calls of the store get no answer; 25 % of requests get an error",
		},
	} {
		s := State{Now: now, Outages: tt.outages, OnStoreFailure: []string{"error", "local"}}
		if tt.want != "" {
			tt.want += " (on_store_failure: error, local)"
		}
		if got := s.OutageText(&tt.requests); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}

// An outage is bad if requests fail or are denied, and without one, if 1 % of requests fail.
func TestBadOutages(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		isOutage bool
		modes    []string
		failed   float64 // of 100 requests
		want     bool
	}{
		{false, []string{"error"}, 0, false},
		{false, []string{"error"}, 0.5, false},
		{false, []string{"error"}, 1, true},
		{true, []string{"local", "allow"}, 0, false},
		{true, []string{"local", "error"}, 0, true},
		{true, []string{"deny"}, 0, true},
	} {
		s := State{OnStoreFailure: tt.modes}
		if tt.isOutage {
			s.Outages = make([]Outage, 1)
		}
		if got := s.IsOutageBad(&RequestsPerSecond{Admitted: 100 - tt.failed, Failed: tt.failed}); got != tt.want {
			t.Errorf("%+v: %t", tt, got)
		}
	}
}
