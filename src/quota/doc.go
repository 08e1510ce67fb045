// Package quota divides limits among proxies that enforce them themselves. It charges units in the store before a proxy
// may use them.
//
//	proxy --report--> member, account --due--> round: look, plan, charge --assignment--> proxy
//	                  (what may be in use)     (what is left)   |
//	                                                          store, shared with all other callers and replicas
//
// A report says how many requests of a bucket a proxy let pass, and how many it refused. From it the account of the
// proxy estimates how many of its units may still be in use, always on the safe side. The next round of the bucket
// looks how many units the store has left, divides them max-min fair among the proxies that need some, charges them,
// and sends the assignments.
//
// In a fixed window proxies admit at most the limit and what was assigned, and neither used nor replaced, when the
// window began. That holds if messages take less than settleTime, and if proxies use only what they were assigned and
// report what they used.
package quota
