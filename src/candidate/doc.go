// Package candidate judges candidate rules beside the live ones, which are in force: how would they have answered the
// same requests?
//
//	judge.go        the limiter of the live rules, which also asks the candidate rules
//	decision.go     one decision of the candidate rules
//	sample.go       how many counters are judged, so that candidate rules stay cheap
//	differences.go  what the candidate rules would answer differently, for the operator
package candidate
