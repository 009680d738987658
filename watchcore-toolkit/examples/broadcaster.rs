//! One program publishes to three watches: one that must have everything, one that may lose events
//! and learns how many, and one that starts late and reads the history.
//!
//!     cargo run -p watchcore-toolkit --example broadcaster
//!
//! It prints:
//!
//! ```text
//! audit: ADDED web-1 (ready: false)
//! audit: MODIFIED web-1 (ready: true)
//! audit: ADDED web-2 (ready: false)
//! audit: MODIFIED web-2 (ready: true)
//! audit: DELETED web-1 (ready: true)
//! screen: ADDED web-1, 0 lost before it
//! screen: DELETED web-1, 3 lost before it
//! late: MODIFIED web-2
//! late: DELETED web-1
//! publishing again: CLOSED
//! ```

use std::task::Poll;
use std::thread;
use std::time::Duration;
use watchcore_toolkit::{Action, Broadcaster, WatchExt, WatchOptions, WhenFull};

/// The published object. It needs no `Clone`, because all watchers share it.
struct Pod {
    name: &'static str,
    ready: bool,
}

fn main() -> watchcore::Result<()> {
    // Publishers wait only for watches that request it. Late watches find the last hundred events.
    let broadcaster = Broadcaster::<Pod>::builder(1, WhenFull::Drop).history(100).build()?;
    let mut audit = broadcaster.watch_with(WatchOptions::new(10, WhenFull::Wait))?;
    let mut screen = broadcaster.watch()?;

    let auditor = thread::spawn(move || -> watchcore::Result<()> {
        // The loop ends after the last event before the shutdown.
        while let Some(event) = audit.recv(Duration::MAX)? {
            if let Some(pod) = event.object() {
                println!("audit: {} {} (ready: {})", event.name(), pod.name, pod.ready);
            }
        }
        Ok(())
    });

    let web = |name, ready| Pod { name, ready };
    broadcaster.action(Action::Added, web("web-1", false))?;
    broadcaster.action(Action::Modified, web("web-1", true))?;
    let third = broadcaster.action(Action::Added, web("web-2", false))?;
    broadcaster.action(Action::Modified, web("web-2", true))?;

    // The screen has not read in between, and its queue has room for one event.
    let mut shown = Vec::new();
    let mut show = || {
        if let Poll::Ready(Some(event)) = screen.try_recv() {
            let name = event.object().map_or("-", |pod| pod.name);
            shown.push(format!("screen: {} {name}, {} lost before it", event.name(), event.lost));
        }
    };
    show();
    broadcaster.action(Action::Deleted, web("web-1", true))?;
    show();

    let mut late = broadcaster.after(third)?;
    broadcaster.shutdown();
    auditor.join().expect("it does not panic")?;
    shown.iter().for_each(|line| println!("{line}"));
    while let Some(event) = late.recv(Duration::MAX)? {
        println!("late: {} {}", event.name(), event.object().map_or("-", |pod| pod.name));
    }
    let refused = broadcaster.action(Action::Added, web("web-3", false)).expect_err("it was shut down");
    println!("publishing again: {}", refused.code());
    Ok(())
}
