//! A store in a folder of its own, and its writers.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_log::{Signer, Trust};
use selvedge_model::id::CallId;
use selvedge_model::message::Block;
use selvedge_model::{
    AgentId, Batch, Changeset, Expect, Message, MessageId, NewThread, Part, Reason, Role, RunId, ThreadId,
};
use selvedge_store::{Acquire, Commit, Lease, Leases, Logs};
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::system::{SystemClock, SystemIds};
use selvedge_store_local::{Access, LocalStore, Options};

use crate::Outcome;

/// The number of bytes of text of a message.
pub(crate) const TEXT_BYTES: usize = 1_024;

/// A folder with a store and the key that signs for it, so that other processes can open it too.
pub(crate) struct Home {
    folder: PathBuf,
    pem: String,
}

impl Home {
    /// Creates a store.
    pub(crate) fn make(folder: &Path) -> Outcome<Self> {
        fs::create_dir_all(folder)?;
        LocalStore::init(folder, Arc::new(RealDisk))?;
        let pem = Signer::generate(&SystemIds).to_pem().to_string();
        fs::write(folder.join("key.pem"), &pem)?;
        Ok(Self { folder: folder.to_owned(), pem })
    }

    /// An existing store.
    pub(crate) fn at(folder: &Path) -> Outcome<Self> {
        Ok(Self { folder: folder.to_owned(), pem: fs::read_to_string(folder.join("key.pem"))? })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn open(&self, access: Access) -> Outcome<LocalStore> {
        Ok(LocalStore::open(self.options(access)?)?)
    }

    /// The options for opening the store.
    pub(crate) fn options(&self, access: Access) -> Outcome<Options> {
        let signer = Signer::from_pem(&self.pem)?;
        let trust = Trust::of(&[signer.public()]);
        Ok(Options {
            project: self.folder.clone(),
            access,
            signer: Some(signer),
            trust,
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            disk: Arc::new(RealDisk),
        })
    }
}

/// A writer of one thread, under a lease.
pub(crate) struct Writer<'a> {
    store: &'a LocalStore,
    thread: ThreadId,
    lease: Lease,
    version: u64,
    ids: bool,
    text: Text,
    /// Up to where the transcript was passed to a bare loop.
    seen: u64,
}

