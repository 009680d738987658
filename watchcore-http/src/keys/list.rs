//! A list of keys: one document, made in pieces while the client takes it.
//!
//! The revision and the number of items stand before the items, so the walk must not fail, nor come to another number,
//! once the first byte is out: it goes over a snapshot or a page, which change no more.

use super::params::KeysList;
use crate::lines::{self, Numbers};
use crate::resources::list::{ListBytes, ListPieces, PIECE, Taker, respond};
use crate::status::Refusal;
use axum::response::Response;
use tokio::time::Instant;
use watchcore::{Cache, DEFAULT_WAIT, Filter, KeyValue, Page, Range, Read, ReadOptions, Snapshot};

/// What the items are taken from.
enum Items {
    /// All of them: from this key on.
    Whole {
        snapshot: Snapshot,
        filter: Filter,
        from: Vec<u8>,
    },
    Page {
        page: Page,
        at: usize,
    },
}

/// The document on its way.
struct KeysDocument {
    items: Items,
    phase: DocumentPhase,
    made: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DocumentPhase {
    Head,
    Items,
    Ended,
}

/// The answer to a list. `filter` has the range of the keys that are asked for.
pub(super) async fn answer(
    cache: &Cache,
    list: KeysList,
    filter: Filter,
    prefix: &[u8],
    taker: Taker,
) -> Result<Response, Refusal> {
    let items = items(cache, list, filter, prefix).await?;
    let document = KeysDocument { items, phase: DocumentPhase::Head, made: 0 };
    Ok(respond(ListBytes::new(document, false), taker).await)
}

async fn items(cache: &Cache, list: KeysList, filter: Filter, prefix: &[u8]) -> Result<Items, Refusal> {
    let refused = |error: watchcore::Error| Refusal::from(&error);
    if list.continue_token.is_none() && list.revision.is_none() {
        // What was written before the request is in the answer, as in a list of etcd itself.
        let deadline = Instant::now() + DEFAULT_WAIT;
        let left = || deadline.saturating_duration_since(Instant::now());
        let least = cache.consistent_revision_async(left()).await.map_err(refused)?;
        cache.wait_until_async(least, left()).await.map_err(refused)?;
    }
    let read = match list.revision {
        None | Some(0) => Read::Any,
        Some(revision) => Read::Exact(revision),
    };
    if list.limit == 0 && list.continue_token.is_none() && read == Read::Any {
        let snapshot = cache.snapshot().map_err(refused)?;
        return Ok(Items::Whole { snapshot, filter, from: prefix.to_vec() });
    }
    let mut options = ReadOptions::new(read).filter(filter).limit(list.limit);
    if let Some(token) = list.continue_token {
        options = options.continue_from(token);
    }
    let page = cache.list_with_async(&Range::all(), &options).await.map_err(refused)?;
    Ok(Items::Page { page, at: 0 })
}

impl Items {
    fn revision(&self) -> u64 {
        match self {
            Items::Whole { snapshot, .. } => snapshot.revision(),
            Items::Page { page, .. } => page.revision(),
        }
    }

    fn count(&self) -> usize {
        match self {
            // The filter was sound when it was asked for.
            Items::Whole { snapshot, filter, .. } => snapshot.filtered(filter).map_or(0, Iterator::count),
            Items::Page { page, .. } => page.len(),
        }
    }

    /// Hands on items until `take` has enough; true: there are no more.
    fn walk(&mut self, mut take: impl FnMut(&KeyValue) -> bool) -> bool {
        match self {
            Items::Whole { snapshot, filter, from } => {
                let rest = filter.clone().range(Range::between(&from, ""));
                let mut last = None;
                for kv in snapshot.filtered(&rest).into_iter().flatten() {
                    if !take(&kv) {
                        last = Some(kv.key().to_vec());
                        break;
                    }
                }
                let Some(mut next) = last else { return true };
                // The first key that may stand behind it.
                next.push(0);
                *from = next;
                false
            }
            Items::Page { page, at } => {
                while let Some(kv) = page.get(*at) {
                    *at += 1;
                    if !take(kv) {
                        return false;
                    }
                }
                true
            }
        }
    }
}

impl KeysDocument {
    fn head(&self) -> Vec<u8> {
        let (revision, count) = (self.items.revision(), self.items.count());
        let mut head = format!("{{\"revision\":{revision},\"count\":{count}");
        if let Items::Page { page, .. } = &self.items
            && let Some(token) = page.continue_token()
        {
            // A token is base64: nothing in it is escaped.
            head.push_str(&format!(",\"continue\":\"{token}\""));
        }
        head.push_str(",\"items\":[");
        head.into_bytes()
    }
}

impl ListPieces for KeysDocument {
    fn next(&mut self) -> Vec<u8> {
        let mut piece = match self.phase {
            DocumentPhase::Ended => return Vec::new(),
            DocumentPhase::Head => self.head(),
            DocumentPhase::Items => Vec::new(),
        };
        let made = &mut self.made;
        let ended = self.items.walk(|kv| {
            if *made > 0 {
                piece.push(b',');
            }
            *made += 1;
            lines::key_value(&mut piece, kv.key(), kv.value(), Numbers::of(kv));
            // Without the end of its line.
            piece.pop();
            piece.len() < PIECE
        });
        self.phase = if ended { DocumentPhase::Ended } else { DocumentPhase::Items };
        if ended {
            piece.extend_from_slice(b"]}\n");
        }
        piece
    }

    fn is_over(&self) -> bool {
        self.phase == DocumentPhase::Ended
    }

    fn made(&self) -> usize {
        self.made
    }
}
