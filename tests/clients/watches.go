package main

import (
	"context"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	watchtools "k8s.io/client-go/tools/watch"
)

// runRetry follows a collection from --resource-version by client-go's RetryWatcher: an `event` line for each event, and
// `done` when it has given up.
func runRetry(ctx context.Context, config *rest.Config, want asked, _ commands) error {
	lists, err := listWatchOf(config, want)
	if err != nil {
		return err
	}
	// What it says of each attempt that fails is in the `request` lines.
	watcher, err := watchtools.NewRetryWatcherWithContext(logr.NewContext(ctx, logr.Discard()), want.version, lists)
	if err != nil {
		return err
	}
	for event := range watcher.ResultChan() {
		if event.Type == watch.Error {
			say(line{"type": "error", "message": apierrors.FromObject(event.Object).Error()})
		} else if one, ok := itemOf(event.Object); ok {
			say(line{"type": "event", "event": event.Type, "key": one.Key, "uid": one.UID, "rv": one.RV})
		}
	}
	say(line{"type": "done"})
	return nil
}

// runUntil waits until each argument, the key of an object, was told of, one after the other, and says `done`: by
// client-go's Until from --resource-version, by its UntilWithSync without one.
func runUntil(ctx context.Context, config *rest.Config, want asked, _ commands) error {
	lists, err := listWatchOf(config, want)
	if err != nil {
		return err
	}
	ctx = logr.NewContext(ctx, logr.Discard())
	var conditions []watchtools.ConditionFunc
	for _, key := range want.rest {
		conditions = append(conditions, func(event watch.Event) (bool, error) {
			if event.Type == watch.Error {
				return false, apierrors.FromObject(event.Object)
			}
			one, ok := itemOf(event.Object)
			return ok && one.Key == key, nil
		})
	}
	if want.version == "" {
		_, err = watchtools.UntilWithSync(ctx, lists, nil, nil, conditions...)
	} else {
		_, err = watchtools.Until(ctx, want.version, lists, conditions...)
	}
	if err == nil {
		say(line{"type": "done"})
	}
	return err
}
