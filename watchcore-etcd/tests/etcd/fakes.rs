//! Tests of the fake etcd itself: without a fault it behaves like a real one.

use crate::fake::{Fake, Fault};
use crate::faults::{follow, quick};
use crate::support::wait_for;
use watchcore::Read;

/// The cache has the keys and revisions of the fake.
#[test]
fn fake_etcd_is_followed() {
    let etcd = Fake::start();
    for number in 0..250 {
        etcd.put(format!("/x/{number:03}"), "old");
    }
    etcd.put("/y/elsewhere", "");
    let (cache, feeder) = follow(quick([&etcd.url()]), "/x/");
    assert_eq!((cache.snapshot().unwrap().len(), etcd.calls("RangeStream")), (250, 1));
    let last = etcd.txn(&[(b"/x/000", None), (b"/x/001", Some(b"new")), (b"/y/elsewhere", None)]);
    wait_for("the change", || cache.position().revision == last);
    assert!(cache.get("/x/000", Read::Any).unwrap().kv.is_none());
    let elsewhere = etcd.put("/y/again", "");
    wait_for("progress", || cache.position().revision == elsewhere);
    etcd.cut();
    wait_for("the reconnect", || feeder.counters().reconnects == 1);
    etcd.fault(Fault::Fragments);
    let last = etcd.txn(&[(b"/x/001", None), (b"/x/002", Some(b"new"))]);
    wait_for("the change", || cache.position().revision == last);
    assert_eq!((feeder.counters().resyncs(), feeder.counters().fragments), (0, 1));
}

/// The text commands of the fake etcd, which tests in other languages use.
#[test]
fn fake_etcd_takes_commands() {
    let etcd = Fake::start();
    assert_eq!(etcd.command("put /x/a 1"), Ok(2));
    assert_eq!(etcd.command("delete /x/a"), Ok(3));
    assert_eq!(etcd.command("fault sends-twice 2"), Ok(3));
    assert!(etcd.has_fault(Fault::SendsTwice));
    assert_eq!(etcd.command("calls Watch"), Ok(0));
    assert_eq!(etcd.command("put /x/a 1 /x/b 2"), Ok(4));
    assert_eq!(etcd.command("corrupt /x/a 3"), Ok(4));
    assert_eq!(
        (etcd.command("puts /x/b 2"), etcd.command("fill /x/c 3"), etcd.command("seed 7")),
        (Ok(6), Ok(7), Ok(7))
    );
    let contents = [("/x/a", "3"), ("/x/b", "1"), ("/x/c", "vvv")].map(|(key, value)| (key.into(), value.into()));
    assert_eq!(etcd.contents("/x/"), contents.into());
    assert!(etcd.command("corrupt /x/d 1").is_err() && etcd.command("put /x/a 1 /x/b").is_err());
    assert!(etcd.command("fault nothing").is_err() && etcd.command("put").is_err());
}
