//! Handlers that are slow, stand still or never come to their state: what others and readers see of it.

use crate::informer::Gate;
use crate::support::{BOUND, Text, put, small_cache, until, wide_cache};
use std::time::Duration;
use watchcore::{Change, Code};
use watchcore_toolkit::Informer;

/// A wait for a whole informer says which handler's call keeps it.
#[test]
fn fault_informer_says_what_keeps_its_sync() {
    let cache = wide_cache();
    put(&mut cache.writer().unwrap(), "/a", "1");
    let informer = Informer::<Text>::new(&cache).unwrap();
    let (handler, gate) = Gate::handler();
    let registration = informer.add_handler(handler).unwrap();
    gate.wait_entered();
    let why = informer.wait_synced(Duration::from_millis(1)).unwrap_err();
    assert!(why.message().contains("handling /a"), "{why}");
    registration.remove();
    gate.leave.send(()).unwrap();
    assert_eq!(registration.wait_synced(BOUND).unwrap_err().code(), Code::Closed);
}

/// A stalled handler for ten million events costs what it cost before: in a release build of the tests ten million, in a
/// debug one fewer.
#[test]
fn fault_stalled_handler_holds_constant_memory() {
    let cache = small_cache();
    let mut writer = cache.writer().unwrap();
    for key in 0..100 {
        put(&mut writer, &format!("/{key}"), "0");
    }
    let informer = Informer::<Text>::new(&cache).unwrap();
    let (handler, gate) = Gate::handler();
    let stalled = informer.add_handler(handler).unwrap();
    gate.wait_entered();
    let events: u64 = if cfg!(debug_assertions) { 300_000 } else { 10_000_000 };
    let mut most = 0;
    for number in 0..events {
        let key = number % 100;
        writer.apply(200 + number, [Change::put(&format!("/{key}"), "1")]).unwrap();
        if number % 1000 == 0 {
            most = most.max(cache.stats().bytes());
        }
    }
    // The window, the live keys and what the handler was given; before, also what waits for the thread that frees, of which
    // writers wait for more than 64 MiB.
    assert!(most < 96 << 20, "{most} bytes");
    until("the log is freed", || cache.stats().bytes() < 16 << 20);
    assert!(stalled.status().stats.lag.events >= events - 1000);
    drop(gate);
    stalled.wait_synced(BOUND).unwrap();
}
