package helm

// row is a way to use the chart.
type row struct {
	name   string
	values string // YAML
	// want is what is rendered, separated by spaces: NAME=value is a variable of the container, Kind is an object that is
	// there, -Kind is one that is not, and Kind:path=value is a value within an object.
	want string
	// notes is a part of what the user is told; "": not looked at.
	notes string
}

var rows = []row{
	{
		name: "defaults",
		want: "BACKEND_TYPE=memory GOMEMLIMIT=224MiB GRPC_MAX_CONNECTIONS=3000 HTTP_MAX_CONNECTIONS=1000 DIVVY_PORT=off " +
			"DEBUG_HOST=127.0.0.1 " +
			"Deployment:spec.replicas=1 Service:spec.clusterIP=None PodDisruptionBudget ConfigMap Pod " +
			"-HorizontalPodAutoscaler -NetworkPolicy -PodMonitor -ServiceMonitor -PrometheusRule -PersistentVolumeClaim " +
			"-ServiceAccount",
		notes: "WARNING: no rules are set",
	},
	{
		name: "rules as text", values: "rules: {a.yaml: \"domain: a\\ndescriptors: [{key: k, rate_limit: {unit: second, " +
			"requests_per_unit: 1}}]\\n\"}",
		want: "ConfigMap", notes: "YOUR-DOMAIN",
	},
	{
		name: "rules as YAML",
		values: "rules: {a.yaml: {domain: a, descriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: " +
			"10000000}}]}}",
		want: "ConfigMap",
	},
	{
		name: "two rule files, and divvy's JSON",
		values: "ports: {divvy: 8321}\nrules: {a.yaml: {domain: a}, divvy.json: '{\"default\": {\"operation\": {}, " +
			"\"creditLimit\": 10, \"resetSeconds\": 60}}'}",
		want: "DIVVY_PORT=8321 DIVVY_MAX_CONNECTIONS=1000 ConfigMap Service:spec.ports.0.name=divvy",
	},
	{
		name: "existing ConfigMap", values: "rulesConfigMap: my-rules",
		want: "-ConfigMap Deployment:spec.template.spec.volumes.0.configMap.name=my-rules",
	},
	{
		name: "candidate rules",
		values: "rules: {a.yaml: {domain: a}}\ncandidateRules: {a.yaml: {domain: a, descriptors: [{key: k, rate_limit: " +
			"{unit: second, requests_per_unit: 1}}]}}",
		want: "RUNTIME_CANDIDATE_SUBDIRECTORY=candidate RUNTIME_ROOT=/",
	},
	{
		name: "replicas with memory", values: "replicas: 3", want: "Deployment:spec.replicas=3",
		notes: "WARNING: store is memory, and each pod counts for itself",
	},
	{
		name: "snapshot", values: "memory: {snapshot: {enabled: true, size: 2Gi, storageClass: fast}}",
		want: "MEMORY_SNAPSHOT=/snapshot/counters Deployment:spec.strategy.type=Recreate " +
			"Deployment:spec.template.spec.securityContext.fsGroup=65532 " +
			"PersistentVolumeClaim:spec.resources.requests.storage=2Gi PersistentVolumeClaim:spec.storageClassName=fast",
	},
	{
		name: "snapshot on an existing claim", values: "memory: {snapshot: {enabled: true, existingClaim: mine}}",
		want: "-PersistentVolumeClaim MEMORY_SNAPSHOT=/snapshot/counters",
	},
	{
		name: "Redis", values: "store: redis\nredis: {url: \"redis:6379\"}\nreplicas: 3",
		want: "BACKEND_TYPE=redis REDIS_URL=redis:6379 REDIS_TYPE=SINGLE LOCAL_CACHE_SIZE_IN_BYTES=33554432",
	},
	{
		name: "Redis with password and TLS",
		values: "store: redis\nredis: {url: \"redis:6379\", auth: {secret: redis-password}, tls: {enabled: true, secret: " +
			"redis-tls, clientCertificate: true}}\n" +
			"localCacheBytes: 0",
		want: "REDIS_AUTH_FILE=/auth/redis/password REDIS_TLS=true REDIS_TLS_CACERT=/tls/redis/ca.crt " +
			"REDIS_TLS_CLIENT_CERT=/tls/redis/tls.crt REDIS_TLS_CLIENT_KEY=/tls/redis/tls.key",
	},
	{
		name: "Sentinel",
		values: "store: redis\nredis: {type: SENTINEL, url: \"primary,s0:26379,s1:26379\", auth: {secret: p, sentinelKey: " +
			"sentinel}}",
		want: "REDIS_TYPE=SENTINEL REDIS_URL=primary,s0:26379,s1:26379 REDIS_SENTINEL_AUTH_FILE=/auth/redis/sentinel",
	},
	{
		name: "Cluster", values: "store: redis\nredis: {type: CLUSTER, url: \"r0:6379,r1:6379,r2:6379\"}",
		want: "REDIS_TYPE=CLUSTER REDIS_URL=r0:6379,r1:6379,r2:6379",
	},
	{
		name: "second Redis",
		values: "store: redis\nredis: {url: \"a:6379\", tls: {enabled: true}, perSecond: {url: \"b:6379\", auth: {secret: " +
			"p, key: second}, tls: {enabled: true}}}",
		want: "REDIS_PERSECOND=true REDIS_PERSECOND_URL=b:6379 REDIS_PERSECOND_AUTH_FILE=/auth/redis-per-second/second " +
			"REDIS_PERSECOND_TLS=true REDIS_TLS=true",
	},
	{
		name: "Memcached", values: "store: memcached\nmemcached: {servers: [\"m0:11211\", \"m1:11211\"]}",
		want: "BACKEND_TYPE=memcache MEMCACHE_HOST_PORT=m0:11211,m1:11211",
	},
	{
		name: "Memcached by SRV record, TLS",
		values: "store: memcached\nmemcached: {srv: _memcache._tcp.example, hash: rendezvous, tls: {enabled: true, secret: " +
			"m}}",
		want: "MEMCACHE_SRV=_memcache._tcp.example MEMCACHE_HASH=rendezvous MEMCACHE_TLS=true " +
			"MEMCACHE_TLS_CACERT=/tls/memcached/ca.crt",
	},
	{
		name: "autoscaling", values: "autoscaling: {enabled: true, maxReplicas: 5}\nstore: redis\nredis: {url: \"r:6379\"}",
		want: "HorizontalPodAutoscaler:spec.maxReplicas=5 Deployment:spec.replicas=<nil>",
	},
	{name: "no disruption budget", values: "podDisruptionBudget: {enabled: false}", want: "-PodDisruptionBudget"},
	{
		name: "disruption budget as a percentage", values: "podDisruptionBudget: {maxUnavailable: 25%}",
		want: "PodDisruptionBudget:spec.maxUnavailable=25%",
	},
	{
		name: "network policy",
		values: "store: redis\nredis: {url: \"r:6379\"}\nports: {resp: 6380}\nnetworkPolicy: {enabled: true, egress: [{to: " +
			"[{podSelector: {matchLabels: {app: redis}}}], ports: [{port: 6379}]}], " +
			"ingress: [{from: [{podSelector: {}}], ports: [{port: health}]}]}",
		want: "NetworkPolicy RESP_PORT=6380", notes: "ratelimit-clients=true",
	},
	{
		name: "PodMonitor, alerts and dashboard",
		values: "monitoring: {scrape: PodMonitor, alerts: true, dashboard: true, labels: {release: " +
			"prometheus}}\ncommonLabels: {team: edge}",
		want: "PodMonitor:metadata.labels.release=prometheus PrometheusRule:metadata.labels.team=edge ConfigMap",
	},
	{
		name: "ServiceMonitor", values: "monitoring: {scrape: ServiceMonitor, interval: 30s}",
		want: "ServiceMonitor:spec.endpoints.0.interval=30s Service:spec.ports.2.name=metrics",
	},
	{
		name: "TLS on every port",
		values: "ports: {resp: 6380, divvy: 8321}\ntls: {grpc: {secret: t, clientCA: true, clientSAN: envoy.example}, " +
			"http: {secret: t}, debug: {secret: t, clientCA: true}, resp: {secret: t}, divvy: {secret: t}}",
		want: "GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=/tls/grpc/tls.crt GRPC_CLIENT_TLS_CACERT=/tls/grpc/ca.crt " +
			"GRPC_CLIENT_TLS_SAN=envoy.example " +
			"HTTP_TLS_KEY=/tls/http/tls.key DEBUG_TLS_CLIENT_CACERT=/tls/debug/ca.crt RESP_TLS_CERT=/tls/resp/tls.crt " +
			"DIVVY_TLS_CERT=/tls/divvy/tls.crt -Pod",
		notes: "curl -k https://",
	},
	{name: "TLS of the test", values: "tls: {grpc: {secret: t}}", want: "Pod:spec.volumes.0.secret.secretName=t"},
	{
		name:   "debug port in the cluster",
		values: "debug: {host: 0.0.0.0, token: {secret: debug}}\nsettings: {DEBUG_ALLOWED_HOSTS: ratelimit-debug.example}",
		want:   "DEBUG_HOST=0.0.0.0 DEBUG_TOKEN=Secret:debug/token DEBUG_ALLOWED_HOSTS=ratelimit-debug.example",
	},
	{
		name: "RESP and quotas",
		values: "ports: {resp: 6380}\nsettings: {QUOTA_MAX_BUCKETS: 5000000, QUOTA_ABANDON_AFTER: 0}\nsecretSettings: " +
			"{RESP_PASSWORD: {secret: resp, key: password}}",
		want: "RESP_PORT=6380 RESP_MAX_CONNECTIONS=1000 RESP_PASSWORD=Secret:resp/password QUOTA_MAX_BUCKETS=5000000 " +
			"QUOTA_ABANDON_AFTER=0",
	},
	{
		name: "rules over xDS", values: "xds: {url: \"control-plane:18000\"}",
		want: "CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=control-plane:18000 -ConfigMap " +
			"Deployment:spec.template.spec.containers.0.args.1=<nil>",
	},
	{
		name: "files beside delta xDS, with TLS",
		values: "rules: {a.yaml: {domain: a}}\nxds: {url: \"control-plane:18000\", delta: true, nodeID: edge, tls: " +
			"{enabled: true, secret: x, clientCertificate: true}}",
		want: "CONFIG_TYPE=FILE,GRPC_XDS_DELTA CONFIG_GRPC_XDS_NODE_ID=edge CONFIG_GRPC_XDS_SERVER_USE_TLS=true " +
			"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/tls/xds/ca.crt " +
			"CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/tls/xds/tls.key ConfigMap",
	},
	{
		name: "settings win over the chart",
		values: "store: redis\nredis: {url: \"r:6379\"}\nsettings: {LOG_LEVEL: warn, NEAR_LIMIT_RATIO: 0.9, SHADOW_MODE: " +
			"true, REPLICAS: 3, GRPC_MAX_CONNECTIONS: 500}",
		want: "LOG_LEVEL=warn NEAR_LIMIT_RATIO=0.9 SHADOW_MODE=true REPLICAS=3 GRPC_MAX_CONNECTIONS=500",
	},
	{
		name: "extra environment and volumes",
		values: "extraEnv: [{name: TRACING_SERVICE_INSTANCE_ID, valueFrom: {fieldRef: {fieldPath: " +
			"metadata.name}}}]\nextraEnvFrom: [{configMapRef: {name: more}}]\n" +
			"settings: {TRACING_ENABLED: true, OTEL_EXPORTER_OTLP_ENDPOINT: \"http://collector:4318\"}\nextraVolumes: [{name: " +
			"data, emptyDir: {}}]\nextraVolumeMounts: [{name: data, mountPath: /data}]",
		want: "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318 TRACING_ENABLED=true " +
			"Deployment:spec.template.spec.containers.0.envFrom.0.configMapRef.name=more",
	},
	{
		name: "a container that fetches rules",
		values: "rulesConfigMap: unused\nextraVolumes: [{name: fetched, emptyDir: {}}]\n" +
			"extraContainers: [{name: fetch, image: fetch, securityContext: {allowPrivilegeEscalation: false, " +
			"readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}, volumeMounts: [{name: fetched, mountPath: /out}]}]\n" +
			"initContainers: [{name: wait, image: wait, securityContext: {allowPrivilegeEscalation: false, " +
			"readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}}]",
		want: "Deployment:spec.template.spec.containers.1.name=fetch Deployment:spec.template.spec.initContainers.0.name=wait",
	},
	{
		name: "scheduling",
		values: "priorityClassName: high\nnodeSelector: {pool: edge}\ntolerations: [{key: edge, operator: " +
			"Exists}]\naffinity: {nodeAffinity: {}}\nhostNetwork: true\nreplicas: 0\n" +
			"topologySpreadConstraints: [{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, labelSelector: " +
			"{matchLabels: {a: b}}}]",
		want: "Deployment:spec.template.spec.priorityClassName=high " +
			"Deployment:spec.template.spec.dnsPolicy=ClusterFirstWithHostNet " +
			"Deployment:spec.template.spec.topologySpreadConstraints.0.topologyKey=zone Deployment:spec.replicas=0",
		notes: "WARNING: hostNetwork",
	},
	{
		name: "an image by digest, labels, annotations and a ServiceAccount",
		values: "image: {repository: registry.example/ratelimit, digest: " +
			"\"sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\", pullSecrets: [{name: pull}]}\n" +
			"serviceAccount: {create: true, annotations: {a: b}}\npodLabels: {team: edge, app.kubernetes.io/part-of: " +
			"edge}\npodAnnotations: {a: b}\ncommonLabels: {team: core}",
		want: "Deployment:spec.template.spec.containers.0.image=registry.example/ratelimit@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef " +
			"Deployment:spec.template.metadata.labels.team=edge Deployment:metadata.labels.team=core " +
			"ServiceAccount:metadata.name=edge-ratelimit Deployment:spec.template.spec.serviceAccountName=edge-ratelimit",
	},
	{
		name:   "an address for callers that do not balance",
		values: "service: {headless: false, type: LoadBalancer, annotations: {a: b}}\nsettings: {GRPC_MAX_CONNECTION_AGE: 5m}", want: "Service:spec.clusterIP=<nil> Service:spec.type=LoadBalancer",
	},
	{
		name: "statsd instead of Prometheus", values: "settings: {USE_STATSD: \"true\", USE_PROMETHEUS: false}",
		want: "USE_STATSD=true USE_PROMETHEUS=false",
	},
	{
		name:   "rules from a directory beside a management server",
		values: "xds: {url: \"control:18000\"}\nsettings: {CONFIG_TYPE: \"FILE,GRPC_XDS_SOTW\", RUNTIME_ROOT: /data}",
		want:   "RUNTIME_ROOT=/data",
	},
	{
		name: "more memory", values: "resources: {limits: {memory: 2Gi}}\nmaxProcs: 8",
		want: "GOMEMLIMIT=1792MiB GRPC_MAX_CONNECTIONS=20000 HTTP_MAX_CONNECTIONS=8000 GOMAXPROCS=8",
	},
	{
		name: "no limit of memory", values: "resources: {limits: null}",
		notes: "WARNING: resources.limits.memory is not set",
	},
	{name: "long names", values: "nameOverride: " +
		"a-name-so-long-that-it-does-not-fit-into-the-label-of-a-name-of-dns\nmonitoring: {dashboard: true}\nmemory: " +
		"{snapshot: {enabled: true}}\nserviceAccount: {create: true}", want: "ConfigMap"},
}

