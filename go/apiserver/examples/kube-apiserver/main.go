// Command kube-apiserver is Kubernetes' API server with watchcore in the place of its watch cache: cmd/kube-apiserver with other
// RESTOptionsGetters, the same flags, and two of its own.
package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage/cacher/consistency"
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
	var limits apiserver.Config
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
			return run(command.Context(), completed, apiserver.NewCaches(limits))
		},
	}
	command.SetContext(genericapiserver.SetupSignalContext())
	flags := s.Flags()
	own := flags.FlagSet("watchcore")
	own.IntVar(&limits.WindowEvents, "window-events", limits.WindowEvents, "How many changes of all resources the cache keeps, for watches that resume. 0 is 1,048,576.")
	own.DurationVar(&consistency.CheckPeriod, "consistency-check-period", consistency.CheckPeriod, "How often each resource's objects in the cache are compared with etcd's.")
	verflag.AddFlags(flags.FlagSet("global"))
	globalflag.AddGlobalFlags(flags.FlagSet("global"), command.Name(), logs.SkipLoggingConfigurationFlags())
	for _, set := range flags.FlagSets {
		command.Flags().AddFlagSet(set)
	}
	os.Exit(cli.Run(command))
}

// run is app.Run, with the watch caches replaced.
func run(ctx context.Context, opts options.CompletedOptions, caches *apiserver.Caches) (err error) {
	if opts.InformerName, err = cache.NewInformerName("kube-apiserver"); err != nil {
		return err
	}
	config, err := app.NewConfig(opts)
	if err != nil {
		return err
	}
	// Each part of the server has a getter of its own.
	control, extensions, aggregator := config.KubeAPIs.ControlPlane.Generic, config.ApiExtensions, config.Aggregator
	control.RESTOptionsGetter = caches.RESTOptionsGetter(control.RESTOptionsGetter)
	extensions.GenericConfig.RESTOptionsGetter = caches.RESTOptionsGetter(extensions.GenericConfig.RESTOptionsGetter)
	extensions.ExtraConfig.CRDRESTOptionsGetter = caches.RESTOptionsGetter(extensions.ExtraConfig.CRDRESTOptionsGetter)
	aggregator.GenericConfig.RESTOptionsGetter = caches.RESTOptionsGetter(aggregator.GenericConfig.RESTOptionsGetter)
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
