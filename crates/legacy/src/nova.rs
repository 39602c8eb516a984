//! Imports threads from files of the older format, `manifest + events` in JSON lines, and exports them.
//!
//! Everything goes through the ordinary contracts, so any store can be imported into. What an import adds is in the thread's own log, and
//! so is the record of the import, in the thread's state under [`STATE_KEY`]:
//!
//! ```text
//! version 0    thread_created, the record, the session                          imported, not witnessed
//! version 1…   the file's exact bytes as blobs, at most 4 MiB each              record: bytes and SHA-256 stored so far
//! version k…   messages and events, some hundred at a time, read from the blobs record: position in the file
//! version n    the last of them                                                 record: manifest, exact counts, complete
//! ```
//!
//! - Every commit records its progress, so an import that was killed continues from there when it is run again.
//! - The record identifies the file by the hash of the bytes after its manifest, because those are only ever appended to while the manifest
//!   is rewritten after every run: the same file adds nothing, a grown one its end, another one is refused. The same holds under another
//!   name or id, and for two processes that import it at once.
//! - A message is `nova:LINE`, or `nova:LINE.PART` where a line had several; its own time and unknown fields are in a `state_action` of the
//!   same changeset: `{"import":"nova","messages":[{"id","line","part","type","timestamp","extra"}]}`.
//! - Text of the model beside its calls is a message that only the model sees. Tool calls, results of runs and events of unknown types are
//!   `{"import":"nova","line","part","event":{…}}`, and nothing more: a call without a result, imported as one of ours, would be executed
//!   again by the next run.
//! - Memory does not grow with the file.
//!
//! In reading order: [`Source`], `record`, `survey` (reads a whole file), `earlier_imports` (earlier imports), `plan`, `mapping` (between
//! the file's events and ours), `import`, `stored_bytes` (blobs read as one file), `export`, `origin` (whether a thread was imported).

mod earlier_imports;
mod error;
mod export;
mod import;
mod mapping;
mod origin;
mod plan;
mod record;
mod source;
mod stored_bytes;
mod survey;

pub use error::NovaError;
pub use export::{Exported, export};
pub use import::{Importer, Outcome, Report, import, preview};
pub use origin::{Origin, origin, origin_in};
pub use record::STATE_KEY;
pub use source::Source;
pub use survey::Added;
