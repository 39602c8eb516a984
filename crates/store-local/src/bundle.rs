//! One thread as one file: a plain tar archive with the exact log.
//!
//! ```text
//! FOLDER/transcript.jsonl        the committed bytes of the log
//! FOLDER/thread.json             the signed manifest, if there is one
//! FOLDER/blobs/NAME              what lies beside the log
//! FOLDER/keys/FINGERPRINT.pem    the public keys of its signers
//! ```
//!
//! Only modes, owners and times could differ, and those are fixed: all times are the one that the last checkpoint claims.
//! Unpacked by any tar it is a folder that can be checked with `FORMAT.md` alone.
//!
//! A key inside an archive proves nothing: what arrives is checked with the keys that whoever receives it trusts. Nothing of an archive
//! is put in place before all of it was checked; until then it lies in a folder beside the threads that no thread can have.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufReader, Cursor, Read, Write};
use std::path::{Path, PathBuf};

use selvedge_log::hash::RunningHash;
use selvedge_log::recovery::{Evidence, Finding, Mode, Remembered, judge};
use selvedge_log::scan::{Examined, Scanner, Signatures, examine};
use selvedge_log::{Head, line, lines};
use selvedge_model::{Digest, OwnerId, ThreadId};
use selvedge_store::{Error, Logs, Result};

use crate::core::{Core, io_error};
use crate::disk::{DiskFile, How};
use crate::open::LocalStore;
use crate::overlay::Overlay;
use crate::{manifest, rows, ustar};

