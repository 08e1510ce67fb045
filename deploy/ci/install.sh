#!/usr/bin/env bash
# Downloads the ratelimit program of a release, compares its checksum, and prints the path of the program. Variables:
#
#   VERSION     version, such as 1.2.3 or v1.2.3; latest: the newest release
#   REPOSITORY  address of the repository with the releases, such as https://github.com/OWNER/ratelimit
#   DIRECTORY   directory to put the program into
set -euo pipefail

fail() {
  echo "::error::ratelimit is not installed: $1" >&2
  exit 2
}
fetch() { curl --fail --silent --show-error --location --retry 3 --connect-timeout 20 --max-time 300 "$@"; }

if [ "$VERSION" = latest ]; then
  page=$(fetch --head --output /dev/null --write-out '%{url_effective}' "$REPOSITORY/releases/latest") ||
    fail "$REPOSITORY/releases/latest does not answer; set version, or binary"
  VERSION=${page##*/}
fi
version=${VERSION#v}
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || fail "version is '$VERSION'; write one such as 1.2.3, or latest"

case $(uname -s) in Linux) os=linux ;; Darwin) os=darwin ;; MINGW* | MSYS*) os=windows ;; *) fail "no release for $(uname -s)" ;; esac
case $(uname -m) in x86_64 | amd64) arch=amd64 ;; aarch64 | arm64) arch=arm64 ;; *) fail "no release for $(uname -m)" ;; esac
directory=ratelimit_${version}_${os}_$arch # in the archive
archive=$directory.tar.gz program=ratelimit
[ $os != windows ] || archive=$directory.zip program=ratelimit.exe

draft=$(mktemp -d)
trap 'rm -rf "$draft"' EXIT
from=$REPOSITORY/releases/download/v$version
for file in "$archive" checksums.txt; do
  fetch --output "$draft/$file" "$from/$file" || fail "cannot download $from/$file"
done

want=$(awk -v name="$archive" '$2 == name || $2 == "*" name { print $1 }' "$draft/checksums.txt")
got=$( (sha256sum "$draft/$archive" 2> /dev/null || shasum -a 256 "$draft/$archive") | cut -d ' ' -f 1)
[ -n "$want" ] || fail "$from/checksums.txt has no line for $archive"
[ "$got" = "$want" ] || fail "$from/$archive has the SHA-256 $got, but the release says $want"

mkdir -p "$DIRECTORY"
case $archive in
*.zip) unzip -q -o -j "$draft/$archive" "$directory/$program" -d "$DIRECTORY" ;;
*) tar -xzf "$draft/$archive" -C "$DIRECTORY" --strip-components 1 "$directory/$program" ;;
esac
echo "$DIRECTORY/$program"
