//! What people and machines that run the server ask it: is it alive and ready, what does it count, who asked what.

mod health;
mod log;
mod metrics;

pub(crate) use health::health;
pub(crate) use log::{finish, subject};
pub(crate) use metrics::metrics;
