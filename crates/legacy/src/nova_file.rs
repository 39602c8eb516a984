//! The older form of a thread: one file of JSON lines, a manifest followed by events.
//!
//! ```text
//! {"agentId":"scribe","title":"Tea","createdAt":"…Z","updatedAt":"…Z"}     the manifest, rewritten in place by its program
//! {"type":"message","role":"user","text":"hello","timestamp":"…Z"}         events, only ever appended
//! {"role":"assistant","text":"hi","timestamp":"…Z"}                        without `type`: a message of an older program
//! ```
//!
//! Those files were written without a sync, a checksum or a lock, so a crash leaves torn lines, lines that were appended to
//! a torn one, and runs of zero bytes. The reader here repairs what can be separated, skips the rest, and counts both
//! exactly; it never guesses. Nothing here touches a disk, and this module is the only one with names in camelCase.
//!
//! In reading order:
//!
//! - [`Event`], [`Manifest`]: the content of such a file.
//! - `pieces`: splits one line into objects. `replacements`: values that can't be kept as written. `lines`: one line within bounded memory.
//!   [`Counts`]: what was found.
//! - [`Reader`]: the file, line by line. [`write_manifest`], [`write_event`]: write the same form.

mod counts;
mod event;
mod lines;
mod manifest;
mod pieces;
mod reader;
mod replacements;
mod trace;
mod writer;

pub use counts::{Counts, Remark, RemarkKind};
pub use event::{Event, EventKind, Metrics};
pub use manifest::Manifest;
pub use reader::{FileLine, LocatedEvent, Reader, Start};
pub use writer::{write_event, write_manifest};

/// The maximum nesting of an event or a manifest; deeper ones are skipped as invalid. It leaves room for the levels that a line of a
/// log adds.
pub const DEPTH_MAX: usize = 48;
