#!/usr/bin/env bash
# Posts a report as a comment on a pull request of GitHub, or replaces the comment that has the same first line. Variables: REPORT (a
# file), TOKEN, REPOSITORY (owner/name), NUMBER, API (address of GitHub's API).
set -euo pipefail

request() {
  curl --fail --silent --show-error --retry 3 --connect-timeout 20 --max-time 60 \
    --header @- --header 'Accept: application/vnd.github+json' "$@" <<< "Authorization: Bearer $TOKEN"
}
mark=$(head -n 1 "$REPORT")
comments=$API/repos/$REPOSITORY/issues/$NUMBER/comments
body=$(mktemp)
trap 'rm -f "$body"' EXIT
jq --raw-input --slurp '{body: .}' "$REPORT" > "$body"

id=
for page in {1..30}; do # 3000 comments
  list=$(request "$comments?per_page=100&page=$page")
  id=$(jq --raw-output --arg mark "$mark" '[.[] | select(.body | startswith($mark))][0].id // empty' <<< "$list")
  [ -z "$id" ] && [ "$(jq length <<< "$list")" -eq 100 ] || break
done
if [ -n "$id" ]; then
  request --request PATCH --data "@$body" --output /dev/null "$API/repos/$REPOSITORY/issues/comments/$id"
else
  request --data "@$body" --output /dev/null "$comments"
fi
