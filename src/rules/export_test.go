package rules

// KeyParts is what the keys of a listed limit's counters are made of, joined.
func KeyParts(r *Rule) string {
	return r.listKey.constantText()
}
