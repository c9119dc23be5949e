module github.com/openclaw-rl/openclaw-rl/servers/judge_go

go 1.26.0

require (
	github.com/openclaw-rl/openclaw-rl/clients/go v0.1.0
	go.etcd.io/bbolt v1.5.0
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)

require (
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261110000943-09e21b237f2c // indirect
)

replace github.com/openclaw-rl/openclaw-rl/clients/go => ../../clients/go
