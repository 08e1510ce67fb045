// Package reach is how commands reach a running service: the same flags and variables for address, token and TLS.
package reach

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ratelimit/src/files/certs"
	"ratelimit/src/operator"
	"ratelimit/src/operator/debugport"
	"ratelimit/src/operator/output"
	"ratelimit/src/tools/command"
)

const (
	// addressVariable is the environment variable with the address of the service, for all commands that ask one.
	addressVariable = "RATELIMIT_ADDRESS"
	// tokenVariable is the environment variable with the token. The service reads the same one.
	tokenVariable = "DEBUG_TOKEN"
	// debugAddress and grpcAddress are ports of a service on this machine with default settings.
	debugAddress = "localhost:6070"
	grpcAddress  = "localhost:8081"
)

// Service says how to reach a port of a service. AddDebugFlags or AddGRPCFlags add the flags that set it. There is no
// flag for the token itself, because other users of the machine can read flags.
type Service struct {
	// Timeout bounds each request.
	Timeout time.Duration

	address     string
	defaultPort string
	tokenFile   string
	useTLS      bool
	files       certs.Client
}

// AddDebugFlags adds the flags of commands that ask the debug port.
func (s *Service) AddDebugFlags(f *pflag.FlagSet) {
	s.addDebugFlags(f, "the debug port of the service")
}

// AddReplicaFlags adds the flags of commands that ask the debug ports of several replicas: AskAll.
func (s *Service) AddReplicaFlags(f *pflag.FlagSet) {
	s.addDebugFlags(f, "debug port of the service, or of several replicas: a,b, or dns:///name for all addresses of a name")
}

func (s *Service) addDebugFlags(f *pflag.FlagSet, usage string) {
	s.addAddress(f, debugAddress, usage)
	f.StringVar(&s.tokenFile, "token-file", "",
		"file with the service's DEBUG_TOKEN; else the environment variable DEBUG_TOKEN is sent")
	s.addTLS(f)
}

// AddGRPCFlags adds the flags of commands that call the gRPC port.
func (s *Service) AddGRPCFlags(f *pflag.FlagSet) {
	s.addAddress(f, grpcAddress, "the gRPC port of the service, or unix:///path")
	s.addTLS(f)
}

func (s *Service) addAddress(f *pflag.FlagSet, byDefault, usage string) {
	s.defaultPort = byDefault[strings.LastIndexByte(byDefault, ':')+1:]
	f.StringVar(&s.address, "address", cmp.Or(os.Getenv(addressVariable), byDefault),
		usage+"; else that of RATELIMIT_ADDRESS")
	f.Lookup("address").DefValue = byDefault // The help text is the same in every environment.
}

func (s *Service) addTLS(f *pflag.FlagSet) {
	f.BoolVar(&s.useTLS, "tls", false, "use TLS; an address that starts with https:// does so, too")
	f.StringVar(&s.files.CA, "tls-ca", "", "with TLS, PEM file of authorities to trust, besides the system's")
	f.StringVar(&s.files.Cert, "tls-cert", "", "with TLS, PEM file of the client's certificate chain")
	f.StringVar(&s.files.Key, "tls-key", "", "with TLS, PEM file of the client's key")
	command.Time(f, &s.Timeout, "timeout", 5*time.Second, 0, "time limit of each request, connecting included")
}

// Argument is the check of commands whose address was their argument in an earlier version, and may be it still.
func (s *Service) Argument(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case len(args) > 1:
		return command.NoArguments(cmd, args[1:])
	case cmd.Flags().Changed("address"):
		return fmt.Errorf("--address names the service: leave out %q", args[0])
	}
	s.address = args[0]
	return nil
}

// Ask calls ask with a client of the debug port, and a context that ends at a signal.
func (s *Service) Ask(cmd *cobra.Command, ask func(context.Context, *debugport.Client) error) error {
	client, err := s.newClient()
	if err != nil {
		return command.InvalidInput(err)
	}
	return askUntilSignal(cmd, []*debugport.Client{client}, func(ctx context.Context) error { return ask(ctx, client) })
}

// NewActionCommand returns a command, see command.New, whose first argument is one of actions. It calls perform with a
// client of any of several replicas, unless each has what, such as its counters, in its own memory. The caller adds
// flags: AddAnyReplicaFlags.
func (s *Service) NewActionCommand(help string, actions []string, check cobra.PositionalArgs, what string,
	perform func(context.Context, *cobra.Command, *debugport.Client) error,
) *cobra.Command {
	cmd := command.New(help, check, func(cmd *cobra.Command, _ []string) error {
		return s.AskAny(cmd, func(ctx context.Context, client *debugport.Client, others int) error {
			if err := refuseUnshared(ctx, client, others, what); err != nil {
				return err
			}
			return perform(ctx, cmd, client)
		})
	})
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return actions, cobra.ShellCompDirectiveNoFileComp
	}
	return cmd
}

// AddAnyReplicaFlags adds the flags of commands that ask the debug port of any of several replicas: AskAny.
func (s *Service) AddAnyReplicaFlags(f *pflag.FlagSet) {
	s.addDebugFlags(f, "debug port of the service; of several replicas, a,b or dns:///name, the first that answers is asked")
}

