//! Where things lie in an object's text, by the core's walk over it; and a text with line breaks, made on its way.

mod indent;
pub(crate) mod layout;

pub(crate) use indent::Indent;
