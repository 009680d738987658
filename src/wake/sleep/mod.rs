//! Who sleeps: the parked waiter of a consumer, and the words by which other threads count it and find it.
//!
//! | file | what |
//! | --- | --- |
//! | `exclusive_cell` | a cell whose value belongs to the side that a state names |
//! | `due` | when a waiter is woken in any case |
//! | `group` | waiters with equal filters |
//! | `ready_list`, `waker`, `wake_set` | how a waiter is woken |
//! | `interest` | the thing that a waiter waits for |
//! | `parked_waiter` | the states of one waiter |
//! | `waiters` | the waiters of one hub, as consumers and passes count them |
//! | `parker` | a consumer's side of its waiter |

pub(crate) mod due;
mod exclusive_cell;
pub(crate) mod group;
pub(crate) mod interest;
pub(crate) mod parked_waiter;
pub(crate) mod parker;
mod ready_list;
pub(crate) mod waiters;
pub(crate) mod wake_set;
pub(crate) mod waker;
