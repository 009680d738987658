package world

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"sort"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"watchcore.test/http/internal/history"
)

// The resources that are written: one in namespaces, one without.
const (
	Group   = "matrix.test"
	Version = "v1"
	Prefix  = "/registry/matrix.test/"
)

var (
	colors     = []string{"red", "green", "blue"}
	namespaces = []string{"default", "lab", "plant"}
)

// The number of the last transaction lies here, so that a writer who got no answer finds out what became of it.
const marker = "/watchcore-test/transaction"

// A Writer changes objects in etcd, a transaction after the other, and keeps their history. A Writer is for one goroutine.
type Writer struct {
	History *history.History

	etcd   *Etcd
	random *rand.Rand
	live   []string
	where  map[string]int // of a live key in live
	made   int
	serial int64
	number int64
}

// NewWriter is one that has written nothing. The seed decides all that it will do.
func NewWriter(etcd *Etcd, seed int64) *Writer {
	return &Writer{
		History: &history.History{},
		etcd:    etcd,
		random:  rand.New(rand.NewSource(seed)),
		where:   map[string]int{},
	}
}

// Fill makes objects of both resources, hundreds in a transaction.
func (w *Writer) Fill(ctx context.Context, objects int) error {
	for objects > 0 {
		batch := min(objects, 400)
		changes := make([]history.Change, 0, batch)
		for range batch {
			changes = append(changes, w.create())
		}
		if err := w.commit(ctx, changes); err != nil {
			return err
		}
		objects -= batch
	}
	return nil
}

// Churn makes at least so many changes, in transactions of one to twenty. The end of the context stops it early, between
// two transactions.
func (w *Writer) Churn(ctx context.Context, changes int) error {
	for changes > 0 && ctx.Err() == nil {
		batch := 1
		if w.random.Intn(4) == 0 {
			batch = 1 + w.random.Intn(20)
		}
		if err := w.commit(ctx, w.choose(batch)); err != nil {
			return err
		}
		changes -= batch
	}
	return ctx.Err()
}

func (w *Writer) choose(batch int) []history.Change {
	changes := make([]history.Change, 0, batch)
	used := map[string]bool{}
	for len(changes) < batch {
		kind := w.random.Intn(100)
		if kind < 15 || len(w.live) < 100 {
			changes = append(changes, w.create())
			used[changes[len(changes)-1].Key] = true
			continue
		}
		key := w.live[w.random.Intn(len(w.live))]
		// etcd refuses two changes of a key in one transaction.
		if used[key] {
			continue
		}
		used[key] = true
		if kind < 30 {
			changes = append(changes, history.Change{Key: key, Deleted: true})
		} else {
			w.serial++
			changes = append(changes, history.Change{Key: key, Serial: w.serial})
		}
	}
	return changes
}

// create makes a new key, or one that was there before: names return.
func (w *Writer) create() history.Change {
	for {
		w.made++
		name := "object-" + strconv.Itoa(w.made)
		if w.made > 2000 && w.random.Intn(2) == 0 {
			name = "object-" + strconv.Itoa(1+w.random.Intn(w.made))
		}
		number, _ := strconv.Atoi(strings.TrimPrefix(name, "object-"))
		key := "gizmos/" + name
		if number%2 == 0 {
			key = "widgets/" + namespaces[number/2%len(namespaces)] + "/" + name
		}
		if _, there := w.where[key]; there {
			continue
		}
		// Taken from here on, so that one transaction does not make it twice.
		w.where[key] = -1
		w.serial++
		return history.Change{Key: key, Serial: w.serial}
	}
}

// commit writes the changes in one transaction, whatever happens to etcd meanwhile, and adds them to the history.
func (w *Writer) commit(ctx context.Context, changes []history.Change) error {
	number := w.number + 1
	operations := []clientv3.Op{clientv3.OpPut(marker, strconv.FormatInt(number, 10))}
	for _, change := range changes {
		if change.Deleted {
			operations = append(operations, clientv3.OpDelete(Prefix+change.Key))
		} else {
			operations = append(operations, clientv3.OpPut(Prefix+change.Key, string(Object(change))))
		}
	}
	condition := clientv3.Compare(clientv3.Value(marker), "=", strconv.FormatInt(w.number, 10))
	if w.number == 0 {
		condition = clientv3.Compare(clientv3.CreateRevision(marker), "=", 0)
	}
	var revision int64
	err := Until(ctx, "a transaction", func() error {
		attempt, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		// If an earlier attempt came through although no answer came, the condition does not hold, and the marker says when.
		response, err := w.etcd.Client.Txn(attempt).If(condition).Then(operations...).Else(clientv3.OpGet(marker)).Commit()
		if err != nil {
			return err
		}
		if response.Succeeded {
			revision = response.Header.Revision
			return nil
		}
		found := response.Responses[0].GetResponseRange().Kvs[0]
		if string(found.Value) != strconv.FormatInt(number, 10) {
			return fmt.Errorf("somebody else writes: the marker says %s", found.Value)
		}
		revision = found.ModRevision
		return nil
	})
	if err != nil {
		return err
	}
	w.number = number
	for i := range changes {
		changes[i].Revision = revision
		w.keep(changes[i])
	}
	w.History.Append(changes...)
	return nil
}

// keep follows which keys live.
func (w *Writer) keep(change history.Change) {
	index, known := w.where[change.Key]
	switch {
	case change.Deleted:
		last := len(w.live) - 1
		w.live[index] = w.live[last]
		w.where[w.live[index]] = index
		w.live = w.live[:last]
		delete(w.where, change.Key)
	case !known || index < 0:
		w.where[change.Key] = len(w.live)
		w.live = append(w.live, change.Key)
	}
}

// Object is what lies at a key, as Kubernetes' API server would have stored it.
func Object(change history.Change) []byte {
	parts := strings.Split(change.Key, "/")
	name := parts[len(parts)-1]
	metadata := map[string]any{
		"name":              name,
		"uid":               fmt.Sprintf("00000000-0000-4000-8000-%012d", hash(change.Key)),
		"creationTimestamp": "2026-01-02T03:04:05Z",
		"generation":        1,
		"labels": map[string]any{
			"color": colors[change.Serial%int64(len(colors))],
			"shard": strconv.FormatInt(int64(hash(change.Key)%8), 10),
		},
	}
	kind := "Gizmo"
	if len(parts) == 3 {
		kind = "Widget"
		metadata["namespace"] = parts[1]
	}
	value, err := json.Marshal(map[string]any{
		"apiVersion": Group + "/" + Version,
		"kind":       kind,
		"metadata":   metadata,
		"spec": map[string]any{
			"color":  colors[change.Serial%int64(len(colors))],
			"size":   change.Serial % 10,
			"serial": change.Serial,
		},
	})
	if err != nil {
		panic(err)
	}
	return append(value, '\n')
}

func hash(s string) uint32 {
	sum := uint32(2166136261)
	for i := range len(s) {
		sum = (sum ^ uint32(s[i])) * 16777619
	}
	return sum
}

// Stored reads what etcd itself has now: the revision of each key that begins with prefix.
func (e *Etcd) Stored(ctx context.Context, prefix string) (map[string]int64, error) {
	response, err := e.Client.Get(ctx, Prefix+prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	state := make(map[string]int64, len(response.Kvs))
	for _, kv := range response.Kvs {
		state[strings.TrimPrefix(string(kv.Key), Prefix)] = kv.ModRevision
	}
	return state, nil
}

// Keys of a state in etcd's order.
func Keys(state map[string]int64) []string {
	keys := make([]string, 0, len(state))
	for key := range state {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
