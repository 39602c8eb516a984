//! Importing a thread from an archive. It is staged in memory until all of it is verified; then one transaction, or a few for a very long
//! log, writes every changeset by the function that commits write with, and the accounts that the log posted to are computed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use selvedge_log::hash::{RunningHash, sha256};
use selvedge_log::scan::{ScannedChangeset, Scanner, Signatures, examine};
use selvedge_model::account::{Account, AccountId, Posting, Record, Reservation};
use selvedge_model::event::BlobErased;
use selvedge_model::id::ReservationId;
use selvedge_model::{Digest, Event, Manifest, Run, RunId, ThreadId};
use selvedge_store::account_records::{Applied, Children, Continuity, apply};
use selvedge_store::archive::{
    Accounts, Archives, CheckedArchive, ImportOutcome, ImportReport, Staged, Staging, read_archive,
};
use selvedge_store::seal::{self, PostedVersions};
use selvedge_store::verify::StoredThread as _;
use selvedge_store::{Committed, Error, Result, capabilities};
use serde_json::json;

use crate::commit::{Added, PARTS_MAX, thread_document};
use crate::core::{Core, Signing, binding};
use crate::documents::BESIDE;
use crate::error::{Failure, bad_row};
use crate::ledger::StoredAccount;
use crate::logs::LogReader;
use crate::open::PostgresStore;
use crate::pool::Connection;
use crate::pulse::Told;
use crate::rows::{self, Row};
use crate::verify::{CHAIN, KEYS, unread};

