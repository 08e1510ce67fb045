{{/* Names are at most 52 bytes, so that the longest suffix, -dashboard, leaves them within the 63 of a DNS label. */}}
{{- define "ratelimit.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "ratelimit.fullname" -}}
{{- $name := include "ratelimit.name" . -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name | replace "." "-" | trunc 52 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | replace "." "-" | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "ratelimit.selectorLabels" -}}
app.kubernetes.io/name: {{ include "ratelimit.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ratelimit.labels" -}}
{{ include "ratelimit.selectorLabels" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* metadata of an object; call it with (list $ suffix labels). */}}
{{- define "ratelimit.metadata" -}}
{{- $root := index . 0 -}}
name: {{ include "ratelimit.fullname" $root }}{{ index . 1 }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "ratelimit.labels" $root | nindent 2 }}
  {{- with merge (dict) (index . 2) $root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "ratelimit.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (ternary (include "ratelimit.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "ratelimit.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* Which ConfigMap has the rules; empty if all rules come from a management server. */}}
{{- define "ratelimit.rulesConfigMap" -}}
{{- if .Values.rulesConfigMap -}}
{{ .Values.rulesConfigMap }}
{{- else if or .Values.rules (not .Values.xds.url) -}}
{{ include "ratelimit.fullname" . }}-rules
{{- end }}
{{- end }}

{{/* Rule files as data of a ConfigMap: text as it is, and YAML as text. */}}
{{- define "ratelimit.ruleFiles" -}}
{{- range $name, $file := . }}
{{ $name }}: |
  {{- if kindIs "string" $file }}
  {{- $file | nindent 2 }}
  {{- else }}
  {{- toYaml $file | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The limit of memory in MiB; 0 if there is none. values.schema.json allows only Mi and Gi. */}}
{{- define "ratelimit.memoryMiB" -}}
{{- $limit := dig "limits" "memory" "" .Values.resources -}}
{{- if hasSuffix "Gi" $limit -}}
{{ mul (trimSuffix "Gi" $limit | int64) 1024 }}
{{- else if $limit -}}
{{ trimSuffix "Mi" $limit | int64 }}
{{- else -}}
0
{{- end }}
{{- end }}

{{/* A value of a setting as text; YAML's numbers arrive as floats. */}}
{{- define "ratelimit.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}

{{/* Settings for TLS towards a server; call it with (list tls prefix directory). */}}
{{- define "ratelimit.clientTLS" -}}
{{- $tls := index . 0 }}{{ $prefix := index . 1 }}{{ $directory := index . 2 }}
{{- if $tls.secret }}
{{ $prefix }}_CACERT: {{ $directory }}/ca.crt
{{- if $tls.clientCertificate }}
{{ $prefix }}_CLIENT_CERT: {{ $directory }}/tls.crt
{{ $prefix }}_CLIENT_KEY: {{ $directory }}/tls.key
{{- end }}
{{- end }}
{{- end }}

{{/* The settings that follow from the values, as YAML. */}}
{{- define "ratelimit.derivedSettings" -}}
{{- $v := .Values }}
{{- $memory := include "ratelimit.memoryMiB" . | int64 }}
LOG_LEVEL: info
LOG_FORMAT: json
PORT: {{ $v.ports.http }}
GRPC_PORT: {{ $v.ports.grpc }}
HEALTH_PORT: {{ $v.ports.health }}
DEBUG_PORT: {{ $v.ports.debug }}
DEBUG_HOST: {{ $v.debug.host }}
USE_PROMETHEUS: true
PROMETHEUS_ADDR: ":{{ $v.ports.metrics }}"
DIVVY_PORT: {{ $v.ports.divvy | default "off" | quote }}
{{- if $v.ports.resp }}
RESP_PORT: {{ $v.ports.resp }}
{{- end }}
SHUTDOWN_DRAIN: {{ $v.shutdown.drainSeconds }}s
SHUTDOWN_TIMEOUT: {{ $v.shutdown.timeoutSeconds }}s
GOMAXPROCS: {{ $v.maxProcs }}
{{- if $memory }}
GOMEMLIMIT: {{ div (mul $memory 7) 8 }}MiB
GRPC_MAX_CONNECTIONS: {{ min 20000 (div (mul $memory 3000) 256) }}
HTTP_MAX_CONNECTIONS: {{ min 10000 (div (mul $memory 1000) 256) }}
{{- if $v.ports.resp }}
RESP_MAX_CONNECTIONS: {{ min 10000 (div (mul $memory 1000) 256) }}
{{- end }}
{{- if $v.ports.divvy }}
DIVVY_MAX_CONNECTIONS: {{ min 10000 (div (mul $memory 1000) 256) }}
{{- end }}
{{- end }}
{{- if $v.tls.grpc.secret }}
GRPC_SERVER_USE_TLS: true
GRPC_SERVER_TLS_CERT: /tls/grpc/tls.crt
GRPC_SERVER_TLS_KEY: /tls/grpc/tls.key
{{- if $v.tls.grpc.clientCA }}
GRPC_CLIENT_TLS_CACERT: /tls/grpc/ca.crt
{{- with $v.tls.grpc.clientSAN }}
GRPC_CLIENT_TLS_SAN: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- range $port := list "http" "debug" "resp" "divvy" }}
{{- $tls := get $v.tls $port }}
{{- if $tls.secret }}
{{ upper $port }}_TLS_CERT: /tls/{{ $port }}/tls.crt
{{ upper $port }}_TLS_KEY: /tls/{{ $port }}/tls.key
{{- if $tls.clientCA }}
{{ upper $port }}_TLS_CLIENT_CACERT: /tls/{{ $port }}/ca.crt
{{- with $tls.clientSAN }}
{{ upper $port }}_TLS_CLIENT_SAN: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if eq $v.store "memory" }}
BACKEND_TYPE: memory
{{- if $v.memory.snapshot.enabled }}
MEMORY_SNAPSHOT: /snapshot/counters
{{- end }}
{{- else if eq $v.store "redis" }}
BACKEND_TYPE: redis
REDIS_TYPE: {{ $v.redis.type }}
REDIS_URL: {{ $v.redis.url | quote }}
{{- if $v.redis.auth.secret }}
REDIS_AUTH_FILE: /auth/redis/{{ $v.redis.auth.key }}
{{- if $v.redis.auth.sentinelKey }}
REDIS_SENTINEL_AUTH_FILE: /auth/redis/{{ $v.redis.auth.sentinelKey }}
{{- end }}
{{- end }}
{{- with $v.redis.auth.command }}
REDIS_AUTH_COMMAND: {{ . | quote }}
{{- end }}
{{- with $v.redis.auth.user }}
REDIS_AUTH_USER: {{ . | quote }}
{{- end }}
{{- with $v.redis.iam }}
{{- if .cacheName }}
REDIS_AWS_IAM_AUTH: true
REDIS_AWS_IAM_CACHE_NAME: {{ .cacheName | quote }}
REDIS_AWS_IAM_USER_ID: {{ required "redis.iam.userId: write the user of the cache" .userId | quote }}
{{- with .region }}
REDIS_AWS_IAM_REGION: {{ . | quote }}
{{- end }}
REDIS_AWS_IAM_SERVICE: {{ .service }}
{{- if .serverless }}
REDIS_AWS_IAM_SERVERLESS: true
{{- end }}
{{- end }}
{{- end }}
{{- if $v.redis.tls.enabled }}
REDIS_TLS: true
{{- include "ratelimit.clientTLS" (list $v.redis.tls "REDIS_TLS" "/tls/redis") }}
{{- end }}
{{- if $v.redis.perSecond.url }}
REDIS_PERSECOND: true
REDIS_PERSECOND_TYPE: {{ $v.redis.perSecond.type }}
REDIS_PERSECOND_URL: {{ $v.redis.perSecond.url | quote }}
{{- if $v.redis.perSecond.auth.secret }}
REDIS_PERSECOND_AUTH_FILE: /auth/redis-per-second/{{ $v.redis.perSecond.auth.key }}
{{- end }}
{{- if $v.redis.perSecond.tls.enabled }}
REDIS_PERSECOND_TLS: true
{{- end }}
{{- end }}
{{- else }}
BACKEND_TYPE: memcache
{{- if $v.memcached.srv }}
MEMCACHE_SRV: {{ $v.memcached.srv | quote }}
{{- else }}
MEMCACHE_HOST_PORT: {{ join "," $v.memcached.servers | quote }}
{{- end }}
MEMCACHE_HASH: {{ $v.memcached.hash }}
{{- if $v.memcached.tls.enabled }}
MEMCACHE_TLS: true
{{- include "ratelimit.clientTLS" (list $v.memcached.tls "MEMCACHE_TLS" "/tls/memcached") }}
{{- end }}
{{- end }}
{{- if and (ne $v.store "memory") $v.localCacheBytes }}
LOCAL_CACHE_SIZE_IN_BYTES: {{ int64 $v.localCacheBytes }}
{{- end }}
{{- if $v.xds.url }}
CONFIG_TYPE: {{ if include "ratelimit.rulesConfigMap" . }}FILE,{{ end }}{{ $v.xds.delta | ternary "GRPC_XDS_DELTA" "GRPC_XDS_SOTW" }}
CONFIG_GRPC_XDS_SERVER_URL: {{ $v.xds.url | quote }}
CONFIG_GRPC_XDS_NODE_ID: {{ $v.xds.nodeID | quote }}
{{- if $v.xds.tls.enabled }}
CONFIG_GRPC_XDS_SERVER_USE_TLS: true
{{- if $v.xds.tls.secret }}
CONFIG_GRPC_XDS_SERVER_TLS_CACERT: /tls/xds/ca.crt
{{- if $v.xds.tls.clientCertificate }}
CONFIG_GRPC_XDS_CLIENT_TLS_CERT: /tls/xds/tls.crt
CONFIG_GRPC_XDS_CLIENT_TLS_KEY: /tls/xds/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if $v.candidateRules }}
RUNTIME_ROOT: /
RUNTIME_CANDIDATE_SUBDIRECTORY: candidate
RUNTIME_APPDIRECTORY: config
{{- end }}
{{- end }}

