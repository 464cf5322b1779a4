// The greeting operator in controller-runtime: a Greeting becomes a ConfigMap, a Deployment that reads it, and an entry
// in its namespace's guestbook. It watches all namespaces of the one cluster its kubeconfig names.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	examplev1 "example.com/greeting-operator/api/v1"
	"example.com/greeting-operator/controller"
	"example.com/greeting-operator/tracing"
)

// lastSpans is the time that a collector gets for them at the end.
const lastSpans = 3 * time.Second

func main() {
	metrics := flag.String("metrics-bind-address", "0", "address of the metrics server; 0 for none")
	secure := flag.Bool("metrics-secure", true, "serve metrics by TLS, to those whom the API server lets get /metrics")
	election := flag.Bool("leader-elect", true, "work only while holding the Lease")
	lease := flag.String("lease", controller.Name, "name of the leader-election Lease")
	namespace := flag.String("leader-election-namespace", "", "namespace of the Lease (default: that of the kubeconfig's context, or the Pod's)")
	image := flag.String("image", controller.Image, "image of the Pods that say a Greeting; it has a shell")
	logging := zap.Options{}
	logging.BindFlags(flag.CommandLine)
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&logging)))

	served := metricsserver.Options{BindAddress: *metrics, SecureServing: *secure}
	if *secure {
		served.FilterProvider = filters.WithAuthenticationAndAuthorization
	}
	options := ctrl.Options{
		Cache:                   controller.CacheOptions(),
		Metrics:                 served,
		LeaderElection:          *election,
		LeaderElectionID:        *lease,
		LeaderElectionNamespace: *namespace,
		// Right because the process ends when the manager does: the next replica need not wait for the Lease to expire.
		LeaderElectionReleaseOnCancel: true,
	}
	if err := run(options, *image); err != nil {
		ctrl.Log.Error(err, "the operator ends")
		os.Exit(1)
	}
}

// run works until SIGTERM or SIGINT, or until the Lease is lost.
func run(options ctrl.Options, image string) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("no kubeconfig and not in a cluster: %w", err)
	}
	if options.LeaderElectionNamespace == "" {
		if options.LeaderElectionNamespace, err = homeNamespace(); err != nil {
			return fmt.Errorf("cannot tell the namespace of the Lease: %w", err)
		}
	}
	options.Scheme = runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(options.Scheme); err != nil {
		return err
	}
	if err := examplev1.AddToScheme(options.Scheme); err != nil {
		return err
	}
	traces, err := tracing.Start(context.Background(), controller.Name)
	if err != nil {
		return fmt.Errorf("cannot export traces: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), lastSpans)
		defer cancel()
		if err := traces.Stop(ctx); err != nil {
			ctrl.Log.Error(err, "the last spans were not sent")
		}
	}()
	traces.Client(config)
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return fmt.Errorf("cannot make the manager: %w", err)
	}
	reconciler := &controller.Reconciler{Client: mgr.GetClient(), Recorder: mgr.GetEventRecorder(controller.Name), Image: image}
	if err := reconciler.SetupWithManager(mgr, traces); err != nil {
		return fmt.Errorf("cannot make the controller: %w", err)
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}

// homeNamespace is the namespace of the kubeconfig's context, or of our Pod.
func homeNamespace() (string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = flag.Lookup("kubeconfig").Value.String()
	namespace, _, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).Namespace()
	return namespace, err
}
