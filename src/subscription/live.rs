//! The live phase: the next events of the log, as a view of it, or by a traversal of a scan or of the chain of a bucket.

#![forbid(unsafe_code)]

use super::awake::Awake;
use super::chain::{self, ChainEnd};
use super::frontier::Frontier;
use super::loss::Step;
use super::path::Links;
use super::scan::{LogScan, next_run};
use super::state::Flag;
use super::traverse::Traversal;
use super::view;
use crate::batch::Batch;

/// The source of the next events.
enum NextRead {
    /// A scan of the log up to a sequence number.
    Scan(LogScan),
    /// Links that were collected and not followed yet.
    Links(Links),
    /// The chain of a bucket, whose links are to be collected.
    Chain(ChainEnd),
    /// The cursor is at the head.
    Head,
}

/// The next batch of events.
pub(super) fn poll(awake: &mut Awake<'_>, frontier: &Frontier, max: usize) -> Step<Batch> {
    if awake.has(Flag::Plain) {
        let Some(run) = next_run(awake, frontier.head)? else { return Ok(Batch::empty(awake.position())) };
        return Ok(view::of_run(awake, run, max));
    }
    keeping_the_cursor(awake, |awake| filtered(awake, frontier, max))
}

/// Whether a poll has an event to hand out. Moves the cursor to that event, or to the head.
pub(super) fn peek(awake: &mut Awake<'_>, frontier: &Frontier) -> Step<bool> {
    keeping_the_cursor(awake, |awake| {
        let mut traversal = Traversal::new(awake, frontier, 0);
        traverse(awake, &mut traversal, frontier)
    })
}

/// Calls `run`, which may run predicates. If a predicate panics, the subscription is left at its present cursor,
/// with the segment that it keeps, as the log may no longer have that.
fn keeping_the_cursor<'s, T>(awake: &mut Awake<'s>, run: impl FnOnce(&mut Awake<'s>) -> T) -> T {
    let runs_predicates = awake.shared.matcher.has_predicates();
    if runs_predicates {
        awake.share();
        awake.state.segment = awake.cursor.held_segment();
    }
    let done = run(awake);
    if runs_predicates {
        awake.state.segment = None;
    }
    done
}

fn filtered(awake: &mut Awake<'_>, frontier: &Frontier, max: usize) -> Step<Batch> {
    if let Some(batch) = chain::view_of_one(awake, frontier)? {
        return Ok(batch);
    }
    let mut traversal = Traversal::new(awake, frontier, max);
    traverse(awake, &mut traversal, frontier)?;
    Ok(traversal.finish(awake))
}

/// Runs a traversal until it has an event, or everything below the frontier was looked at. True: it ended early,
/// before an event or at a loss.
fn traverse(awake: &mut Awake<'_>, traversal: &mut Traversal, frontier: &Frontier) -> Step<bool> {
    loop {
        let ended = match next_read(awake, frontier)? {
            NextRead::Scan(mut scan) => traversal.run(awake, &mut scan)?,
            NextRead::Links(links) => chain::follow(awake, traversal, links, frontier)?,
            NextRead::Chain(end) => match end.collect(awake, frontier)? {
                Some(links) => chain::follow(awake, traversal, links, frontier)?,
                None => false,
            },
            NextRead::Head => return Ok(false),
        };
        if ended || !traversal.is_empty() {
            return Ok(ended);
        }
    }
}

fn next_read(awake: &mut Awake<'_>, frontier: &Frontier) -> Step<NextRead> {
    if let Some(links) = awake.state.rare.as_mut().and_then(|rare| rare.path.links.take()) {
        return Ok(NextRead::Links(*links));
    }
    loop {
        // Called at the head, too, as it takes over the bucket that the writer has answered with.
        let end = ChainEnd::of(awake);
        if awake.cursor.seq() >= frontier.head {
            return Ok(NextRead::Head);
        }
        let Some(end) = end else {
            let end = awake.state.rare.as_ref().and_then(|rare| rare.path.scan_end(awake.cursor.seq()));
            return Ok(NextRead::Scan(LogScan::new(end.map_or(frontier.head, |end| end.min(frontier.head)))));
        };
        // Loaded after head, so it covers every mark below head.
        if awake.shared.inner.ring.newest_mark() < awake.cursor.seq() {
            return Ok(NextRead::Chain(end));
        }
        // Marks are in no chain, and must come before the events of their epoch: scan up to the newest mark.
        end.go_to_mark(awake, frontier)?;
    }
}
