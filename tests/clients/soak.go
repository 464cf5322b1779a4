package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/go-logr/logr"
)

// runSoak keeps many informers side by side, each an argument CLIENT:RESOURCE[:NAMESPACE]. CLIENT is one of --client, for a
// shared informer of client-go, or runtime-typed, runtime-dynamic or runtime-metadata, for a cache of controller-runtime.
// Their watches end after --watch-seconds. Command: report, answered by one `report` line that has, of each informer, its
// items, what it took for deleted since the last report, how often it was answered a list, and its 410s by message.
func runSoak(ctx context.Context, config *rest.Config, want asked, told commands) error {
	log.SetLogger(logr.Discard())
	var all []*soaked
	for _, argument := range want.rest {
		one, err := startSoaked(ctx, rest.CopyConfig(config), want, argument)
		if err != nil {
			return fmt.Errorf("%s: %w", argument, err)
		}
		all = append(all, one)
	}
	told.serve(ctx, func(words []string) {
		if words[0] == "report" {
			reports := make([]line, 0, len(all))
			for _, one := range all {
				reports = append(reports, one.report())
			}
			say(line{"type": "report", "clients": reports})
		}
	})
	return nil
}

// soaked is one informer and what it was told.
type soaked struct {
	name     string
	want     asked
	informer toolscache.SharedIndexInformer

	sync.Mutex
	gone    []gone
	lists   int
	expired map[string]int
}

// gone is one object that an informer took for deleted.
type gone struct {
	Key string `json:"key"`
	UID string `json:"uid"`
	At  int64  `json:"at"`
}

func startSoaked(ctx context.Context, config *rest.Config, want asked, argument string) (*soaked, error) {
	parts := strings.Split(argument, ":")
	if len(parts) < 2 {
		return nil, errors.New("not CLIENT:RESOURCE[:NAMESPACE]")
	}
	var err error
	if want.resource, err = resourceOf(parts[1]); err != nil {
		return nil, err
	}
	want.client, want.namespace = parts[0], strings.Join(parts[2:], "")
	one := &soaked{name: strings.Join(parts, " "), want: want, expired: map[string]int{}}
	if how, managed := strings.CutPrefix(parts[0], "runtime-"); managed {
		return one, one.startCache(ctx, config, how)
	}
	lists, err := listWatchOf(config, want)
	if err != nil {
		return nil, err
	}
	one.around(lists, nil, 0, toolscache.Indexers{})
	go one.informer.RunWithContext(ctx)
	return one, nil
}

// startCache has a cache of controller-runtime make the informer.
func (s *soaked) startCache(ctx context.Context, config *rest.Config, how string) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	mapper, err := apiutil.NewDynamicRESTMapper(config, client)
	if err != nil {
		return err
	}
	kind, err := mapper.KindFor(s.want.resource)
	if err != nil {
		return err
	}
	options := cache.Options{HTTPClient: client, Mapper: mapper, NewInformer: s.around}
	if s.want.namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{s.want.namespace: {}}
	}
	held, err := cache.New(config, options)
	if err != nil {
		return err
	}
	if _, err := held.GetInformer(ctx, objectOf(kind, how), cache.BlockUntilSynced(false)); err != nil {
		return err
	}
	go func() { _ = held.Start(ctx) }()
	return nil
}

// around makes an informer whose lists and watches go by this.
func (s *soaked) around(
	inner toolscache.ListerWatcher, example runtime.Object, resync time.Duration, indexers toolscache.Indexers,
) toolscache.SharedIndexInformer {
	lists := toolscache.ToListerWatcherWithContext(inner)
	s.informer = toolscache.NewSharedIndexInformer(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := lists.ListWithContext(ctx, options)
			s.begun(err == nil && options.Continue == "", err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.TimeoutSeconds = &s.want.watchSeconds
			events, err := lists.WatchWithContext(ctx, options)
			s.begun(err == nil && options.SendInitialEvents != nil, err)
			if err != nil {
				return nil, err
			}
			return watch.Filter(events, func(event watch.Event) (watch.Event, bool) {
				if event.Type == watch.Error {
					s.begun(false, apierrors.FromObject(event.Object))
				}
				return event, true
			}), nil
		},
	}, example, resync, indexers)
	_, _ = s.informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{DeleteFunc: s.deleted})
	return s.informer
}

// begun counts a list, and an error that says that a position is over.
func (s *soaked) begun(list bool, err error) {
	s.Lock()
	defer s.Unlock()
	if list {
		s.lists++
	}
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		s.expired[err.Error()]++
	}
}

func (s *soaked) deleted(object any) {
	if missed, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = missed.Obj
	}
	if one, ok := itemOf(object); ok {
		s.Lock()
		defer s.Unlock()
		s.gone = append(s.gone, gone{Key: one.Key, UID: one.UID, At: time.Now().UnixMilli()})
	}
}

func (s *soaked) report() line {
	// Before the lock: handlers wait for it.
	items := itemsOf(s.informer.GetStore().List())
	s.Lock()
	defer s.Unlock()
	told := line{
		"name": s.name, "resource": s.want.resource.Resource, "namespace": s.want.namespace, "items": items,
		"gone": append([]gone{}, s.gone...), "lists": s.lists, "expired": maps.Clone(s.expired),
	}
	s.gone = nil
	return told
}