{{/* The variables of the container: each name once, sorted, so that `settings` can replace what the chart derives. */}}
{{- define "ratelimit.env" -}}
{{- $env := dict }}
{{- range $name, $value := include "ratelimit.derivedSettings" . | fromYaml }}
{{- $_ := set $env $name $value }}
{{- end }}
{{- range $name, $value := .Values.settings }}
{{- $_ := set $env $name $value }}
{{- end }}
{{- range $name, $value := $env }}
- {name: {{ $name }}, value: {{ include "ratelimit.text" $value | quote }}}
{{- end }}
{{- range $name, $from := .Values.secretSettings }}
{{- if hasKey $env $name }}
{{- fail (printf "secretSettings.%s: the value is already set, by settings.%s or by another value of the chart; leave out one of them" $name $name) }}
{{- end }}
{{- $_ := set $env $name "" }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef: {name: {{ $from.secret | quote }}, key: {{ $from.key | quote }}}
{{- end }}
{{- with .Values.debug.token }}
{{- if .secret }}
{{- if hasKey $env "DEBUG_TOKEN" }}
{{- fail "debug.token.secret: DEBUG_TOKEN is set, too; leave out one of them" }}
{{- end }}
{{- $_ := set $env "DEBUG_TOKEN" "" }}
- name: DEBUG_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ .secret | quote }}, key: {{ .key | quote }}}
{{- end }}
{{- end }}
{{- range .Values.extraEnv }}
{{- if hasKey $env .name }}
{{- fail (printf "extraEnv: %s is set twice; change the chart's own variables with settings.%s" .name .name) }}
{{- end }}
{{- $_ := set $env .name "" }}
- {{ toYaml . | nindent 2 | trim }}
{{- end }}
{{- end }}

