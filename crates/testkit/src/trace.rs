//! What the shim saw, call by call, in the order in which things happened.

use std::path::{Path, PathBuf};

use crate::Tried;

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Makes a file.
    Create,
    /// Writes bytes.
    Write,
    /// Makes a file or the names of a folder durable.
    Sync,
    /// Cuts a file off.
    Cut,
    /// Gives a file or folder another name.
    Rename,
    /// Removes a name.
    Unlink,
    /// Makes a folder.
    MakeFolder,
    /// Removes a folder.
    RemoveFolder,
    /// Gives a file a second name.
    Link,
    /// Asks for a lock.
    Lock,
    /// Opens a file that is there; not counted.
    Open,
    /// The process told somebody something; not counted.
    Ack,
}

/// One call.
#[derive(Clone, Debug)]
pub struct Record {
    /// What it does.
    pub call: Call,
    /// Whether it failed.
    pub failed: bool,
    /// The open file, if there is one.
    pub file: i32,
    /// How many calls had been counted, this one included.
    pub count: u64,
    /// What it is about, below the root.
    pub path: PathBuf,
    /// The other name.
    pub second: PathBuf,
    /// Where bytes were written, or where the file was cut.
    pub offset: u64,
    /// The bytes.
    pub data: Vec<u8>,
}

impl Record {
    /// Whether it is one of those that can be cut or let fail.
    pub fn is_counted(&self) -> bool {
        !matches!(self.call, Call::Open | Call::Ack)
    }
}

const HEADER: usize = 40;

/// Reads a trace; paths come out relative to `root`.
pub fn read(path: &Path, root: &Path) -> Tried<Vec<Record>> {
    let bytes = std::fs::read(path)?;
    let mut records = Vec::new();
    let mut rest = &bytes[..];
    while rest.len() >= HEADER {
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| rest[at + index]));
        let small = |at: usize| u16::from_le_bytes([rest[at], rest[at + 1]]) as usize;
        let (total, low) = (number(0) as u32 as usize, small(6));
        if total < HEADER || total > rest.len() {
            break;
        }
        let second = small(8);
        let (names, data) = (HEADER, HEADER + low + second);
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

fn call(letter: u8) -> Tried<Call> {
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
        b'a' => Call::Ack,
        other => return Err(format!("the trace has a call `{}` that nobody knows", other as char).into()),
    })
}