/// How long a manifest or a key in an archive may be.
const SMALL_MAX: u64 = 64 << 20;
/// How the folder begins in which a thread arrives; who it belongs to follows. No thread's folder begins with a dot.
const ARRIVING: &str = ".arriving-";
/// How many files an archive may have.
const FILES_MAX: usize = 1 << 20;

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
            Finding::Sound | Finding::Foreign { .. } | Finding::Contradicted { .. }
        );
        let Some((head, at)) = last.filter(|_| holds) else {
            return Err(Error::Log { thread: thread.clone(), finding: verdict.judgement.finding });
        };
        let signers: Vec<_> = verdict.signers.iter().map(|(signer, _)| *signer).collect();
        let seconds = u64::try_from(at / 1_000_000).unwrap_or_default();
        let packed = self.pack(thread, &head, &signers, seconds, out);
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
            let file = core.disk.open(&path, How::Read).map_err(io_error("open", &path))?;
            let size = file.length().map_err(io_error("look at", &path))?;
            let mut content = BufReader::new(Overlay::of_file(Some(file))?);
            ustar::write(out, &folder, &format!("blobs/{blob}"), size, seconds, &mut content)?;
            blobs += 1;
        }
        for signer in signers {
            let pem = core.trust.key(signer).map(|key| key.to_pem()).unwrap_or_default();
            ustar::write(out, &folder, &format!("keys/{signer}.pem"), pem.len() as u64, seconds, &mut pem.as_bytes())?;
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
    pub fn import(&self, archive: &mut dyn Read, keep: bool) -> Result<Arrived> {
        let core = &*self.core;
        if !keep {
            let arriving = Arriving::new(core, None).read(archive)?;
            return arriving.judge(core)?.settle(core, None);
        }
        core.gate()?;
        core.tidy_arrivals()?;
        let staged = core.layout.root().join(format!("{ARRIVING}{}-{}", core.owner, core.ids.hex12()));
        core.disk.make_folder(&staged).map_err(io_error("create", &staged))?;
        let arrived = Arriving::new(core, Some(&staged))
            .read(archive)
            .and_then(|arriving| arriving.judge(core))
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

/// An archive that is being read.
struct Arriving<'a> {
    core: &'a Core,
    staged: Option<&'a Path>,
    folder: Option<String>,
    seen: BTreeSet<String>,
    log: Option<(ThreadId, Examined, Vec<Digest>)>,
    manifest: Option<Vec<u8>>,
    blobs: u64,
}

/// An archive whose log holds.
struct Judged {
    thread: ThreadId,
    head: Head,
    signers: Vec<Digest>,
    blobs: u64,
}

impl<'a> Arriving<'a> {
    fn new(core: &'a Core, staged: Option<&'a Path>) -> Self {
        Self { core, staged, folder: None, seen: BTreeSet::new(), log: None, manifest: None, blobs: 0 }
    }

    fn read(mut self, archive: &mut dyn Read) -> Result<Self> {
        while let Some(header) = ustar::read_header(archive).map_err(refused)? {
            if header.is_folder {
                continue;
            }
            let name = self.place(&header.path)?;
            if !self.seen.insert(name.clone()) || self.seen.len() > FILES_MAX {
                return Err(refused(format!("`{name}` stands in it twice, or it has too many files")));
            }
            let mut content = Read::take(&mut *archive, header.size);
            self.file(&name, header.size, &mut content)?;
            if content.limit() > 0 {
                return Err(refused("it is cut off"));
            }
            ustar::skip_padding(archive, header.size).map_err(refused)?;
        }
        self.sync()?;
        Ok(self)
    }

    /// Where a file of the archive belongs; anything that is not exactly one of the known places is refused.
    fn place(&mut self, path: &str) -> Result<String> {
        let strange = || refused(format!("`{}` has no place in it", path.escape_debug()));
        let (folder, name) = path.split_once('/').ok_or_else(strange)?;
        ThreadId::from_folder(folder).map_err(|_| strange())?;
        if *self.folder.get_or_insert_with(|| folder.to_owned()) != folder {
            return Err(refused("it has more than one thread"));
        }
        let is_digest = |text: &str| text.parse::<Digest>().is_ok_and(|digest| digest.to_string() == text);
        let is_known = match name.split_once('/') {
            None => name == "transcript.jsonl" || name == "thread.json",
            Some(("blobs", blob)) => is_digest(blob),
            Some(("keys", key)) => key.strip_suffix(".pem").is_some_and(is_digest),
            Some(_) => false,
        };
        is_known.then(|| name.to_owned()).ok_or_else(strange)
    }

    fn file(&mut self, name: &str, size: u64, content: &mut dyn Read) -> Result<()> {
        match name.split_once('/') {
            Some(("blobs", blob)) => self.blob(blob, name, content),
            Some(_) => small(size, content).map(|_| ()),
            None if name == "thread.json" => {
                let bytes = small(size, content)?;
                let mut source = bytes.as_slice();
                let mut copying = self.copying(name, &mut source)?;
                io::copy(&mut copying, &mut io::sink()).and_then(|_| copying.sync()).map_err(refused)?;
                self.manifest = Some(bytes);
                Ok(())
            }
            None => self.transcript(name, content),
        }
    }

    /// A reader that writes what it reads to where it belongs, if anything is kept.
    fn copying<'b>(&self, name: &str, content: &'b mut dyn Read) -> Result<Copying<'b>> {
        let target = match self.staged {
            Some(staged) => {
                let path = staged.join(name);
                if let Some(above) = path.parent() {
                    self.core.disk.make_folder(above).map_err(io_error("create", above))?;
                }
                let file = self.core.disk.open(&path, How::MakeNew).map_err(io_error("create", &path))?;
                Some((file, 0))
            }
            None => None,
        };
        Ok(Copying { content, target })
    }

    fn blob(&mut self, blob: &str, name: &str, content: &mut dyn Read) -> Result<()> {
        let mut copying = self.copying(name, content)?;
        let mut hash = RunningHash::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            match copying.read(&mut buffer).map_err(refused)? {
                0 => break,
                read => hash.update(&buffer[..read]),
            }
        }
        copying.sync().map_err(refused)?;
        if hash.digest().to_string() != blob {
            return Err(refused(format!("blob {blob} is not what its name says")));
        }
        self.blobs += 1;
        Ok(())
    }

    fn transcript(&mut self, name: &str, content: &mut dyn Read) -> Result<()> {
        let mut reader = BufReader::with_capacity(1 << 16, self.copying(name, content)?);
        let mut first = Vec::new();
        lines::next_line(&mut reader, &mut first).map_err(refused)?;
        let born = line::decode(first.strip_suffix(b"\n").unwrap_or(&first));
        let thread = born.map_err(|error| refused(format!("its log can't be read: {error}")))?.thread_id;
        let mut signers: Vec<Digest> = Vec::new();
        let scanner = Scanner::new(&thread, &self.core.trust, Signatures::Every);
        let whole = Cursor::new(first).chain(reader.by_ref());
        let examined = examine(whole, scanner, |entry| {
            signers.extend(Some(entry.head.signer).filter(|signer| signers.last() != Some(signer)));
        });
        let examined = examined.map_err(refused)?;
        reader.get_mut().sync().map_err(refused)?;
        self.log = Some((thread, examined, signers));
        Ok(())
    }

    /// Makes the names of everything that was kept durable.
    fn sync(&self) -> Result<()> {
        let Some(staged) = self.staged else { return Ok(()) };
        for folder in [staged.join("blobs"), staged.to_owned()] {
            if fs::symlink_metadata(&folder).is_ok() {
                self.core.disk.sync_folder(&folder).map_err(io_error("sync", &folder))?;
            }
        }
        Ok(())
    }

    /// Accepts an archive only if its log holds, ends with a checkpoint, and is all that its manifest remembers.
    fn judge(self, core: &Core) -> Result<Judged> {
        let (thread, examined, signers) = self.log.ok_or_else(|| refused("it has no log"))?;
        let memory: Option<Remembered> = match &self.manifest {
            Some(bytes) if examined.damage.is_none() => Some(manifest::parse(bytes, &core.trust, &thread)?.memory),
            _ => None,
        };
        let remembered: Vec<_> = memory.into_iter().collect();
        let evidence = Evidence { remembered: &remembered, ..Evidence::default() };
        match (judge(&examined, evidence, Mode::Strict).finding, examined.head()) {
            (Finding::Sound, Some(head)) => {
                let head = head.clone();
                Ok(Judged { thread, head, signers, blobs: self.blobs })
            }
            (finding, _) => Err(Error::Log { thread, finding }),
        }
    }
}

