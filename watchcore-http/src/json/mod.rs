//! Where things lie in a JSON text, without making anything of it.

pub(crate) mod layout;
mod scan;

pub(crate) use scan::Scan;
