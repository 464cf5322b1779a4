package main

import (
	"errors"
	"io"
	"net/http"
	"net/url"
)

// countRequests tells of every collection read, however the client came to make it: that is how relists are counted.
func countRequests(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		query := request.URL.Query()
		verb := verbOf(request, query)
		if verb == "" {
			return next.RoundTrip(request)
		}
		told := line{
			"type": "request", "verb": verb, "path": request.URL.Path, "rv": query.Get("resourceVersion"),
			"match": query.Get("resourceVersionMatch"), "limit": query.Get("limit"), "continue": query.Get("continue") != "",
		}
		response, err := next.RoundTrip(request)
		if err != nil {
			told["error"] = err.Error()
		} else {
			told["status"] = response.StatusCode
			if verb != "list" && response.StatusCode == http.StatusOK {
				response.Body = &stream{ReadCloser: response.Body, verb: verb}
			}
		}
		say(told)
		return response, err
	})
}

// verbOf is list, watch or watch-list for reads of collections, else nothing. Discovery and single objects carry none
// of the parameters that clients put on collections.
func verbOf(request *http.Request, query url.Values) string {
	switch {
	case request.Method != http.MethodGet:
		return ""
	case query.Get("sendInitialEvents") == "true":
		return "watch-list"
	case query.Get("watch") == "true" || query.Get("watch") == "1":
		return "watch"
	case query.Has("resourceVersion") || query.Has("limit") || query.Has("continue"):
		return "list"
	}
	return ""
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip makes a function an http.RoundTripper.
func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// stream tells how a watch ended.
type stream struct {
	io.ReadCloser
	verb string
	told bool
}

// Read passes through; the first end or error is told.
func (s *stream) Read(into []byte) (int, error) {
	n, err := s.ReadCloser.Read(into)
	if err != nil && !s.told {
		s.told = true
		ended := line{"type": "ended", "of": s.verb}
		if !errors.Is(err, io.EOF) {
			ended["error"] = err.Error()
		}
		say(ended)
	}
	return n, err
}
