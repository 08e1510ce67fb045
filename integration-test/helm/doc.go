// Package helm tests the chart in deploy/helm/ratelimit.
//
// Without -full it reads the files of the chart: every value is in the schema and in the README's table, every variable
// is a setting, the copies of alerts and dashboard are current, and the defaults are those of examples/kubernetes.
//
// With -full, as `make helm-check` runs it, it installs Helm, etcd and Kubernetes' API server from their Go modules. It
// lints and packages the chart and renders it for a table of values. It reads the objects strictly into Kubernetes'
// types, compares them with each other and with the settings, and starts the service as the Deployment says. At last it
// installs, upgrades and rolls back releases at the API server. There is no kubelet, so no pod runs there.
package helm
