//! Where things lie in a JSON text, without making anything of it; and a text with line breaks, made on its way.

mod indent;
pub(crate) mod layout;
mod scan;

pub(crate) use indent::Indent;
pub(crate) use scan::Scan;
