# The warmpath binary alone: every service and tool is one of its subcommands.
FROM golang:1.27-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -o /warmpath .

FROM debian:12-slim
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*
COPY --from=build /warmpath /usr/local/bin/warmpath
USER nobody
ENTRYPOINT ["warmpath"]
