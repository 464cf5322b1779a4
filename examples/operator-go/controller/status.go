package controller

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	"k8s.io/utils/ptr"

	examplev1 "example.com/greeting-operator/api/v1"
)

const (
	// conditionApplied: the children are as the spec wants them.
	conditionApplied = "Applied"
	// conditionReady: all Pods say the message.
	conditionReady = "Ready"
)

// statusOf is the status of a Greeting whose children were applied.
func statusOf(greeting *examplev1.Greeting, deployment *appsv1ac.DeploymentApplyConfiguration) examplev1.GreetingStatus {
	status := carriedOver(greeting)
	status.ObservedGeneration = greeting.Generation
	found := ptr.Deref(deployment.Status, appsv1ac.DeploymentStatusApplyConfiguration{})
	status.ReadyReplicas = ptr.Deref(found.ReadyReplicas, 0)
	set(greeting, &status, conditionApplied, true, "Applied", "ConfigMap and Deployment are as the spec wants them")
	// A Deployment whose controller has not seen our change yet still counts the Pods of before.
	current := ptr.Deref(found.ObservedGeneration, 0) >= ptr.Deref(deployment.Generation, 0)
	updated := ptr.Deref(found.UpdatedReplicas, 0)
	wanted := greeting.Spec.Replicas
	if current && updated == wanted && status.ReadyReplicas == wanted && ptr.Deref(found.Replicas, 0) == wanted {
		set(greeting, &status, conditionReady, true, "Greeting", fmt.Sprintf("%d of %d Pods say it", wanted, wanted))
	} else {
		set(greeting, &status, conditionReady, false, "WaitingForPods",
			fmt.Sprintf("%d of %d Pods say it", min(updated, status.ReadyReplicas), wanted))
	}
	return status
}

// statusOfFailure is the status of a Greeting whose children could not be applied: what was ready stays so, and
// observedGeneration is that of the spec that the children still reflect.
func statusOfFailure(greeting *examplev1.Greeting, err error) examplev1.GreetingStatus {
	status := carriedOver(greeting)
	set(greeting, &status, conditionApplied, false, "ApplyFailed", err.Error())
	return status
}

func carriedOver(greeting *examplev1.Greeting) examplev1.GreetingStatus {
	return greeting.DeepCopyObject().(*examplev1.Greeting).Status
}

func set(greeting *examplev1.Greeting, status *examplev1.GreetingStatus, kind string, holds bool, reason, message string) {
	value := metav1.ConditionFalse
	if holds {
		value = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: kind, Status: value, Reason: reason, Message: message, ObservedGeneration: greeting.Generation,
	})
}
