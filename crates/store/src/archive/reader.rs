//! Reads an archive: every path, every hash, every signature, in one pass and within bounded memory.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, Cursor, Read};

use selvedge_log::hash::RunningHash;
use selvedge_log::recovery::{Evidence, Finding, Mode, Remembered, judge};
use selvedge_log::scan::{Examined, ScannedChangeset, Scanner, Signatures, examine};
use selvedge_log::{Head, Trust, line, lines};
use selvedge_model::event::LostVersions;
use selvedge_model::{Digest, NamedBlobs, ThreadId};

use super::{Accounts, FOLDER_MAX, ImportOutcome, ImportReport, Staged, Staging, refused, small, ustar};
use crate::error::{Error, Result};
use crate::verify::{BadBlob, count_signer, lost_in};
use crate::{capabilities, manifest};

/// The maximum number of files in an archive.
const FILES_MAX: usize = 1 << 20;

/// An archive that is being read.
pub(super) struct ArchiveReader<'a> {
    trust: &'a Trust,
    staged: Option<&'a dyn Staging>,
    watched: Option<u64>,
    each: &'a mut dyn FnMut(&ScannedChangeset),
    folder: Option<String>,
    seen: BTreeSet<String>,
    log: Option<Log>,
    manifest: Option<Vec<u8>>,
    pub(super) capabilities: Option<Vec<u8>>,
    changed: BTreeSet<Digest>,
    pub(super) blobs: u64,
    /// How many bytes follow the end of the archive.
    pub(super) trailing: u64,
}

/// The log in an archive.
pub(super) struct Log {
    pub(super) thread: ThreadId,
    pub(super) examined: Examined,
    /// The signers in order, and how many checkpoints each signed.
    pub(super) signers: Vec<(Digest, u64)>,
    pub(super) committed_with: BTreeMap<ThreadId, u64>,
    pub(super) named: NamedBlobs,
    pub(super) lost: Vec<LostVersions>,
}

/// A verified archive.
pub struct CheckedArchive {
    /// The thread.
    pub thread: ThreadId,
    /// The head of its log.
    pub head: Head,
    /// The signers of the log, in order.
    pub signers: Vec<Digest>,
    /// The number of blobs.
    pub blobs: u64,
}

impl<'a> ArchiveReader<'a> {
    /// An archive that is verified with these keys, and copied to `staged` if that is given.
    pub(super) fn new(
        trust: &'a Trust,
        staged: Option<&'a dyn Staging>,
        each: &'a mut dyn FnMut(&ScannedChangeset),
    ) -> Self {
        Self {
            trust,
            staged,
            watched: None,
            each,
            folder: None,
            seen: BTreeSet::new(),
            log: None,
            manifest: None,
            capabilities: None,
            changed: BTreeSet::new(),
            blobs: 0,
            trailing: 0,
        }
    }

    /// The same, recording the head of the log at `version`.
    pub(super) fn watching(mut self, version: Option<u64>) -> Self {
        self.watched = version;
        self
    }

    pub(super) fn read(mut self, archive: &mut (dyn Read + Send)) -> Result<Self> {
        while let Some(header) = ustar::read_header(archive).map_err(refused)? {
            if header.is_folder {
                continue;
            }
            let name = self.relative_name(&header.path)?;
            if !self.seen.insert(name.clone()) || self.seen.len() > FILES_MAX {
                return Err(refused(format!("`{name}` occurs twice, or it has too many files")));
            }
            let mut content = Read::take(&mut *archive, header.size);
            self.file(&name, header.size, &mut content)?;
            if content.limit() > 0 {
                return Err(refused("it is truncated"));
            }
            ustar::skip_padding(archive, header.size).map_err(refused)?;
        }
        self.trailing = ustar::trailing_bytes(archive).map_err(refused)?;
        self.sync()?;
        Ok(self)
    }

