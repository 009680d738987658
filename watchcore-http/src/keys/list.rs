//! A list of keys: one document, made in pieces while the client takes it.
//!
//! The revision and the number of items stand before the items, so the walk must not fail, nor come to another number,
//! once the first byte is out: it goes over a snapshot or a page, which change no more. What walks them, and what sends the
//! pieces, is that of the lists of resources.

use super::newest;
use super::params::KeysList;
use crate::lines::{self, Numbers};
use crate::request::Selection;
use crate::resources::list::{ListBytes, ListItems, ListSource, PIECE, Pieces, Reader, Taker, page_of, respond};
use crate::status::Refusal;
use axum::response::Response;
use tokio::time::Instant;
use watchcore::{Cache, DEFAULT_WAIT, KeyValue, Range, Read, ReadOptions};

/// Key-values as the command line shows them.
struct KeyItems;

impl ListItems for KeyItems {
    fn item(&self, kv: &KeyValue) -> Option<impl FnOnce(&mut Vec<u8>)> {
        Some(|out: &mut Vec<u8>| {
            lines::key_value(out, kv.key(), kv.value(), Numbers::of(kv));
            // Without the end of its line.
            out.pop();
        })
    }
}

/// The answer to a list.
pub(super) async fn answer(
    cache: &Cache,
    list: KeysList,
    selection: Selection,
    taker: Taker,
) -> Result<Response, Refusal> {
    let document = document(cache, list, selection, &taker.reader).await?;
    Ok(respond(ListBytes::new(document, false), taker).await)
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
        // A token is base64: nothing in it is escaped.
        head.push_str(&format!(",\"continue\":\"{token}\""));
    }
    if source.remaining() > 0 {
        head.push_str(&format!(",\"remaining\":{}", source.remaining()));
    }
    head.push_str(",\"items\":[");
    Ok(Pieces::of(KeyItems, source, head.into_bytes(), PIECE))
}

/// The state that a list is answered from. What was written before the request is in the newest, as in a list of etcd
/// itself.
async fn source(cache: &Cache, list: KeysList, selection: Selection, reader: &Reader) -> watchcore::Result<ListSource> {
    let deadline = Instant::now() + DEFAULT_WAIT;
    if list.continue_token.is_none() && list.revision.is_none() {
        newest(cache, deadline).await?;
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

#[cfg(test)]
mod tests;
