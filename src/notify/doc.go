// Package notify sends a webhook when a subject has used much of a limit whose rule has `notify`.
//
// A Notifier sees each decision, as a limiter.Recorder. A subject that has reached a percentage takes three steps:
//
//	Record     finds it on the path of the request, and keeps it in a queue
//	claim      charges a counter of one unit in the store, so that one of all replicas goes on
//	sender     posts the message, and retries
//
// The counter of a claim lives as long as the window, so there is one message for each subject, percentage and window.
// If the store does not answer a claim, the message is sent: each replica may then send one, all with the same id.
package notify
