package limiter

// Conclude is Status.conclude for tests.
func Conclude(st *Status) { st.conclude() }

// Decide is Answer.decide for tests.
func Decide(a *Answer) { a.decide(false, false) }
