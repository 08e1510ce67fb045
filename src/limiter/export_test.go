package limiter

// Bind is Status.bind for tests.
func Bind(st *Status) { st.bind() }
