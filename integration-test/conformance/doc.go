// Package conformance tests the HTTP/2 server of src/frontend/h2 with the conformance tests of others: grpc-go's
// interop cases and connectconformance.
//
// The server decides the calls of one method in batches, without their metadata, and passes all others to a handler. So
// each suite runs twice: with a handler for everything, and with a batch method for the cases that need no metadata.
//
// The programs are installed once, as Go modules, into the user's cache directory. If that fails, tests are skipped;
// with CI=true, they fail.
package conformance
