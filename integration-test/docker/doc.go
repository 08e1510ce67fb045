// Package docker builds the Dockerfile with a real engine, runs the image, and runs both compose files as their
// comments and the README say. make docker-check runs it, which is go test with -full; without -full it is skipped.
//
// It proves:
//
//   - The image is at most 30 MiB, is built for amd64 and arm64, and two builds of the same source have the same
//     binary.
//   - It runs as an unprivileged user with a read-only root and without capabilities, becomes healthy, loads a changed
//     rule from a bind mount, answers a request in flight at SIGTERM, and exits with 0.
//   - The image that make image builds from files of this machine, on nothing, does so, too.
//   - Every command in the comments of the compose files works, and the README's table of requests to Envoy is right.
//   - The image of deploy/ci/Dockerfile, built and run as its comments say and as the example's job for GitLab does,
//     checks a repository of rules: a good change passes and is compared, and a mistake fails at its line.
//
// It uses the engine of this machine if there is one (DOCKER_HOST, or the default socket), and the real base images,
// which that engine has or pulls. The ports of the compose files must be free then.
//
// Without an engine, or with -engine own, it starts one: dockerd in namespaces of its own, with its own network,
// processes, mounts and data, so nothing else on the machine sees it, and nothing of it outlives the test, however that
// ends. This engine has no network beyond itself, but for a proxy through which one build fetches packages of Debian.
// Its base images are stand-ins under the real names, made from local files: Go's toolchain and modules, Envoy from
// PyPI, redis-server and memcached of this machine, a Debian of mmdebstrap. The output names them. It needs root, and
// of Debian's packages docker.io, docker-compose, iproute2, iptables, git, mmdebstrap, redis-server and memcached.
package docker
