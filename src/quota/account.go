package quota

import "time"

// settleTime is how long a message may be on its way, in either direction, with the time that the proxy takes to use or
// to write it. An assignment that was replaced longer ago is not in use, and later reports have all of its use.
const settleTime = time.Second

// assignmentSpacing is the shortest time between two assignments of one proxy in one window.
const assignmentSpacing = settleTime / 2

// maxUnsettled is how many assignments an account knows one by one.
const maxUnsettled = 3

// account is what the service knows of the units that one proxy has in one bucket: what it has assigned and what the
// proxy has reported, but not of which assignment, nor which one the proxy uses now. Its estimates are on the safe
// side: more units may be in use than are, never fewer.
//
// An assignment of 100 units that the proxy reports 60 of, replaced by another one of 50:
//
//	                                inUse   outstanding
//	assign 100                       100           100   100 are charged in the store
//	report 60 allowed                100            40
//	assign 50                        150            90   50 more are charged; the old 40 may still be used
//	report 40 allowed, after 1 s      50            50
//	report 10 allowed                 40            40
//	it expires, report 5 after 1 s     0            35   35 were not used: spare
type account struct {
	unsettled    [maxUnsettled]assigned // the newest assignments, oldest first, of which the first count are set.
	count        uint8
	settledUnits uint64 // what may be left of the newest assignment that had settled when the last report came.
	expiresAt    int64  // when the newest assignment expires, as Instant.elapsed; 0 without one.
}

// assigned is an assignment that the proxy may not have received yet.
type assigned struct {
	at    int64 // when it was sent, as Instant.elapsed.
	units uint32
}

// inUse returns how many units the assignments may still admit. It is at most what is outstanding.
func (a *account) inUse() uint64 {
	sum := a.settledUnits
	for _, u := range a.unsettled[:a.count] {
		sum += uint64(u.units)
	}
	return sum
}

// nextAssignment returns when the next assignment in the same window may be sent, as Instant.elapsed.
func (a *account) nextAssignment() int64 {
	if a.count == 0 {
		return 0
	}
	return a.unsettled[a.count-1].at + int64(assignmentSpacing)
}

// assign notes an assignment that is sent now.
func (a *account) assign(units uint32, now, expiresAt int64) {
	if a.count == maxUnsettled {
		a.settledUnits += uint64(a.unsettled[0].units)
		copy(a.unsettled[:], a.unsettled[1:])
		a.count--
	}
	a.unsettled[a.count] = assigned{now, units}
	a.count++
	a.expiresAt = expiresAt
}

// report notes a report of allowed units that arrives now: assignments that have settled replace those before them.
func (a *account) report(allowed uint64, now int64) {
	settled := 0
	for settled < int(a.count) && now-a.unsettled[settled].at >= int64(settleTime) {
		settled++
	}
	switch {
	case a.expiresAt > 0 && now-a.expiresAt >= int64(settleTime):
		*a = account{}
		return
	case settled > 0:
		a.settledUnits = uint64(a.unsettled[settled-1].units)
		copy(a.unsettled[:], a.unsettled[settled:a.count])
		a.count -= uint8(settled)
	case a.count == 0:
		// What is reported comes from the settled assignment, as the report before this one came after it had settled.
		a.settledUnits -= min(allowed, a.settledUnits)
	}
}
