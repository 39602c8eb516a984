//! Pages: what people read of a thread, as signed entries of knowledge.
//!
//! ```text
//! log        |---- part 1 ----|---- part 2 ----|-- part 3 --|
//!            0                                 start        head
//! files      <thread>-part-0001.md ◀─hash── <thread>-part-0002.md ◀─hash── <thread>.md
//! ```
//!
//! - A part has a bounded size. An update reads the log from where its last part begins, and writes that part again: its cost does not
//!   depend on how long the thread is. Earlier parts are never written again.
//! - Where a part begins follows from the log alone. So does every byte of it, its time and its signature: a page that is lost is written
//!   again as it was, with the same key.
//! - What is signed was verified before: every hash and the last signature of what was read; what comes before the last part, by the sealed
//!   hash of the log up to there.
//! - A page is put in place as a whole: a reader finds a valid one at any moment, also while a run streams.
//!
//! `part` is what one shows, `text` its whole text, `follow` keeps pages current while threads run.

mod follow;
mod part;
mod text;

use selvedge_log::hash::RunningHash;
use selvedge_log::keys::Fingerprint;
use selvedge_log::scan::{Scanner, examine};
use selvedge_log::{Head, Trust};
use selvedge_model::manifest::Contradiction;
use selvedge_model::{Classify, Digest, Event, ThreadId, Timestamp};
use selvedge_store::load::each_changeset;
use selvedge_store::pages::{PageId, PageStart, hash, verify};
use selvedge_store::{Backend, Error, Result};
use serde::Serialize;

pub use follow::PageFollower;
use part::Part;

/// How an update went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Updated {
    /// The page shows the newest version already.
    Current,
    /// Its last part was written.
    Continued,
    /// All of it was written.
    Anew,
}

/// Brings the page of a thread up to its log.
pub fn update(store: &dyn Backend, trust: &Trust, thread: &ThreadId) -> Result<Updated> {
    let _lock = store.lock_pages()?;
    let manifest = store.get(thread)?.manifest;
    let id = PageId::of(&manifest);
    if is_current(store, trust, &id, &store.head(thread)?)? {
        return Ok(Updated::Current);
    }
    if let Some(start) = store.page_start(thread)?
        && let Some(read) = Read::after(store, trust, thread, start)?
    {
        read.write(store, &id, thread)?;
        return Ok(Updated::Continued);
    }
    Read::all(store, trust, thread)?.write(store, &id, thread)?;
    Ok(Updated::Anew)
}

/// Writes all of the page of a thread again, from its log.
pub fn rebuild(store: &dyn Backend, trust: &Trust, thread: &ThreadId) -> Result<()> {
    let _lock = store.lock_pages()?;
    let id = PageId::of(&store.get(thread)?.manifest);
    Read::all(store, trust, thread)?.write(store, &id, thread)
}

/// The parts that a piece of a log was read into.
struct Read {
    /// The parts that are full, in order, and their texts.
    closed: Vec<(Part, String)>,
    /// The last one.
    last: Part,
    /// The end of the log before it was read, its hash up to there, and the seal; none if it was read from the beginning.
    from: Option<(Head, String)>,
    /// What does not fold.
    failed: Option<Contradiction>,
    is_rotated: bool,
}

impl Read {
    fn new(first: Part, from: Option<(Head, String)>) -> Self {
        Self { closed: Vec::new(), last: first, from, failed: None, is_rotated: false }
    }

    /// Reads all of a log.
    fn all(store: &dyn Backend, trust: &Trust, thread: &ThreadId) -> Result<Self> {
        let mut read = Self::new(Part::first(), None);
        each_changeset(store, thread, trust, |entry| read.take(thread, &entry))?;
        match read.failed.take() {
            None => Ok(read),
            Some(error) => Err(broken(thread, &error.to_string())),
        }
    }

