// Package tracing tells a collector what the operator does, by OpenTelemetry: a span of each reconcile, one of each
// request in it, and a `traceparent` with each request, so that whoever answers can go on with the trace.
//
// Without OTEL_EXPORTER_OTLP_ENDPOINT nothing is recorded and nothing changes.
package tracing

import (
	"context"
	"net/http"
	"os"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Tracing is where spans go. The zero value records nothing.
type Tracing struct {
	provider *sdktrace.TracerProvider
}

// Start reads the variables that OpenTelemetry defines.
func Start(ctx context.Context, service string) (*Tracing, error) {
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" {
		return &Tracing{}, nil
	}
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, err
	}
	named := resource.NewSchemaless(attribute.String("service.name", service))
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(named))
	otel.SetTextMapPropagator(propagation.TraceContext{})
	return &Tracing{provider: provider}, nil
}

// Client makes every request of clients of this configuration a span.
func (t *Tracing) Client(config *rest.Config) {
	if t.provider == nil {
		return
	}
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper {
		return otelhttp.NewTransport(inner, otelhttp.WithTracerProvider(t.provider))
	})
}

// Reconciler makes every reconcile of `kind` a span, the parent of its requests.
func (t *Tracing) Reconciler(kind string, inner reconcile.Reconciler) reconcile.Reconciler {
	if t.provider == nil {
		return inner
	}
	tracer := t.provider.Tracer("reconcile")
	return reconcile.Func(func(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
		ctx, span := tracer.Start(ctx, "reconcile "+kind)
		defer span.End()
		span.SetAttributes(attribute.String("namespace", request.Namespace), attribute.String("name", request.Name))
		result, err := inner.Reconcile(ctx, request)
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		return result, err
	})
}

// Stop sends what is left.
func (t *Tracing) Stop(ctx context.Context) error {
	if t.provider == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}
