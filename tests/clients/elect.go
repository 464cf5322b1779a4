package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Short enough to be waited for, in the proportions of client-go's own 15 s, 10 s and 2 s.
const (
	leaseDuration = 6 * time.Second
	renewDeadline = 4 * time.Second
	retryPeriod   = time.Second
)

// runElect takes part in a leader election by client-go until it is told to end, with the first argument as its identity. It
// prints `leads` when it begins to lead, and `lost` when it leads no more, and goes on as a candidate.
func runElect(ctx context.Context, config *rest.Config, want asked, _ commands) error {
	if want.client == "typed" {
		config.ContentType = "application/vnd.kubernetes.protobuf"
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if len(want.rest) != 2 {
		return fmt.Errorf("elect wants an identity and the name of the lock, not %q", want.rest)
	}
	identity := want.rest[0]
	lock, err := lockOf(client, want, identity, want.rest[1])
	if err != nil {
		return err
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { say(line{"type": "leads", "identity": identity}) },
			OnStoppedLeading: func() { say(line{"type": "lost", "identity": identity}) },
		},
	})
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		elector.Run(ctx)
	}
	return nil
}

func lockOf(client kubernetes.Interface, want asked, identity, name string) (resourcelock.Interface, error) {
	named := metav1.ObjectMeta{Namespace: want.namespace, Name: name}
	switch want.resource.Resource {
	case "leases":
		return &resourcelock.LeaseLock{
			LeaseMeta: named, Client: client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		}, nil
	case "configmaps":
		return &annotationLock[*corev1.ConfigMap]{
			objects: client.CoreV1().ConfigMaps(want.namespace), identity: identity, name: name,
			fresh: func() *corev1.ConfigMap { return &corev1.ConfigMap{ObjectMeta: named} },
		}, nil
	case "endpoints":
		//nolint:staticcheck // Operators that still lock by Endpoints are what this is for.
		return &annotationLock[*corev1.Endpoints]{
			objects: client.CoreV1().Endpoints(want.namespace), identity: identity, name: name,
			fresh: func() *corev1.Endpoints { return &corev1.Endpoints{ObjectMeta: named} },
		}, nil
	}
	return nil, fmt.Errorf("%s carry no lock", want.resource.Resource)
}

// objects is the part of a typed client that a lock needs.
type objects[T metav1.Object] interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
}

// annotationLock is a lock of the kinds that client-go has dropped, by the same protocol: a record in an annotation, and the
// object's resourceVersion against whoever writes meanwhile.
type annotationLock[T metav1.Object] struct {
	objects        objects[T]
	fresh          func() T
	held           T
	identity, name string
}

func (lock *annotationLock[T]) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	held, err := lock.objects.Get(ctx, lock.name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	if held.GetName() != lock.name {
		return nil, nil, fmt.Errorf("asked for %s, got %s", lock.name, held.GetName())
	}
	lock.held = held
	record := resourcelock.LeaderElectionRecord{}
	raw := []byte(held.GetAnnotations()[resourcelock.LeaderElectionRecordAnnotationKey])
	if len(raw) > 0 {
		err = json.Unmarshal(raw, &record)
	}
	return &record, raw, err
}

func (lock *annotationLock[T]) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	made := lock.fresh()
	if err := annotate(made, record); err != nil {
		return err
	}
	made, err := lock.objects.Create(ctx, made, metav1.CreateOptions{})
	return lock.keep(made, err)
}

func (lock *annotationLock[T]) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := annotate(lock.held, record); err != nil {
		return err
	}
	held, err := lock.objects.Update(ctx, lock.held, metav1.UpdateOptions{})
	return lock.keep(held, err)
}

func (lock *annotationLock[T]) RecordEvent(string) {}

func (lock *annotationLock[T]) Identity() string { return lock.identity }

func (lock *annotationLock[T]) Describe() string { return lock.name }

func (lock *annotationLock[T]) keep(held T, err error) error {
	if err != nil {
		return err
	}
	if held.GetName() != lock.name {
		return fmt.Errorf("wrote %s, got %s", lock.name, held.GetName())
	}
	lock.held = held
	return nil
}

func annotate(object metav1.Object, record resourcelock.LeaderElectionRecord) error {
	raw, err := json.Marshal(record)
	if err != nil {
		return err
	}
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[resourcelock.LeaderElectionRecordAnnotationKey] = string(raw)
	object.SetAnnotations(annotations)
	return nil
}