    /// Reads a log from where the last part begins; none if it has to be read from the beginning.
    fn after(store: &dyn Backend, trust: &Trust, thread: &ThreadId, start: PageStart) -> Result<Option<Self>> {
        let (head, seal) = (start.head.clone(), start.seal.clone());
        let Some(rest) = store.log_after(thread, &head, &seal)? else { return Ok(None) };
        let scanner = Scanner::resuming(thread, trust, head.clone(), rest.hash);
        let mut read = Self::new(Part::beginning(start), Some((head, seal)));
        let examined = examine(rest.bytes, scanner, |entry| read.take(thread, &entry));
        let is_whole = examined.is_ok_and(|examined| examined.damage.is_none() && examined.unread.is_none());
        let is_all = read.last.head.as_ref() == Some(&rest.head);
        Ok((is_whole && is_all && !read.is_rotated && read.failed.is_none()).then_some(read))
    }

    fn take(&mut self, thread: &ThreadId, entry: &selvedge_log::scan::ScannedChangeset) {
        if self.failed.is_some() {
            return;
        }
        self.is_rotated |= entry.lines.iter().any(|line| matches!(line.event, Event::KeyRotated(_)));
        if self.last.is_full() {
            self.close();
        }
        self.failed = self.last.take(thread, entry).err();
    }

    /// Ends the last part, and begins the next.
    fn close(&mut self) {
        let Some(manifest) = &self.last.manifest else { return };
        let Some(text) = text::text(&PageId::of(manifest), &self.last, true) else { return };
        let Some(start) = self.last.next_start(hash(&text)) else { return };
        let closed = std::mem::replace(&mut self.last, Part::beginning(start));
        self.closed.push((closed, text));
    }

    /// Writes the parts; the page last, so that it never names one that is not there.
    fn write(&self, store: &dyn Backend, id: &PageId, thread: &ThreadId) -> Result<()> {
        for (part, text) in &self.closed {
            store.put_page(thread, &id.part(part.number), text, part.at)?;
        }
        match self.closed.last() {
            Some((closed, text)) => {
                let start = closed.next_start(hash(text));
                let hash = closed.head.as_ref().map(|head| self.hash_up_to(store, thread, head)).transpose()?.flatten();
                store.set_page_start(thread, start.as_ref().zip(hash.as_ref()))?;
            }
            None if self.from.is_none() => store.set_page_start(thread, None)?,
            None => {}
        }
        match text::text(id, &self.last, false) {
            Some(text) => store.put_page(thread, id, &text, self.last.at),
            None => Ok(()),
        }
    }

    /// The hash of the log up to there; none if the log is not the one that was read.
    fn hash_up_to(&self, store: &dyn Backend, thread: &ThreadId, end: &Head) -> Result<Option<RunningHash>> {
        let (mut hash, begins, mut bytes) = match &self.from {
            Some((head, seal)) => match store.log_after(thread, head, seal)? {
                Some(rest) => (rest.hash, head.bytes, rest.bytes),
                None => return Ok(None),
            },
            None => (RunningHash::new(), 0, store.transcript(thread)?.1),
        };
        let failed = |source| Error::Io { what: "read the log of", path: thread.as_str().into(), source };
        let mut left = end.bytes.saturating_sub(begins);
        while left > 0 {
            let chunk = bytes.fill_buf().map_err(failed)?;
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
            if count == 0 {
                return Ok(None);
            }
            hash.update(&chunk[..count]);
            bytes.consume(count);
            left -= count as u64;
        }
        Ok((hash.digest() == end.hash).then_some(hash))
    }
}

fn broken(thread: &ThreadId, why: &str) -> Error {
    Error::Integrity {
        what: format!("the log of `{thread}` is signed, but does not fold"),
        why: why.to_owned(),
        hint: Some(format!("`selvedge verify {thread}` shows which versions are valid")),
    }
}

/// A part of a page that was verified.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShownPart {
    /// Its file in the project.
    pub file: String,
    /// The key that signed it.
    pub signed_by: Fingerprint,
    /// When, as it says.
    pub signed_at: Timestamp,
    /// The file, with its signature.
    pub text: String,
}

