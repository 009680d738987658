//! Consistent reads for those who wait: one linearizable read serves all that asked before it began.

use super::connect::Reader;
use super::counters::one;
use super::range::KeyRange;
use super::shared::Shared;
use crate::writer::Writer;
use std::cell::RefCell;
use std::time::Duration;
use tokio::sync::watch;

/// Serves until dropped. Without a connection, requests wait for one (and end by their own timeouts).
pub(super) async fn serve(
    writer: &RefCell<Writer>,
    mut readers: watch::Receiver<Option<Reader>>,
    range: &KeyRange,
    shared: &Shared,
) {
    loop {
        // The ticket seen before the read begins: later ones take the next read.
        let ticket = writer.borrow().demand().consistent;
        if ticket == 0 {
            shared.tickets.notified().await;
            continue;
        }
        let reader = readers.borrow_and_update().clone();
        let Some(reader) = reader else {
            if readers.changed().await.is_err() {
                return;
            }
            continue;
        };
        tokio::select! {
            answer = reader.newest(range) => match answer {
                Ok(header) => {
                    one(&shared.counts.consistent_reads);
                    writer.borrow_mut().serve_consistent(ticket, header.revision);
                    // A wait for this revision begins now.
                    shared.watch.notify_one();
                }
                Err(failure) => {
                    tracing::debug!(error = %failure.text, "a consistent read failed; trying again");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            changed = readers.changed() => if changed.is_err() { return },
        }
    }
}
