package apiserver

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"

	watchcore "github.com/watchcore/watchcore/go"
)

// Objects that the cache cannot read are found behind a history that replaced another, too, and one that has gone again since.
func TestUnreadableObjectsOfANewHistory(t *testing.T) {
	kept := watchcore.Config{}
	declare(&kept)
	cache, err := watchcore.New(kept)
	must(t, err)
	defer cache.Close()
	writer, err := cache.Writer()
	must(t, err)
	defer writer.Close()
	o := &options{cache: cache, codec: protobufCodec, newFunc: func() runtime.Object { return &example.Pod{} }}
	r := newReadable(t.Context(), o, watchcore.RangePrefix("/pods/"))
	good := `{"metadata":{"name":"a"}}`
	must(t, writer.Apply(5, watchcore.Put("/pods/a", good)))
	if !r.all(t.Context()) {
		t.Fatal("not all objects can be read")
	}
	_, err = writer.Resync(5, []watchcore.KeyValue{{Key: []byte("/pods/a"), Value: []byte(good), CreateRevision: 5, ModRevision: 5, Version: 1}}, watchcore.ReasonHistoryReset)
	must(t, err)
	must(t, writer.Apply(6, watchcore.Put("/others/a", "encrypted")))
	if !r.all(t.Context()) {
		t.Error("another resource's object counts")
	}
	must(t, writer.Apply(7, watchcore.Put("/pods/a", "encrypted")))
	must(t, writer.Apply(8, watchcore.Put("/pods/a", good)))
	if r.all(t.Context()) || r.ended.Err() == nil {
		t.Error("the object was not found")
	}
}
