//! The checks by which a writer refuses input before it changes anything.

#![forbid(unsafe_code)]

use super::change::{Change, Record};
use crate::cache::{Core, Inner};
use crate::error::{Code, Error, Result, say, show};
use crate::store::hash::KeyHash;
use crate::store::root::starts_with;
use std::collections::HashSet;

#[inline]
pub(super) fn rises(what: &str, revision: u64, inner: &Inner, core: &Core) -> Result<()> {
    if core.loaded && revision > core.position.revision && say::is_revision(revision) {
        return Ok(());
    }
    Err(not_next(what, revision, inner, core))
}

/// Why a revision cannot be the next one.
#[cold]
fn not_next(what: &str, revision: u64, inner: &Inner, core: &Core) -> Error {
    let current = core.position.revision;
    if !core.loaded {
        return inner.not_ready(what);
    }
    if let Err(error) = say::check_given(what, revision) {
        return error;
    }
    Error::new(
        Code::OutOfOrder,
        format!("{what} at revision {revision}: the cache is at {current} and revisions must rise. Use resync for a history that went back."),
    )
    .with_asked(revision)
    .with_current(current)
}

#[inline]
pub(super) fn check_change(inner: &Inner, change: &Change<'_>) -> Result<()> {
    check_pair(inner, change.key, change.value)
}

pub(super) fn check_changes(inner: &Inner, changes: &[Change<'_>]) -> Result<()> {
    changes.iter().try_for_each(|change| check_change(inner, change))?;
    if changes.len() > 1 {
        let mut seen = HashSet::with_capacity_and_hasher(changes.len(), KeyHash::default());
        for change in changes {
            if !seen.insert(change.key) {
                return Err(say::invalid(format!(
                    "key {}: it changes twice in one revision. Apply the last change only.",
                    show(change.key)
                )));
            }
        }
    }
    Ok(())
}

/// Whether a record can stand in a listing at this revision.
pub(super) fn check_record(inner: &Inner, revision: u64, record: &Record<'_>) -> Result<()> {
    check_pair(inner, record.key, Some(record.value))?;
    let sound = (1..=record.mod_revision).contains(&record.create_revision)
        && record.mod_revision <= revision
        && record.version >= 1;
    if sound {
        return Ok(());
    }
    Err(say::invalid(format!(
        "key {}: created at {}, changed at {}, version {} cannot be of a listing at revision {revision}. Give the numbers that the store gave it.",
        show(record.key),
        record.create_revision,
        record.mod_revision,
        record.version
    )))
}

/// Brings a listing into key order. `key` may be asked for any number of times.
pub(super) fn sort_by_key<T>(listing: &mut [T], key: impl Fn(&T) -> &[u8]) -> Result<()> {
    if listing.is_sorted_by(|a, b| key(a) < key(b)) {
        return Ok(());
    }
    listing.sort_unstable_by(|a, b| key(a).cmp(key(b)));
    match listing.windows(2).find(|pair| key(&pair[0]) == key(&pair[1])) {
        Some(pair) => {
            Err(say::invalid(format!("key {}: it is twice in the listing. List each key once.", show(key(&pair[0])))))
        }
        None => Ok(()),
    }
}

pub(super) fn sort_listing(inner: &Inner, revision: u64, records: &mut [Record<'_>]) -> Result<()> {
    records.iter().try_for_each(|record| check_record(inner, revision, record))?;
    sort_by_key(records, |record| record.key)
}

#[inline]
fn check_pair(inner: &Inner, key: &[u8], value: Option<&[u8]>) -> Result<()> {
    let (prefix, limits) = (&inner.prefix[..], &inner.limits);
    let sound = !key.is_empty()
        && key.len() <= limits.key
        && starts_with(key, prefix)
        && value.is_none_or(|value| value.len() <= limits.value);
    if sound { Ok(()) } else { Err(unfit(inner, key, value)) }
}

/// Why a key and a value cannot be taken.
#[cold]
fn unfit(inner: &Inner, key: &[u8], value: Option<&[u8]>) -> Error {
    if key.is_empty() {
        return say::invalid("the key is empty. Give one of at least 1 byte.");
    }
    if key.len() > inner.limits.key {
        return say::invalid(format!(
            "key {}: {} bytes, the limit is {}. Shorten it, or raise the limit.",
            show(key),
            key.len(),
            inner.limits.key
        ));
    }
    if !starts_with(key, &inner.prefix) {
        return say::invalid(format!(
            "key {}: it is outside the cache's prefix {}. Write only keys below that.",
            show(key),
            show(&inner.prefix)
        ));
    }
    say::invalid(format!(
        "key {}: a value of {} bytes, the limit is {}. Shorten it, or raise the limit.",
        show(key),
        value.map_or(0, <[u8]>::len),
        inner.limits.value
    ))
}
