//! Threads from files of the older form, `manifest + events` in JSON lines, and back.
//!
//! Everything goes through the ordinary contracts, so any store can be imported into. What an import adds stands in the
//! thread's own log, and so does the record of it, in the thread's state under [`STATE_KEY`]:
//!
//! ```text
//! version 0    thread_created, the record, the session                          imported, not witnessed
//! version 1…   the file's exact bytes as blobs, at most 4 MiB each              record: bytes and SHA-256 kept so far
//! version k…   messages and events, some hundred at a time, read from the blobs record: place in the file
//! version n    the last of them                                                 record: manifest, exact counts, complete
//! ```
//!
//! - A commit says how far it came, so whoever is killed goes on from there when the same import is run again.
//! - The record knows the file by the hash of what is behind its manifest, because that is only ever appended to while the
//!   manifest is rewritten after every run: the same file adds nothing, a grown one its end, another one is refused. The same
//!   holds under another name or id, and for two that import it at once.
//! - A message is `nova:LINE`, or `nova:LINE.PART` where a line held several; its own time, and fields nobody knows, stand in
//!   a `state_action` of the same changeset: `{"import":"nova","messages":[{"id","line","part","type","timestamp","extra"}]}`.
//! - What the model said beside its calls is a message only the model sees. Calls of tools, results of runs and events of
//!   unknown types are `{"import":"nova","line","part","event":{…}}`, and nothing more: a call without its answer, taken for one
//!   of ours, would be made again by the next run.
//! - Memory does not grow with the file.
//!
//! In reading order: [`Source`], `record`, `survey` (a file looked at), `ledger` (what was imported before), `plan`, `mapping` (its
//! events as ours), `import`, `kept` (blobs
//! as one file), `export`, `origin` (whether a thread was imported).

mod error;
mod export;
mod import;
mod kept;
mod ledger;
mod mapping;
mod origin;
mod plan;
mod record;
mod source;
mod survey;

pub use error::NovaError;
pub use export::{Exported, export};
pub use import::{Importer, Outcome, Report, import, preview};
pub use origin::{Origin, origin, origin_in};
pub use record::STATE_KEY;
pub use source::Source;
pub use survey::Added;
