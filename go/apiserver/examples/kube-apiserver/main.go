// Command kube-apiserver is Kubernetes' API server with watchcore in the place of its watch cache: cmd/kube-apiserver with other
// RESTOptionsGetters, and the same flags.
package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/cli/globalflag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/component-base/version/verflag"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/watchcore/watchcore/go/apiserver"
)

func main() {
	s := options.NewServerRunOptions()
	registry := s.GenericServerRunOptions.ComponentGlobalsRegistry
	command := &cobra.Command{
		Use:          "kube-apiserver",
		SilenceUsage: true,
		Args:         cobra.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			rest.SetDefaultWarningHandler(rest.NoWarnings{}) // the server calls itself
			return registry.Set()
		},
		RunE: func(command *cobra.Command, _ []string) error {
			verflag.PrintAndExitIfRequested()
			if err := logsapi.ValidateAndApply(s.Logs, registry.FeatureGateFor(basecompatibility.DefaultKubeComponent)); err != nil {
				return err
			}
			completed, err := s.Complete(command.Context())
			if err != nil {
				return err
			}
			if errs := completed.Validate(); len(errs) > 0 {
				return utilerrors.NewAggregate(errs)
			}
			return run(command.Context(), completed)
		},
	}
	command.SetContext(genericapiserver.SetupSignalContext())
	flags := s.Flags()
	verflag.AddFlags(flags.FlagSet("global"))
	globalflag.AddGlobalFlags(flags.FlagSet("global"), command.Name(), logs.SkipLoggingConfigurationFlags())
	for _, set := range flags.FlagSets {
		command.Flags().AddFlagSet(set)
	}
	os.Exit(cli.Run(command))
}

// run is app.Run, with the watch caches replaced.
func run(ctx context.Context, opts options.CompletedOptions) (err error) {
	if opts.InformerName, err = cache.NewInformerName("kube-apiserver"); err != nil {
		return err
	}
	config, err := app.NewConfig(opts)
	if err != nil {
		return err
	}
	// Each part of the server has a getter of its own.
	control, extensions, aggregator := config.KubeAPIs.ControlPlane.Generic, config.ApiExtensions, config.Aggregator
	control.RESTOptionsGetter = apiserver.RESTOptionsGetter(control.RESTOptionsGetter)
	extensions.GenericConfig.RESTOptionsGetter = apiserver.RESTOptionsGetter(extensions.GenericConfig.RESTOptionsGetter)
	extensions.ExtraConfig.CRDRESTOptionsGetter = apiserver.RESTOptionsGetter(extensions.ExtraConfig.CRDRESTOptionsGetter)
	aggregator.GenericConfig.RESTOptionsGetter = apiserver.RESTOptionsGetter(aggregator.GenericConfig.RESTOptionsGetter)
	completed, err := config.Complete()
	if err != nil {
		return err
	}
	server, err := app.CreateServerChain(completed)
	if err != nil {
		return err
	}
	prepared, err := server.PrepareRun()
	if err != nil {
		return err
	}
	return prepared.Run(ctx)
}
