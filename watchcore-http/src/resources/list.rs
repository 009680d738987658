//! Lists of a resource.
//!
//! A list without a limit at the newest revision walks a snapshot. One with a limit, with a continue token, or of an
//! exact revision is a page of the core.

use crate::catalog::{Served, not_ready};
use crate::json::layout::quoted;
use crate::list::{ListBytes, ListClient, ListItems, ListSource, PIECE, Pieces, Reader, page_of, respond};
use crate::object::Form;
use crate::request::{ListStart, Params, Selection};
use crate::status::Refusal;
use axum::response::Response;
use std::sync::Arc;
use tokio::time::Instant;
use watchcore::{Code, DEFAULT_WAIT, Error, KeyValue, Read, ReadOptions};

/// Answers a list.
///
/// # Errors
/// 400 if a parameter is malformed, 422 if parameters exclude each other; 410 if the state has left the window; 504 if
/// it was not reached in time; 503 while the cache is not ready.
pub(crate) async fn list(
    served: &Arc<Served>,
    namespace: Option<&str>,
    params: &Params,
    form: Form,
    client: ListClient,
) -> Result<Response, Refusal> {
    let start = params.list_start()?;
    let selection = Selection::of(served, namespace, None, params)?;
    let source = source(served, selection, start, params.limit, &client.reader).await?;
    // Indents usually double or triple the size, so smaller pieces are made, which can be formatted at once.
    let size = if params.pretty { PIECE / 4 } else { PIECE };
    let pieces = pieces(served.clone(), form, source, size);
    Ok(respond(ListBytes::new(pieces, params.pretty), client).await)
}

/// The objects of a resource in a form.
struct ObjectItems {
    served: Arc<Served>,
    form: Form,
}

impl ListItems for ObjectItems {
    fn item(&self, kv: &KeyValue) -> Option<impl FnOnce(&mut Vec<u8>)> {
        let ObjectItems { served, form } = self;
        let object = served.object_or_report(kv)?;
        Some(move |out: &mut Vec<u8>| match *form {
            Form::Json => object.write(kv.mod_revision(), out),
            Form::Metadata => object.write_partial(kv.mod_revision(), out),
            Form::Table(included) => served.table.write_row(&object, kv.mod_revision(), included, out),
        })
    }
}

/// Creates the list of a resource's objects.
fn pieces(served: Arc<Served>, form: Form, source: ListSource, size: usize) -> Pieces<ObjectItems> {
    let metadata = source.metadata();
    let mut head = Vec::new();
    let resource = &served.resource;
    let (kind, version) = match form {
        Form::Json => (format!("{}List", resource.kind), resource.api_version()),
        _ => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
    };
    if let Form::Table(_) = form {
        served.table.write_head(&metadata, &mut head);
    } else {
        for (member, text) in [(&b"{\"kind\":"[..], &kind), (b",\"apiVersion\":", &version)] {
            head.extend_from_slice(member);
            quoted(text, &mut head);
        }
        head.extend_from_slice(b",\"metadata\":");
        head.extend_from_slice(&metadata);
        head.extend_from_slice(b",\"items\":[");
    }
    Pieces::of(ObjectItems { served, form }, source, head, size)
}

/// Returns the state from which a list is answered, waiting for it if necessary.
async fn source(
    served: &Served,
    selection: Selection,
    start: ListStart,
    limit: usize,
    reader: &Reader,
) -> Result<ListSource, Refusal> {
    let cache = &served.cache;
    let deadline = Instant::now() + DEFAULT_WAIT;
    // A cache that is not filled yet is not waited for: the client tries again.
    if !cache.is_ready() {
        return Err(not_ready(cache));
    }
    let (read, token) = match start {
        ListStart::Consistent => (Read::AtLeast(cache.consistent_revision_async(DEFAULT_WAIT).await?), None),
        ListStart::Any => (Read::Any, None),
        ListStart::AtLeast(revision) => (Read::AtLeast(revision), None),
        ListStart::Exact(revision) => (Read::Exact(revision), None),
        ListStart::Continue(token) => (Read::Any, Some(token)),
    };
    let is_newest = token.is_none() && !matches!(read, Read::Exact(_));
    if is_newest && limit == 0 {
        if let Read::AtLeast(revision) = read {
            let left = deadline.saturating_duration_since(Instant::now());
            cache.wait_until_async(revision, left).await?;
        }
        let snapshot = cache.snapshot()?;
        return Ok(ListSource::walk(snapshot, selection)?);
    }
    let has_token = token.is_some();
    let mut options = ReadOptions::new(read).filter(selection.filter).limit(limit);
    if let Some(token) = token {
        options = options.continue_from(token);
    }
    let page = page_of(cache, selection.range, options, deadline, reader).await;
    page.map(ListSource::page).map_err(|error| if has_token { token_refused(error) } else { Refusal::from(error) })
}

/// Translates the error of a continue token.
fn token_refused(error: Error) -> Refusal {
    match (error.code(), error.continue_token()) {
        (Code::InvalidArgument, _) => Refusal::bad_token(&error),
        (Code::Compacted, Some(token)) => Refusal::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list \
             without the continue parameter, or use the continue token in this response to retrieve the remainder of \
             the results. Continuing with the provided token results in an inconsistent list - objects that were \
             created, modified, or deleted between the time the first chunk was returned and now may show up in the \
             list.",
        )
        .with_continue(token),
        _ => Refusal::from(error),
    }
}

#[cfg(test)]
mod tests;
