//! Indexes by function: whole revisions, remembered values, and what a function that misbehaves costs.

use crate::support::{BOUND, Text, lap, put, small_cache, wide_cache};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use watchcore::{Change, Code, Filter, Writer};
use watchcore_toolkit::{Informer, Lister};

/// The values under which every object is, with the position: what `/x` and `/y` say.
fn pair(lister: &Lister<Text>) -> (u64, String, String) {
    let all = lister.by_index("all", "all").unwrap();
    let of = |key: &str| {
        all.iter().find(|text| text.key_str().unwrap().ends_with(key)).map(|text| text.to_string()).unwrap()
    };
    (all.position.revision, of("/x"), of("/y"))
}

/// Where an index function stands when it is asked for an object of these words, until it is let go.
struct Stand {
    enters: mpsc::Sender<()>,
    leaves: Mutex<mpsc::Receiver<()>>,
}

impl Stand {
    fn new() -> (Stand, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let (enters, entered) = mpsc::channel();
        let (leave, leaves) = mpsc::channel();
        (Stand { enters, leaves: Mutex::new(leaves) }, entered, leave)
    }

    fn stand(&self) {
        self.enters.send(()).ok();
        self.leaves.lock().unwrap().recv().ok();
    }
}

/// A revision whose last value cannot be decoded ends without an event: what follows it is not shown with it.
#[test]
fn si_09_revision_with_an_undecodable_end() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/x", "old"), Change::put("/y", "old"), Change::put("/z", "old")]).unwrap();
    let (stand, entered, leave) = Stand::new();
    let builder = Informer::<Text>::builder(&cache).index("all", move |text: &Text| {
        if text.key_str() == Some("/y") && **text == "new" {
            stand.stand();
        }
        vec!["all".into()]
    });
    let informer = builder.build().unwrap();
    informer.wait_synced(BOUND).unwrap();
    let lister = informer.lister();
    writer.apply(2, [Change::put("/a", "good"), Change::put("/z", b"\xff")]).unwrap();
    writer.apply(3, [Change::put("/x", "new"), Change::put("/y", "new")]).unwrap();
    entered.recv_timeout(BOUND).expect("the function is called");
    let (position, x, y) = pair(&lister);
    assert!(position < 3, "{position}");
    assert_eq!((x.as_str(), y.as_str()), ("old", "old"), "at {position}");
    leave.send(()).unwrap();
    lister.wait_until(3, BOUND).unwrap();
    assert_eq!(pair(&lister), (3, "new".into(), "new".into()));
}

/// An index that was overtaken, with nothing changed meanwhile, shows the next revision whole.
#[test]
fn si_09_empty_difference_then_a_revision() {
    let cache = small_cache();
    let writer = Arc::new(Mutex::new(cache.writer().unwrap()));
    let apply = |writer: &mut Writer, revision, value: &str| {
        writer.apply(revision, [Change::put("/p/x", value), Change::put("/p/y", value)]).unwrap();
    };
    apply(&mut writer.lock().unwrap(), 1, "old");
    let in_walk = Arc::new(AtomicBool::new(false));
    // The predicate is only the moment: x and y are written while the overtaken index walks its snapshot.
    let filter = Filter::any().path("/p").predicate({
        let (writer, in_walk) = (Arc::clone(&writer), Arc::clone(&in_walk));
        move |_| {
            if in_walk.swap(false, Ordering::SeqCst) {
                apply(&mut writer.lock().unwrap(), 1000, "new");
            }
            true
        }
    });
    let (block, blocked, go_on) = Stand::new();
    let (half, at_half, whole) = Stand::new();
    let builder = Informer::<Text>::builder(&cache).filter(filter).index("all", move |text: &Text| {
        match (text.key_str(), text.as_str()) {
            (Some("/p/block"), _) => block.stand(),
            (Some("/p/y"), "new") => half.stand(),
            _ => {}
        }
        vec!["all".into()]
    });
    let informer = builder.build().unwrap();
    informer.wait_synced(BOUND).unwrap();
    let lister = informer.lister();
    put(&mut writer.lock().unwrap(), "/p/block", "1");
    blocked.recv_timeout(BOUND).expect("the function is called");
    for _ in 0..3 {
        lap(&mut writer.lock().unwrap(), "/lap");
    }
    in_walk.store(true, Ordering::SeqCst);
    go_on.send(()).unwrap();
    at_half.recv_timeout(BOUND).expect("the function is called");
    let (position, x, y) = pair(&lister);
    assert!(position < 1000, "{position}");
    assert_eq!((x.as_str(), y.as_str()), ("old", "old"), "at {position}");
    whole.send(()).unwrap();
    lister.wait_until(1000, BOUND).unwrap();
    assert_eq!(pair(&lister), (1000, "new".into(), "new".into()));
}

/// Neither objects nor values are answered before the initial state is complete.
#[test]
fn si_09_no_answer_before_the_state() {
    let cache = watchcore::Cache::builder("/").expect_load(true).build().unwrap();
    let builder = Informer::<watchcore::KeyValue>::builder(&cache).index("all", |_| vec!["all".into()]);
    let informer = builder.build().unwrap();
    let lister = informer.lister();
    assert_eq!(lister.by_index("all", "all").unwrap_err().code(), Code::NotReady);
    assert_eq!(lister.index_values("all").unwrap_err().code(), Code::NotReady);
    cache.writer().unwrap().load(3, []).unwrap();
    informer.wait_synced(BOUND).unwrap();
    assert_eq!(lister.by_index("all", "all").unwrap().position.revision, 3);
}