{{/* The directories of Secrets, as JSON: {"volume": {"secret": …, "path": …}}. */}}
{{- define "ratelimit.secretDirectories" -}}
{{- $v := .Values }}
{{- $all := dict }}
{{- range $port, $tls := $v.tls }}
{{- if $tls.secret }}{{ $_ := set $all (printf "tls-%s" $port) (dict "secret" $tls.secret "path" (printf "/tls/%s" $port)) }}{{ end }}
{{- end }}
{{- if eq $v.store "redis" }}
{{- with $v.redis.auth.secret }}{{ $_ := set $all "auth-redis" (dict "secret" . "path" "/auth/redis") }}{{ end }}
{{- with $v.redis.perSecond.auth.secret }}{{ $_ := set $all "auth-redis-per-second" (dict "secret" . "path" "/auth/redis-per-second") }}{{ end }}
{{- if $v.redis.tls.enabled }}{{ with $v.redis.tls.secret }}{{ $_ := set $all "tls-redis" (dict "secret" . "path" "/tls/redis") }}{{ end }}{{ end }}
{{- end }}
{{- if and (eq $v.store "memcached") $v.memcached.tls.enabled }}
{{- with $v.memcached.tls.secret }}{{ $_ := set $all "tls-memcached" (dict "secret" . "path" "/tls/memcached") }}{{ end }}
{{- end }}
{{- if and $v.xds.url $v.xds.tls.enabled }}
{{- with $v.xds.tls.secret }}{{ $_ := set $all "tls-xds" (dict "secret" . "path" "/tls/xds") }}{{ end }}
{{- end }}
{{- toJson $all }}
{{- end }}

{{/* The ports of callers, as JSON: {"grpc": 8081, …}. */}}
{{- define "ratelimit.callerPorts" -}}
{{- $ports := dict "grpc" .Values.ports.grpc "http" .Values.ports.http }}
{{- range $name := list "resp" "divvy" }}
{{- with get $.Values.ports $name }}{{ $_ := set $ports $name . }}{{ end }}
{{- end }}
{{- toJson $ports }}
{{- end }}

