//! An archive that is being read: every path, every hash, every signature, in one pass and within bounded memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufReader, Cursor, Read};
use std::path::Path;

use selvedge_log::hash::RunningHash;
use selvedge_log::recovery::{Evidence, Finding, Mode, Remembered, judge};
use selvedge_log::scan::{Entry, Examined, Scanner, Signatures, examine};
use selvedge_log::{Head, Trust, line, lines};
use selvedge_model::{Digest, NamedBlobs, ThreadId};
use selvedge_store::{Error, Result};

use super::{Arrival, Arrived, refused, small};
use crate::blobs::BadBlob;
use crate::core::{Core, io_error};
use crate::disk::{DiskFile, How};
use crate::{manifest, rows, ustar};

/// How many files an archive may have.
const FILES_MAX: usize = 1 << 20;

/// An archive that is being read.
pub(super) struct Arriving<'a> {
    trust: &'a Trust,
    staged: Option<(&'a Core, &'a Path)>,
    watched: Option<u64>,
    each: &'a mut dyn FnMut(&Entry),
    folder: Option<String>,
    seen: BTreeSet<String>,
    log: Option<Log>,
    manifest: Option<Vec<u8>>,
    changed: BTreeSet<Digest>,
    pub(super) blobs: u64,
}

/// What the log in an archive says.
pub(super) struct Log {
    pub(super) thread: ThreadId,
    pub(super) examined: Examined,
    /// Who signed how many checkpoints, in the order they took over.
    pub(super) signers: Vec<(Digest, u64)>,
    pub(super) mates: BTreeMap<ThreadId, u64>,
    pub(super) named: NamedBlobs,
}

/// An archive whose log holds.
pub(super) struct Judged {
    thread: ThreadId,
    head: Head,
    signers: Vec<Digest>,
    blobs: u64,
}

impl<'a> Arriving<'a> {
    /// An archive that is checked with these keys, put together in the folder `staged` if there is one.
    pub(super) fn new(trust: &'a Trust, staged: Option<(&'a Core, &'a Path)>, each: &'a mut dyn FnMut(&Entry)) -> Self {
        Self {
            trust,
            staged,
            watched: None,
            each,
            folder: None,
            seen: BTreeSet::new(),
            log: None,
            manifest: None,
            changed: BTreeSet::new(),
            blobs: 0,
        }
    }

    /// The same, remembering the head that the log passes at `version`.
    pub(super) fn watching(mut self, version: Option<u64>) -> Self {
        self.watched = version;
        self
    }

    pub(super) fn read(mut self, archive: &mut (dyn Read + Send)) -> Result<Self> {
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
            Some(("chain", key)) => key.strip_suffix(".json").is_some_and(is_digest),
            Some(_) => false,
        };
        is_known.then(|| name.to_owned()).ok_or_else(strange)
    }

    fn file(&mut self, name: &str, size: u64, content: &mut (dyn Read + Send)) -> Result<()> {
        match name.split_once('/') {
            Some(("blobs", blob)) => self.blob(blob, name, content),
            Some(_) => self.keep(name, &small(size, content)?),
            None if name == "thread.json" => {
                let bytes = small(size, content)?;
                self.keep(name, &bytes)?;
                self.manifest = Some(bytes);
                Ok(())
            }
            None => self.transcript(name, content),
        }
    }

    fn keep(&self, name: &str, mut bytes: &[u8]) -> Result<()> {
        let mut copying = self.copying(name, &mut bytes)?;
        io::copy(&mut copying, &mut io::sink()).and_then(|_| copying.sync()).map_err(refused)
    }

    /// A reader that writes what it reads to where it belongs, if anything is kept.
    fn copying<'b>(&self, name: &str, content: &'b mut (dyn Read + Send)) -> Result<Copying<'b>> {
        let target = match self.staged {
            Some((core, staged)) => {
                let path = staged.join(name);
                if let Some(above) = path.parent() {
                    core.disk.make_folder(above).map_err(io_error("create", above))?;
                }
                let file = core.disk.open(&path, How::MakeNew).map_err(io_error("create", &path))?;
                Some((file, 0))
            }
            None => None,
        };
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
        let (mut named, mut mates) = (NamedBlobs::default(), BTreeMap::<ThreadId, u64>::new());
        let scanner = Scanner::new(&thread, self.trust, Signatures::Every).watching(self.watched);
        let whole = Cursor::new(first).chain(reader.by_ref());
        let examined = examine(whole, scanner, |entry| {
            match signers.last_mut() {
                Some((signer, count)) if *signer == entry.head.signer => *count += 1,
                _ => signers.push((entry.head.signer, 1)),
            }
            for (mate, version) in entry.checkpoint().into_iter().flat_map(|said| &said.with) {
                let known = mates.entry(mate.clone()).or_default();
                *known = (*known).max(*version);
            }
            entry.lines.iter().for_each(|line| named.take(entry.head.version, &line.event));
            (self.each)(&entry);
        });
        let examined = examined.map_err(refused)?;
        reader.get_mut().sync().map_err(refused)?;
        self.log = Some(Log { thread, examined, signers, mates, named });
        Ok(())
    }

    /// Makes the names of everything that was kept durable.
    fn sync(&self) -> Result<()> {
        let Some((core, staged)) = self.staged else { return Ok(()) };
        for folder in [staged.join("blobs"), staged.join("keys"), staged.join("chain"), staged.to_owned()] {
            if fs::symlink_metadata(&folder).is_ok() {
                core.disk.sync_folder(&folder).map_err(io_error("sync", &folder))?;
            }
        }
        Ok(())
    }

    /// What the log says, once all of the archive was read.
    pub(super) fn take_log(&mut self) -> Result<Log> {
        self.log.take().ok_or_else(|| refused("it has no log"))
    }

    /// The blobs that the log names and that are not here as they should be. Refused if one is changed that it does not name.
    pub(super) fn bad_blobs(&self, named: &NamedBlobs) -> Result<Vec<BadBlob>> {
        let mut changed = self.changed.clone();
        let look = |(blob, version): (Digest, u64)| {
            let why = match (changed.remove(&blob), self.seen.contains(&format!("blobs/{blob}"))) {
                (true, _) => "is not what its name says",
                (false, false) => "is missing",
                (false, true) => return None,
            };
            Some(BadBlob { blob, version, why: why.to_owned() })
        };
        let bad = named.must_be_there().filter_map(look).collect();
        match changed.first() {
            Some(blob) => Err(refused(format!("blob {blob} is not what its name says"))),
            None => Ok(bad),
        }
    }

    /// Accepts an archive only if its log holds, ends with a checkpoint, is all that its manifest remembers, and has every blob that
    /// it names beside it.
    pub(super) fn judge(mut self) -> Result<Judged> {
        let Log { thread, examined, signers, named, .. } = self.take_log()?;
        let memory: Option<Remembered> = match &self.manifest {
            Some(bytes) if examined.damage.is_none() => match manifest::parse(bytes, self.trust, &thread) {
                // The log holds by itself; the projection is written anew when it is gone on with.
                Err(Error::Unbelieved { .. }) => None,
                shown => Some(shown?.memory),
            },
            _ => None,
        };
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
        Ok(Judged { thread, head, signers, blobs: self.blobs })
    }
}

impl Judged {
    /// Takes the thread in, unless it is here already, exactly so.
    pub(super) fn settle(self, core: &Core, staged: Option<&Path>) -> Result<Arrived> {
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

/// Reads, and writes what it reads.
struct Copying<'a> {
    content: &'a mut (dyn Read + Send),
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
