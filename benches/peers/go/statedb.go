//go:build statedb

package main

import (
	"iter"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// scripts/bench-peers.sh sets the tag where STATEDB_DIR names a checkout.
func init() {
	const snapshots = "cilium's; lists walk a snapshot"
	const changes = "cilium's; the changes of a table, or the watch channel of a key or a prefix; a write transaction each event"
	fanouts = append(fanouts, fanout{"statedb", changes, true, window, unlimited, openStateDB})
	stores = append(stores, keyed{"statedb", snapshots, true, 150_000, fillStateDB})
}

var byKey = statedb.Index[*version, string]{
	Name:       "key",
	FromObject: func(v *version) index.KeySet { return index.NewKeySet(index.String(v.key)) },
	FromKey:    index.String,
	Unique:     true,
}

// stateDB is one table.
type stateDB struct {
	db       *statedb.DB
	table    statedb.RWTable[*version]
	revision uint64
}

func newStateDB() *stateDB {
	db := statedb.New()
	header, row := func() []string { return []string{"key"} }, func(v *version) []string { return []string{v.key} }
	return &stateDB{db: db, table: must(statedb.NewTableAny(db, "objects", header, row, byKey))}
}

func (s *stateDB) publish(key string, value []byte) {
	s.revision++
	txn := s.db.WriteTxn(s.table)
	_, _, err := s.table.Insert(txn, copied(s.revision, key, value))
	check(err)
	txn.Commit()
}

func openStateDB(interests []interest) (publisher, []receiver) {
	s := newStateDB()
	receivers := make([]receiver, len(interests))
	for at, interest := range interests {
		switch interest.what {
		case everything:
			receivers[at] = s.changes()
		case inNamespace:
			receivers[at] = s.watch(func(txn statedb.ReadTxn) (iterator, <-chan struct{}) {
				return s.table.PrefixWatch(txn, byKey.Query(interest.wanted()))
			})
		default:
			receivers[at] = s.watch(func(txn statedb.ReadTxn) (iterator, <-chan struct{}) {
				return s.table.ListWatch(txn, byKey.Query(interest.wanted()))
			})
		}
	}
	return s, receivers
}

type iterator = iter.Seq2[*version, statedb.Revision]

// changes follows the whole table.
func (s *stateDB) changes() receiver {
	txn := s.db.WriteTxn(s.table)
	changes := must(s.table.Changes(txn))
	txn.Commit()
	return func(took func(int)) {
		for {
			events, watch := changes.Next(s.db.ReadTxn())
			count := 0
			for change := range events {
				readVersion(change.Object)
				count++
			}
			if count > 0 {
				took(count)
			}
			<-watch
		}
	}
}

// watch looks again at what a query finds whenever that has changed.
func (s *stateDB) watch(find func(statedb.ReadTxn) (iterator, <-chan struct{})) receiver {
	return func(took func(int)) {
		newest := statedb.Revision(0)
		for {
			objects, watch := find(s.db.ReadTxn())
			count, reached := 0, newest
			for object, revision := range objects {
				if revision > newest {
					readVersion(object)
					count++
					reached = max(reached, revision)
				}
			}
			newest = reached
			if count > 0 {
				took(count)
			}
			<-watch
		}
	}
}

func fillStateDB(objects int) store {
	s := newStateDB()
	txn := s.db.WriteTxn(s.table)
	for number := range objects {
		s.revision++
		_, _, err := s.table.Insert(txn, copied(s.revision, key(number), value))
		check(err)
	}
	txn.Commit()
	return s
}

func (s *stateDB) put(key string, value []byte) { s.publish(key, value) }

func (s *stateDB) get(key string) uint64 {
	object, _, _ := s.table.Get(s.db.ReadTxn(), byKey.Query(key))
	return touched(object.value)
}

func (s *stateDB) list(prefix string, touch bool) (count int) {
	var sum uint64
	for object := range s.table.Prefix(s.db.ReadTxn(), byKey.Query(prefix)) {
		if touch {
			sum += touched(object.value)
		}
		count++
	}
	sink.Store(sum)
	return count
}

func (s *stateDB) takeState(int) int { return s.list(prefix, true) }
