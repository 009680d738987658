//! The endpoints for operators: health, metrics, and the access log.

mod health;
mod log;
mod metrics;

pub(crate) use health::health;
pub(crate) use log::{finish, subject};
pub(crate) use metrics::metrics;
