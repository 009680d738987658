//! One object of a resource.

use super::list::{ListBytes, MadeObject, Taker, respond};
use super::watch::not_ready;
use super::{WAIT, consistent, json_response, refused};
use crate::catalog::Served;
use crate::frame::{Form, Object};
use crate::request::{GetStart, Params};
use crate::status::Refusal;
use axum::response::Response;
use tokio::time::Instant;
use watchcore::{Read, ReadOptions};

/// The object of a name, as it is now, or at least at the revision that was asked for.
///
/// # Errors
/// 404 where it is absent, or is no object; 504 where the revision did not come in time; 503 while the cache is not ready.
pub(crate) async fn get(
    served: &Served,
    namespace: Option<&str>,
    name: &str,
    params: &Params,
    form: Form,
    taker: Taker,
) -> Result<Response, Refusal> {
    let (resource, cache) = (&served.resource, &served.cache);
    let deadline = Instant::now() + WAIT;
    if !cache.is_ready() {
        return Err(not_ready(cache));
    }
    let read = match params.get_start()? {
        GetStart::Consistent => Read::AtLeast(consistent(cache, deadline).await?),
        GetStart::Any => Read::Any,
        GetStart::AtLeast(revision) => Read::AtLeast(revision),
    };
    let options = ReadOptions::new(read).timeout(deadline.saturating_duration_since(Instant::now()));
    let found = cache.get_with_async(resource.key(namespace, name), &options).await.map_err(refused)?;
    let object = found.kv.as_ref().and_then(|kv| Some((kv.mod_revision(), Object::or_report(served, kv)?)));
    let Some((revision, object)) = object else {
        return Err(Refusal::no_such_object(&resource.group, &resource.plural, name));
    };
    let mut out = Vec::with_capacity(object.value.len() + 128);
    object.write_as(served, form, revision, &mut out);
    out.push(b'\n');
    if params.pretty {
        // With its indents it may be far larger: so that goes out in pieces, as a list does.
        let taker = Taker { gzip: false, ..taker };
        return Ok(respond(ListBytes::new(MadeObject(out), true), taker).await);
    }
    Ok(json_response(out))
}
