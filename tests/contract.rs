//! The contract, row by row. A test is named after its row.
#![allow(missing_docs, unreachable_pub)]

#[path = "contract/decode.rs"]
mod decode;
#[path = "contract/errors.rs"]
mod errors;
#[path = "contract/events.rs"]
mod events;
#[path = "contract/filters.rs"]
mod filters;
#[path = "contract/guarantees.rs"]
mod guarantees;
#[path = "contract/loss.rs"]
mod loss;
#[path = "contract/others.rs"]
mod others;
#[path = "contract/pages.rs"]
mod pages;
#[path = "contract/policies.rs"]
mod policies;
#[path = "contract/reads.rs"]
mod reads;
#[path = "contract/resync.rs"]
mod resync;
#[path = "contract/starts.rs"]
mod starts;
#[path = "contract/tools.rs"]
mod tools;
#[path = "contract/waits.rs"]
mod waits;
#[path = "contract/writer.rs"]
mod writer;
