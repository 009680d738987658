//! Parsing of requests: path, parameters, selectors, accepted form.

mod accept;
mod params;
mod route;
mod selector;

pub(crate) use accept::{accepts_aggregated, accepts_gzip, accepts_json, form};
pub(crate) use params::{GetStart, ListStart, Params, StateWait, WatchFrom, decoded};
pub(crate) use route::{Health, Route, Version, canonical_path};
pub(crate) use selector::{Selection, field_requirements};
