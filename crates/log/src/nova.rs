//! The older form of a thread: one file of JSON lines, a manifest and behind it events.
//!
//! ```text
//! {"agentId":"scribe","title":"Tea","createdAt":"…Z","updatedAt":"…Z"}     the manifest, rewritten in place by its program
//! {"type":"message","role":"user","text":"hello","timestamp":"…Z"}         events, only ever appended
//! {"role":"assistant","text":"hi","timestamp":"…Z"}                        without `type`: a message of an older program
//! ```
//!
//! Those files were written without a sync, a checksum or a lock, so a crash leaves torn lines, lines that were appended to
//! a torn one, and stretches of zero bytes. The reader here repairs what can be told apart, skips the rest, and counts both
//! exactly; it never guesses. Nothing here touches a disk, and this module is the only place where names are in camelCase.
//!
//! In reading order:
//!
//! - [`Event`], [`Manifest`]: what stands in such a file.
//! - `pieces`: one line taken apart, `mend`: what can't be kept as it is written. `lines`: one line within bounded memory. [`Counts`]: what was found.
//! - [`Reader`]: the file, line by line. [`write_manifest`], [`write_event`]: the same form written again.

mod counts;
mod event;
mod lines;
mod manifest;
mod mend;
mod pieces;
mod reader;
mod trace;
mod writer;

pub use counts::{Counts, Remark, What};
pub use event::{Event, EventKind, Metrics};
pub use manifest::Manifest;
pub use reader::{Found, Line, Reader, Start};
pub use writer::{write_event, write_manifest};

/// How deep an event or a manifest may be nested; what is deeper is skipped as invalid. It leaves room for what a line of a
/// log puts around it.
pub const DEPTH_MAX: usize = 48;
