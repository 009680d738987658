//! Filters: a range with selectors, as reads, walks, differences and subscriptions take them.

use super::bytes::{Sized32, read_struct, switch, watchcore_bytes};
use super::error::invalid;
use super::range::{WATCHCORE_RANGE_ALL, range_from};
use watchcore::{Filter, Kind, Result};

/// A selection of key-values: all conditions must hold. Zeroed (except for `size`) it lets everything pass. Selectors
/// can only use what the cache declares (watchcore_cache_options): any other name is INVALID_ARGUMENT.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_filter {
    /// sizeof(watchcore_filter).
    pub size: u32,
    /// The kind of range: WATCHCORE_RANGE_...
    pub range: u32,
    /// The key, the prefix, the path, or the first key.
    pub from: watchcore_bytes,
    /// BETWEEN: the exclusive end of the range.
    pub to: watchcore_bytes,
    /// A label selector in Kubernetes' grammar: a=b, a==b, a!=b, a in (x,y), a notin (x,y), a, !a, a>1, a<1, joined by
    /// commas. Absent or empty: everything. For a malformed one, the message has the 0-based position.
    pub labels: watchcore_bytes,
    /// A field selector: name=value, name==value, name!=value, joined by commas. Absent or empty: everything.
    pub fields: watchcore_bytes,
    /// The types of changes, as in watchcore_subscription_options. Only watchcore_cache_diff uses it.
    pub types: u32,
    /// 1: the filter lets nothing pass.
    pub nothing: u32,
}

// SAFETY: repr(C), starts with the size; numbers and pointers.
unsafe impl Sized32 for watchcore_filter {
    const NAME: &'static str = "watchcore_filter";
    const DEFAULT: Self = watchcore_filter {
        size: size_of::<Self>() as u32,
        range: WATCHCORE_RANGE_ALL,
        from: watchcore_bytes::ABSENT,
        to: watchcore_bytes::ABSENT,
        labels: watchcore_bytes::ABSENT,
        fields: watchcore_bytes::ABSENT,
        types: 0,
        nothing: 0,
    };
}

/// Converts the selectors of options to a filter. `what` precedes the members' names in messages.
///
/// # Safety
///
/// The contract.
pub(super) unsafe fn selected(
    labels: watchcore_bytes,
    fields: watchcore_bytes,
    nothing: u32,
    what: &str,
) -> Result<Filter> {
    let mut filter = if nothing == 0 {
        Filter::any()
    } else {
        switch(nothing, format_args!("{what}.nothing"))?;
        Filter::none()
    };
    // SAFETY: the contract: both selectors are readable for their lengths.
    let (labels, fields) =
        unsafe { (labels.get(format_args!("{what}.labels"))?, fields.get(format_args!("{what}.fields"))?) };
    if let Some(labels) = labels {
        filter = filter.labels(labels)?;
    }
    if let Some(fields) = fields {
        filter = filter.fields(fields)?;
    }
    Ok(filter)
}

/// The types of a nonzero mask.
pub(super) fn types_of(mask: u32, what: &str) -> Result<Vec<Kind>> {
    const KINDS: [Kind; 7] =
        [Kind::Added, Kind::Modified, Kind::Deleted, Kind::Bookmark, Kind::Resync, Kind::Put, Kind::Delete];
    let kinds: Vec<Kind> = KINDS.into_iter().filter(|&k| mask & 1 << k as u32 != 0).collect();
    if kinds.len() != mask.count_ones() as usize {
        return Err(invalid(format!(
            "{what}.types is {mask:#x} and has bits of no type. Give a sum of WATCHCORE_MASK(type)."
        )));
    }
    Ok(kinds)
}

/// Converts the caller's filter; NULL lets everything pass.
///
/// # Safety
///
/// The contract.
pub(super) unsafe fn filter_of(filter: *const watchcore_filter) -> Result<Filter> {
    if filter.is_null() {
        return Ok(Filter::any());
    }
    // SAFETY: the contract: `filter` is not NULL, so it is the caller's struct, with readable members.
    let (given, range, selected) = unsafe {
        let given = read_struct(filter)?;
        let range = range_from(given.range, given.from, given.to)?;
        (given, range, selected(given.labels, given.fields, given.nothing, "filter")?)
    };
    let mut made = selected.range(range);
    if given.types != 0 {
        let kinds = types_of(given.types, "filter")?;
        if kinds.iter().any(|kind| matches!(kind, Kind::Bookmark | Kind::Resync)) {
            return Err(invalid("filter.types names a mark. Give types of changes only."));
        }
        made = made.types(&kinds);
    }
    Ok(made)
}
