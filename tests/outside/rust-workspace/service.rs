//! A controller in small: an informer's handler reports by a broadcaster what it has handled.
use std::sync::Arc;
use std::time::Duration;
use watchcore::{Cache, Change, Result};
use watchcore_toolkit::{Action, Broadcaster, HandlerFns, Informer, Object, WatchExt, WhenFull};

struct Pod {
    running: bool,
}

/// What the handler reports: not `Clone`.
struct Report(bool);

const LONG: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let decode = |_: &[u8], value: &[u8]| Ok::<_, String>(Pod { running: value == b"Running" });
    let cache = Cache::builder("/pods/").decoder(decode).build()?;
    let mut writer = cache.writer()?;

    let reports = Arc::new(Broadcaster::<Report>::new(10, WhenFull::Wait)?);
    let mut heard = reports.watch()?;
    let listener = std::thread::spawn(move || -> Result<(usize, usize)> {
        let (mut all, mut running) = (0, 0);
        while let Some(event) = heard.recv(LONG)? {
            all += 1;
            running += usize::from(event.object().is_some_and(|report| report.0));
        }
        Ok((all, running))
    });

    let informer = Informer::<Object<Pod>>::new(&cache)?;
    let handled = Arc::clone(&reports);
    let registration = informer.add_handler(HandlerFns::new().on_added(move |pod: &Object<Pod>, _| {
        handled.action(Action::Added, Report(pod.running)).expect("it was not shut down");
    }))?;
    for number in 0..100u64 {
        let phase = if number % 2 == 0 { "Running" } else { "Pending" };
        writer.apply(number + 1, [Change::put(&format!("/pods/p-{number}"), phase)])?;
    }
    registration.wait_synced(LONG)?;
    while reports.position().revision < 100 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let handled = reports.position().revision;
    reports.shutdown();
    let (all, running) = listener.join().expect("it does not panic")?;
    println!("handled {handled}, heard {all}, running {running}");
    Ok(())
}