{{/* Ends the rendering if values contradict each other in ways that values.schema.json cannot say. */}}
{{- define "ratelimit.validate" -}}
{{- $v := .Values }}
{{- $known := .Files.Lines "files/settings.txt" }}
{{- range $field, $names := dict "settings" $v.settings "secretSettings" $v.secretSettings }}
{{- range $name, $_ := $names }}
{{- if not (or (has $name $known) (regexMatch "^(DOG_STATSD_MOGRIFIER|OTEL_EXPORTER_OTLP|NOTIFY_URL)_" $name)) }}
{{- fail (printf "%s.%s: the service has no such setting; docs/settings.md lists them, and extraEnv takes other variables" $field $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- $isTrue := list "true" "t" "1" }}
{{- $prometheus := ternary (get $v.settings "USE_PROMETHEUS") true (hasKey $v.settings "USE_PROMETHEUS") | toString | lower }}
{{- range $name := list "USE_STATSD" "USE_DOG_STATSD" }}
{{- if and (has $prometheus $isTrue) (has (get $v.settings $name | toString | lower) $isTrue) }}
{{- fail (printf "settings.%s: the chart sets USE_PROMETHEUS, and the service takes one of them; set settings.USE_PROMETHEUS to false, or leave %s out" $name $name) }}
{{- end }}
{{- end }}
{{- range $name := list "RUNTIME_ROOT" "RUNTIME_SUBDIRECTORY" "RUNTIME_APPDIRECTORY" }}
{{- if and (hasKey $v.settings $name) (include "ratelimit.rulesConfigMap" $) }}
{{- fail (printf "settings.%s: the rules are read from /rules, where the chart mounts them; leave it out, and name the ConfigMap with the rules in rulesConfigMap" $name) }}
{{- end }}
{{- end }}
{{- if and (eq $v.store "redis") (not $v.redis.url) }}
{{- fail "store is redis: set redis.url to its address, host:port" }}
{{- end }}
{{- if and (eq $v.store "memcached") (not $v.memcached.servers) (not $v.memcached.srv) }}
{{- fail "store is memcached: set memcached.servers to a list of host:port, or memcached.srv" }}
{{- end }}
{{- if and $v.rules $v.rulesConfigMap }}
{{- fail "rules and rulesConfigMap are both set: leave out one of them" }}
{{- end }}
{{- if and $v.memory.snapshot.enabled (ne $v.store "memory") }}
{{- fail (printf "memory.snapshot.enabled: store is %s, which keeps the counters itself; set it to false" $v.store) }}
{{- end }}
{{- if and $v.memory.snapshot.enabled (or $v.autoscaling.enabled (gt (int $v.replicas) 1)) }}
{{- fail "memory.snapshot.enabled: each pod needs a file of its own; set replicas to 1 and autoscaling.enabled to false, or use Redis" }}
{{- end }}
{{- if gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas) }}
{{- fail (printf "autoscaling.minReplicas: %d is more than maxReplicas, %d" (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) }}
{{- end }}
{{- if and $v.networkPolicy.enabled (not $v.networkPolicy.egress) (or (ne $v.store "memory") $v.xds.url) }}
{{- fail "networkPolicy.egress is empty, so the pods could not reach the store or the management server: add a rule for each" }}
{{- end }}
{{- if and (not (has $v.debug.host (list "127.0.0.1" "::1" "localhost"))) (not $v.debug.token.secret) (not $v.tls.debug.clientCA) }}
{{- fail (printf "debug.host: at %s everybody in the cluster could read profiles and subjects and reset counters; set debug.token.secret or tls.debug.clientCA" $v.debug.host) }}
{{- end }}
{{- range $port, $tls := $v.tls }}
{{- if and $tls.clientCA (not $tls.secret) }}
{{- fail (printf "tls.%s.clientCA: the port has no TLS; set tls.%s.secret" $port $port) }}
{{- end }}
{{- if and $tls.clientSAN (not $tls.clientCA) }}
{{- fail (printf "tls.%s.clientSAN: callers need no certificate; set tls.%s.clientCA" $port $port) }}
{{- end }}
{{- end }}
{{- range $name, $tls := dict "redis" $v.redis.tls "memcached" $v.memcached.tls "xds" $v.xds.tls }}
{{- if and $tls.clientCertificate (or (not $tls.secret) (not $tls.enabled)) }}
{{- fail (printf "%s.tls.clientCertificate: set %s.tls.enabled and %s.tls.secret, too" $name $name $name) }}
{{- end }}
{{- end }}
{{- if and $v.service.headless (ne $v.service.type "ClusterIP") }}
{{- fail (printf "service.type: %s needs an address; set service.headless to false" $v.service.type) }}
{{- end }}
{{- $seen := dict }}
{{- range $name, $port := $v.ports }}
{{- if $port }}
{{- if hasKey $seen (toString $port) }}
{{- fail (printf "ports.%s: %v is also ports.%s; choose another" $name $port (get $seen (toString $port))) }}
{{- end }}
{{- $_ := set $seen (toString $port) $name }}
{{- end }}
{{- end }}
{{- end }}
