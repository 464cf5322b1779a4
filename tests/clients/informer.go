package main

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// runInformer keeps one shared informer of client-go. Commands: dump.
func runInformer(ctx context.Context, config *rest.Config, want asked, told commands) error {
	lists, err := listWatchOf(config, want)
	if err != nil {
		return err
	}
	// No example object: the reflector would only use it to refuse other kinds.
	informer := cache.NewSharedIndexInformer(lists, nil, 0, cache.Indexers{})
	if err := tellErrors(informer); err != nil {
		return err
	}
	handler, err := informer.AddEventHandler(changes())
	if err != nil {
		return err
	}
	go informer.RunWithContext(ctx)
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
			say(line{"type": "synced"})
		}
	}()
	told.serve(ctx, func(words []string) {
		if words[0] == "dump" {
			dump(informer.GetStore().List())
		}
	})
	return nil
}

func listWatchOf(config *rest.Config, want asked) (*cache.ListWatch, error) {
	collection, err := collectionOf(config, want)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return collection.list(ctx, want.narrowed(options))
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			if want.watchSeconds > 0 {
				options.TimeoutSeconds = &want.watchSeconds
			}
			return collection.watch(ctx, want.narrowed(options))
		},
	}, err
}

// tellErrors prints what makes a reflector back off or relist.
func tellErrors(informer cache.SharedInformer) error {
	return informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, reflector *cache.Reflector, err error) {
		say(line{"type": "error", "message": err.Error()})
		cache.DefaultWatchErrorHandler(ctx, reflector, err)
	})
}

// narrowed adds the selectors of the command line.
func (want asked) narrowed(options metav1.ListOptions) metav1.ListOptions {
	options.LabelSelector, options.FieldSelector = want.labels, want.fields
	return options
}

// collection lists and watches one resource by one of client-go's clients.
type collection struct {
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func collectionOf(config *rest.Config, want asked) (collection, error) {
	switch want.client {
	case "typed":
		return typedCollection(config, want, runtime.ContentTypeProtobuf)
	case "json":
		return typedCollection(config, want, runtime.ContentTypeJSON)
	case "dynamic":
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			return collection{}, err
		}
		objects := client.Resource(want.resource).Namespace(want.namespace)
		list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return objects.List(ctx, options)
		}
		return collection{list: list, watch: objects.Watch}, nil
	case "metadata":
		client, err := metadata.NewForConfig(config)
		if err != nil {
			return collection{}, err
		}
		objects := client.Resource(want.resource).Namespace(want.namespace)
		list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return objects.List(ctx, options)
		}
		return collection{list: list, watch: objects.Watch}, nil
	}
	return collection{}, fmt.Errorf("--client %q is none of typed, json, dynamic, metadata", want.client)
}

// typedCollection is for the built-in kinds: what a generated clientset does, without compiling one.
func typedCollection(config *rest.Config, want asked, format string) (collection, error) {
	config = rest.CopyConfig(config)
	version := want.resource.GroupVersion()
	config.GroupVersion = &version
	config.APIPath = "/apis"
	if version.Group == "" {
		config.APIPath = "/api"
	}
	config.ContentType = format
	config.AcceptContentTypes = format
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return collection{}, err
	}
	request := func(options metav1.ListOptions) *rest.Request {
		return client.Get().Namespace(want.namespace).Resource(want.resource.Resource).
			VersionedParams(&options, scheme.ParameterCodec)
	}
	return collection{
		list: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return request(options).Do(ctx).Get()
		},
		watch: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.Watch = true
			return request(options).Watch(ctx)
		},
	}, nil
}
