#!/bin/sh
# Asks a service that runs as
#
#	RESP_PORT=6380 RESP_PASSWORD=open ratelimit serve --config examples/redis-clients/config
#
# with redis-cli: session.sh [PORT]. The other files here ask the same with redis-py, node-redis and go-redis.
set -eu

export REDISCLI_AUTH=open # redis-cli sends AUTH with it.
ask() { redis-cli -p "${port}" "$@"; }
port="${1:-6380}"

ask RATELIMIT api user alex             # one of the ten requests of a year
ask RATELIMIT api user alex HITS 3      # three more
ask RATELIMIT api user alex HITS 7      # six are left, so it is refused; a fixed window counts it all the same
ask CL.THROTTLE alex 15 30 60           # redis-cell's command, with the limit in it
ask RATELIMIT.TREE limits 1 user alex trade # each level of a tree
