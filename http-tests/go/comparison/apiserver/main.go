// Command apiserver runs Kubernetes' API server for custom resources over an etcd, for programs that compare its answers
// with those of watchcore serve.
//
//	apiserver -etcd http://127.0.0.1:2379
//
// It prints one line, "listening on http://127.0.0.1:PORT", when it answers there: plain HTTP on the loopback address,
// and everyone may do everything. The program ends by a signal, or when its standard input ends, so that it does not
// outlive a test that was killed.
//
// That address has the whole chain of handlers of the API server, with its watch cache. The API server's own address,
// which it cannot do without, has TLS and is not used.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/pflag"

	extensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	generated "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	openapinames "k8s.io/apiserver/pkg/endpoints/openapi"
	genericserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/openapi"
)

// The server does not start without one, because it delegates the question who users are and what they may do; nobody is asked.
const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: nobody, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: nobody, context: {cluster: nobody, user: nobody}}]
current-context: nobody
users: [{name: nobody, user: {}}]
`

func main() {
	endpoint := flag.String("etcd", "", "the client URL of etcd")
	flag.Parse()
	if err := run(*endpoint); err != nil {
		fmt.Fprintln(os.Stderr, "apiserver:", err)
		os.Exit(1)
	}
}

func run(endpoint string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()

	directory, err := os.MkdirTemp("", "apiserver")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	server, err := newServer(endpoint, directory)
	if err != nil {
		return err
	}

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	plain := &http.Server{Handler: asLoopback(server)}
	ended := make(chan error, 2)
	go func() { ended <- plain.Serve(listener) }()
	go func() { ended <- server.PrepareRun().RunWithContext(ctx) }()
	fmt.Printf("listening on http://%s\n", listener.Addr())
	select {
	case err = <-ended:
		return err
	case <-ctx.Done():
		// Watches would hold a shutdown that waits for them, and nobody needs their clean end.
		return plain.Close()
	}
}

// asLoopback lets a request through as the server's own, who may do everything.
func asLoopback(server *genericserver.GenericAPIServer) http.Handler {
	token := server.LoopbackClientConfig.BearerToken
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Authorization", "Bearer "+token)
		server.Handler.ServeHTTP(w, r)
	})
}

func newServer(endpoint, directory string) (*genericserver.GenericAPIServer, error) {
	path := filepath.Join(directory, "kubeconfig")
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	o := options.NewCustomResourceDefinitionsServerOptions(io.Discard, os.Stderr)
	o.RecommendedOptions.SecureServing.Listener = listener
	o.RecommendedOptions.SecureServing.BindPort = listener.Addr().(*net.TCPAddr).Port
	o.RecommendedOptions.SecureServing.ServerCert.CertDirectory = directory
	flags := pflag.NewFlagSet("apiserver", pflag.ContinueOnError)
	o.AddFlags(flags)
	if err := flags.Parse([]string{
		"--etcd-servers", endpoint,
		"--etcd-prefix", "/registry",
		"--authentication-skip-lookup",
		"--authentication-kubeconfig", path,
		"--authorization-kubeconfig", path,
		"--kubeconfig", path,
		"--enable-priority-and-fairness=false",
		// They ask an API server that has namespaces and webhooks, which is not there.
		"--disable-admission-plugins", "NamespaceLifecycle,MutatingAdmissionWebhook,ValidatingAdmissionWebhook," +
			"ValidatingAdmissionPolicy,MutatingAdmissionPolicy",
	}); err != nil {
		return nil, err
	}
	if err := o.ServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return nil, err
	}
	if err := o.Complete(); err != nil {
		return nil, err
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	config, err := o.Config()
	if err != nil {
		return nil, err
	}
	definitions := openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generated.GetOpenAPIDefinitions)
	config.GenericConfig.OpenAPIConfig = genericserver.DefaultOpenAPIConfig(
		definitions, openapinames.NewDefinitionNamer(extensions.Scheme))
	made, err := config.Complete().New(genericserver.NewEmptyDelegate())
	if err != nil {
		return nil, err
	}
	return made.GenericAPIServer, nil
}
