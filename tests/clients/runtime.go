package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/go-logr/logr"
)

// visiblePatience is how long a measurement waits for its own write to appear in the cache.
const visiblePatience = 30 * time.Second

// runControllerRuntime keeps a manager with a cache of one resource. Commands:
//
//	dump
//	measure NAMESPACE COUNT PREFIX    writes COUNT ConfigMaps, then changes each, and reads each back through the cache
func runControllerRuntime(ctx context.Context, config *rest.Config, want asked, told commands) error {
	log.SetLogger(logr.Discard())
	mgr, err := managerOf(config, want)
	if err != nil {
		return err
	}
	kind, err := mgr.GetRESTMapper().KindFor(want.resource)
	if err != nil {
		return err
	}
	informer, err := mgr.GetCache().GetInformer(ctx, objectOf(kind, want.client), cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	handler, err := informer.AddEventHandler(changes())
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	go func() {
		if toolscache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
			say(line{"type": "synced"})
		}
	}()
	told.serve(ctx, func(words []string) {
		switch {
		case words[0] == "dump":
			dumpCache(ctx, mgr.GetCache(), kind, want.client)
		case words[0] == "measure" && len(words) == 4:
			count, _ := strconv.Atoi(words[2])
			go measure(ctx, mgr.GetClient(), words[1], count, words[3])
		default:
			say(line{"type": "error", "message": fmt.Sprintf("unknown command %v", words)})
		}
	})
	return <-ended
}

func managerOf(config *rest.Config, want asked) (ctrl.Manager, error) {
	labels, err := labels.Parse(want.labels)
	if err != nil {
		return nil, err
	}
	fields, err := fields.ParseSelector(want.fields)
	if err != nil {
		return nil, err
	}
	options := cache.Options{
		DefaultLabelSelector: labels,
		DefaultFieldSelector: fields,
		DefaultWatchErrorHandler: func(ctx context.Context, reflector *toolscache.Reflector, err error) {
			say(line{"type": "error", "message": err.Error()})
			toolscache.DefaultWatchErrorHandler(ctx, reflector, err)
		},
	}
	if want.namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{want.namespace: {}}
	}
	return ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme.Scheme,
		Cache:   options,
		Client:  client.Options{Cache: &client.CacheOptions{EnableReadYourWritesConsistency: &want.consistent}},
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
}

// objectOf makes the cache hold the kind as a typed object, as metadata, or as it is on the wire.
func objectOf(kind schema.GroupVersionKind, how string) client.Object {
	if how == "metadata" {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(kind)
		return object
	}
	if object, err := scheme.Scheme.New(kind); err == nil && how != "dynamic" {
		return object.(client.Object)
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	return object
}

// dumpCache lists as a reconciler would: of the same representation as objectOf.
func dumpCache(ctx context.Context, held cache.Cache, kind schema.GroupVersionKind, how string) {
	kind.Kind += "List"
	var list client.ObjectList
	if typed, err := scheme.Scheme.New(kind); how == "metadata" {
		metadata := &metav1.PartialObjectMetadataList{}
		metadata.SetGroupVersionKind(kind)
		list = metadata
	} else if err == nil && how != "dynamic" {
		list = typed.(client.ObjectList)
	} else {
		untyped := &unstructured.UnstructuredList{}
		untyped.SetGroupVersionKind(kind)
		list = untyped
	}
	if err := held.List(ctx, list); err != nil {
		say(line{"type": "error", "message": err.Error()})
	}
	var objects []any
	_ = meta.EachListItem(list, func(object runtime.Object) error {
		objects = append(objects, object)
		return nil
	})
	dump(objects)
}

// measured is what one kind of write cost: how long until the write was seen in the cache, and how often the first read
// after it did not see it.
type measured struct {
	visible []time.Duration
	stale   int
	errors  []string
}

// measure prints two `measured` lines, "of" create and update: count, stale, errors, p50, p99 and max in microseconds.
func measure(ctx context.Context, through client.Client, namespace string, count int, prefix string) {
	created, updated := &measured{}, &measured{}
	for i := range count {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%d", prefix, i)}}
		if err := through.Create(ctx, object); err != nil {
			created.errors = append(created.errors, err.Error())
			continue
		}
		created.readBack(ctx, through, object)
		object.Data = map[string]string{"changed": "yes"}
		if err := through.Update(ctx, object); err != nil {
			updated.errors = append(updated.errors, err.Error())
			continue
		}
		updated.readBack(ctx, through, object)
	}
	created.say("create", count)
	updated.say("update", count)
}

// readBack reads until the cache has the version just written; with read-your-writes the first read should.
func (m *measured) readBack(ctx context.Context, through client.Client, written client.Object) {
	ctx, cancel := context.WithTimeout(ctx, visiblePatience)
	defer cancel()
	start := time.Now()
	for first := true; ; first = false {
		found := &corev1.ConfigMap{}
		err := through.Get(ctx, client.ObjectKeyFromObject(written), found)
		if err == nil && found.ResourceVersion == written.GetResourceVersion() {
			m.visible = append(m.visible, time.Since(start))
			return
		}
		if err != nil && !apierrors.IsNotFound(err) {
			m.errors = append(m.errors, err.Error())
			return
		}
		if ctx.Err() != nil {
			m.errors = append(m.errors, fmt.Sprintf("%s was not seen within %s", written.GetName(), visiblePatience))
			return
		}
		if first {
			m.stale++
		}
		time.Sleep(200 * time.Microsecond)
	}
}

func (m *measured) say(of string, count int) {
	slices.Sort(m.visible)
	at := func(percent int) int64 {
		if len(m.visible) == 0 {
			return -1
		}
		return m.visible[(len(m.visible)-1)*percent/100].Microseconds()
	}
	if m.errors == nil {
		m.errors = []string{}
	}
	say(line{
		"type": "measured", "of": of, "count": count, "stale": m.stale, "errors": m.errors,
		"p50": at(50), "p99": at(99), "max": at(100),
	})
}
