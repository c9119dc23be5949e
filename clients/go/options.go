package openclaw

import (
	"log/slog"
	"os"
	"time"

	"google.golang.org/grpc"
)

// MaxMessage is the longest message in either direction, in bytes.
const MaxMessage = 16 << 20

// MeshVariable is the variable with the id of the mesh, for clients without WithMesh.
const MeshVariable = "OPENCLAW_RL_MESH"

// DefaultTimeout is the deadline of a call with one answer when neither the context nor WithTimeout has another.
const DefaultTimeout = 30 * time.Second

// Ports of the components when the mesh's configuration names no others.
const (
	PolicyPort      = 50051
	EnvironmentPort = 50052
	JudgePort       = 50053
	TrainerPort     = 50054
)

// Names of the components, which are also the roles of their certificates.
const (
	RolePolicy      = "policy_server"
	RoleEnvironment = "env_server"
	RoleJudge       = "prm_judge"
	RoleTrainer     = "trainer"
	// RoleOperator is the role of people's tools.
	RoleOperator = "operator"
)

// An Option changes how a client connects and calls.
type Option func(*options)

type options struct {
	address    string
	role       string // the component that is expected there
	key        string
	ca         string // file
	certs      string // folder
	certRole   string
	serverName string
	mesh       string // id of the mesh; "" for any
	component  string // who we are in it
	timeout    time.Duration
	reconnect  bool
	backoff    Backoff
	logger     *slog.Logger
	dial       []grpc.DialOption
	first      firstBytes
}

// WithAddress says where the component is, HOST:PORT; without it, it is 127.0.0.1 and the component's usual port.
func WithAddress(address string) Option { return func(o *options) { o.address = address } }

// WithKey sends a bearer key with each call (`openclaw-rl keys add NAME`). Together with WithCA, and for the
// component's keys_port. A key goes over plain text to this machine only.
func WithKey(key string) Option { return func(o *options) { o.key = key } }

// WithCA uses TLS without a certificate of this side, and takes servers of the CA in this file (ca.crt); "" means the
// system's CAs. The server is expected under the name of its host.
func WithCA(file string) Option {
	return func(o *options) {
		o.ca = file
		if file == "" {
			o.ca = systemCAs
		}
	}
}

// WithCertificates uses mutual TLS with the files ca.crt, ROLE.crt and ROLE.key in a folder, such as a mesh's certs/;
// role is this side's, [RoleOperator] for tools. The server must be the component that the client is for.
func WithCertificates(folder, role string) Option {
	return func(o *options) { o.certs, o.certRole = folder, role }
}

// WithServerName expects another name in the server's certificate than ROLE.openclaw-rl.internal (or the host's name,
// with WithCA): for certificates of your own.
func WithServerName(name string) Option { return func(o *options) { o.serverName = name } }

// WithMesh names the mesh (`openclaw-rl mesh id` prints its id) with each call, and takes no answer of another one. A
// Delivery needs it on plain text: components take no messages of a sender that names no mesh. Without this option it
// is what the variable OPENCLAW_RL_MESH has; "" takes any mesh. A component of its own make names itself, too, such as
// [RoleJudge]; "" stands for a client.
func WithMesh(id, component string) Option {
	return func(o *options) { o.mesh, o.component = id, component }
}

// WithTimeout is the deadline of calls with one answer whose context has none; 0 means none. Streams have only their
// context's.
func WithTimeout(timeout time.Duration) Option { return func(o *options) { o.timeout = timeout } }

// WithReconnect says whether watches connect again by themselves; they do unless told otherwise.
func WithReconnect(reconnect bool) Option { return func(o *options) { o.reconnect = reconnect } }

// WithBackoff sets the pauses between two attempts of a watch; a Delivery has its own, SenderOptions.Backoff.
func WithBackoff(backoff Backoff) Option { return func(o *options) { o.backoff = backoff } }

// WithLogger is told of broken and renewed streams; by default nothing is logged.
func WithLogger(logger *slog.Logger) Option { return func(o *options) { o.logger = logger } }

// WithDialOptions adds options of gRPC, such as an interceptor of your own.
func WithDialOptions(more ...grpc.DialOption) Option {
	return func(o *options) { o.dial = append(o.dial, more...) }
}

func gather(role, address string, opts []Option) *options {
	o := &options{address: address, role: role, mesh: os.Getenv(MeshVariable), timeout: DefaultTimeout, reconnect: true,
		backoff: DefaultBackoff, logger: slog.New(slog.DiscardHandler)}
	for _, opt := range opts {
		opt(o)
	}
	return o
}
