package controller

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	examplev1 "example.com/greeting-operator/api/v1"
)

const (
	// guestbook is the one ConfigMap per namespace that all its Greetings share. A Greeting's name has no dot, so none
	// of their own ConfigMaps is called so.
	guestbook = "greetings.guestbook"
	// messageKey is where a Greeting's ConfigMap has its text.
	messageKey = "message"
	// saidAnnotation makes the Pods roll when the text changes: an environment variable is read once.
	saidAnnotation = "greetings.example.com/message"
	// Image is that of the Pods that say a Greeting.
	Image          = "registry.k8s.io/e2e-test-images/busybox:1.36.1-1"
	managedByLabel = "app.kubernetes.io/managed-by"
	nameLabel      = "app.kubernetes.io/name"
	instanceLabel  = "app.kubernetes.io/instance"
)

// configMapOf is the ConfigMap a Greeting wants.
func configMapOf(greeting *examplev1.Greeting) *corev1ac.ConfigMapApplyConfiguration {
	return corev1ac.ConfigMap(greeting.Name, greeting.Namespace).
		WithLabels(labelsOf(greeting)).
		WithOwnerReferences(ownerOf(greeting)).
		WithData(map[string]string{messageKey: greeting.Spec.Message})
}

// deploymentOf is the Deployment a Greeting wants.
func deploymentOf(greeting *examplev1.Greeting, image string) *appsv1ac.DeploymentApplyConfiguration {
	labels := labelsOf(greeting)
	message := corev1ac.EnvVar().WithName("MESSAGE").WithValueFrom(corev1ac.EnvVarSource().
		WithConfigMapKeyRef(corev1ac.ConfigMapKeySelector().WithName(greeting.Name).WithKey(messageKey)))
	container := corev1ac.Container().WithName("greeter").WithImage(image).WithEnv(message).
		WithCommand("sh", "-c", `while true; do echo "$MESSAGE"; sleep 60; done`)
	pod := corev1ac.PodTemplateSpec().
		WithLabels(labels).
		WithAnnotations(map[string]string{saidAnnotation: greeting.Spec.Message}).
		WithSpec(corev1ac.PodSpec().WithTerminationGracePeriodSeconds(1).WithContainers(container))
	return appsv1ac.Deployment(greeting.Name, greeting.Namespace).
		WithLabels(labels).
		WithOwnerReferences(ownerOf(greeting)).
		WithSpec(appsv1ac.DeploymentSpec().
			WithReplicas(greeting.Spec.Replicas).
			WithSelector(metav1ac.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(pod))
}

// entryOf is a Greeting's entry in the guestbook. No owner reference: the others' entries outlive this Greeting.
func entryOf(greeting *examplev1.Greeting) *corev1ac.ConfigMapApplyConfiguration {
	return corev1ac.ConfigMap(guestbook, greeting.Namespace).
		WithLabels(map[string]string{managedByLabel: Name}).
		WithData(map[string]string{greeting.Name: greeting.Spec.Message})
}

// signerOf is the field manager of an entry. One for each Greeting: what one of them stops applying is removed, and
// nothing of the others.
func signerOf(greeting *examplev1.Greeting) string {
	return Name + "/" + greeting.Name
}

func labelsOf(greeting *examplev1.Greeting) map[string]string {
	return map[string]string{nameLabel: "greeting", instanceLabel: greeting.Name, managedByLabel: Name}
}

func ownerOf(greeting *examplev1.Greeting) *metav1ac.OwnerReferenceApplyConfiguration {
	owner := metav1.NewControllerRef(greeting, examplev1.GroupVersion.WithKind("Greeting"))
	return metav1ac.OwnerReference().
		WithAPIVersion(owner.APIVersion).WithKind(owner.Kind).WithName(owner.Name).WithUID(owner.UID).
		WithController(true).WithBlockOwnerDeletion(true)
}
