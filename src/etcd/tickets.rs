//! Consistent reads for those who wait: one linearizable read serves all that asked before it began.

use super::config::Config;
use super::connect::Reader;
use super::counters::one;
use super::shared::Shared;
use crate::writer::Writer;
use std::cell::RefCell;
use std::time::Duration;
use tokio::sync::watch;

/// The pause before a failed read is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until dropped. Without a connection, requests wait for one (and end by their own timeouts).
pub(super) async fn serve(
    writer: &RefCell<Writer>,
    mut readers: watch::Receiver<Option<Reader>>,
    config: &Config,
    shared: &Shared,
) {
    // A connection of our own, after the session's failed: it may be idle for hours, and dead.
    let mut own = None;
    loop {
        // The ticket seen before the read begins: later ones take the next read.
        let ticket = writer.borrow().demand().consistent;
        if ticket == 0 {
            shared.tickets.notified().await;
            continue;
        }
        if readers.has_changed().unwrap_or(true) {
            own = None;
        }
        let session = readers.borrow_and_update().clone();
        let Some(session) = session else {
            if readers.changed().await.is_err() {
                return;
            }
            continue;
        };
        let reader = own.clone().unwrap_or(session);
        let attempt = async {
            one(&shared.counts.consistent_reads);
            match reader.newest(&config.range).await {
                Ok(header) => Ok(header.revision),
                Err(failure) => {
                    tracing::debug!(error = %failure.text, "a consistent read failed; connecting again");
                    tokio::time::sleep(PAUSE).await;
                    Err(reader.again(&config.options).await.ok())
                }
            }
        };
        tokio::select! {
            answer = attempt => match answer {
                Ok(revision) => {
                    writer.borrow_mut().serve_consistent(ticket, revision);
                    // A wait for this revision begins now.
                    shared.watch.notify_one();
                }
                Err(again) => own = again,
            },
            changed = readers.changed() => {
                own = None;
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}
