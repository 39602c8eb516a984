//! One thread as one file: a plain tar archive with the exact log.
//!
//! ```text
//! FOLDER/transcript.jsonl        the committed bytes of the log
//! FOLDER/thread.json             the signed manifest, if there is one
//! FOLDER/blobs/NAME              what lies beside the log
//! FOLDER/keys/FINGERPRINT.pem    the public keys of its signers, and of their chain
//! FOLDER/chain/FINGERPRINT.json  the statements with which one of them took over from another
//! ```
//!
//! Only modes, owners and times could differ, and those are fixed: all times are the one that the last checkpoint claims.
//! Unpacked by any tar it is a folder that can be checked with `FORMAT.md` alone.
//!
//! A key inside an archive proves nothing. Whoever believes any one key of the chain can check the archive (`check`); to take it into a
//! store, all signers must be trusted there, since from then on only that store's trust is asked. Nothing of an archive is put in
//! place before all of it was checked; until then it lies in a folder beside the threads that no thread can have.
//!
//! `chain` gathers the keys that go along, `arriving` reads an archive, `check` judges one without a store.

mod arriving;
mod chain;
mod check;

use std::fs;
use std::io::{self, BufReader, Read, Write};
use std::path::PathBuf;

use selvedge_log::Head;
use selvedge_log::recovery::Finding;
use selvedge_model::{Digest, OwnerId, ThreadId};
use selvedge_store::{Error, Logs, Result};

use crate::blobs::hash_file;
use crate::core::{Core, io_error};
use crate::disk::How;
use crate::open::LocalStore;
use crate::overlay::Overlay;
use crate::{manifest, ustar};
use arriving::Arriving;
use chain::Chain;
pub use check::{ArchivedKeys, verify_archive};

/// How long a manifest or a key in an archive may be.
const SMALL_MAX: u64 = 64 << 20;
/// How the folder begins in which a thread arrives; who it belongs to follows. No thread's folder begins with a dot.
const ARRIVING: &str = ".arriving-";

/// What was exported.
#[derive(Clone, Debug)]
pub struct Exported {
    /// The thread.
    pub thread: ThreadId,
    /// Where its log ends in the archive.
    pub head: Head,
    /// How many blobs came along.
    pub blobs: u64,
    /// Who signed the log, in the order they took over.
    pub signers: Vec<Digest>,
}

/// What arrived.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// The thread.
    pub thread: ThreadId,
    /// Where its log ends.
    pub head: Head,
    /// How many blobs came along.
    pub blobs: u64,
    /// Who signed the log, in the order they took over.
    pub signers: Vec<Digest>,
    /// What became of it.
    pub arrival: Arrival,
}

/// What becomes of a thread that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is here now.
    Imported,
    /// It would be, had that been asked for.
    WouldImport,
    /// It was here already, exactly so.
    Unchanged,
}

impl LocalStore {
    /// Writes a thread as an archive. Refused if its log or what lies beside it is not what was signed.
    pub fn export(&self, thread: &ThreadId, out: &mut dyn Write) -> Result<Exported> {
        let mut last = None;
        let verdict = self.verify(thread, &mut |entry| {
            let at = entry.lines.last().map(|line| line.timestamp.as_micros());
            last = Some((entry.head.clone(), at.unwrap_or_default()));
        })?;
        let holds = matches!(
            verdict.judgement.finding,
            Finding::Sound | Finding::Foreign { .. } | Finding::Contradicted { .. } | Finding::Database { .. }
        );
        // What holds otherwise and lacks a blob is no whole thread either.
        if let Some(bad) = verdict.bad_blobs.first().filter(|_| holds) {
            return Err(Error::Log { thread: thread.clone(), finding: bad.clone().into_finding() });
        }
        let Some((head, at)) = last.filter(|_| holds) else {
            return Err(Error::Log { thread: thread.clone(), finding: verdict.judgement.finding });
        };
        let signers: Vec<_> = verdict.signers.iter().map(|(signer, _)| *signer).collect();
        let seconds = u64::try_from(at / 1_000_000).unwrap_or_default();
        let packed = self.pack(thread, &head, &signers, &verdict.erased_blobs, seconds, out);
        let blobs = packed.map_err(|error| match error {
            Failed::Store(error) => error,
            Failed::Io(source) => Error::Io { what: "write the archive of", path: thread.as_str().into(), source },
        })?;
        Ok(Exported { thread: thread.clone(), head, blobs, signers })
    }

