//! The rows: what is done, at which sizes, what the metric is, what it includes, and the goals.

/// What the metric of a row is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Processor time of the whole process an operation, the wall's beside it; less is better.
    Cpu,
    /// Time by the clock on the wall, processor time beside it; less is better.
    Wall,
    /// Bytes; less is better.
    Bytes,
    /// How many times as much; more is better.
    Times,
    /// How many times as much; less is better.
    Part,
}

/// A size of a row. Goals are in nanoseconds, bytes or times, as the metric is.
pub struct Size {
    pub number: usize,
    /// Measured in a quick run, too.
    pub quick: bool,
    pub rust: Option<f64>,
    pub go: Option<f64>,
}

pub struct Row {
    pub name: &'static str,
    pub title: &'static str,
    /// What a size counts.
    pub of: &'static str,
    pub metric: Metric,
    pub sizes: &'static [Size],
    pub includes: &'static str,
}

/// A size with its goals in Rust and in Go.
const fn goal(number: usize, rust: f64, go: f64) -> Size {
    Size { number, quick: true, rust: Some(rust), go: Some(go) }
}

/// A size without a goal.
const fn size(number: usize) -> Size {
    Size { number, quick: true, rust: None, go: None }
}

impl Size {
    const fn not_quick(self) -> Size {
        Size { quick: false, ..self }
    }

    const fn no_goal_in_go(self) -> Size {
        Size { go: None, ..self }
    }
}

const US: f64 = 1e3;
const MS: f64 = 1e6;

const DELIVERY: &str = "Windows of 96 events are published one after another to watchers that all sleep before a \
    window. Processor time of publisher and watchers, each event copied in (549 bytes) and its head read by each \
    watcher, over the number of deliveries; the publisher's waiting for the end of a window is left out, and what Go's \
    runtime takes in a wait in which nothing happens. watchcore lends an event until the next poll; who has one of a \
    channel may keep it. watchcore's log is full before.";
const SELECTIVE: &str = "As a delivery, but each event is for one of the sleeping watchers, each event of a window for \
    another: publish, wake-up and delivery of an event.";
const COLD: &str = "From before the first watcher is opened until each has taken its four events, which are published \
    without a pause once all watchers wait: processor time of all threads over the number of events, and beside it the time \
    on the wall. Nothing was published since the watchers came. Where no event is for them, four are published for each.";
const WRITE: &str = "Key and value (549 bytes) are copied in and readers see them before the next write; scattered over \
    all keys. watchcore writes its log and keeps the versions of its default window, which is full before an overwrite is \
    measured.";
const LIST: &str = "A consistent list in the order of the keys, each object seen once, and what was made for it dropped. \
    The objects were loaded in that order.";
const TOUCHED: &str = "The same, and one byte of each value is loaded.";
const BYTES: &str = "Bytes that the process takes for it: in Rust of the allocator, its heads included; in Go resident \
    memory after a collection.";
const BYTES_SUBSCRIPTION: &str = "Bytes that the process takes for it: in Rust of the allocator, its heads included, and \
    with its task where it has one; in Go resident memory after a collection, without the goroutine. watchcore's best in \
    Rust is a member of a wake set, which has no task: its other metric is the one to be held beside the peers'. Go's channels \
    have room for a window of events.";

const BROADCAST: &str = "As a delivery to sleeping watchers, of objects that the program makes (549 bytes and their \
    metadata; making them is in it), to watchers of a Broadcaster that wait for whoever is 96 behind.";
const INFORMER: &str = "In the shape of client-go's own benchmark: all objects lie in one namespace and are decoded, one \
    goroutine or thread changes them with at most ten changes under way to a handler, which runs on a goroutine or thread of \
    its own, and each reader lists the namespace by its index again and again. A change is over when the handler was called. In \
    Rust a writer with ten changes under way waits until the handler has them all, so each ten wake both threads at most \
    once; in Go it waits for one. By the clock on the wall, all readers on the same cores.";
const INFORMER_TASK: &str = "The same without readers, and the handler runs on the writer's thread, as in one task with the \
    source: no thread is woken, and a slow handler holds up source and store.";
