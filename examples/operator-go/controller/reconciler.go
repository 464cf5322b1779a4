// Package controller turns Greetings into ConfigMaps, Deployments and guestbook entries.
//
// children.go has what is wanted and status.go what is reported, both without a client; this file does the requests.
package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"

	examplev1 "example.com/greeting-operator/api/v1"
	"example.com/greeting-operator/tracing"
)

const (
	// Name of the operator: its field manager, its Lease, and the reporter of its Events.
	Name = "greeting-operator"
	// finalizer keeps a Greeting until its guestbook entry is gone.
	finalizer = "greetings.example.com/guestbook"
	// After a first failure, and at most, doubling in between: a recovery is seen soon, and what stays broken costs
	// nearly nothing. The default goes up to a quarter of an hour.
	firstRetry = 2 * time.Second
	lastRetry  = 30 * time.Second
)

// Reconciler makes the children of a Greeting what its spec says.
type Reconciler struct {
	Client   client.Client
	Recorder events.EventRecorder
	// Image is that of the Pods that say a Greeting.
	Image string
}

// CacheOptions keeps only the operator's own children in memory: the ConfigMaps and Deployments of others are many.
func CacheOptions() cache.Options {
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{managedByLabel: Name})}
	return cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: ours, &appsv1.Deployment{}: ours}}
}

// SetupWithManager watches Greetings of all namespaces, and what they own.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, traces *tracing.Tracing) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&examplev1.Greeting{}).
		Owns(&corev1.ConfigMap{}).
		Owns(&appsv1.Deployment{}).
		WithOptions(controller.Options{
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](firstRetry, lastRetry),
		}).
		Complete(traces.Reconciler("Greeting", r))
}

// Reconcile brings one Greeting's children and status up to date, or says farewell.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	greeting := &examplev1.Greeting{}
	if err := r.Client.Get(ctx, request.NamespacedName, greeting); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !greeting.DeletionTimestamp.IsZero() {
		// A Greeting that is gone already needs nothing more.
		return ctrl.Result{}, client.IgnoreNotFound(r.farewell(ctx, greeting))
	}
	if err := r.setFinalizer(ctx, greeting, controllerutil.AddFinalizer); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	isNews := greeting.Status.ObservedGeneration != greeting.Generation
	deployment, err := r.applyChildren(ctx, greeting)
	if err != nil {
		r.Recorder.Eventf(greeting, nil, corev1.EventTypeWarning, "ApplyFailed", "Apply", "%v", err)
		return ctrl.Result{}, errors.Join(err, r.report(ctx, greeting, statusOfFailure(greeting, err)))
	}
	if err := r.report(ctx, greeting, statusOf(greeting, deployment)); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if isNews {
		r.Recorder.Eventf(greeting, nil, corev1.EventTypeNormal, "Greeted", "Apply",
			"ConfigMap and Deployment %s say %q", greeting.Name, greeting.Spec.Message)
	}
	return ctrl.Result{}, nil
}

// applyChildren applies everything a Greeting wants; the Deployment comes back as the API server has it.
func (r *Reconciler) applyChildren(ctx context.Context, greeting *examplev1.Greeting) (*appsv1ac.DeploymentApplyConfiguration, error) {
	deployment := deploymentOf(greeting, r.Image)
	for _, child := range []struct {
		what    string
		object  runtime.ApplyConfiguration
		manager string
	}{
		{"ConfigMap", configMapOf(greeting), Name},
		{"Deployment", deployment, Name},
		{"guestbook entry", entryOf(greeting), signerOf(greeting)},
	} {
		if err := r.Client.Apply(ctx, child.object, client.FieldOwner(child.manager), client.ForceOwnership); err != nil {
			return nil, fmt.Errorf("cannot apply the %s: %w", child.what, err)
		}
	}
	return deployment, nil
}

// report applies the status if it is not so already.
func (r *Reconciler) report(ctx context.Context, greeting *examplev1.Greeting, status examplev1.GreetingStatus) error {
	if equality.Semantic.DeepEqual(greeting.Status, status) {
		return nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return err
	}
	body := &unstructured.Unstructured{Object: map[string]any{"status": content}}
	body.SetGroupVersionKind(examplev1.GroupVersion.WithKind("Greeting"))
	body.SetNamespace(greeting.Namespace)
	body.SetName(greeting.Name)
	// With the uid, a Greeting made anew under this name in the meantime does not get the status of the old one.
	body.SetUID(greeting.UID)
	return r.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(body), client.FieldOwner(Name), client.ForceOwnership)
}

// farewell takes the entry out of the guestbook, which no owner reference can do, and lets the Greeting go. Its own
// ConfigMap and Deployment are the garbage collector's.
func (r *Reconciler) farewell(ctx context.Context, greeting *examplev1.Greeting) error {
	if !controllerutil.ContainsFinalizer(greeting, finalizer) {
		return nil
	}
	// Not an apply: in a namespace that is being deleted it would create the guestbook again, be refused for ever, and
	// keep the namespace.
	book := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: guestbook, Namespace: greeting.Namespace}}
	patch := fmt.Appendf(nil, `{"data":{%q:null}}`, greeting.Name)
	err := r.Client.Patch(ctx, book, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(signerOf(greeting)))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("cannot take the entry out of the guestbook: %w", err)
	}
	r.Recorder.Eventf(greeting, nil, corev1.EventTypeNormal, "Farewell", "Cleanup", "%s left the guestbook", greeting.Name)
	return r.setFinalizer(ctx, greeting, controllerutil.RemoveFinalizer)
}

// setFinalizer adds or removes the finalizer; an error if the Greeting was changed by others since we read it.
func (r *Reconciler) setFinalizer(ctx context.Context, greeting *examplev1.Greeting, change func(client.Object, string) bool) error {
	before := greeting.DeepCopyObject().(*examplev1.Greeting)
	if !change(greeting, finalizer) {
		return nil
	}
	return r.Client.Patch(ctx, greeting, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}
