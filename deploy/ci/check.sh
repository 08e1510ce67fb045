#!/usr/bin/env bash
# Checks the rate limit rules of a repository, runs their tests, and compares them with those of another commit. action.yml and the
# image of deploy/ci/Dockerfile run it in the directory of the checkout. Variables:
#
#   RULES     directory or file of the rules; default rules
#   TESTS     directories or files of their tests, separated by blanks; default tests if there is such a directory, none: no tests
#   BASE      branch or commit to compare with; empty: no comparison
#   REQUESTS  recorded requests that the comparison replays; empty: none
#   FLAGS     further flags of `ratelimit check`, such as --backend redis, separated by blanks
#   FAIL_ON   error: mistakes and failed tests (default), warning: warnings, too, never
#   FORMAT    github: annotations, text: lines (default, except in GitHub Actions)
#   REPORT    file for the comparison, in Markdown; default rate-limits.md
#   RATELIMIT the program; default ratelimit
#
# Exit status: 0 or, as FAIL_ON says, 1. 2 if the checks could not run.
set -euo pipefail

ratelimit=${RATELIMIT:-ratelimit}
rules=${RULES:-rules} rules=${rules%/} rules=${rules#./}
report=${REPORT:-rate-limits.md}
format=${FORMAT:-$([ "${GITHUB_ACTIONS:-}" = true ] && echo github || echo text)}
tests=${TESTS:-$([ -d tests ] && echo tests || echo none)}

# fail MESSAGE ends the run: the checks could not run.
fail() {
  [ "$format" = github ] && echo "::error::$1" || echo "error: $1"
  exit 2
}

# output NAME=VALUE is an output of the action.
output() { [ -z "${GITHUB_OUTPUT:-}" ] || echo "$1" >> "$GITHUB_OUTPUT"; }

case ${FAIL_ON:=error} in error | warning | never) ;; *) fail "fail-on is $FAIL_ON; write error, warning or never" ;; esac
case $format in github | text) ;; *) fail "FORMAT is $format; write github or text" ;; esac
[ -e "$rules" ] || fail "there are no rules at $rules; set rules to their directory, and check the repository out before"
"$ratelimit" version > /dev/null || fail "$ratelimit does not run on this machine"

temporary=$(mktemp -d)
trap 'git worktree remove --force "$temporary/base" 2> /dev/null || true; rm -rf "$temporary"' EXIT
errors=0 warnings=0

echo "== ratelimit check $rules"
# shellcheck disable=SC2086 # FLAGS are several words.
"$ratelimit" check ${FLAGS:-} --format "$format" -- "$rules" > "$temporary/check" || errors=1
cat "$temporary/check"
! grep -qE '^(::)?warning' "$temporary/check" || warnings=1

if [ "$tests" != none ]; then
  echo "== ratelimit test $tests"
  # shellcheck disable=SC2086 # TESTS are several words.
  "$ratelimit" test --format "$format" -- $tests || errors=1
fi

# find_base prints the commit to compare with: the one from which this branch started.
find_base() {
  local name
  for name in "origin/$BASE" "$BASE"; do
    if git rev-parse --quiet --verify "$name^{commit}" > /dev/null; then
      git merge-base HEAD "$name" && return
    fi
  done
  return 1
}

changed=
if [ -n "${BASE:-}" ] && [ $errors = 0 ]; then
  echo "== ratelimit diff: $rules since $BASE"
  base=$(find_base) || fail "no common commit with $BASE here; check out the whole history (actions/checkout: fetch-depth: 0; GitLab: GIT_DEPTH: 0)"
  git worktree add --quiet --force --detach "$temporary/base" "$base"
  before=$temporary/base/$rules
  first=
  [ -e "$before" ] || { first=1; mkdir -p "$before"; } # The first rules of a repository.
  # shellcheck disable=SC2206 # FLAGS are several words.
  flags=() merge=--merge-domain-configs
  case " ${FLAGS:-} " in *" $merge "*) flags+=("$merge") ;; esac
  if [ -n "$first" ] || "$ratelimit" check ${flags[@]+"${flags[@]}"} -- "$before" > /dev/null 2>&1; then
    [ -z "${REQUESTS:-}" ] || flags+=(--requests "$REQUESTS")
    status=0
    "$ratelimit" diff "$before" "$rules" ${flags[@]+"${flags[@]}"} --format markdown > "$temporary/report" || status=$?
    case $status in 0) changed=false ;; 1) changed=true ;; *) exit 2 ;; esac
    # One comment for each directory of rules.
    sed "1s|.*|<!-- ratelimit diff $rules -->|" "$temporary/report" > "$report"
    "$ratelimit" diff "$before" "$rules" ${flags[@]+"${flags[@]}"} --exit-zero | sed "s|$temporary/base/||g"
    output "report=$report"
    [ -z "${GITHUB_STEP_SUMMARY:-}" ] || cat "$report" >> "$GITHUB_STEP_SUMMARY"
  else
    echo "the rules of $BASE have mistakes: not compared"
  fi
fi

result=passed
case $FAIL_ON-$errors-$warnings in error-1-* | warning-1-* | warning-*-1) result=failed ;; esac
output "result=$result"
output "changed=$changed"
[ $result = passed ]
