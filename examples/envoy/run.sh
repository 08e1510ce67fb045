#!/usr/bin/env bash
# Starts what docker-compose-example.yml starts, without Docker: the service with the example rules, a mock, and an
# Envoy in front of it. `make envoy-example` builds the service and runs this. Ctrl-C stops all.
#
# RATELIMIT_BIN names the service, bin/ratelimit. Set ENVOY_PORT, ENVOY_ADMIN_PORT, MOCK_PORT, PORT, GRPC_PORT or DEBUG_PORT if one of the ports is taken.
set -euo pipefail
cd "$(dirname "$0")/../.."

ratelimit=${RATELIMIT_BIN:-bin/ratelimit}
envoy=$(examples/envoy/install.sh)
front=${ENVOY_PORT:-8888} admin=${ENVOY_ADMIN_PORT:-8001} mock=${MOCK_PORT:-9999}
export HOST=127.0.0.1 GRPC_HOST=127.0.0.1 DEBUG_HOST=127.0.0.1
export PORT=${PORT:-8080} GRPC_PORT=${GRPC_PORT:-8081} DEBUG_PORT=${DEBUG_PORT:-6070}

dir=$(mktemp -d)
pids=()
stop() {
  ((${#pids[@]} == 0)) || kill "${pids[@]}" 2>/dev/null || true
  wait
  rm -rf "$dir"
}
trap stop EXIT
trap 'exit 130' INT TERM

# Hosts of the compose file become this machine.
for name in mock proxy; do
  sed -E 's/address: (0\.0\.0\.0|envoy-mock|ratelimit), /address: 127.0.0.1, /' "examples/envoy/$name.yaml" |
    sed -e "s/port_value: 8888}/port_value: $front}/; t" -e "s/port_value: 8001}/port_value: $admin}/; t" \
      -e "s/port_value: 9999}/port_value: $mock}/; t" -e "s/port_value: 8081}/port_value: $GRPC_PORT}/" >"$dir/$name.yaml"
done

# need_all ends the example if one of its processes has ended.
need_all() {
  local pid
  for pid in "${pids[@]}"; do
    kill -0 "$pid" 2>/dev/null || { echo "envoy-example: a process has ended, see above" >&2; exit 1; }
  done
}

# await COMMAND...: waits until it succeeds, for as long as all processes run.
await() {
  until "$@" >/dev/null 2>&1; do
    need_all
    sleep 0.1
  done
}

DISABLE_STATS=${DISABLE_STATS:-true} "$ratelimit" serve --config examples/ratelimit/config &
pids+=($!)
await "$ratelimit" health
for name in mock proxy; do
  "$envoy" --config-path "$dir/$name.yaml" --concurrency 1 --log-level error --disable-hot-restart &
  pids+=($!)
done
await curl -fs "127.0.0.1:$admin/ready"
await curl -fs "127.0.0.1:$front/"
need_all

echo
echo "Envoy asks the service about requests to localhost:$front. Try in another terminal:"
sed -nE "s/^#   curl -i localhost:8888(.*)/  curl -i localhost:$front\1/p" examples/envoy/proxy.yaml
echo "The operator's page is http://localhost:$DEBUG_PORT/. Ctrl-C stops all."
while :; do
  need_all
  sleep 1 & wait $! # wait ends at once with a signal
done