impl Judged {
    /// Takes the thread in, unless it is here already, exactly so.
    fn settle(self, core: &Core, staged: Option<&Path>) -> Result<Arrived> {
        let Self { thread, head, signers, blobs } = self;
        let known =
            core.read(|connection| Ok((rows::find(connection, &thread)?, rows::tombstone(connection, &thread)?)))?;
        let arrival = match (known, staged) {
            ((Some(row), _), _) if row.head == head => Arrival::Unchanged,
            ((Some(_), _), _) => return Err(Error::Exists(thread)),
            ((None, Some(_)), _) => return Err(Error::Deleted(thread)),
            ((None, None), Some(staged)) => {
                core.adopt(&thread, &head, staged)?;
                Arrival::Imported
            }
            ((None, None), None) => Arrival::WouldImport,
        };
        Ok(Arrived { thread, head, blobs, signers, arrival })
    }
}

fn small(size: u64, content: &mut dyn Read) -> Result<Vec<u8>> {
    if size > SMALL_MAX {
        return Err(refused("a manifest or a key in it is too long"));
    }
    let mut bytes = Vec::new();
    content.read_to_end(&mut bytes).map_err(refused)?;
    Ok(bytes)
}

/// Reads, and writes what it reads.
struct Copying<'a> {
    content: &'a mut dyn Read,
    target: Option<(Box<dyn DiskFile>, u64)>,
}

impl Copying<'_> {
    fn sync(&mut self) -> io::Result<()> {
        self.target.as_ref().map_or(Ok(()), |(file, _)| file.sync())
    }
}

impl Read for Copying<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.content.read(buffer)?;
        if let Some((file, at)) = &mut self.target {
            file.write_at(&buffer[..read], *at)?;
            *at += read as u64;
        }
        Ok(read)
    }
}
