# The service as an image: one static binary on distroless, without a shell.
#
#   docker build -t ratelimit .
#   docker build -t ratelimit:1.2.3 --build-arg VERSION=1.2.3 --build-arg COMMIT="$(git rev-parse HEAD)" .
#   docker buildx build --platform linux/amd64,linux/arm64 -t ratelimit .
#   docker run -v "$PWD/rules:/rules:ro" -p 8080:8080 -p 8081:8081 ratelimit serve --config /rules

# The compiler runs on the machine that builds, whatever it builds for: Go
# cross-compiles, and under emulation it would take many times as long.
FROM --platform=$BUILDPLATFORM golang:1.27 AS build
WORKDIR /src

# Modules first, so that this layer outlives changes to the code.
COPY go.mod go.sum ./
RUN go mod download

COPY api api
COPY src src
ARG VERSION=dev
ARG COMMIT=
ARG TARGETOS
ARG TARGETARCH
# The binary looks at the name it is called by: the two links are the client
# and the configuration check under the names that scripts know them by.
RUN --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -gcflags=all=-dwarf=false -pgo=src/cmd/ratelimit/calls.pgo -ldflags "-s -w -X main.version=$VERSION -X main.commit=$COMMIT" \
        -o /out/ratelimit ./src/cmd/ratelimit \
    && ln -s ratelimit /out/ratelimit_client \
    && ln -s ratelimit /out/ratelimit_config_check

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/ /bin/
# nonroot, as a number: Kubernetes' runAsNonRoot cannot judge a name.
USER 65532:65532
# HTTP (/json, /healthcheck), gRPC, the debug pages, and divvy's line protocol,
# which opens only for rules of divvy or with DIVVY_PORT.
EXPOSE 8080 8081 6070 8321
# The image has no shell and no curl, so the binary asks itself. Kubernetes ignores this.
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 CMD ["/bin/ratelimit", "health"]
ENTRYPOINT ["/bin/ratelimit"]
