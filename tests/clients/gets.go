package main

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// runGets asks for one path as often as the command `get <n>` says, --at-once requests at a time over --connections
// connections, and prints `got` when all are answered: how many, and in how many seconds.
func runGets(ctx context.Context, config *rest.Config, want asked, told commands) error {
	if len(want.rest) != 1 {
		return errors.New("gets takes one path")
	}
	clients := make([]*rest.RESTClient, want.connections)
	for index := range clients {
		client, err := connection(config)
		if err != nil {
			return err
		}
		clients[index] = client
	}
	var failed error
	told.serve(ctx, func(words []string) {
		if len(words) != 2 || words[0] != "get" {
			return
		}
		count, err := strconv.ParseInt(words[1], 10, 64)
		if err == nil {
			err = gets(ctx, clients, want, count)
		}
		if err != nil {
			failed = err
			say(line{"type": "error", "message": err.Error()})
		}
	})
	return failed
}

// connection is a client that shares no connection with others: client-go has one transport for all whose settings are
// the same, but for how they dial.
func connection(config *rest.Config) (*rest.RESTClient, error) {
	own := rest.CopyConfig(config)
	own.Dial = (&net.Dialer{Timeout: 30 * time.Second}).DialContext
	own.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	return rest.UnversionedRESTClientFor(own)
}

func gets(ctx context.Context, clients []*rest.RESTClient, want asked, count int64) error {
	var left atomic.Int64
	left.Store(count)
	failures := make(chan error, want.atOnce)
	begun := time.Now()
	var running sync.WaitGroup
	for index := range want.atOnce {
		client := clients[index%len(clients)]
		running.Go(func() {
			for left.Add(-1) >= 0 {
				if _, err := client.Get().AbsPath(want.rest[0]).DoRaw(ctx); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	running.Wait()
	select {
	case err := <-failures:
		return err
	default:
	}
	say(line{"type": "got", "count": count, "seconds": time.Since(begun).Seconds()})
	return nil
}
