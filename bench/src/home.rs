//! A store in a folder of its own, and those who write to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_log::{Signer, Trust};
use selvedge_model::id::CallId;
use selvedge_model::message::Block;
use selvedge_model::{
    AgentId, Batch, Changeset, Expect, Message, MessageId, NewThread, Part, Reason, Role, RunId, ThreadId,
};
use selvedge_store::{Acquire, Commit, Leases, Logs};
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::system::{SystemClock, SystemIds};
use selvedge_store_local::{Access, LocalStore, Options};

use crate::Outcome;

/// How many bytes of text a message has.
pub(crate) const TEXT_BYTES: usize = 1_024;

/// A folder with a store and the key that signs for it, so that other processes can open it too.
pub(crate) struct Home {
    folder: PathBuf,
    pem: String,
}

impl Home {
    /// Makes a store.
    pub(crate) fn make(folder: &Path) -> Outcome<Self> {
        fs::create_dir_all(folder)?;
        LocalStore::init(folder, Arc::new(RealDisk))?;
        let pem = Signer::generate(&SystemIds).to_pem().to_string();
        fs::write(folder.join("key.pem"), &pem)?;
        Ok(Self { folder: folder.to_owned(), pem })
    }

    /// A store that was made.
    pub(crate) fn at(folder: &Path) -> Outcome<Self> {
        Ok(Self { folder: folder.to_owned(), pem: fs::read_to_string(folder.join("key.pem"))? })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn open(&self, access: Access) -> Outcome<LocalStore> {
        let signer = Signer::from_pem(&self.pem)?;
        let trust = Trust::of(&[signer.public()]);
        Ok(LocalStore::open(Options {
            project: self.folder.clone(),
            access,
            signer: Some(signer),
            trust,
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            disk: Arc::new(RealDisk),
        })?)
    }
}

/// One who writes one thread under a lease.
pub(crate) struct Writer<'a> {
    store: &'a LocalStore,
    thread: ThreadId,
    epoch: u64,
    version: u64,
    ids: bool,
    text: Text,
}

impl<'a> Writer<'a> {
    /// Creates a thread and takes its lease.
    pub(crate) fn create(store: &'a LocalStore, name: &str, ids: bool) -> Outcome<Self> {
        let thread = ThreadId::new(name)?;
        let new = NewThread::of(AgentId::new("scribe")?);
        store.commit(Batch::of(Part::new(thread.clone(), Expect::Absent, Changeset::creating(new))))?;
        let epoch = store.acquire(&thread, Acquire::default())?.epoch;
        let text = Text(name.bytes().fold(1, |seed, byte| seed * 31 + u64::from(byte)));
        Ok(Self { store, thread, epoch, version: 0, ids, text })
    }

    pub(crate) fn thread(&self) -> &ThreadId {
        &self.thread
    }

    /// A commit of one message, ready to be handed in.
    pub(crate) fn message(&mut self) -> Outcome<Batch> {
        let message = Message::text(Role::User, self.text.next());
        self.batch(Reason::UserMessage, message, None)
    }

    /// The next commit of a thread that is all turns: input, answer, results, and again.
    pub(crate) fn of_turn(&mut self) -> Outcome<Batch> {
        let turn = self.version / 3;
        let text = self.text.next();
        let (reason, message) = match self.version % 3 {
            0 => (Reason::UserMessage, Message::text(Role::User, text)),
            1 => (Reason::AssistantTurnCommitted, Message::text(Role::Assistant, text)),
            _ => {
                let result = Block::ToolResult {
                    call_id: CallId::new(format!("call-{turn}"))?,
                    content: text.into(),
                    is_error: false,
                };
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
        let part = Part::new(self.thread.clone(), Expect::Exact(self.version), changeset).under(self.epoch);
        Ok(Batch::of(part))
    }

    /// Hands a commit in; durable on return.
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

    /// How long the thread's transcript is.
    pub(crate) fn transcript_bytes(&self) -> Outcome<u64> {
        Ok(self.store.head(&self.thread)?.bytes)
    }
}

/// Makes a store with one thread of whole turns, and closes it.
pub(crate) fn with_turns(folder: &Path, turns: u64, ids: bool) -> Outcome<(Home, ThreadId)> {
    let home = Home::make(folder)?;
    let store = home.open(Access::ReadWrite)?;
    let mut writer = Writer::create(&store, "scribe-0123456789ab", ids)?;
    writer.write_turns(turns)?;
    let thread = writer.thread().clone();
    store.close()?;
    Ok((home, thread))
}

/// Text as people and models write it: words, lines, now and then a quotation mark. The same from the same seed.
struct Text(u64);

impl Text {
    fn next(&mut self) -> String {
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
        let mut text = String::with_capacity(TEXT_BYTES + 16);
        let mut column = 0;
        while text.len() < TEXT_BYTES {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let word = WORDS[(self.0 >> 60) as usize];
            text.push_str(word);
            column += word.len() + 1;
            text.push(if column > 90 { '\n' } else { ' ' });
            column = if column > 90 { 0 } else { column };
        }
        text.truncate(TEXT_BYTES);
        text
    }
}
