//! What a request asks for: its path, its parameters, the objects it selects, the form it accepts.

mod accept;
mod params;
mod route;
mod selector;

pub(crate) use accept::{accepts_aggregated, accepts_gzip, accepts_json, form};
pub(crate) use params::{GetStart, ListStart, Params, StateWait, WatchFrom, decoded};
pub(crate) use route::{Health, Route, Version, one_spelling};
pub(crate) use selector::{Selection, field_requirements};
