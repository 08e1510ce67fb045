package model

import (
	"sync"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// heldHits is the mutation that changes hits that name a hold. known are the holds of the hit's counter that change
// itself has put there.
func heldHits(change func(h *backend.Hit, known map[algorithm.HoldID]int)) mutation {
	var mu sync.Mutex
	counters := make(map[string]map[algorithm.HoldID]int)
	return changing(func(h *backend.Hit) {
		mu.Lock()
		defer mu.Unlock()
		if h.HoldID == (algorithm.HoldID{}) || h.Op == algorithm.Look {
			return
		}
		key := string(h.Key) + h.Limit.Kind.String()
		if counters[key] == nil {
			counters[key] = make(map[algorithm.HoldID]int)
		}
		change(h, counters[key])
	})
}

// anew gives a hit the name of a hold that the store does not know.
func anew(h *backend.Hit, number int) { h.HoldID[15] ^= byte(number) }

// holdMutants are stores with mistakes that only holds show.
var holdMutants = []mutantCase{
	{name: "forgets holds that are done", most: 5, first: 1, mutate: func() mutation {
		return heldHits(func(h *backend.Hit, done map[algorithm.HoldID]int) {
			id := h.HoldID
			anew(h, done[id])
			if h.Op != algorithm.Charge {
				done[id]++
			}
		})
	}},
	{name: "frees a slot twice", most: 6, first: 1, mutate: func() mutation {
		return heldHits(func(h *backend.Hit, open map[algorithm.HoldID]int) {
			if h.Op == algorithm.Charge {
				open[h.HoldID]++
				return
			}
			if open[h.HoldID] == 0 {
				for id := range open {
					h.HoldID = id
				}
			}
			delete(open, h.HoldID)
		})
	}},
	{name: "counts a repeat", most: 3, first: 1, mutate: func() mutation {
		return heldHits(func(h *backend.Hit, asked map[algorithm.HoldID]int) {
			if id := h.HoldID; h.Op == algorithm.Charge {
				anew(h, asked[id])
				asked[id]++
			}
		})
	}},
	{name: "refuses settlements", most: 3, first: 1, mutate: func() mutation {
		return heldHits(func(h *backend.Hit, _ map[algorithm.HoldID]int) {
			if h.Op == algorithm.Force {
				h.Op, h.HoldID = algorithm.Charge, algorithm.HoldID{}
			}
		})
	}},
	{name: "settles and keeps the reservation", most: 3, first: 2, mutate: func() mutation {
		return heldHits(func(h *backend.Hit, _ map[algorithm.HoldID]int) {
			if h.Op == algorithm.Force {
				h.HoldID = algorithm.HoldID{}
			}
		})
	}},
	{name: "lets holds expire late", most: 4, first: 1, mutate: func() mutation {
		return changing(func(h *backend.Hit) {
			if h.Limit.Hold > 0 {
				h.Limit.Hold += time.Microsecond
			}
		})
	}},
	{name: "releases what expires", most: 4, first: 1, mutate: func() mutation {
		return changing(func(h *backend.Hit) { h.Limit.ReleaseUnsettled = h.Limit.Hold > 0 })
	}},
	{name: "takes the amount of a settlement for a release", most: 3, first: 1, mutate: func() mutation {
		return heldHits(func(h *backend.Hit, _ map[algorithm.HoldID]int) {
			if h.Op == algorithm.Force {
				h.Op = algorithm.Refund
			}
		})
	}},
}

// calendarMutants are stores with mistakes that only calendars show.
var calendarMutants = []mutantCase{
	{name: "counts days of UTC", most: 4, first: 13, mutate: func() mutation {
		return calendars(func(spec *algorithm.CalendarSpec) { spec.Location = time.UTC })
	}},
	{name: "starts weeks on a Sunday", most: 4, first: 3, mutate: func() mutation {
		return calendars(func(spec *algorithm.CalendarSpec) { spec.WeekStarts = time.Sunday })
	}},
	{name: "starts months on the first", most: 4, first: 4, mutate: func() mutation {
		return calendars(func(spec *algorithm.CalendarSpec) { spec.AnchorDay = min(spec.AnchorDay, 1) })
	}},
}

// calendars changes the calendars of limits.
func calendars(change func(spec *algorithm.CalendarSpec)) mutation {
	return changing(func(h *backend.Hit) {
		if h.Limit.Calendar == nil {
			return
		}
		spec := h.Limit.Calendar.Spec()
		change(&spec)
		other, err := algorithm.NewCalendar(spec)
		if err != nil {
			panic(err)
		}
		h.Limit.Calendar = other
	})
}