    fn pack(
        &self,
        thread: &ThreadId,
        head: &Head,
        signers: &[Digest],
        erased: &[Digest],
        seconds: u64,
        out: &mut dyn Write,
    ) -> Result<u64, Failed> {
        let core = &self.core;
        // The folder of a very long id does not fit; the log's own name always does.
        let folder = Some(thread.folder()).filter(|name| name.len() <= 155);
        let folder = folder.unwrap_or_else(|| head.log_id.to_string());
        // Logs only grow, so this is the same beginning that was checked.
        let (_, mut transcript) = self.transcript(thread)?;
        ustar::write(out, &folder, "transcript.jsonl", head.bytes, seconds, &mut transcript)?;
        if let Some(bytes) = self.manifest_bytes(thread, head) {
            ustar::write(out, &folder, "thread.json", bytes.len() as u64, seconds, &mut bytes.as_slice())?;
        }
        let mut blobs = 0;
        for blob in self.blobs(thread)? {
            let path = core.layout.blob(thread, &blob);
            // One that the log names was checked; what else lies here comes along if it is what its name says.
            if erased.contains(&blob) || hash_file(&*core.disk, &path).map_err(io_error("read", &path))? != blob {
                continue;
            }
            let file = core.disk.open(&path, How::Read).map_err(io_error("open", &path))?;
            let size = file.length().map_err(io_error("look at", &path))?;
            let mut content = BufReader::new(Overlay::of_file(Some(file))?);
            ustar::write(out, &folder, &format!("blobs/{blob}"), size, seconds, &mut content)?;
            blobs += 1;
        }
        let Chain { keys, vouchers } = core.chain_of(thread, signers);
        for (name, key) in keys {
            let pem = key.to_pem();
            ustar::write(out, &folder, &format!("keys/{name}.pem"), pem.len() as u64, seconds, &mut pem.as_bytes())?;
        }
        for voucher in vouchers {
            let (name, mut text) = (format!("chain/{}.json", voucher.to), voucher.text());
            ustar::write(out, &folder, &name, text.len() as u64, seconds, &mut text)?;
        }
        ustar::finish(out)?;
        Ok(blobs)
    }

    /// The manifest, if it is rightly signed and does not know more than the log.
    fn manifest_bytes(&self, thread: &ThreadId, head: &Head) -> Option<Vec<u8>> {
        let bytes = crate::disk::read(&*self.core.disk, &self.core.layout.manifest(thread), SMALL_MAX).ok()?;
        let shown = manifest::parse(&bytes, &self.core.trust, thread).ok()?;
        (shown.memory.version <= head.version).then_some(bytes)
    }

    /// Checks an archive with the keys that this store trusts and, if `keep` says so, takes its thread in.
    ///
    /// On return it is durable and can be read; it can be gone on with if our key signed it, or took over from the one that
    /// did. On an error nothing of it is there.
    pub fn import(&self, archive: &mut (dyn Read + Send), keep: bool) -> Result<Arrived> {
        let core = &*self.core;
        let mut each = |_: &_| {};
        if !keep {
            return Arriving::new(&core.trust, None, &mut each).read(archive)?.judge()?.settle(core, None);
        }
        core.gate()?;
        core.tidy_arrivals()?;
        let staged = core.layout.root().join(format!("{ARRIVING}{}-{}", core.owner, core.ids.hex12()));
        core.disk.make_folder(&staged).map_err(io_error("create", &staged))?;
        let arrived = Arriving::new(&core.trust, Some((core, &staged)), &mut each)
            .read(archive)
            .and_then(Arriving::judge)
            .and_then(|arriving| arriving.settle(core, Some(&staged)));
        // What was taken in lies elsewhere by now.
        let tidied = core.disk.remove_folder(&staged).map_err(io_error("remove", &staged));
        let arrived = arrived?;
        tidied?;
        Ok(arrived)
    }
}

impl Core {
    /// Removes what arrivals left whose process died.
    fn tidy_arrivals(&self) -> Result<()> {
        let root = self.layout.root();
        for entry in fs::read_dir(root).map_err(io_error("read", root))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let owner = name.strip_prefix(ARRIVING).and_then(|rest| rest.rsplit_once('-'));
            let Some(Ok(owner)) = owner.map(|(owner, _)| OwnerId::new(owner)) else { continue };
            if !self.is_alive(&owner)? {
                let path: PathBuf = entry.path();
                self.disk.remove_folder(&path).map_err(io_error("remove", &path))?;
            }
        }
        Ok(())
    }
}

/// Why an archive could not be written.
enum Failed {
    Store(Error),
    Io(io::Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn refused(why: impl std::fmt::Display) -> Error {
    Error::Integrity { what: "the archive".to_owned(), why: why.to_string(), hint: None }
}

fn small(size: u64, content: &mut dyn Read) -> Result<Vec<u8>> {
    if size > SMALL_MAX {
        return Err(refused("a manifest or a key in it is too long"));
    }
    let mut bytes = Vec::new();
    content.read_to_end(&mut bytes).map_err(refused)?;
    Ok(bytes)
}