    /// The name of a file below the archive's folder; any unknown name is refused.
    fn relative_name(&mut self, path: &str) -> Result<String> {
        let strange = || refused(format!("`{}` does not belong in an archive", path.escape_debug()));
        let (folder, name) = path.split_once('/').ok_or_else(strange)?;
        ThreadId::from_folder(folder).map_err(|_| strange())?;
        if *self.folder.get_or_insert_with(|| folder.to_owned()) != folder {
            return Err(refused("it has more than one thread"));
        }
        let is_digest = |text: &str| text.parse::<Digest>().is_ok_and(|digest| digest.to_string() == text);
        let is_known = match name.split_once('/') {
            None => ["transcript.jsonl", manifest::NAME, capabilities::NAME].contains(&name),
            Some(("blobs", blob)) => is_digest(blob),
            Some(("keys", key)) => key.strip_suffix(".pem").is_some_and(is_digest),
            Some(("chain", key)) => key.strip_suffix(".json").is_some_and(is_digest),
            Some(_) => false,
        };
        is_known.then(|| name.to_owned()).ok_or_else(strange)
    }

    fn file(&mut self, name: &str, size: u64, content: &mut (dyn Read + Send)) -> Result<()> {
        match name.split_once('/') {
            Some(("blobs", blob)) => self.blob(blob, name, content),
            Some(_) => self.keep(name, &small(size, content)?),
            None if name == manifest::NAME => {
                let bytes = small(size, content)?;
                self.keep(name, &bytes)?;
                self.manifest = Some(bytes);
                Ok(())
            }
            None if name == capabilities::NAME => {
                let bytes = small(size, content)?;
                self.keep(name, &bytes)?;
                self.capabilities = Some(bytes);
                Ok(())
            }
            None => self.transcript(name, content),
        }
    }

    fn keep(&self, name: &str, mut bytes: &[u8]) -> Result<()> {
        let mut copying = self.copying(name, &mut bytes)?;
        io::copy(&mut copying, &mut io::sink()).and_then(|_| copying.sync()).map_err(refused)
    }

