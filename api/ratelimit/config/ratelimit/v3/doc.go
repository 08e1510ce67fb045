// Package configv3 is the rules of a domain as messages: those that
// envoyproxy/ratelimit's management servers send, and what our rule files know
// beyond them. `make proto` generates it from rls_conf.proto.
package configv3
