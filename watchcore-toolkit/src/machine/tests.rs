//! Tests of each line of the table "List, watch, resume" of docs/internals/toolkit.md.

use super::Attempt::{List, ReadState, Watch};
use super::*;

const LIST: Attempt = List { newest: false, whole: false };
const NEWEST: Attempt = List { newest: true, whole: false };
const PAUSE: u64 = 800;

/// A machine and its time.
struct Table {
    machine: Machine,
    now: Instant,
}

impl Table {
    /// Makes a machine whose first attempt is this one.
    fn new(policy: Policy, first: Attempt) -> Table {
        let mut table = Table { machine: Machine::new(policy).starting_with(first), now: Instant::now() };
        table.gives(Input::Due, Command::Try(first));
        table
    }

    fn mirror(first: Attempt) -> Table {
        let backoff = Backoff::new(Duration::from_millis(PAUSE), Duration::ZERO).with_jitter(0.0);
        Table::new(Policy::Mirror { backoff, by_watch: matches!(first, ReadState { .. }) }, first)
    }

    fn relay(first: Attempt, has_lister: bool) -> Table {
        Table::new(Policy::Relay { distance: Duration::from_millis(PAUSE), has_lister }, first)
    }

    /// Opens the watch.
    fn open(mut self) -> Table {
        self.gives(Input::Opened, Command::Read);
        self
    }

    /// Lets a minute pass.
    fn later(mut self) -> Table {
        self.now += Duration::from_secs(60);
        self
    }

    #[track_caller]
    fn gives(&mut self, input: Input, action: Command) {
        let said = format!("{input:?}");
        assert_eq!(self.machine.step(self.now, input), action, "{said}");
    }

    /// Expects a wait of this many milliseconds, or none, and then this attempt.
    #[track_caller]
    fn asks(&mut self, input: Input, delay: Option<u64>, next: Attempt) {
        let said = format!("{input:?}");
        let Command::Wait(wait, _) = self.machine.step(self.now, input) else { panic!("{said} is no wait") };
        assert_eq!(wait, delay.map(Duration::from_millis), "{said}");
        self.now += wait.unwrap_or_default();
        self.gives(Input::Due, Command::Try(next));
    }

    #[track_caller]
    fn ends(&mut self, input: Input) {
        let said = format!("{input:?}");
        assert!(matches!(self.machine.step(self.now, input), Command::End(_)), "{said} is no end");
    }
}

fn status(code: u16) -> Status {
    Status::new(code, "as the test says")
}

fn failed(code: u16) -> Input {
    Input::Failed(status(code))
}

fn cut() -> Input {
    Input::Cut(status(503))
}

fn went_back() -> Input {
    Input::WentBack(status(410))
}

fn fatal() -> Input {
    Input::Failed(Error::new(watchcore::Code::Closed, "closed").into())
}

#[test]
fn list_follows_the_table() {
    Table::mirror(LIST).asks(Input::Synced, None, Watch);
    let mut pages = Table::mirror(LIST);
    pages.asks(Input::BrokenPages(status(410)), None, List { newest: false, whole: true });
    pages.asks(Input::BrokenPages(status(500)), Some(PAUSE), LIST);
    for code in [410, 504] {
        let mut lacking = Table::mirror(LIST);
        lacking.asks(failed(code), None, NEWEST);
        lacking.asks(failed(code), Some(PAUSE), NEWEST);
        lacking.asks(Input::Synced, None, Watch);
        lacking.asks(failed(400), Some(PAUSE), LIST);
    }
    for code in [400, 401, 403, 405, 429, 500, 503, 666] {
        Table::mirror(LIST).asks(failed(code), Some(PAUSE), LIST);
    }
    Table::mirror(LIST).asks(fatal(), Some(PAUSE), LIST);

    Table::relay(NEWEST, true).asks(Input::Synced, None, Watch);
    let mut pages = Table::relay(NEWEST, true);
    pages.asks(Input::BrokenPages(status(410)), None, List { newest: true, whole: true });
    pages.asks(Input::BrokenPages(status(500)), Some(PAUSE), NEWEST);
    for code in [400, 410, 429, 500, 503, 504, 666] {
        Table::relay(NEWEST, true).asks(failed(code), Some(PAUSE), NEWEST);
    }
    for code in [401, 403, 405] {
        Table::relay(NEWEST, true).ends(failed(code));
    }
    Table::relay(NEWEST, true).ends(fatal());
}

