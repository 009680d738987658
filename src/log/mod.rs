//! The log: a ring of segments that one writer fills and all readers read in place.
//!
//! The life of an event: the writer decides where it goes and what leaves for it (`writer::plan`), appends it to the
//! newest segment, links it into its buckets, and publishes it with the head of its revision. Readers find its
//! segment by its sequence number. When the window moves on, the segment leaves the directory; a batch that has a
//! count on it, or a snapshot that has its retention token, keeps it until they are dropped.
//!
//! | file | what |
//! | --- | --- |
//! | `segment` | N slots, written once; its writer, its links |
//! | `ring` | the directory, the words that readers load, finding a segment |
//! | `writer` | the plan of a revision, appending, publishing, eviction |
//! | `retention` | tokens that keep segments for snapshots |
//! | `epochs` | which history an event belongs to |
//! | `buckets` | chains of one index value, and requests for them |
//! | `summaries` | what a scan may skip |

pub(crate) mod buckets;
pub(crate) mod epochs;
pub(crate) mod found;
pub(crate) mod retention;
pub(crate) mod ring;
pub(crate) mod segment;
pub(crate) mod summaries;
pub(crate) mod writer;
