//! A list of keys: one document, made in pieces while the client takes it.
//!
//! The revision and the number of items stand before the items, so the walk must not fail, nor come to another number,
//! once the first byte is out: it goes over a snapshot or a page, which change no more.

use crate::lines::{self, Numbers};
use crate::status::Refusal;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, header};
use http_body::Frame;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use watchcore::{Cache, DEFAULT_WAIT, Filter, KeyValue, Page, Range, Read, ReadOptions, Snapshot};

use super::params::KeysList;

/// A piece ends behind the item with which it has come so far.
const PIECE: usize = 64 << 10;

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
struct ListBody {
    items: Items,
    phase: ListPhase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ListPhase {
    Head,
    First,
    Further,
    Ended,
}

/// The answer to a list. `filter` has the range of the keys that are asked for.
pub(super) async fn answer(cache: &Cache, list: KeysList, filter: Filter, prefix: &[u8]) -> Result<Response, Refusal> {
    let items = items(cache, list, filter, prefix).await?;
    let mut response = Response::new(Body::new(ListBody { items, phase: ListPhase::Head }));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

async fn items(cache: &Cache, list: KeysList, filter: Filter, prefix: &[u8]) -> Result<Items, Refusal> {
    let refused = |error: watchcore::Error| Refusal::from(&error);
    if list.continue_token.is_none() && list.revision.is_none() {
        // What was written before the request is in the answer, as in a list of etcd itself.
        let least = cache.consistent_revision_async(DEFAULT_WAIT).await.map_err(refused)?;
        cache.wait_until_async(least, DEFAULT_WAIT).await.map_err(refused)?;
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

impl ListBody {
    fn piece(&mut self) -> Vec<u8> {
        let mut piece = Vec::new();
        if self.phase == ListPhase::Head {
            let (revision, count) = (self.items.revision(), self.items.count());
            piece.extend_from_slice(format!("{{\"revision\":{revision},\"count\":{count}").as_bytes());
            if let Items::Page { page, .. } = &self.items
                && let Some(token) = page.continue_token()
            {
                // A token is base64: nothing in it is escaped.
                piece.extend_from_slice(format!(",\"continue\":\"{token}\"").as_bytes());
            }
            piece.extend_from_slice(b",\"items\":[");
            self.phase = ListPhase::First;
        }
        let mut first = self.phase == ListPhase::First;
        let ended = self.items.walk(|kv| {
            if !std::mem::take(&mut first) {
                piece.push(b',');
            }
            lines::key_value(&mut piece, kv.key(), kv.value(), Numbers::of(kv));
            // Without the end of its line.
            piece.pop();
            piece.len() < PIECE
        });
        self.phase = if ended { ListPhase::Ended } else { ListPhase::Further };
        if ended {
            piece.extend_from_slice(b"]}\n");
        }
        piece
    }
}

impl http_body::Body for ListBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.phase == ListPhase::Ended {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(Frame::data(self.piece().into()))))
    }
}
