// Package v1 is the Greeting kind in Go. What the API server checks is in examples/greeting-crd.yaml.
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of Greeting.
var GroupVersion = schema.GroupVersion{Group: "example.com", Version: "v1"}

// AddToScheme makes a scheme know the kinds of this package.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &Greeting{}, &GreetingList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// GreetingSpec is what to say, and by how many.
type GreetingSpec struct {
	// Message is what every Pod says.
	Message string `json:"message"`
	// Replicas is how many Pods say it.
	Replicas int32 `json:"replicas"`
}

// GreetingStatus is what was found.
type GreetingStatus struct {
	// ObservedGeneration is the metadata.generation that the children reflect.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// ReadyReplicas is how many Pods say the message now.
	ReadyReplicas int32 `json:"readyReplicas"`
	// Conditions are Applied (children are written) and Ready (all Pods say it).
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Greeting becomes a ConfigMap, a Deployment that reads it, and an entry in its namespace's guestbook.
type Greeting struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   GreetingSpec   `json:"spec"`
	Status GreetingStatus `json:"status,omitempty"`
}

// GreetingList is a list of Greetings.
type GreetingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Greeting `json:"items"`
}

// DeepCopyInto copies into an empty Greeting.
func (in *Greeting) DeepCopyInto(out *Greeting) {
	*out = *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	if in.Status.Conditions != nil {
		out.Status.Conditions = make([]metav1.Condition, len(in.Status.Conditions))
		copy(out.Status.Conditions, in.Status.Conditions)
	}
}

// DeepCopyObject makes Greeting a runtime.Object.
func (in *Greeting) DeepCopyObject() runtime.Object {
	out := &Greeting{}
	in.DeepCopyInto(out)
	return out
}

// DeepCopyObject makes GreetingList a runtime.Object.
func (in *GreetingList) DeepCopyObject() runtime.Object {
	out := &GreetingList{TypeMeta: in.TypeMeta}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	if in.Items != nil {
		out.Items = make([]Greeting, len(in.Items))
		for i := range in.Items {
			in.Items[i].DeepCopyInto(&out.Items[i])
		}
	}
	return out
}
