package limiter

// CodeName returns the name that Envoy's API has for the answer to a request or to a descriptor: OVER_LIMIT or OK.
func CodeName(over bool) string {
	if over {
		return "OVER_LIMIT"
	}
	return "OK"
}
