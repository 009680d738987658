//! What a request asks for.

mod route;

pub(crate) use route::{Health, Route, Version};
