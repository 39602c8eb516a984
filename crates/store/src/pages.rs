//! Pages: what people read of a thread, as signed entries of knowledge.
//!
//! ```text
//! .ai/knowledge/agent/threads/<directive>/<thread id>.md             the page: the newest part of the thread, and its current facts
//! .ai/knowledge/agent/threads/<directive>/<thread id>-part-0001.md   earlier parts, of a long thread
//! ```
//!
//! - A page is derived from the log: it may be lost, and is written again with the same bytes. Nothing reads it to decide.
//! - A part has a bounded size, so the cost of an update does not depend on how long the thread is. Where the last part begins is kept
//!   sealed ([`PageStart`]): the log before that is not read again.
//! - Each part names the hash of the one before it: the signature of the page covers all of them.
//!
//! What a page contains is decided by the façade; this module has the contract and what every backend shares.

use selvedge_log::document::{Comment, DocumentError, DocumentKind, Verified, sign_text, verify_text};
use selvedge_log::hash::{Binding, RunningHash, SealKey, sha256};
use selvedge_log::{Head, Signer, Trust};
use selvedge_model::{Digest, DirectiveId, Manifest, ThreadId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::effects::EffectLock;
use crate::error::{Error, Result};
use crate::snapshot;

/// The kind of a page: it is an entry of knowledge.
pub const KIND: DocumentKind = DocumentKind::new("knowledge");
/// What its metadata say that it is.
pub const ENTRY_TYPE: &str = "thread_transcript";
/// The most bytes of one part.
pub const BYTES_MAX: u64 = 1 << 20;
/// The folder of all pages, below that of knowledge.
pub const FOLDER: &str = "agent/threads";
/// What precedes the number of an earlier part in its name.
const PART: &str = "-part-";

/// The id of a part of a page, below the folder of knowledge.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(String);

impl PageId {
    /// The page of a thread: its newest part.
    pub fn of(thread: &Manifest) -> Self {
        let owner = thread.directive.as_ref().map_or(thread.agent_id.as_str(), DirectiveId::as_str);
        Self(format!("{FOLDER}/{owner}/{}", thread.thread_id))
    }

    /// An earlier part of the same page, by its number from 1 on.
    #[must_use]
    pub fn part(&self, number: u64) -> Self {
        Self(format!("{}{PART}{number:04}", self.0))
    }

    /// Whether a file of this name, in the folder of the page, is one of its parts.
    pub fn is_part(&self, name: &str) -> bool {
        let stem = self.0.rsplit('/').next().unwrap_or_default();
        let number = name.strip_prefix(stem).and_then(|rest| rest.strip_prefix(PART)?.strip_suffix(".md"));
        number.is_some_and(|number| number.len() >= 4 && number.bytes().all(|digit| digit.is_ascii_digit()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path of its file in the project, which is what its signature names.
    pub fn place(&self) -> String {
        format!(".ai/knowledge/{}.md", self.0)
    }
}

/// Where the last part of a page begins, and what is known of the thread up to there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PageStart {
    /// The end of the log that the earlier parts show.
    pub head: Head,
    /// The running hash up to there, sealed, as [`crate::Snapshots::log_after`] takes it.
    pub seal: String,
    /// The number of the part that begins there.
    pub part: u64,
    /// The hash of the signed text of the part before it.
    pub before: Digest,
    /// How many answers the earlier parts have.
    pub turns: u64,
    /// Whether an engine ran the thread.
    pub is_run: bool,
    /// The manifest up to there.
    pub manifest: Manifest,
}

/// Storing pages.
pub trait Pages: Send + Sync {
    /// Waits until no other process writes pages, and keeps others from it until the guard is dropped.
    fn lock_pages(&self) -> Result<EffectLock>;

    /// A part of a page as it is stored, unverified; none if there is none.
    fn page(&self, id: &PageId) -> Result<Option<Vec<u8>>>;

    /// Signs a part of a thread's page and puts it in place: a reader finds the one before or this one, never a mixture. Refused for a
    /// deleted thread, and if something else than a page of this thread is there. The caller has the lock.
    fn put_page(&self, thread: &ThreadId, id: &PageId, body: &str, at: Timestamp) -> Result<()>;

    /// Where the last part of a thread's page begins; none if that is not known, or was not sealed by this store.
    fn page_start(&self, thread: &ThreadId) -> Result<Option<PageStart>>;

    /// Keeps where the last part of a thread's page begins; `hash` is that of its log up to there, which the caller verified. With none,
    /// nothing is known any more.
    fn set_page_start(&self, thread: &ThreadId, start: Option<(&PageStart, &RunningHash)>) -> Result<()>;
}

/// Signs a part.
pub fn sign(id: &PageId, body: &str, signer: &Signer, at: Timestamp) -> String {
    sign_text(KIND, &id.place(), Comment::Html, body, signer, at)
}

/// Verifies a part, and returns its text.
pub fn verify(id: &PageId, bytes: &[u8], trust: &Trust) -> Result<Verified<String>, DocumentError> {
    let Verified { value, signer, at } = verify_text(KIND, &id.place(), Comment::Html, bytes, trust)?;
    Ok(Verified { value: value.into_owned(), signer, at })
}

/// The hash of a part's text, which the next part names.
pub fn hash(body: &str) -> Digest {
    sha256(body.as_bytes())
}

/// Refuses to replace what is no page of this thread, such as an entry that a person wrote. A damaged page is replaced.
pub fn check_replaceable(thread: &ThreadId, id: &PageId, stored: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(stored);
    let body = Comment::Html.unsigned(&text);
    let fields: Vec<&str> = body.lines().skip(1).take_while(|line| !line.starts_with("```")).collect();
    let is_page = body.starts_with("```yaml\n")
        && fields.contains(&format!("entry_type: {ENTRY_TYPE}").as_str())
        && fields.contains(&format!("thread_id: \"{thread}\"").as_str());
    if is_page {
        return Ok(());
    }
    let why = "it is not the page of this thread, and is not replaced".to_owned();
    let hint = Some("move it away; the page is written after the next run".to_owned());
    Err(Error::Unusable { what: format!("`{}`", id.place()), why, hint })
}

/// The stored form of where a part begins: a mark that only this key can make, and the text that it covers.
pub fn encode_start(key: &SealKey, start: &PageStart, hash: &RunningHash) -> Vec<u8> {
    let sealed = PageStart { seal: snapshot::seal(key, &start.head, hash), ..start.clone() };
    let text = serde_json::to_string(&sealed).unwrap_or_default();
    let mark = key.mark(&binding(&start.head), &content(&text));
    format!("{mark}\n{text}\n").into_bytes()
}

/// The start in such a form; none if its mark is not valid.
pub fn decode_start(key: &SealKey, thread: &ThreadId, stored: &[u8]) -> Option<PageStart> {
    let (mark, text) = std::str::from_utf8(stored).ok()?.split_once('\n')?;
    let text = text.strip_suffix('\n')?;
    let start: PageStart = serde_json::from_str(text).ok()?;
    let is_own = start.manifest.thread_id == *thread;
    (is_own && key.is_marked(&binding(&start.head), &content(text), &mark.parse().ok()?)).then_some(start)
}

fn binding(head: &Head) -> Binding<'_> {
    Binding { log_id: head.log_id.as_str(), segment: head.segment, version: head.version, offset: head.bytes }
}

/// No other mark covers content that begins like this.
fn content(text: &str) -> Vec<u8> {
    [b"page\0", text.as_bytes()].concat()
}
