package watchcore

// #include "abi.h"
// #cgo noescape wc_subscriptions
// #cgo nocallback wc_subscriptions
// #cgo noescape wc_subscription_info
// #cgo nocallback wc_subscription_info
// #cgo nocallback watchcore_subscription_list_count
// #cgo nocallback watchcore_subscription_list_free
import "C"

import (
	"runtime"
	"strconv"
	"time"
)

// SubscriptionState says what an open subscription is doing, or what it waits for.
type SubscriptionState uint32

// The states of subscriptions.
const (
	SubscriptionAwaitsListing  SubscriptionState = 1  // the cache has no listing yet; the subscription starts with it
	SubscriptionAwaitsRevision SubscriptionState = 2  // its start revision is in the future
	SubscriptionInitialState   SubscriptionState = 3  // the initial state is being delivered
	SubscriptionLive           SubscriptionState = 4  // it reads the log, and its consumer is awake
	SubscriptionParked         SubscriptionState = 5  // it has everything; its consumer waits, or has polled for more since its last wait
	SubscriptionOverrun        SubscriptionState = 6  // it has lost events, which the next poll reports or makes up for
	SubscriptionCatchingUp     SubscriptionState = 7  // a loss was reported, and the difference to the present state follows
	SubscriptionTooSlow        SubscriptionState = 8  // ended by MaxLagEvents or MaxLagAge; the next poll reports it
	SubscriptionClosing        SubscriptionState = 9  // closed; earlier events are still delivered
	SubscriptionEnded          SubscriptionState = 10 // ended, and not closed yet
)

// String returns the state's name, such as "Live".
func (s SubscriptionState) String() string {
	switch s {
	case SubscriptionAwaitsListing:
		return "AwaitsListing"
	case SubscriptionAwaitsRevision:
		return "AwaitsRevision"
	case SubscriptionInitialState:
		return "InitialState"
	case SubscriptionLive:
		return "Live"
	case SubscriptionParked:
		return "Parked"
	case SubscriptionOverrun:
		return "Overrun"
	case SubscriptionCatchingUp:
		return "CatchingUp"
	case SubscriptionTooSlow:
		return "TooSlow"
	case SubscriptionClosing:
		return "Closing"
	case SubscriptionEnded:
		return "Ended"
	}
	return "SubscriptionState(" + strconv.FormatUint(uint64(s), 10) + ")"
}

// SubscriptionInfo describes a subscription at the time of [Cache.Subscriptions].
type SubscriptionInfo struct {
	ID        uint64 // its number in this cache: from 1, in the order of opening, never reused
	Name      string // as given in SubscribeOptions
	State     SubscriptionState
	Position  Position  // as of its last poll
	Lag       Lag       // zero while it waits, while its start is in the future, and after its end
	ReadPath  ReadPath  // as of its last poll
	Index     string    // ReadPathChain: the index, such as "key", "prefix of depth 3", "field phase" or "label app"
	LastPoll  time.Time // zero: never. If it polls hundreds of times a second, every 16th poll is recorded
	HandedOut uint64    // events and marks that it delivered
	Lagged    uint64    // how often it lost events, reported or not
}

// Subscriptions lists the open subscriptions in the order of their opening, with their present
// state, including those that nobody reads. A closed subscription is not listed. The call takes
// time proportional to their number, and delays neither the writer nor a consumer. Subscriptions may be called
// from any goroutine; for a closed cache it returns nil.
func (c *Cache) Subscriptions() []SubscriptionInfo {
	defer runtime.KeepAlive(c)
	if !c.core.cache.acquire() {
		return nil
	}
	defer c.core.cache.release()
	var list *C.watchcore_subscription_list
	if e := C.wc_subscriptions(c.core.c(), &list); e != nil {
		taken(e)
		return nil
	}
	defer C.watchcore_subscription_list_free(list)
	now := time.Now()
	all := make([]SubscriptionInfo, C.watchcore_subscription_list_count(list))
	for i := range all {
		info := C.watchcore_subscription_info{size: C.sizeof_watchcore_subscription_info}
		if e := C.wc_subscription_info(list, C.size_t(i), &info); e != nil {
			taken(e)
			return nil
		}
		all[i] = SubscriptionInfo{
			ID:        uint64(info.id),
			Name:      textOf(info.name),
			State:     SubscriptionState(info.state),
			Position:  Position{Epoch: uint64(info.epoch), Revision: uint64(info.revision)},
			Lag:       Lag{uint64(info.lag_events), uint64(info.lag_revisions), time.Duration(info.lag_age_ms) * time.Millisecond},
			ReadPath:  ReadPath(info.read_path),
			Index:     textOf(info.index),
			HandedOut: uint64(info.handed_out),
			Lagged:    uint64(info.lagged),
		}
		if info.polled != 0 {
			all[i].LastPoll = now.Add(-time.Duration(info.last_poll_ms) * time.Millisecond)
		}
	}
	return all
}