impl<'a> Writer<'a> {
    /// Creates a thread and acquires its lease.
    pub(crate) fn create(store: &'a LocalStore, name: &str, ids: bool) -> Outcome<Self> {
        let thread = ThreadId::new(name)?;
        let new = NewThread::of(AgentId::new("scribe")?);
        store.commit(Batch::of(Part::new(thread.clone(), Expect::Absent, Changeset::creating(new))))?;
        let lease = store.acquire(&thread, Acquire::default())?;
        let text = Text(name.bytes().fold(1_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into())));
        Ok(Self { store, thread, lease, version: 0, ids, text, seen: 0 })
    }

    pub(crate) fn thread(&self) -> &ThreadId {
        &self.thread
    }

    /// A commit of one message, ready to be submitted.
    pub(crate) fn message(&mut self) -> Outcome<Batch> {
        self.message_of(TEXT_BYTES)
    }

    /// A commit of one message with this much text.
    pub(crate) fn message_of(&mut self, bytes: usize) -> Outcome<Batch> {
        let message = Message::text(Role::User, self.text.next(bytes));
        self.batch(Reason::UserMessage, message, None)
    }

    /// A commit of several messages.
    pub(crate) fn messages(&mut self, count: usize) -> Outcome<Batch> {
        let mut batch = self.message()?;
        let more = (1..count).map(|_| Message::text(Role::Assistant, self.text.next(TEXT_BYTES)));
        batch.parts[0].changeset.messages.extend(more.collect::<Vec<_>>());
        Ok(batch)
    }

    /// Releases the lease; nothing can be committed any more.
    pub(crate) fn release(&mut self) -> Outcome<()> {
        Ok(self.store.release(&self.lease)?)
    }

    /// Acquires the lease again.
    pub(crate) fn acquire(&mut self) -> Outcome<()> {
        self.lease = self.store.acquire(&self.thread, Acquire::default())?;
        Ok(())
    }

    /// The next commit of a thread that is all turns: input, answer, results, and so on.
    pub(crate) fn of_turn(&mut self) -> Outcome<Batch> {
        let turn = self.version / 3;
        let text = self.text.next(TEXT_BYTES);
        let (reason, message) = match self.version % 3 {
            0 => (Reason::UserMessage, Message::text(Role::User, text)),
            1 => (Reason::AssistantTurnCommitted, Message::text(Role::Assistant, text)),
            _ => {
                let result = Block::tool_result(CallId::new(format!("call-{turn}"))?, text.into());
                (Reason::ToolResultsCommitted, Message { content: vec![result], ..Message::text(Role::Tool, "") })
            }
        };
        self.batch(reason, message, Some(turn))
    }

    fn batch(&mut self, reason: Reason, mut message: Message, turn: Option<u64>) -> Outcome<Batch> {
        if self.ids {
            message = message.with_id(MessageId::new(format!("msg-{:08}", self.version))?);
        }
        let run_id = turn.map(|_| RunId::new("run-0001")).transpose()?;
        let changeset = Changeset { messages: vec![message], run_id, turn, ..Changeset::empty(reason) };
        let part = Part::new(self.thread.clone(), Expect::Exact(self.version), changeset).under(self.lease.epoch);
        Ok(Batch::of(part))
    }

    /// Submits a commit; durable on return.
    pub(crate) fn commit(&mut self, batch: Batch) -> Outcome<()> {
        self.store.commit(batch)?;
        self.version += 1;
        Ok(())
    }

    /// Writes whole turns until there are this many.
    pub(crate) fn write_turns(&mut self, until: u64) -> Outcome<()> {
        while self.version < until * 3 {
            let batch = self.of_turn()?;
            self.commit(batch)?;
        }
        Ok(())
    }

    /// The bytes of every commit since the last call: what a bare loop has to write for the same work.
    pub(crate) fn written(&mut self) -> Outcome<Vec<Vec<u8>>> {
        let end = self.store.head(&self.thread)?.bytes;
        let mut file = File::open(self.store.thread_folder(&self.thread).join("transcript.jsonl"))?;
        file.seek(SeekFrom::Start(self.seen))?;
        let mut bytes = vec![0; usize::try_from(end - self.seen)?];
        file.read_exact(&mut bytes)?;
        self.seen = end;
        Ok(changesets(&bytes))
    }
}

/// Splits after each checkpoint.
pub(crate) fn changesets(bytes: &[u8]) -> Vec<Vec<u8>> {
    const CHECKPOINT: &[u8] = br#""event_type":"checkpoint""#;
    let mut found = vec![Vec::new()];
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if let Some(last) = found.last_mut() {
            last.extend_from_slice(line);
        }
        // The type is in the first bytes of a line, before anything that a caller can write.
        if line.iter().take(200).copied().collect::<Vec<_>>().windows(CHECKPOINT.len()).any(|part| part == CHECKPOINT) {
            found.push(Vec::new());
        }
    }
    found.retain(|changeset| !changeset.is_empty());
    found
}

/// Creates a store with one thread of whole turns, and closes it.
pub(crate) fn with_turns(folder: &Path, turns: u64, ids: bool) -> Outcome<(Home, ThreadId)> {
    let home = Home::make(folder)?;
    let store = home.open(Access::ReadWrite)?;
    let mut writer = Writer::create(&store, "scribe-0123456789ab", ids)?;
    writer.write_turns(turns)?;
    let thread = writer.thread().clone();
    store.close()?;
    Ok((home, thread))
}

/// Text as people and models write it: words, lines, now and then a quotation mark. The same for the same seed.
struct Text(u64);

impl Text {
    fn next(&mut self, bytes: usize) -> String {
        const WORDS: [&str; 16] = [
            "thread",
            "the",
            "edge",
            "keeps",
            "what",
            "was",
            "said",
            "and",
            "then",
            "loom",
            "a",
            "weaver",
            "of",
            "committed",
            "\"quoted\"",
            "lines",
        ];
        let mut text = String::with_capacity(bytes + 16);
        let mut column = 0;
        while text.len() < bytes {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let word = WORDS[(self.0 >> 60) as usize];
            text.push_str(word);
            column += word.len() + 1;
            text.push(if column > 90 { '\n' } else { ' ' });
            column = if column > 90 { 0 } else { column };
        }
        text.truncate(bytes);
        text
    }
}
