// Package gateway tests the service below a real Envoy Gateway: its own program in standalone mode, a real Envoy,
// Redis, and the service with the variables that Envoy Gateway sets in Kubernetes.
//
// Envoy Gateway sends its rules to the service over xDS with mutual TLS, and starts Envoy, which asks the service over
// TLS. Each file in testdata/cases has a policy, and in comments the question that it answers and the requests that the
// test sends:
//
//	#> GET /pay x-user=ann from=127.0.0.2 : 200 x-ratelimit-remaining=0 429
//
// sends two requests with the header x-user from 127.0.0.2 to the host that has the file's name, and expects the codes
// 200 and 429. A header behind a code is one of that response, without spaces; !name is one that it must not have. ~429
// repeats the request until the answer is 429, which is for what Envoy charges after a response. GET @merged/ is for
// the gateway "merged". GRPC calls the health service, whose codes have the names of gRPC's. {ann} stands for a token
// whose subject is ann.
//
// All of this takes Envoy Gateway's program, whose first build takes several minutes, so it runs only with "make
// gateway-check", which builds a copy of Envoy Gateway's source with a few small changes; build_test.go names each with
// its reason. GATEWAY_BIN names a binary that was built before. Envoy Gateway has fixed ports: 8081 of the service,
// 18000, 18001 and 19001. So there is one run at a time, and only on the loopback interface.
//
// "go test" without -full checks the files and the variables.
package gateway