/// The page of a thread, verified.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShownPage {
    /// The thread.
    pub thread_id: ThreadId,
    /// Whether it shows the newest version of the log.
    pub current: bool,
    /// The version that it shows.
    pub version: u64,
    /// The newest version.
    pub log_version: u64,
    /// Its parts, the page itself last.
    pub parts: Vec<ShownPart>,
}

/// The page of a thread with all its parts; none if there is none. Writes nothing.
pub fn shown(store: &dyn Backend, trust: &Trust, thread: &ThreadId) -> Result<Option<ShownPage>> {
    let id = PageId::of(&store.get(thread)?.manifest);
    let Some((part, fields)) = read_part(store, trust, &id)? else { return Ok(None) };
    let mut parts = vec![part];
    let (mut number, mut before) = (fields.part, fields.previous_hash);
    while number > 1 {
        number -= 1;
        let earlier = id.part(number);
        let damaged = |why: &str| Error::Integrity {
            what: format!("`{}`", earlier.place()),
            why: why.to_owned(),
            hint: Some("`selvedge reindex` writes all pages again".to_owned()),
        };
        let (part, fields) = read_part(store, trust, &earlier)?.ok_or_else(|| damaged("it is missing"))?;
        if before != Some(fields.hash) {
            return Err(damaged("it is not the part that the next one names"));
        }
        before = fields.previous_hash;
        parts.push(part);
    }
    parts.reverse();
    let head = store.head(thread)?;
    let current = (fields.log_version, fields.log_hash) == (head.version, Some(head.hash));
    let (version, log_version) = (fields.log_version, head.version);
    Ok(Some(ShownPage { thread_id: thread.clone(), current, version, log_version, parts }))
}

/// What the metadata of a part say about its place.
struct PartFields {
    part: u64,
    log_version: u64,
    log_hash: Option<Digest>,
    previous_hash: Option<Digest>,
    /// The hash of its own text.
    hash: Digest,
}

impl PartFields {
    fn of(text: &str) -> Self {
        let mut fields = Self { part: 0, log_version: 0, log_hash: None, previous_hash: None, hash: hash(text) };
        for line in text.lines().skip(1).take_while(|line| !line.starts_with("```")) {
            let Some((name, value)) = line.split_once(": ") else { continue };
            let digest = || value.trim_matches('"').parse().ok();
            match name {
                "part" => fields.part = value.parse().unwrap_or(0),
                "log_version" => fields.log_version = value.parse().unwrap_or(0),
                "log_hash" => fields.log_hash = digest(),
                "previous_hash" => fields.previous_hash = digest(),
                _ => {}
            }
        }
        fields
    }
}

/// A part that is rightly signed; another one is an error, and a missing one none.
fn read_part(store: &dyn Backend, trust: &Trust, id: &PageId) -> Result<Option<(ShownPart, PartFields)>> {
    let Some(bytes) = store.page(id)? else { return Ok(None) };
    let help = || "`selvedge reindex` writes all pages again".to_owned();
    let verified =
        verify(id, &bytes, trust).map_err(|error| Error::of_document(format!("`{}`", id.place()), &error, help))?;
    let fields = PartFields::of(&verified.value);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(Some((ShownPart { file: id.place(), signed_by: verified.signer, signed_at: verified.at, text }, fields)))
}

/// Whether a page is rightly signed and shows the log up to this head. One that is damaged is written again.
fn is_current(store: &dyn Backend, trust: &Trust, id: &PageId, head: &Head) -> Result<bool> {
    match read_part(store, trust, id) {
        Ok(Some((_, fields))) => Ok((fields.log_version, fields.log_hash) == (head.version, Some(head.hash))),
        Ok(None) => Ok(false),
        Err(error) if error.kind() == selvedge_model::Kind::Integrity => Ok(false),
        Err(error) => Err(error),
    }
}