    /// A reader that copies what it reads to the staged file, if there is one.
    fn copying<'b>(&self, name: &str, content: &'b mut (dyn Read + Send)) -> Result<Copying<'b>> {
        let target = self.staged.map(|staged| staged.create(name)).transpose()?;
        Ok(Copying { content, target })
    }

    fn blob(&mut self, blob: &str, name: &str, content: &mut (dyn Read + Send)) -> Result<()> {
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
            self.changed.extend(blob.parse::<Digest>());
        }
        self.blobs += 1;
        Ok(())
    }

    fn transcript(&mut self, name: &str, content: &mut (dyn Read + Send)) -> Result<()> {
        let mut reader = BufReader::with_capacity(1 << 16, self.copying(name, content)?);
        let mut first = Vec::new();
        lines::next_line(&mut reader, &mut first).map_err(refused)?;
        let born = line::decode(first.strip_suffix(b"\n").unwrap_or(&first));
        let thread = born.map_err(|error| refused(format!("its log can't be read: {error}")))?.thread_id;
        let mut signers: Vec<(Digest, u64)> = Vec::new();
        let mut named = NamedBlobs::default();
        let mut committed_with = BTreeMap::<ThreadId, u64>::new();
        let mut lost = Vec::new();
        let scanner = Scanner::new(&thread, self.trust, Signatures::Every).watching(self.watched);
        let whole = Cursor::new(first).chain(reader.by_ref());
        let examined = examine(whole, scanner, |entry| {
            count_signer(&mut signers, entry.head.signer);
            for (other, version) in entry.checkpoint().into_iter().flat_map(|said| &said.with) {
                let known = committed_with.entry(other.clone()).or_default();
                *known = (*known).max(*version);
            }
            for line in &entry.lines {
                named.take(entry.head.version, &line.event);
            }
            lost.extend(lost_in(&entry));
            (self.each)(&entry);
        });
        let examined = examined.map_err(refused)?;
        for (_, signer) in &examined.unread_signers {
            count_signer(&mut signers, *signer);
        }
        reader.get_mut().sync().map_err(refused)?;
        self.log = Some(Log { thread, examined, signers, committed_with, named, lost });
        Ok(())
    }

    /// Makes the names of all staged files durable.
    fn sync(&self) -> Result<()> {
        self.staged.map_or(Ok(()), Staging::sync)
    }

    /// The log, after the whole archive was read.
    pub(super) fn take_log(&mut self) -> Result<Log> {
        let log = self.log.take().ok_or_else(|| refused("it has no log"))?;
        let folder = self.folder.as_deref().unwrap_or_default();
        let expected = log.thread.folder();
        let is_log_id = || log.examined.log_id.is_some_and(|log_id| log_id.as_str() == folder);
        // The folder name of a very long id does not fit into an archive; the log id always does.
        if folder == expected || (expected.len() > FOLDER_MAX && is_log_id()) {
            return Ok(log);
        }
        Err(refused(format!(
            "its folder is `{}`, but its log belongs to thread `{}`",
            folder.escape_debug(),
            log.thread
        )))
    }

    /// The blobs that its log does not name, and never did.
    pub(super) fn unnamed_blobs(&self, named: &NamedBlobs) -> Vec<Digest> {
        let seen = self.seen.iter().filter_map(|name| name.strip_prefix("blobs/")?.parse::<Digest>().ok());
        let is_named =
            |blob: &Digest| named.must_be_there().any(|(known, _)| known == *blob) || named.erased().contains(blob);
        seen.filter(|blob| !is_named(blob)).collect()
    }

    /// The blobs that the log names and that are missing or changed. Refused if a blob that it does not name is changed.
    pub(super) fn bad_blobs(&self, named: &NamedBlobs) -> Result<Vec<BadBlob>> {
        let mut changed = self.changed.clone();
        let look = |(blob, version): (Digest, u64)| {
            let why = if changed.remove(&blob) {
                "does not match its name"
            } else if self.seen.contains(&format!("blobs/{blob}")) {
                return None;
            } else {
                "is missing"
            };
            Some(BadBlob { blob, version, why: why.to_owned() })
        };
        let bad = named.must_be_there().filter_map(look).collect();
        match changed.first() {
            Some(blob) => Err(refused(format!("blob {blob} does not match its name"))),
            None => Ok(bad),
        }
    }

    /// Accepts an archive only if its log verifies, ends with a checkpoint, has every version that its manifest records, and every blob
    /// that it names.
    pub(super) fn judge(mut self, check_name: &dyn Fn(&ThreadId) -> Result<()>) -> Result<CheckedArchive> {
        let Log { thread, examined, signers, named, .. } = self.take_log()?;
        // A reserved id would collide with a file of the store.
        check_name(&thread)?;
        let memory: Option<Remembered> = match &self.manifest {
            Some(bytes) if examined.damage.is_none() => match manifest::parse(bytes, self.trust, &thread) {
                // The log is valid without it; the manifest is written again when the thread continues.
                Err(Error::UntrustedKey { .. }) => None,
                shown => Some(shown?.memory),
            },
            _ => None,
        };
        let page = self.capabilities.as_ref().filter(|_| examined.damage.is_none());
        match page.map(|bytes| capabilities::check(&thread, bytes, self.trust)) {
            None | Some(Ok(())) => {}
            // A file of an untrusted key is left out: the log records what the thread may call.
            Some(Err(Error::UntrustedKey { .. })) => {
                self.staged.map_or(Ok(()), |staged| staged.remove(capabilities::NAME))?;
            }
            Some(Err(error)) => return Err(error),
        }
        let remembered: Vec<_> = memory.into_iter().collect();
        let evidence = Evidence { remembered: &remembered, ..Evidence::default() };
        let finding = judge(&examined, evidence, Mode::Strict).finding;
        let (Finding::Sound, Some(head)) = (&finding, examined.head().cloned()) else {
            return Err(Error::Log { thread, finding });
        };
        if let Some(bad) = self.bad_blobs(&named)?.into_iter().next() {
            return Err(Error::Log { thread, finding: bad.into_finding() });
        }
        let signers = signers.into_iter().map(|(signer, _)| signer).collect();
        Ok(CheckedArchive { thread, head, signers, blobs: self.blobs })
    }
}

impl CheckedArchive {
    /// The result of an import with this outcome.
    pub fn into_report(self, arrival: ImportOutcome, accounts: Accounts) -> ImportReport {
        let Self { thread, head, signers, blobs } = self;
        ImportReport { thread, head, blobs, signers, arrival, accounts }
    }
}

/// Copies what is read.
struct Copying<'a> {
    content: &'a mut (dyn Read + Send),
    target: Option<Box<dyn Staged>>,
}

impl Copying<'_> {
    fn sync(&mut self) -> io::Result<()> {
        self.target.as_mut().map_or(Ok(()), |file| file.sync())
    }
}

impl Read for Copying<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.content.read(buffer)?;
        if let Some(file) = &mut self.target {
            file.append(&buffer[..read])?;
        }
        Ok(read)
    }
}