#[test]
fn state_follows_the_table() {
    let (any, later) = (ReadState { any: true }, ReadState { any: false });
    let reading = || {
        let mut table = Table::mirror(any);
        table.gives(Input::Opened, Command::Gather);
        table
    };
    for code in [410, 429, 503] {
        reading().asks(failed(code), Some(PAUSE), any);
    }
    reading().asks(cut(), Some(PAUSE), any);
    let mut failing = reading();
    failing.asks(failed(504), Some(PAUSE), any);
    failing.asks(failed(500), Some(PAUSE), any);
    failing.asks(failed(599), Some(PAUSE), LIST);
    for code in [400, 401, 403, 404] {
        let mut cannot = reading();
        cannot.asks(failed(code), None, LIST);
        cannot.asks(Input::Synced, None, Watch);
        cannot.asks(failed(410), None, LIST);
    }
    for code in [410, 504] {
        let mut synced = reading().later();
        synced.gives(Input::Synced, Command::Read);
        synced.asks(failed(410), None, later);
        synced.asks(failed(code), None, any);
        synced.asks(failed(503), Some(PAUSE), any);
    }
    let mut short = reading().later();
    short.gives(Input::Synced, Command::Read);
    short.asks(Input::Ended, Some(PAUSE), Watch);
}

#[test]
fn watch_of_a_mirror_follows_the_table() {
    for open in [false, true] {
        let mirror = || if open { Table::mirror(Watch).open() } else { Table::mirror(Watch) };
        let mut gone = mirror();
        gone.asks(failed(410), None, LIST);
        gone.asks(Input::Synced, None, Watch);
        gone.asks(failed(410), Some(PAUSE), LIST);
        gone.asks(Input::Synced, None, Watch);
        gone.later().asks(failed(410), None, LIST);
        for code in [429, 503] {
            let mut busy = mirror();
            (0..9).for_each(|_| busy.asks(failed(code), Some(PAUSE), Watch));
        }
        for code in [400, 401, 403, 404, 666] {
            mirror().asks(failed(code), Some(PAUSE), LIST);
        }
        let mut fruitless = mirror();
        fruitless.asks(failed(500), Some(PAUSE), Watch);
        fruitless.asks(failed(503), Some(PAUSE), Watch);
        fruitless.asks(cut(), Some(PAUSE), Watch);
        fruitless.asks(failed(504), Some(PAUSE), LIST);
    }
    Table::mirror(Watch).open().asks(Input::Unplaced(status(400)), Some(PAUSE), LIST);
    let retry_after = status(503).with_retry_after(Duration::from_secs(17));
    Table::mirror(Watch).asks(Input::Failed(retry_after), Some(17_000), Watch);
    for input in [Input::Ended, went_back(), cut()] {
        Table::mirror(Watch).open().asks(input, Some(PAUSE), Watch);
    }
    Table::mirror(Watch).open().later().asks(Input::Ended, None, Watch);
    Table::mirror(Watch).open().later().asks(went_back(), None, LIST);
    Table::mirror(Watch).open().later().asks(cut(), Some(PAUSE), Watch);
    for input in [Input::Ended, went_back(), cut()] {
        let mut newer = Table::mirror(Watch).open();
        newer.gives(Input::Newer, Command::Read);
        newer.asks(input, None, Watch);
    }
    // A newer revision, and a watch that has lasted, end the series of fruitless attempts.
    for lives in [false, true] {
        let mut row = Table::mirror(Watch);
        row.asks(failed(500), Some(PAUSE), Watch);
        row.asks(failed(500), Some(PAUSE), Watch);
        row = row.open();
        match lives {
            true => row = row.later(),
            false => row.gives(Input::Newer, Command::Read),
        }
        row.asks(Input::Ended, None, Watch);
        row.asks(failed(500), Some(PAUSE), Watch);
    }
}

#[test]
fn watch_of_a_relay_follows_the_table() {
    for has_lister in [false, true] {
        let relay = || Table::relay(Watch, has_lister);
        for code in [429, 503] {
            let mut busy = relay();
            (0..9).for_each(|_| busy.asks(failed(code), Some(PAUSE), Watch));
        }
        for code in [401, 403] {
            relay().ends(failed(code));
            relay().open().asks(failed(code), Some(PAUSE), Watch);
        }
        for open in [false, true] {
            let relay = || if open { relay().open() } else { relay() };
            match has_lister {
                true => relay().asks(failed(410), Some(0), NEWEST),
                false => relay().ends(failed(410)),
            }
            relay().ends(fatal());
        }
        relay().open().ends(Input::Unplaced(status(500)));
        relay().open().asks(Input::Ended, Some(PAUSE), Watch);
        relay().open().later().asks(Input::Ended, Some(0), Watch);
        let retry_after = status(500).with_retry_after(Duration::from_secs(17));
        relay().asks(Input::Failed(retry_after), Some(17_000), Watch);
        let mut fruitless = relay();
        fruitless.asks(cut(), Some(PAUSE), Watch);
        fruitless.asks(failed(404), Some(PAUSE), Watch);
        let third = if has_lister { NEWEST } else { Watch };
        fruitless.asks(failed(500), Some(if has_lister { 0 } else { PAUSE }), third);
    }
    // After a list no other one comes for half a minute, and then the next fruitless attempt leads to one.
    let mut calm = Table::relay(NEWEST, true);
    calm.asks(Input::Synced, None, Watch);
    (0..9).for_each(|_| calm.asks(failed(500), Some(PAUSE), Watch));
    calm.later().asks(failed(500), Some(0), NEWEST);
}
