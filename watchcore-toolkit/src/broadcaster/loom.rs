//! Models of the gate: publishers that wait, members that move and are removed, the end. A missed
//! wake-up is a deadlock, which loom reports; the tests that leave a step out expect it.

#![forbid(unsafe_code)]

use super::gate::{Entered, Gate, Member, Ticket};
use crate::sync::{lock, weak};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use weak::Site;

/// A thread that sleeps until its waker is called.
struct Sleeper {
    woken: Mutex<bool>,
    bell: Condvar,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        *lock(&self.woken) = true;
        self.bell.notify_one();
    }
}

/// A gate that records what was published, and by whom.
type Published = Gate<Vec<(u64, char)>>;

fn sleeper() -> (Arc<Sleeper>, Waker) {
    let sleeper = Arc::new(Sleeper { woken: Mutex::new(false), bell: Condvar::new() });
    let waker = Waker::from(Arc::clone(&sleeper));
    (sleeper, waker)
}

fn poll(gate: &Published, ticket: &mut Ticket, waker: &Waker, name: char) -> Poll<Option<u64>> {
    let context = Context::from_waker(waker);
    let entered = gate.poll_enter(ticket, &context, |published, number| {
        published.push((number, name));
        Ok::<_, Infallible>(number)
    });
    entered.map(|entered| entered.map(|Ok(number)| number))
}

/// Publishes, sleeping until that is possible. `None` after the end.
fn publish(gate: &Published, name: char) -> Option<u64> {
    let (sleeper, waker) = sleeper();
    let mut ticket = Ticket::default();
    loop {
        if let Poll::Ready(entered) = poll(gate, &mut ticket, &waker, name) {
            return entered;
        }
        let mut woken = sleeper.woken.lock().unwrap();
        while !std::mem::take(&mut *woken) {
            woken = sleeper.bell.wait(woken).unwrap();
        }
    }
}

fn take(gate: &Published, member: &Member, number: u64) {
    if member.take(number) {
        gate.member_moved();
    }
}

/// A gate with `MEMBERS` members that allow one number each.
fn gate<const MEMBERS: usize>() -> (Arc<Published>, [Arc<Member>; MEMBERS]) {
    let gate = Arc::new(Gate::new(Vec::new()));
    let members = std::array::from_fn(|_| gate.lock().add_member(0, 1));
    (gate, members)
}

fn without(site: Site, model: fn()) {
    weak::choose(site);
    loom::model(model);
}

/// A publisher and one member: number 2 waits until 1 was taken.
fn one_member() {
    let (gate, [member]) = gate();
    let publisher = thread::spawn({
        let gate = gate.clone();
        move || [publish(&gate, 'a'), publish(&gate, 'a')]
    });
    take(&gate, &member, 1);
    assert_eq!(publisher.join().unwrap(), [Some(1), Some(2)]);
}

#[test]
fn loom_gate_one_member() {
    loom::model(one_member);
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_gate_take_in_two_steps() {
    without(Site::TakeInOneStep, one_member);
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_gate_mark_in_two_steps() {
    without(Site::MarkInOneStep, one_member);
}

/// Two members move on two threads: the walk continues where it stopped.
#[test]
fn loom_gate_two_members() {
    loom::model(|| {
        let (gate, [first, second]) = gate();
        publish(&gate, 'a');
        let takers = [first, second].map(|member| {
            let gate = gate.clone();
            thread::spawn(move || take(&gate, &member, 1))
        });
        assert_eq!(publish(&gate, 'a'), Some(2));
        for taker in takers {
            taker.join().unwrap();
        }
    });
}

/// Two publishers in line, admitted one after the other.
fn two_publishers() {
    let (gate, [member]) = gate();
    publish(&gate, 'a');
    let publishers = ['b', 'c'].map(|name| {
        let gate = gate.clone();
        thread::spawn(move || publish(&gate, name).is_some())
    });
    take(&gate, &member, 2);
    gate.remove_member(&member);
    for publisher in publishers {
        assert!(publisher.join().unwrap());
    }
    let line = gate.lock();
    assert_eq!((line.state.len(), line.last), (3, 3));
}

#[test]
fn loom_gate_two_publishers() {
    loom::model(two_publishers);
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_gate_publisher_leaves_the_next_asleep() {
    without(Site::NextInLine, two_publishers);
}

/// A member is removed while a publisher waits for it.
fn member_goes() {
    let (gate, [member]) = gate();
    publish(&gate, 'a');
    let publisher = thread::spawn({
        let gate = gate.clone();
        move || publish(&gate, 'b')
    });
    gate.remove_member(&member);
    gate.remove_member(&member);
    assert_eq!(publisher.join().unwrap(), Some(2));
}

#[test]
fn loom_gate_member_goes() {
    loom::model(member_goes);
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_gate_member_goes_unnoticed() {
    without(Site::MemberGone, member_goes);
}

/// The first in line gives up, perhaps after it was woken: the second publishes.
fn first_gives_up() {
    let (gate, [member]) = gate();
    publish(&gate, 'a');
    let (_sleeper, waker) = sleeper();
    let mut ticket = Ticket::default();
    assert!(poll(&gate, &mut ticket, &waker, 'b').is_pending());
    let publisher = thread::spawn({
        let gate = gate.clone();
        move || publish(&gate, 'c')
    });
    let taker = thread::spawn({
        let gate = gate.clone();
        move || take(&gate, &member, 1)
    });
    gate.leave(&mut ticket);
    assert_eq!(publisher.join().unwrap(), Some(2));
    taker.join().unwrap();
}

#[test]
fn loom_gate_first_gives_up() {
    loom::model(first_gives_up);
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_gate_leaves_without_a_word() {
    without(Site::LeaveLine, first_gives_up);
}

/// The end comes while a publisher waits.
#[test]
fn loom_gate_end_beside_publishers() {
    loom::model(|| {
        let (gate, [_member]) = gate();
        publish(&gate, 'a');
        let publisher = thread::spawn({
            let gate = gate.clone();
            move || publish(&gate, 'b')
        });
        assert_eq!(gate.close(|_, number| number), Some(2));
        assert_eq!(gate.close(|_, number| number), None);
        assert_eq!(publisher.join().unwrap(), None);
        assert_eq!(gate.try_enter(|_, number| Ok::<_, Infallible>(number)), Entered::Closed);
    });
}

/// A member is added concurrently with a publisher: the bound holds from the number on at which the member starts.
#[test]
fn loom_gate_member_comes() {
    loom::model(|| {
        let gate = Arc::new(Gate::new(Vec::new()));
        let publisher = thread::spawn({
            let gate: Arc<Published> = gate.clone();
            move || {
                let entered = gate.try_enter(|_, number| Ok::<_, Infallible>(number));
                assert!(matches!(entered, Entered::Done(Ok(1))));
                gate.try_enter(|_, number| Ok::<_, Infallible>(number))
            }
        });
        let mut line = gate.lock();
        let began = line.last;
        line.add_member(began, 1);
        drop(line);
        let second = publisher.join().unwrap();
        assert_eq!(second == Entered::Full, began == 0, "began at {began}: {second:?}");
    });
}
