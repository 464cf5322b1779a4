package main

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
)

// runPage reads a collection page by page with client-go's pager, printing a `page` line for each (items, rv, remaining,
// more) and a `dump` of all in the end. With --step the command `next` asks for each page but the first.
func runPage(ctx context.Context, config *rest.Config, want asked, told commands) error {
	collection, err := collectionOf(config, want)
	if err != nil {
		return err
	}
	first := true
	read := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		if !first && want.step {
			if err := told.next(ctx); err != nil {
				return nil, err
			}
		}
		first = false
		page, err := collection.list(ctx, want.narrowed(options))
		if err != nil {
			say(line{"type": "error", "message": err.Error()})
			return page, err
		}
		return page, sayPage(page)
	}
	pages := pager.New(read)
	pages.PageSize = want.limit
	// A 410 is told rather than mended by one full list.
	pages.FullListIfExpired = false
	var objects []any
	err = pages.EachListItem(ctx, metav1.ListOptions{ResourceVersion: want.version}, func(object runtime.Object) error {
		objects = append(objects, object)
		return nil
	})
	if err != nil {
		return err
	}
	dump(objects)
	return nil
}

func sayPage(page runtime.Object) error {
	found, err := meta.ListAccessor(page)
	if err != nil {
		return err
	}
	told := line{
		"type": "page", "items": meta.LenList(page), "rv": found.GetResourceVersion(), "more": found.GetContinue() != "",
	}
	if remaining := found.GetRemainingItemCount(); remaining != nil {
		told["remaining"] = *remaining
	}
	say(told)
	return nil
}

// next waits for the command `next`.
func (c commands) next(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case words := <-c:
			if words[0] == "next" {
				return nil
			}
			return errors.New("page knows the command `next` only")
		}
	}
}