// refused are values that the chart does not take, with a part of the message.
var refused = []struct{ values, message string }{
	{"replica: 3", "additional properties 'replica' not allowed"},
	{"replicas: three", "at '/replicas': got string, want integer"},
	{"replicas: -1", "at '/replicas': minimum: got -1, want 0"},
	{"store: postgres", "at '/store': value must be one of 'memory', 'redis', 'memcached'"},
	{"redis: {type: REPLICATED}", "at '/redis/type': value must be one of 'SINGLE', 'SENTINEL', 'CLUSTER'"},
	{"redis: {tls: true}", "at '/redis/tls': got boolean, want object"},
	{"store: redis", "store is redis: set redis.url"},
	{"store: redis\nredis: {url: a, iam: {cacheName: a}}", "redis.iam.userId: write the user of the cache"},
	{"redis: {iam: {service: dynamodb}}", "at '/redis/iam/service': value must be one of 'elasticache', 'memorydb'"},
	{"store: memcached", "store is memcached: set memcached.servers"},
	{"settings: {REDIS_URLL: a}", "settings.REDIS_URLL: the service has no such setting"},
	{"settings: {lower: a}", "does not match pattern"},
	{"settings: {LOG_LEVEL: [info]}", "at '/settings/LOG_LEVEL': got array, want boolean or number or string"},
	{"secretSettings: {DEBUG_TOKN: {secret: a, key: b}}", "secretSettings.DEBUG_TOKN: the service has no such setting"},
	{"secretSettings: {RESP_PASSWORD: secret}", "at '/secretSettings/RESP_PASSWORD': got string, want object"},
	{
		"settings: {DEBUG_TOKEN: a}\nsecretSettings: {DEBUG_TOKEN: {secret: a, key: b}}",
		"secretSettings.DEBUG_TOKEN: the value is already set",
	},
	{"settings: {DEBUG_TOKEN: a}\ndebug: {token: {secret: a}}", "debug.token.secret: DEBUG_TOKEN is set, too"},
	{"extraEnv: [{name: LOG_LEVEL, value: warn}]", "extraEnv: LOG_LEVEL is set twice"},
	{"settings: {USE_STATSD: \"true\"}", "settings.USE_STATSD: the chart sets USE_PROMETHEUS"},
	{"settings: {USE_DOG_STATSD: true, USE_PROMETHEUS: 1}", "settings.USE_DOG_STATSD: the chart sets USE_PROMETHEUS"},
	{"settings: {RUNTIME_ROOT: /data}", "settings.RUNTIME_ROOT: the rules are read from /rules"},
	{"rulesConfigMap: a\nsettings: {RUNTIME_SUBDIRECTORY: ratelimit}", "settings.RUNTIME_SUBDIRECTORY: the rules are read"},
	{"rules: {a.yaml: {domain: a}}\nrulesConfigMap: b", "rules and rulesConfigMap are both set"},
	{"rules: {..a.yaml: {domain: a}}", "does not match pattern"},
	{"memory: {snapshot: {enabled: true}}\nreplicas: 2", "memory.snapshot.enabled: each pod needs a file of its own"},
	{
		"memory: {snapshot: {enabled: true}}\nstore: redis\nredis: {url: \"r:1\"}",
		"memory.snapshot.enabled: store is redis",
	},
	{"networkPolicy: {enabled: true}\nstore: redis\nredis: {url: \"r:1\"}", "networkPolicy.egress is empty"},
	{"autoscaling: {enabled: true, minReplicas: 20}", "autoscaling.minReplicas: 20 is more than maxReplicas, 12"},
	{"debug: {host: 0.0.0.0}", "debug.host: at 0.0.0.0 everybody in the cluster"},
	{"tls: {http: {clientCA: true}}", "tls.http.clientCA: the port has no TLS"},
	{"tls: {http: {secret: a, clientSAN: b}}", "tls.http.clientSAN: callers need no certificate"},
	{"redis: {tls: {clientCertificate: true}}", "redis.tls.clientCertificate: set redis.tls.enabled"},
	{"service: {type: LoadBalancer}", "service.type: LoadBalancer needs an address"},
	{"ports: {resp: 8080}", "is also ports."},
	{"ports: {grpc: 70000}", "at '/ports/grpc': maximum: got 70,000, want 65,535"},
	{"resources: {limits: {memory: 256MB}}", "at '/resources/limits/memory': '256MB' does not match pattern"},
	{"localCacheBytes: 1000", "at '/localCacheBytes'"},
	{"commonLabels: {app.kubernetes.io/name: other}", "invalid propertyName 'app.kubernetes.io/name'"},
	{"fullnameOverride: Upper", "at '/fullnameOverride'"},
	{"image: {digest: abc}", "at '/image/digest'"},
	{
		"monitoring: {scrape: Service}",
		"at '/monitoring/scrape': value must be one of 'none', 'PodMonitor', 'ServiceMonitor'",
	},
}
