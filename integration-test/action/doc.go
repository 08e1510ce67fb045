// Package action runs what checks a repository of rules in CI: action.yml, deploy/ci, and all files of
// examples/rules-repo.
//
// The tests of make test-long run the steps of the action and of the jobs with bash and the variables that GitHub and
// GitLab document, in a copy of the example that is a git repository. Servers of the tests stand for the releases and
// for GitHub's API. They need bash, git, curl and jq.
//
// make action-check also lints the workflows with actionlint and runs the example's workflow with act, which runs
// workflows as GitHub's runner does, on this machine and without containers.
package action