// AskAny calls ask with a client of the first debug port that answers, and a context that ends at a signal. others is
// how many further replicas the address names. With several, it prints to stderr which one it asks.
func (s *Service) AskAny(cmd *cobra.Command, ask func(ctx context.Context, c *debugport.Client, others int) error,
) error {
	clients, err := s.anyClients(cmd.Context())
	if err != nil {
		return command.InvalidInput(err)
	}
	others := len(clients) - 1
	return askUntilSignal(cmd, clients, func(ctx context.Context) error {
		if others == 0 {
			return ask(ctx, clients[0], 0)
		}
		var failures []error
		for _, c := range clients {
			err := c.Get(ctx, "/api/state", nil, new(struct{}))
			if err == nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s answers, the first of %d replicas\n", c.Address, len(clients))
				return ask(ctx, c, others)
			}
			failures = append(failures, err)
		}
		return errors.Join(failures...)
	})
}

// anyClients returns a client for each replica that the address names.
func (s *Service) anyClients(ctx context.Context) ([]*debugport.Client, error) {
	if strings.Contains(s.address, ",") || strings.HasPrefix(s.address, "dns:///") {
		return s.newClients(ctx)
	}
	client, err := s.newClient()
	return []*debugport.Client{client}, err
}

// AskAll calls ask with a client of each debug port, and a context that ends at a signal.
func (s *Service) AskAll(cmd *cobra.Command, ask func(context.Context, []*debugport.Client) error) error {
	clients, err := s.newClients(cmd.Context())
	if err != nil {
		return command.InvalidInput(err)
	}
	return askUntilSignal(cmd, clients, func(ctx context.Context) error { return ask(ctx, clients) })
}

func askUntilSignal(cmd *cobra.Command, clients []*debugport.Client, ask func(context.Context) error) error {
	ctx, stop := command.UntilSignal(cmd.Context())
	defer stop()
	defer func() {
		for _, c := range clients {
			c.Close()
		}
	}()
	return ask(ctx)
}

// newClient returns a client for the debug port. It does not connect.
func (s *Service) newClient() (*debugport.Client, error) {
	if strings.Contains(s.address, ",") {
		return nil, fmt.Errorf("address %s: name one replica for this command", output.Printable(s.address))
	}
	cfg, err := s.debugPort()
	if err != nil {
		return nil, err
	}
	return cfg.New(strings.TrimSuffix(s.address, "/explain"), "") // As links to an explanation end.
}

// newClients returns a client for each address in the list of the flag. It does not connect.
func (s *Service) newClients(ctx context.Context) ([]*debugport.Client, error) {
	cfg, err := s.debugPort()
	if err != nil {
		return nil, err
	}
	return cfg.NewAll(ctx, s.address)
}

func (s *Service) debugPort() (*debugport.Config, error) {
	token, err := s.readToken()
	if err != nil {
		return nil, err
	}
	return &debugport.Config{
		DefaultPort: s.defaultPort, Token: func() string { return token }, Timeout: s.Timeout,
		TLS: func(isHTTPS bool, name string) (*tls.Config, error) {
			s.files.ServerName = name
			return s.tls(isHTTPS)
		},
		Advice: debugport.Advice{
			NoTLS: "leave out --tls and https://", UseTLS: "add --tls",
			Authority: "name the authority of the service's certificate with --tls-ca",
			SetToken:  "set " + tokenVariable + ", or name a file that has it with --token-file",
		},
	}, nil
}

// GRPC returns the address of the gRPC port as a target of gRPC, and the configuration of TLS: nil without TLS.
func (s *Service) GRPC() (target string, cfg *tls.Config, err error) {
	target, isHTTPS := s.address, false
	if scheme, _, found := strings.Cut(target, ":"); !found || scheme != "unix" && !strings.Contains(target, ":///") {
		u, err := debugport.ParseAddress(target, s.defaultPort)
		if err != nil {
			return "", nil, err
		}
		target, isHTTPS = u.Host, u.Scheme == "https"
	}
	cfg, err = s.tls(isHTTPS)
	return target, cfg, err
}

// tls returns the configuration of TLS; nil if neither the flags nor the address, an https URL, ask for TLS.
func (s *Service) tls(isHTTPS bool) (*tls.Config, error) {
	switch {
	case s.useTLS || isHTTPS:
		s.files.CAName, s.files.PairName = "--tls-ca", "--tls-cert and --tls-key"
		return s.files.TLS()
	case s.files.CA+s.files.Cert+s.files.Key != "":
		return nil, errors.New("--tls-ca, --tls-cert and --tls-key have no effect without TLS: add --tls")
	}
	return nil, nil
}

// readToken returns the token, which is empty if none is set.
func (s *Service) readToken() (string, error) {
	if s.tokenFile == "" {
		return strings.TrimSpace(os.Getenv(tokenVariable)), nil
	}
	text, err := os.ReadFile(s.tokenFile)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsAny(token, "\r\n") {
		return "", fmt.Errorf("--token-file %s: write the token in the file, on one line", s.tokenFile)
	}
	return token, nil
}

// refuseUnshared returns an error if there are other replicas, and each has what, such as its counters, in its own
// memory.
func refuseUnshared(ctx context.Context, client *debugport.Client, others int, what string) error {
	if others == 0 {
		return nil
	}
	var state operator.State
	if err := client.Get(ctx, "/api/state", nil, &state); err != nil {
		return err
	}
	if state.Store == "memory" {
		return command.InvalidInput(fmt.Errorf("each replica has %s in memory: name one replica with --address", what))
	}
	return nil
}
