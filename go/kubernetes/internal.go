package kubernetes

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// OptionsOf converts the options of apimachinery's internal version, which the handlers of an API server
// (rest.Lister, rest.Watcher of k8s.io/apiserver) receive, for ListWithContext and WatchWithContext:
//
//	func (r *storage) List(ctx context.Context, o *metainternalversion.ListOptions) (runtime.Object, error) {
//		options, err := kubernetes.OptionsOf(o)
//		if err != nil {
//			return nil, err
//		}
//		return r.pods.ListWithContext(ctx, options)
//	}
//
// nil stands for no options. The error is a status 400.
func OptionsOf(o *metainternalversion.ListOptions) (options metav1.ListOptions, err error) {
	if o == nil {
		return options, nil
	}
	if err := metainternalversion.Convert_internalversion_ListOptions_To_v1_ListOptions(o, &options, nil); err != nil {
		return options, apierrors.NewBadRequest(err.Error())
	}
	return options, nil
}

// ListOf makes a function for Config.NewList, which makes empty lists of the type that a scheme has
// for a prototype, such as *corev1.PodList for &corev1.Pod{} and client-go's scheme.Scheme. ListOf is
// for programs that need that type, or encode lists with the scheme, which does not know
// *internalversion.List. The error says which type the scheme does not have.
func ListOf(scheme *runtime.Scheme, prototype runtime.Object) (func() runtime.Object, error) {
	kinds, _, err := scheme.ObjectKinds(prototype)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: ListOf of %T: %w", prototype, err)
	}
	kind := kinds[0].GroupVersion().WithKind(kinds[0].Kind + "List")
	empty, err := scheme.New(kind)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: ListOf of %T: %w", prototype, err)
	}
	return empty.DeepCopyObject, nil
}