const STALLED: &str = "Another handler of the same informer never returns from its first change.";
const INFORMER_BYTES: &str = "Bytes after a collection that the informer takes, beyond the objects themselves and the cache \
    that they come from: its store with an index by namespace, and its handlers, which have handled everything.";

pub const ROWS: &[Row] = &[
    Row {
        name: "deliver",
        title: "Delivery to sleeping watchers",
        of: "watchers",
        metric: Metric::Cpu,
        sizes: &[
            goal(1, 200.0, 400.0),
            goal(10, 50.0, 100.0),
            goal(100, 10.0, 20.0),
            goal(1000, 5.0, 10.0),
            goal(10_000, 7.0, 20.0).not_quick(),
        ],
        includes: DELIVERY,
    },
    Row {
        name: "poll",
        title: "Polling a window that is there",
        of: "events a batch",
        metric: Metric::Cpu,
        sizes: &[goal(64, 1.65, 3.0)],
        includes: "1024 published events are read by one watcher, the head of each; a new subscription each time.",
    },
    Row {
        name: "publish",
        title: "Publish beside idle watchers",
        of: "watchers",
        metric: Metric::Cpu,
        sizes: &[goal(1, 200.0, 350.0), goal(1000, 200.0, 350.0), goal(10_000, 200.0, 350.0)],
        includes: "Events (549 bytes copied in) that interest none of the watchers, which sleep, each for a key of its \
            own. watchcore's log is full before.",
    },
    Row {
        name: "publish-shared",
        title: "Publish by reference beside idle watchers",
        of: "watchers",
        metric: Metric::Cpu,
        sizes: &[goal(1, 100.0, 350.0).no_goal_in_go()],
        includes: "The same, but the value of 512 bytes is in an Arc, of which the version has a count: nothing but the \
            key is copied in.",
    },
    Row {
        name: "overwrite",
        title: "Overwrite",
        of: "objects",
        metric: Metric::Cpu,
        sizes: &[goal(10_000, 330.0, 500.0), goal(100_000, 600.0, 800.0), goal(1_000_000, 850.0, 1100.0).not_quick()],
        includes: WRITE,
    },
    Row {
        name: "insert",
        title: "Insert",
        of: "objects before",
        metric: Metric::Cpu,
        sizes: &[
            goal(10_000, 1200.0, 1500.0),
            goal(100_000, 1200.0, 1500.0),
            goal(1_000_000, 1200.0, 1500.0).not_quick(),
        ],
        includes: WRITE,
    },
    Row {
        name: "selective-key",
        title: "Watchers of a key each",
        of: "watchers",
        metric: Metric::Cpu,
        sizes: &[goal(1000, 1.0 * US, 4.0 * US), goal(10_000, 2.0 * US, 4.0 * US).not_quick()],
        includes: SELECTIVE,
    },
    Row {
        name: "selective-namespace",
        title: "Watchers of a namespace each",
        of: "watchers",
        metric: Metric::Cpu,
        sizes: &[goal(1000, 1.0 * US, 4.0 * US), goal(10_000, 2.0 * US, 4.0 * US).not_quick()],
        includes: SELECTIVE,
    },
    Row {
        name: "selective-cold",
        title: "Watchers of a key each that come at once",
        of: "watchers",
        metric: Metric::Cpu,
        sizes: &[size(1000), size(10_000).not_quick()],
        includes: COLD,
    },
    Row {
        name: "publish-cold",
        title: "Publish beside idle watchers that come at once",
        of: "watchers",
        metric: Metric::Cpu,
        sizes: &[size(1000), size(10_000).not_quick()],
        includes: COLD,
    },
    Row {
        name: "get",
        title: "Get",
        of: "objects",
        metric: Metric::Cpu,
        sizes: &[size(1000), goal(150_000, 200.0, 300.0), size(1_000_000).not_quick()],
        includes: "The newest version of a key, counted or copied so that it can be kept, one byte of it loaded; \
            scattered over all keys.",
    },
    Row {
        name: "get-many",
        title: "Get of a hundred keys, a key",
        of: "objects",
        metric: Metric::Cpu,
        sizes: &[size(1000), size(150_000), size(1_000_000).not_quick()],
        includes: "A hundred keys at once, scattered over all: the newest version of each, all of one state, counted (in Go \
            a page of views), one byte of each loaded, and all dropped. Peers, and those of watchcore whose name says so, \
            make as many gets.",
    },
    Row {
        name: "get-together",
        title: "Two threads of get against one",
        of: "objects",
        metric: Metric::Times,
        sizes: &[goal(150_000, 1.9, 1.9).no_goal_in_go()],
        includes: "How many times as many gets two threads do: twice the processor time of a get alone against that \
            beside another thread, so that other load on the machine does not count; the wall's ratio beside it.",
    },
    Row {
        name: "list",
        title: "List",
        of: "objects",
        metric: Metric::Cpu,
        sizes: &[size(1000), size(10_000).not_quick(), goal(150_000, 0.5 * MS, 0.5 * MS)],
        includes: LIST,
    },
    Row {
        name: "list-touched",
        title: "List, each value touched",
        of: "objects",
        metric: Metric::Cpu,
        sizes: &[goal(150_000, 3.0 * MS, 3.0 * MS)],
        includes: TOUCHED,
    },
    Row {
        name: "prefix",
        title: "List of a prefix, of 150,000 objects",
        of: "objects of the prefix",
        metric: Metric::Cpu,
        sizes: &[goal(1000, 5.0 * US, 5.0 * US)],
        includes: LIST,
    },
    Row {
        name: "prefix-touched",
        title: "List of a prefix, each value touched",
        of: "objects of the prefix",
        metric: Metric::Cpu,
        sizes: &[goal(1000, 15.0 * US, 15.0 * US)],
        includes: TOUCHED,
    },
    Row {
        name: "state",
        title: "Ten watchers take the state beside 1000 events/s",
        of: "objects",
        metric: Metric::Cpu,
        sizes: &[goal(150_000, 30.0 * MS, 60.0 * MS)],
        includes: "From ten threads or goroutines that start until all have the whole state, one byte of each value \
            loaded; processor time of all, the writer's included.",
    },
    Row {
        name: "wake",
        title: "Wake-up",
        of: "watchers, one of which is woken",
        metric: Metric::Wall,
        sizes: &[goal(1, 9.0 * US, 5.0 * US), goal(1000, 9.0 * US, 5.0 * US)],
        includes: "From before a publish until a watcher that slept has read the event, by the clock on the wall; \
            more than one watcher: each waits for a key of its own. The median.",
    },
    Row {
        name: "bytes-subscription",
        title: "Memory of an idle subscription",
        of: "subscriptions",
        metric: Metric::Bytes,
        sizes: &[goal(10_000, 160.0, 500.0)],
        includes: BYTES_SUBSCRIPTION,
    },
    Row {
        name: "bytes-object",
        title: "Memory of an object beyond its key and value",
        of: "objects",
        metric: Metric::Bytes,
        sizes: &[goal(100_000, 145.0, 145.0).no_goal_in_go()],
        includes: BYTES,
    },
    Row {
        name: "broadcast",
        title: "Broadcaster: delivery to its watchers",
        of: "watchers",
        metric: Metric::Cpu,
        sizes: &[size(1), size(10), size(100), goal(1000, 20.0, 20.0)],
        includes: BROADCAST,
    },
    Row {
        name: "informer-write-0",
        title: "Informer: a change until a handler has it",
        of: "objects",
        metric: Metric::Wall,
        sizes: &[size(10_000), size(150_000).not_quick()],
        includes: INFORMER,
    },
    Row {
        name: "informer-task",
        title: "Informer: a change until a handler on the same thread has it",
        of: "objects",
        metric: Metric::Wall,
        sizes: &[size(10_000), size(150_000).not_quick()],
        includes: INFORMER_TASK,
    },
    Row {
        name: "informer-write-8",
        title: "Informer: a change, beside 8 readers",
        of: "objects",
        metric: Metric::Wall,
        sizes: &[size(10_000), size(150_000).not_quick()],
        includes: INFORMER,
    },
    Row {
        name: "informer-write-80",
        title: "Informer: a change, beside 80 readers",
        of: "objects",
        metric: Metric::Wall,
        // With 150,000 one measurement takes minutes: each reader lists for as long as the others let it.
        sizes: &[size(10_000).not_quick()],
        includes: INFORMER,
    },
    Row {
        name: "informer-read-8",
        title: "Informer: a list of the namespace beside writes, 8 readers",
        of: "objects",
        metric: Metric::Wall,
        sizes: &[size(10_000), size(150_000).not_quick()],
        includes: INFORMER,
    },
    Row {
        name: "informer-read-80",
        title: "Informer: a list of the namespace beside writes, 80 readers",
        of: "objects",
        metric: Metric::Wall,
        // With 150,000 one measurement takes minutes: each reader lists for as long as the others let it.
        sizes: &[size(10_000).not_quick()],
        includes: INFORMER,
    },
    Row {
        name: "informer-beside-stalled",
        title: "Informer: a change beside a handler that never returns",
        of: "objects",
        metric: Metric::Cpu,
        sizes: &[size(10_000)],
        includes: STALLED,
    },
    Row {
        name: "informer-stalled-bytes",
        title: "Memory of each change that a stalled handler was not given",
        of: "changes",
        metric: Metric::Bytes,
        sizes: &[size(100_000)],
        includes: STALLED,
    },
    Row {
        name: "informer-bytes-1",
        title: "Memory of an informer with one handler, an object",
        of: "objects",
        metric: Metric::Bytes,
        sizes: &[size(150_000)],
        includes: INFORMER_BYTES,
    },
    Row {
        name: "informer-bytes-10",
        title: "Memory of an informer with ten handlers, an object",
        of: "objects",
        metric: Metric::Bytes,
        sizes: &[goal(150_000, 200.0, 200.0)],
        includes: INFORMER_BYTES,
    },
    Row {
        name: "largest-insert",
        title: "Largest single apply while so many keys are inserted",
        of: "keys",
        metric: Metric::Cpu,
        sizes: &[
            goal(400_000, 1.0 * MS, 1.0 * MS).no_goal_in_go(),
            goal(4_000_000, 1.0 * MS, 1.0 * MS).no_goal_in_go().not_quick(),
        ],
        includes: "Processor time of the writing thread in one insert, the largest of all; beside it the largest by the \
            clock on the wall, where other load on the machine counts. Empty values.",
    },
    Row {
        name: "largest-opened",
        title: "Largest single apply after so many subscriptions were opened",
        of: "subscriptions",
        metric: Metric::Cpu,
        sizes: &[goal(60_000, 1.0 * MS, 1.0 * MS).no_goal_in_go()],
        includes: "The same of 50,000 applies that follow; each subscription asks for a bucket of its own.",
    },
    Row {
        name: "largest-dropped",
        title: "Largest single apply after so many subscriptions were dropped",
        of: "subscriptions",
        metric: Metric::Cpu,
        sizes: &[goal(60_000, 1.0 * MS, 1.0 * MS).no_goal_in_go()],
        includes: "The same after all were closed.",
    },
    Row {
        name: "listing",
        title: "First listing from etcd",
        of: "objects of 380 bytes",
        metric: Metric::Wall,
        sizes: &[size(100_000), size(1_000_000).not_quick()],
        includes: "By the clock on the wall, etcd on the same machine; processor time is this process's alone. The goal is \
            1.2 times the best of the bare clients.",
    },
    Row {
        name: "listing-memory",
        title: "Peak of memory while listing, against the finished cache",
        of: "objects of 380 bytes",
        metric: Metric::Part,
        sizes: &[goal(100_000, 1.25, 1.25).no_goal_in_go(), goal(1_000_000, 1.25, 1.25).no_goal_in_go().not_quick()],
        includes: "Resident memory at its peak over what the allocator has handed out after the listing, both less what the \
            process had before.",
    },
];

pub fn row(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}
