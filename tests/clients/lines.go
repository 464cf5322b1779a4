package main

import (
	"bufio"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// line is one JSON line on stdout. By "type":
//
//	synced    the cache holds the initial state
//	add, update, delete    key, uid, rv; add also "initial", update "old", delete "unknown" (seen by a relist only)
//	request   a list, watch-list or watch was answered (or not: "error"): verb, rv, match, limit, continue, status
//	ended     a watch's stream ended, with "error" unless cleanly
//	error     what a reflector complained of
//	warning   a Warning header
//	dump      items sorted by key with uid and rv, and counts of the lines above (requests by verb)
//	page, measured, report    see page.go, runtime.go and soak.go
//	event, done    see watches.go
//	leads, lost    see elect.go
//	got       see gets.go
//	fatal     the program ends
type line map[string]any

var output = struct {
	sync.Mutex
	counts map[string]int
}{counts: map[string]int{}}

// say prints a line, and counts it under its type, or under its verb if it has one.
func say(what line) {
	output.Lock()
	defer output.Unlock()
	if verb, ok := what["verb"].(string); ok && what["type"] == "request" {
		output.counts[verb]++
		if what["status"] == http.StatusOK {
			output.counts[verb+"-ok"]++
		}
	} else if kind, ok := what["type"].(string); ok {
		output.counts[kind]++
	}
	if what["type"] == "dump" {
		what["counts"] = maps.Clone(output.counts)
	}
	_ = json.NewEncoder(os.Stdout).Encode(what)
}

// item is one object as a dump has it.
type item struct {
	Key string `json:"key"`
	UID string `json:"uid"`
	RV  string `json:"rv"`
}

func itemOf(object any) (item, bool) {
	found, err := meta.Accessor(object)
	if err != nil {
		return item{}, false
	}
	key := cache.NewObjectName(found.GetNamespace(), found.GetName()).String()
	return item{Key: key, UID: string(found.GetUID()), RV: found.GetResourceVersion()}, true
}

func dump(objects []any) {
	say(line{"type": "dump", "items": itemsOf(objects)})
}

func itemsOf(objects []any) []item {
	items := make([]item, 0, len(objects))
	for _, object := range objects {
		if one, ok := itemOf(object); ok {
			items = append(items, one)
		}
	}
	slices.SortFunc(items, func(a, b item) int { return strings.Compare(a.Key, b.Key) })
	return items
}

// changes prints what an informer tells.
func changes() cache.ResourceEventHandler {
	tell := func(kind string, object any, more line) {
		if one, ok := itemOf(object); ok {
			told := line{"type": kind, "key": one.Key, "uid": one.UID, "rv": one.RV}
			maps.Copy(told, more)
			say(told)
		}
	}
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(object any, initial bool) { tell("add", object, line{"initial": initial}) },
		UpdateFunc: func(old, object any) {
			before, _ := itemOf(old)
			tell("update", object, line{"old": before.RV, "moved": before.UID != string(object.(metav1.Object).GetUID())})
		},
		DeleteFunc: func(object any) {
			unknown, missed := object.(cache.DeletedFinalStateUnknown)
			if missed {
				object = unknown.Obj
			}
			tell("delete", object, line{"unknown": missed})
		},
	}
}

// commands are the lines of stdin, split into words; SIGUSR1 is the word `dump`.
type commands <-chan []string

// readCommands calls stop at the end of stdin.
func readCommands(stop func()) commands {
	words := make(chan []string)
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	go func() {
		for range asked {
			words <- []string{"dump"}
		}
	}()
	go func() {
		defer stop()
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			if fields := strings.Fields(lines.Text()); len(fields) > 0 {
				words <- fields
			}
		}
	}()
	return words
}

// serve obeys commands until ctx ends.
func (c commands) serve(ctx context.Context, obey func(words []string)) {
	for {
		select {
		case <-ctx.Done():
			return
		case words := <-c:
			obey(words)
		}
	}
}

type warnings struct{}

// HandleWarningHeaderWithContext makes this a rest.WarningHandlerWithContext.
func (warnings) HandleWarningHeaderWithContext(_ context.Context, code int, agent, text string) {
	say(line{"type": "warning", "code": code, "agent": agent, "text": text})
}