/// The records of postings, with the type of their events, by account and version.
type Records = BTreeMap<AccountId, BTreeMap<u64, (&'static str, Record)>>;

/// The longest archive that is staged.
const STAGED_MAX: usize = 1 << 30;

/// The files of an archive, in memory.
#[derive(Default)]
struct Memory(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

struct File {
    name: String,
    all: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
}

impl Staging for Memory {
    fn create(&self, name: &str) -> Result<Box<dyn Staged>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), Vec::new());
        Ok(Box::new(File { name: name.to_owned(), all: self.0.clone() }))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

impl Staged for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.values().map(Vec::len).sum::<usize>() + bytes.len() > STAGED_MAX {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the archive is larger than this store imports"));
        }
        all.entry(self.name.clone()).or_default().extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Archives for PostgresStore {
    fn import(&self, archive: &mut (dyn Read + Send), keep: bool) -> Result<ImportReport> {
        let staged = Memory::default();
        if keep {
            self.core.signing()?;
        }
        let staging = keep.then_some(&staged as &dyn Staging);
        let judged = read_archive(archive, self.trust(), staging, &|_| Ok(()))?;
        let files = std::mem::take(&mut *staged.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.core.finish_import(judged, keep.then_some(files))
    }
}

/// A log that becomes rows, changeset by changeset.
struct Replay<'a> {
    signing: &'a Signing,
    thread: &'a ThreadId,
    bytes: &'a [u8],
    hash: RunningHash,
    number: i64,
    manifest: Option<Manifest>,
    /// The row before, if the store has an older version of this thread.
    known: Option<Row>,
    row: Option<Row>,
    posted: PostedVersions,
    runs: BTreeMap<RunId, Run>,
    messages: BTreeSet<String>,
    /// What the function of the database takes, with the bytes of each changeset.
    documents: Vec<(String, &'a [u8])>,
    keys: Vec<(String, Digest, String)>,
    accounts: BTreeSet<AccountId>,
    failed: Option<Error>,
}

impl<'a> Replay<'a> {
    fn take(&mut self, entry: &ScannedChangeset) -> Result<()> {
        let (Some(checkpoint), Some(last)) = (entry.checkpoint(), entry.lines.last()) else { return Ok(()) };
        let at = last.timestamp;
        let before = self.manifest.clone();
        let mut messages = Vec::new();
        let mut runs = Vec::new();
        let mut answered = Vec::new();
        let mut erased: Vec<BlobErased> = Vec::new();
        for line in &entry.lines {
            self.fold(&line.event, line.timestamp)?;
            seal::note_postings(&mut self.posted, std::slice::from_ref(&line.event));
            match &line.event {
                Event::Message(message) => {
                    // An imported log may have a message twice.
                    let new = message.id.clone().filter(|id| self.messages.insert(id.as_str().to_owned()));
                    messages.extend(new.map(|id| (id, sha256(&message.content_bytes()))));
                }
                Event::RunStarted(run) | Event::RunFinished(run) => {
                    let run = Run::upsert(self.runs.get(&run.run_id).cloned(), self.thread, run, line.timestamp);
                    self.runs.insert(run.run_id.clone(), run.clone());
                    runs.push(run);
                }
                Event::BlobErased(one) => erased.push(one.clone()),
                Event::RequestAnswered(one) => answered.push(one.request_id.clone()),
                other => self.accounts.extend(other.posting().map(|(_, record)| record.account.clone())),
            }
        }
        let Some(manifest) = &mut self.manifest else { return Err(bad_row("a log without a beginning")) };
        manifest.updated_at = at;
        let manifest = manifest.clone();
        if let Some(known) = self.known.take_if(|known| entry.head.version <= known.head.version) {
            return self.pass_over(entry, known);
        }
        let from = self.row.as_ref().map_or(0, |row| row.head.bytes);
        let part = |from: u64, to: u64| self.bytes.get(usize::try_from(from).ok()?..usize::try_from(to).ok()?);
        let bytes = part(from, entry.head.bytes).ok_or_else(|| bad_row("a log that ends early"))?;
        self.hash.update(bytes);
        let mut same_time = before.clone();
        same_time.iter_mut().for_each(|before| before.updated_at = at);
        let manifest_changed = same_time.as_ref() != Some(&manifest);
        let stored = match &self.row {
            Some(row) if !manifest_changed => row.stored,
            _ => sha256(rows::to_json(&manifest)?.as_bytes()),
        };
        let row = Row {
            root: manifest.family_root().clone(),
            number: self.number,
            stored,
            hash: self.signing.seal.seal(&binding(&entry.head), &self.hash),
            head: entry.head.clone(),
            epoch: self.row.as_ref().map_or(0, |row| row.epoch).max(entry.head.epoch),
            owner: None,
            is_alive: false,
            posted: self.posted.clone(),
            consumed: self.row.as_ref().map(|row| row.consumed.clone()).unwrap_or_default(),
            is_imported: self.row.as_ref().is_none_or(|row| row.is_imported),
            mark: Vec::new(),
            manifest,
        }
        .sealed(&self.signing.rows);
        let end = entry.head.lines;
        let added = Added {
            index: 0,
            feed: self.documents.len() % PARTS_MAX,
            first_byte: from,
            lines: end.saturating_sub(entry.lines.len() as u64)..end,
            manifest_changed,
            messages: &messages,
            runs: &runs,
            touched_run: checkpoint.run_id.as_ref(),
            answered: &answered,
            erased: &erased,
            continued_as: None,
        };
        let document = thread_document(&self.signing.rows, &row, &added, self.row.as_ref())?;
        let batch = json!({
            "key": null, "threads": [document], "accounts": [], "consumed": [], "posted": [], "inboxes": [],
        });
        self.documents.push((batch.to_string(), bytes));
        if let (Some(key), Some(request)) = (&checkpoint.key, &checkpoint.request) {
            let mut versions = checkpoint.with.clone();
            versions.push((self.thread.clone(), checkpoint.version));
            versions.sort();
            let answer = rows::to_json(&Committed { versions, ..Committed::default() })?;
            self.keys.push((key.as_str().to_owned(), *request, answer));
        }
        self.row = Some(row);
        Ok(())
    }

    /// A changeset that the store has already: the one at its end must be the same, so all before it are.
    fn pass_over(&mut self, entry: &ScannedChangeset, known: Row) -> Result<()> {
        if entry.head.version < known.head.version {
            self.known = Some(known);
            return Ok(());
        }
        if entry.head != known.head {
            return Err(Error::Exists(self.thread.clone()));
        }
        let end = usize::try_from(known.head.bytes).unwrap_or(usize::MAX);
        self.hash.update(self.bytes.get(..end).ok_or_else(|| bad_row("a log that ends early"))?);
        self.row = Some(known);
        Ok(())
    }

    fn fold(&mut self, event: &Event, at: selvedge_model::Timestamp) -> Result<()> {
        match (event, &mut self.manifest) {
            (Event::ThreadCreated(created), None) => self.manifest = Some(Manifest::born(self.thread, created, at)),
            (_, Some(manifest)) => {
                let refuse = |source| Error::Fold { thread: self.thread.clone(), source };
                manifest.apply(event, at).map_err(|error| refuse(error.into()))?;
            }
            (_, None) => return Err(bad_row("a log without a beginning")),
        }
        Ok(())
    }

    /// As many changesets as one transaction has positions for, at a time: a longer log that is interrupted is there up to one of them, and
    /// the same import continues it.
    fn write(&self, connection: &mut Connection) -> Result<(), Failure> {
        let parts: Vec<_> = self.documents.chunks(PARTS_MAX).collect();
        for (number, part) in parts.iter().enumerate() {
            connection.batch("BEGIN")?;
            for (batch, bytes) in *part {
                let logs: [&[u8]; 1] = [bytes];
                connection.execute("SELECT commit_batch($1::text::jsonb, $2)", &[batch, &logs.as_slice()])?;
            }
            if number + 1 == parts.len() {
                self.write_index(connection)?;
            }
            connection.batch("COMMIT")?;
        }
        Ok(())
    }

    fn write_index(&self, connection: &mut Connection) -> Result<(), Failure> {
        let Some(row) = &self.row else { return Ok(()) };
        let root = row.root.as_str();
        for (key, request, answer) in &self.keys {
            let fields = [root.as_bytes(), key.as_bytes(), &request.0[..], answer.as_bytes()];
            let mark = rows::mark(&self.signing.rows, "keys", &fields);
            // The other logs of this batch have the same key; the first one inserts it.
            let sql = "INSERT INTO keys (root, key, request, answer, mark) VALUES ($1, $2, $3, $4, decode($5, 'hex')) ON CONFLICT DO NOTHING";
            connection.execute(sql, &[&root, key, &request.0.as_slice(), answer, &mark])?;
        }
        let sql = "UPDATE threads SET imported = $3 WHERE root = $1 AND thread = $2";
        connection.execute(sql, &[&root, &row.thread().as_str(), &row.is_imported]).map(drop)
    }
}

impl Core {
    /// Imports a thread, unless the store already has it with the same head.
    fn finish_import(&self, judged: CheckedArchive, staged: Option<BTreeMap<String, Vec<u8>>>) -> Result<ImportReport> {
        let thread = judged.thread.clone();
        let known = self.find(&thread)?;
        match &known {
            Some(row) if row.head == judged.head => {
                return Ok(judged.into_report(ImportOutcome::Unchanged, Accounts::new()));
            }
            // A longer archive of the same log continues it.
            Some(row) if row.head.log_id != judged.head.log_id || row.head.version > judged.head.version => {
                return Err(Error::Exists(thread));
            }
            Some(row) if row.is_alive => {
                let holder = row.owner.clone().ok_or_else(|| bad_row("a live holder without a name"))?;
                return Err(Error::LeaseHeld { thread, holder });
            }
            Some(_) => {}
            None => {
                if let deleted @ Error::Deleted(_) = self.missing(&thread)? {
                    return Err(deleted);
                }
            }
        }
        let Some(staged) = staged else { return Ok(judged.into_report(ImportOutcome::WouldImport, Accounts::new())) };
        let accounts = self.adopt(&thread, &staged, known)?;
        Ok(judged.into_report(ImportOutcome::Imported, accounts))
    }

    fn adopt(&self, thread: &ThreadId, staged: &BTreeMap<String, Vec<u8>>, known: Option<Row>) -> Result<Accounts> {
        let signing = self.signing()?;
        let _turn = self.queues.enter(thread, None);
        let bytes = staged.get("transcript.jsonl").ok_or_else(|| bad_row("an archive without a log"))?;
        let number = match &known {
            Some(row) => row.number,
            None => self
                .read(|connection| Ok(connection.first("SELECT nextval('thread_numbers')", &[])?))?
                .map_or(0, |row| row.get(0)),
        };
        let mut replay = Replay {
            signing,
            thread,
            bytes,
            hash: RunningHash::new(),
            number,
            manifest: None,
            known,
            row: None,
            posted: PostedVersions::new(),
            runs: BTreeMap::new(),
            messages: BTreeSet::new(),
            documents: Vec::new(),
            keys: Vec::new(),
            accounts: BTreeSet::new(),
            failed: None,
        };
        let scanner = Scanner::new(thread, &self.trust, Signatures::Last);
        examine(bytes.as_slice(), scanner, |entry| {
            if replay.failed.is_none() {
                replay.failed = replay.take(&entry).err();
            }
        })
        .map_err(|error| unread(&error))?;
        if let Some(failed) = replay.failed.take() {
            return Err(failed);
        }
        let Some(row) = replay.row.clone() else { return Err(bad_row("an empty log")) };
        // Before the log: if this is interrupted, the thread is not there, and the same import writes the same rows.
        for (name, bytes) in staged {
            let Some((folder, name)) = name.split_once('/') else {
                if name == capabilities::NAME {
                    self.put_document(&row, BESIDE, name, bytes, true)?;
                }
                continue;
            };
            match (folder, name.parse::<Digest>()) {
                ("blobs", Ok(blob)) => self.insert_blob(row.root.as_str(), thread, &blob, bytes)?,
                (KEYS | CHAIN, _) => _ = self.put_document(&row, folder, name, bytes, true)?,
                _ => {}
            }
        }
        let mut connection = self.pool.get()?;
        let written = replay.write(&mut connection);
        if let Err(failure) = written {
            _ = connection.batch("ROLLBACK");
            // After a lost connection the import is repeated: it finds the thread, or imports it.
            return Err(failure.into());
        }
        drop(connection);
        let mut memory = self.memory();
        memory.forget(thread);
        memory.forget_accounts();
        drop(memory);
        let mut accounts = replay.accounts;
        accounts.extend(self.accounts_beside(&row)?);
        let settled = self.settle_accounts(&row.root, &accounts)?;
        self.pulse.tell(Told { commits: true, ..Told::default() });
        self.watch.ring();
        Ok(settled)
    }

    /// Accounts that the presence of this log may complete: those of its chain, of its parent's and of its children's.
    fn accounts_beside(&self, row: &Row) -> Result<Vec<AccountId>> {
        let found = self.accounts("a.root = $1", row.root.as_str())?;
        Ok(found.into_iter().map(|stored| stored.account.id).collect())
    }

    /// Computes accounts again from all logs of the family, so that its logs can be imported in any order.
    fn settle_accounts(&self, root: &ThreadId, accounts: &BTreeSet<AccountId>) -> Result<Accounts> {
        let signing = self.signing()?;
        if accounts.is_empty() {
            return Ok(Accounts::new());
        }
        let records = self.records_of(root)?;
        let mut settled = Accounts::new();
        for id in accounts {
            let of_account = records.get(id).cloned().unwrap_or_default();
            let mut account: Option<Account> = None;
            let mut reservations: BTreeMap<ReservationId, Reservation> = BTreeMap::new();
            let mut children = Children::default();
            let mut is_whole = true;
            for (event_type, record) in of_account.values() {
                let Some(posting) = Posting::from_record(event_type, record) else { continue };
                let known = posting.reservation().and_then(|name| reservations.get(name)).cloned();
                let applied: Applied = apply(account.take(), known, &posting, record);
                is_whole &= applied.fit == Continuity::Exact;
                children.note(event_type, record);
                if let Some(name) = posting.reservation() {
                    match applied.reservation {
                        Some(reservation) => _ = reservations.insert(name.clone(), reservation),
                        None => _ = reservations.remove(name),
                    }
                }
                account = Some(applied.account);
            }
            let Some(mut account) = account else { continue };
            let mut is_complete = is_whole;
            for chain in [id].into_iter().chain(account.parent.as_ref()).chain(children.names()) {
                is_complete &= self.has_chain(chain)?;
            }
            account.incomplete = !is_complete;
            let before = self.accounts("a.account = $1", id.as_str())?.pop();
            if before.as_ref().is_some_and(|before| before.account.version > account.version) {
                settled.insert(id.clone(), !before.is_some_and(|before| before.account.incomplete));
                continue;
            }
            let stored = StoredAccount::sealed(&signing.rows, root.clone(), account, reservations);
            self.replace_account(&stored, before.as_ref())?;
            settled.insert(id.clone(), is_complete);
        }
        self.memory().forget_accounts();
        Ok(settled)
    }

    /// The records of postings in all logs of a family, by account and version.
    fn records_of(&self, root: &ThreadId) -> Result<Records> {
        let sql = "SELECT thread FROM threads WHERE root = $1 AND posted <> '{}'";
        let threads = self.read(|connection| Ok(connection.query(sql, &[&root.as_str()])?))?;
        let mut records = Records::new();
        for found in threads {
            let thread = rows::id(found.get(0))?;
            let row = self.existing(&thread)?;
            let log = LogReader::new(self.pool.clone(), row.root, thread.clone(), 0, row.head.bytes);
            let scanner = Scanner::new(&thread, &self.trust, Signatures::Last);
            examine(log, scanner, |entry| {
                for (name, record) in entry.lines.iter().filter_map(|line| line.event.posting()) {
                    let of_account = records.entry(record.account.clone()).or_default();
                    of_account.insert(record.account_version, (name, record.clone()));
                }
            })
            .map_err(|error| unread(&error))?;
        }
        Ok(records)
    }

    /// Whether the threads of a chain, from its root on, are in the store or were deleted.
    fn has_chain(&self, root: &ThreadId) -> Result<bool> {
        let mut next = Some(root.clone());
        let mut seen = BTreeSet::new();
        while let Some(thread) = next.filter(|thread| seen.insert(thread.clone())) {
            next = match self.find(&thread)? {
                Some(row) => row.successor().cloned(),
                None => match self.tombstone(&thread)? {
                    Some(tombstone) => tombstone.manifest.continuation_thread_id,
                    None => return Ok(false),
                },
            };
        }
        Ok(true)
    }

    /// Replaces an account, unless it changed since it was read.
    fn replace_account(&self, now: &StoredAccount, before: Option<&StoredAccount>) -> Result<()> {
        let mut kept = Vec::new();
        for (name, reservation) in &now.reservations {
            kept.push(json!([name, rows::to_json(reservation)?]));
        }
        let gone: Vec<_> = before
            .iter()
            .flat_map(|before| before.reservations.keys())
            .filter(|name| !now.reservations.contains_key(*name))
            .collect();
        let hex = |mark: &[u8]| selvedge_model::digest::hex(mark);
        let account = json!({
            "root": now.root, "account": now.account.id, "parent": now.account.parent, "body": rows::to_json(&now.account)?,
            "mark": hex(&now.mark), "seen": before.map(|before| hex(&before.mark)), "reservations": kept, "gone": gone,
        });
        let batch =
            json!({"key": null, "threads": [], "accounts": [account], "consumed": [], "posted": [], "inboxes": []});
        let none: [&[u8]; 0] = [];
        let mut connection = self.pool.get()?;
        match connection.execute("SELECT commit_batch($1::text::jsonb, $2)", &[&batch.to_string(), &none.as_slice()]) {
            Ok(_) => Ok(()),
            Err(failure) if failure.is_in_the_way() => {
                Err(Error::Database { why: "an account changed during the import".to_owned(), retryable: true })
            }
            Err(failure) => Err(failure.into()),
        }
    }
}
