//! The calls that the shim recorded, in order.

use std::path::{Path, PathBuf};

use crate::LabResult;

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Creates a file.
    Create,
    /// Writes bytes.
    Write,
    /// Makes a file or the names of a folder durable.
    Sync,
    /// Truncates a file.
    Cut,
    /// Renames a file or folder.
    Rename,
    /// Removes a name.
    Unlink,
    /// Creates a folder.
    MakeFolder,
    /// Removes a folder.
    RemoveFolder,
    /// Creates a second name of a file.
    Link,
    /// Acquires a lock.
    Lock,
    /// Opens an existing file; a reading call.
    Open,
    /// Reads bytes; a reading call.
    Read,
    /// Queries the existence or length of a file; a reading call.
    Stat,
    /// Opens or reads a folder; a reading call.
    List,
    /// Releases a lock; counted as a reading call.
    Unlock,
    /// The process recorded an acknowledged fact; not counted.
    Ack,
}

/// One call.
#[derive(Clone, Debug)]
pub struct Record {
    /// Its kind.
    pub call: Call,
    /// Whether it failed.
    pub failed: bool,
    /// The open file, if there is one.
    pub file: i32,
    /// The number of calls of its sort (changing or reading) so far, including this one.
    pub count: u64,
    /// Its path, relative to the root.
    pub path: PathBuf,
    /// The other path of a rename or link.
    pub second: PathBuf,
    /// The position of a write, or the length after a truncation.
    pub offset: u64,
    /// The written bytes.
    pub data: Vec<u8>,
}

impl Record {
    /// Whether it changes something or acquires a lock: such a call can be interrupted or fail.
    pub fn is_counted(&self) -> bool {
        self.call != Call::Ack && !self.is_look()
    }

    /// Whether it only reads: it can fail, but an interruption there is no different from one before.
    pub fn is_look(&self) -> bool {
        matches!(self.call, Call::Open | Call::Read | Call::Stat | Call::List | Call::Unlock)
    }
}

const HEADER: usize = 40;

/// Reads a trace; its paths are made relative to `root`.
pub fn read(path: &Path, root: &Path) -> LabResult<Vec<Record>> {
    let bytes = std::fs::read(path)?;
    let mut records = Vec::new();
    let mut rest = &bytes[..];
    while rest.len() >= HEADER {
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| rest[at + index]));
        let small = |at: usize| u16::from_le_bytes([rest[at], rest[at + 1]]) as usize;
        let total = number(0) as u32 as usize;
        let low = small(6);
        if total < HEADER || total > rest.len() {
            break;
        }
        let second = small(8);
        let names = HEADER;
        let data = HEADER + low + second;
        let below = |from: usize, length: usize| {
            let text = String::from_utf8_lossy(&rest[from..from + length]).into_owned();
            Path::new(&text).strip_prefix(root).map_or_else(|_| PathBuf::from(&text), Path::to_owned)
        };
        records.push(Record {
            call: call(rest[4])?,
            failed: rest[5] != 0,
            file: number(12) as u32 as i32,
            count: number(16),
            path: below(names, low),
            second: below(names + low, second),
            offset: number(24),
            data: rest[data..total].to_vec(),
        });
        rest = &rest[total..];
    }
    Ok(records)
}

fn call(letter: u8) -> LabResult<Call> {
    Ok(match letter {
        b'c' => Call::Create,
        b'w' => Call::Write,
        b's' => Call::Sync,
        b't' => Call::Cut,
        b'r' => Call::Rename,
        b'u' => Call::Unlink,
        b'm' => Call::MakeFolder,
        b'd' => Call::RemoveFolder,
        b'l' => Call::Link,
        b'k' => Call::Lock,
        b'o' => Call::Open,
        b'R' => Call::Read,
        b'S' => Call::Stat,
        b'L' => Call::List,
        b'U' => Call::Unlock,
        b'a' => Call::Ack,
        other => return Err(format!("the trace has an unknown call `{}`", other as char).into()),
    })
}
