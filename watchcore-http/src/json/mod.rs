//! Byte positions in an object's text, found by the core's JSON scanner; and the indenter for `pretty`.

mod indent;
pub(crate) mod layout;

pub(crate) use indent::Indent;
