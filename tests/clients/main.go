// portolan-go-client is what end-to-end tests run to see the router as Go programs do: informers of client-go and
// controller-runtime, one or many, and its pager. It prints JSON lines on stdout (lines.go says which) and takes commands on stdin;
// the end of stdin ends it, so that it does not outlive a test that was killed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// asked is what every subcommand is told.
type asked struct {
	resource   schema.GroupVersionResource
	namespace  string
	labels     string
	fields     string
	client     string
	watchList  bool
	consistent bool
	limit      int64
	step       bool
	// Of gets.
	connections int
	atOnce      int
	version     string
	// Of soak, until and elect.
	rest []string
	// 0: as the library asks.
	watchSeconds int64
}

var subcommands = map[string]func(context.Context, *rest.Config, asked, commands) error{
	"informer":           runInformer,
	"controller-runtime": runControllerRuntime,
	"page":               runPage,
	"retry":              runRetry,
	"until":              runUntil,
	"soak":               runSoak,
	"elect":              runElect,
	"gets":               runGets,
}

func main() {
	if err := run(); err != nil {
		say(line{"type": "fatal", "message": err.Error()})
		os.Exit(1)
	}
}

func run() error {
	usage := "usage: portolan-go-client informer|controller-runtime|page|retry|until|soak|elect|gets [flags]; --help after a subcommand lists them"
	if len(os.Args) < 2 || subcommands[os.Args[1]] == nil {
		return errors.New(usage)
	}
	want, kubeconfig, err := parse(os.Args[1], os.Args[2:])
	if err != nil {
		return err
	}
	// client-go reads its feature gates once, from the environment, when the first reflector asks.
	if err := os.Setenv("KUBE_FEATURE_WatchListClient", fmt.Sprint(want.watchList)); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	config.WarningHandlerWithContext = warnings{}
	config.Wrap(countRequests)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return subcommands[os.Args[1]](ctx, config, want, readCommands(stop))
}

func parse(name string, arguments []string) (asked, string, error) {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	want := asked{}
	kubeconfig := flags.String("kubeconfig", os.Getenv("KUBECONFIG"), "default: $KUBECONFIG")
	resource := flags.String("resource", "v1/configmaps", "[group/]version/plural")
	flags.StringVar(&want.namespace, "namespace", "", "default: all namespaces")
	flags.StringVar(&want.labels, "selector", "", "label selector")
	flags.StringVar(&want.fields, "field-selector", "", "field selector")
	flags.StringVar(&want.client, "client", "typed", "typed (protobuf), json, dynamic or metadata")
	flags.BoolVar(&want.watchList, "watch-list", true, "client-go's WatchListClient")
	flags.BoolVar(&want.consistent, "read-your-writes", false, "controller-runtime's EnableReadYourWritesConsistency")
	flags.Int64Var(&want.limit, "limit", 500, "page: items asked for at once")
	flags.BoolVar(&want.step, "step", false, "page: wait for the command `next` before each page but the first")
	flags.IntVar(&want.connections, "connections", 1, "gets: connections")
	flags.IntVar(&want.atOnce, "at-once", 1, "gets: requests at a time over all of them")
	flags.StringVar(&want.version, "resource-version", "", "page: of the first page; retry and until: where they begin")
	flags.Int64Var(&want.watchSeconds, "watch-seconds", 0, "how long each watch lasts; default: as the library asks")
	if err := flags.Parse(arguments); err != nil {
		return want, "", err
	}
	want.rest = flags.Args()
	var err error
	want.resource, err = resourceOf(*resource)
	return want, *kubeconfig, err
}

func resourceOf(text string) (schema.GroupVersionResource, error) {
	parts := strings.Split(text, "/")
	switch len(parts) {
	case 2:
		return schema.GroupVersionResource{Version: parts[0], Resource: parts[1]}, nil
	case 3:
		return schema.GroupVersionResource{Group: parts[0], Version: parts[1], Resource: parts[2]}, nil
	}
	return schema.GroupVersionResource{}, fmt.Errorf("--resource %q is not [group/]version/plural", text)
}
