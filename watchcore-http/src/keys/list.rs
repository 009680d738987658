//! A list of keys: one JSON document, produced in pieces as the client takes them.
//!
//! The revision and the number of items precede the items, so after the first byte the walk can neither fail nor find
//! another number of items: it reads a snapshot or a page, which never change. It shares the walk and the body with
//! lists of resources.

use super::params::KeysList;
use crate::lines::{self, Numbers};
use crate::list::{ListBytes, ListClient, ListItems, ListSource, PIECE, Pieces, Reader, page_of, respond};
use crate::request::Selection;
use crate::status::Refusal;
use axum::response::Response;
use tokio::time::Instant;
use watchcore::{Cache, DEFAULT_WAIT, KeyValue, Range, Read, ReadOptions};

/// Key-values in the format of the command line.
struct KeyItems;

impl ListItems for KeyItems {
    fn item(&self, kv: &KeyValue) -> Option<impl FnOnce(&mut Vec<u8>)> {
        Some(|out: &mut Vec<u8>| {
            lines::key_value(out, kv.key(), kv.value(), Numbers::of(kv));
            // Removes the line feed.
            out.pop();
        })
    }
}

/// Answers a list.
pub(super) async fn answer(
    cache: &Cache,
    list: KeysList,
    selection: Selection,
    client: ListClient,
) -> Result<Response, Refusal> {
    let document = document(cache, list, selection, &client.reader).await?;
    Ok(respond(ListBytes::new(document, false), client).await)
}

async fn document(
    cache: &Cache,
    list: KeysList,
    selection: Selection,
    reader: &Reader,
) -> Result<Pieces<KeyItems>, Refusal> {
    let refused = |error: watchcore::Error| Refusal::from(&error);
    let source = source(cache, list, selection, reader).await.map_err(refused)?;
    let (source, count) = source.counted(cache, reader, Instant::now() + DEFAULT_WAIT).await.map_err(refused)?;
    let mut head = format!("{{\"revision\":{},\"count\":{count}", source.revision());
    if let Some(token) = source.continue_token() {
        // A continue token is base64, so nothing needs escaping.
        head.push_str(&format!(",\"continue\":\"{token}\""));
    }
    if source.remaining() > 0 {
        head.push_str(&format!(",\"remaining\":{}", source.remaining()));
    }
    head.push_str(",\"items\":[");
    Ok(Pieces::of(KeyItems, source, head.into_bytes(), PIECE))
}

/// Returns the state from which a list is answered. By default it includes every write that preceded the request, like
/// a list of etcd itself.
async fn source(cache: &Cache, list: KeysList, selection: Selection, reader: &Reader) -> watchcore::Result<ListSource> {
    let deadline = Instant::now() + DEFAULT_WAIT;
    if list.continue_token.is_none() && list.revision.is_none() {
        wait_for_newest(cache, deadline).await?;
    }
    let read = match list.revision {
        None | Some(0) => Read::Any,
        Some(revision) => Read::Exact(revision),
    };
    if list.limit == 0 && list.continue_token.is_none() && read == Read::Any {
        return ListSource::walk(cache.snapshot()?, selection);
    }
    let mut options = ReadOptions::new(read).filter(selection.filter).limit(list.limit);
    if let Some(token) = list.continue_token {
        options = options.continue_from(token);
    }
    Ok(ListSource::page(page_of(cache, Range::all(), options, deadline, reader).await?))
}

/// Waits until the cache has reached the revision that its source had when this was called.
pub(super) async fn wait_for_newest(cache: &Cache, deadline: Instant) -> watchcore::Result<()> {
    let left = || deadline.saturating_duration_since(Instant::now());
    let least = cache.consistent_revision_async(left()).await?;
    cache.wait_until_async(least, left()).await.map(drop)
}

#[cfg(test)]
mod tests;
