module ratelimit/tools/packager

go 1.26.0

toolchain go1.27.3

require (
	github.com/blakesmith/ar v0.0.0-20190502131153-809d4375e1fb
	github.com/google/rpmpack v0.7.1
	go.yaml.in/yaml/v3 v3.0.4
)

require (
	github.com/cavaliergopher/cpio v1.0.1 // indirect
	github.com/klauspost/compress v1.18.3 // indirect
	github.com/klauspost/pgzip v1.2.6 // indirect
	github.com/ulikunitz/xz v0.5.15 // indirect
)
