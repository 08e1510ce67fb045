package limiter

// Summarize is Status.summarizeCharges for tests.
func Summarize(st *Status) { st.summarizeCharges() }

// Combine is Answer.combineStatuses for tests.
func Combine(a *Answer) { a.combineStatuses(false) }
