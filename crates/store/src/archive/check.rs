//! Verifies an archive without a store, for a reader who has the file and one public key.
//!
//! The archive is read twice. First only the small files, in any order: the statements of rotations lead from the trusted keys to the
//! others of their chain. Then everything is verified in one pass.

use std::io::{Read, Seek, SeekFrom};

use selvedge_log::Trust;
use selvedge_log::keychain::RotationStatement;
use selvedge_log::keys::PublicKey;
use selvedge_log::recovery::{Evidence, Finding, Mode, Plan, judge};
use selvedge_log::scan::ScannedChangeset;

use super::reader::{ArchiveReader, Log};
use super::{Verification, refused, small, ustar};
use crate::error::{Error, Result};
use crate::{capabilities, manifest};

/// The maximum number of keys and statements in an archive.
const KEYS_MAX: usize = 1000;
/// The maximum length of a key or a statement.
pub const KEY_BYTES_MAX: u64 = 64 * 1024;

/// The keys in an archive. They prove nothing unless the reader trusts one of them.
#[derive(Debug, Default)]
pub struct ArchivedKeys {
    /// The public keys.
    pub keys: Vec<PublicKey>,
    /// The statements of rotations.
    pub statements: Vec<RotationStatement>,
    manifest: Option<Vec<u8>>,
}

impl ArchivedKeys {
    /// Reads the small files of an archive and skips the others.
    pub fn read(archive: &mut (impl Read + Seek + Send)) -> Result<Self> {
        let mut found = Self::default();
        archive.rewind().map_err(refused)?;
        while let Some(header) = ustar::read_header(archive).map_err(refused)? {
            if header.is_folder {
                continue;
            }
            let name = header.path.split_once('/').map_or("", |(_, name)| name);
            match name.split_once('/') {
                Some((folder @ ("keys" | "chain"), _)) => {
                    if header.size > KEY_BYTES_MAX || found.keys.len() + found.statements.len() >= KEYS_MAX {
                        return Err(refused("it has too many keys, or too long ones"));
                    }
                    let bytes = small(header.size, &mut Read::take(&mut *archive, header.size))?;
                    found.take(folder, &bytes)?;
                }
                None if name == "thread.json" => {
                    found.manifest = Some(small(header.size, &mut Read::take(&mut *archive, header.size))?);
                }
                _ => {
                    let size = i64::try_from(header.size).map_err(refused)?;
                    archive.seek(SeekFrom::Current(size)).map_err(refused)?;
                }
            }
            ustar::skip_padding(archive, header.size).map_err(refused)?;
        }
        Ok(found)
    }

    fn take(&mut self, folder: &str, bytes: &[u8]) -> Result<()> {
        if folder == "chain" {
            self.statements
                .push(RotationStatement::parse(bytes).map_err(|why| refused(format!("a statement in it: {why}")))?);
        } else {
            // An unreadable key is treated as missing.
            self.keys.extend(std::str::from_utf8(bytes).ok().and_then(|pem| PublicKey::from_pem(pem).ok()));
        }
        Ok(())
    }
}

/// Verifies an archive with the trusted keys, and the keys that these signed for: every signature, every blob. Passes each verified changeset to
/// `each`. Returns the verdict, and all keys that were trusted in the end.
pub fn verify_archive(
    archive: &mut (impl Read + Seek + Send),
    trust: &Trust,
    each: &mut dyn FnMut(&ScannedChangeset),
) -> Result<(Verification, Trust)> {
    let small = ArchivedKeys::read(archive)?;
    let trust = trust.extended_by(&small.statements, &small.keys).map_err(refused)?;
    archive.rewind().map_err(refused)?;
    // Only the log says which thread the manifest must belong to; its version is compared afterwards.
    let watched = small.manifest.as_deref().and_then(shown_version);
    let mut reader = ArchiveReader::new(&trust, None, each).watching(watched).read(archive)?;
    let log = reader.take_log()?;
    let bad_blobs = reader.bad_blobs(&log.named)?;
    let unnamed_blobs = reader.unnamed_blobs(&log.named);
    let Log { thread, examined, signers, committed_with, named, lost } = log;
    let (memory, mut problem) = match small.manifest.map(|bytes| manifest::parse(&bytes, &trust, &thread)) {
        None => (None, None),
        Some(Ok(shown)) => (Some(shown.memory), None),
        Some(Err(Error::Integrity { why, .. })) => (None, Some(why)),
        Some(Err(Error::UntrustedKey { .. })) => (None, None),
        Some(Err(error)) => return Err(error),
    };
    if let (Some(memory), Some(passed)) = (&memory, &examined.passed)
        && memory.hash.is_some_and(|hash| hash != passed.hash)
    {
        problem = Some(format!("it shows another log at version {}", memory.version));
    }
    let problem = problem.map(|why| (manifest::NAME, why));
    let page = || match capabilities::check(&thread, reader.capabilities.as_deref()?, &trust) {
        Err(Error::Integrity { why, .. }) => Some((capabilities::NAME, why)),
        // An untrusted signer of this file says nothing about the log.
        _ => None,
    };
    let problem = problem.or_else(page);
    let remembered: Vec<_> = memory.into_iter().collect();
    let evidence = Evidence { remembered: &remembered, ..Evidence::default() };
    let mut judgement = judge(&examined, evidence, Mode::Strict);
    if let Some((by, why)) = problem.filter(|_| judgement.finding == Finding::Sound) {
        judgement.finding = Finding::Contradicted { by: by.to_owned(), why };
        judgement.plan = Plan::Refuse;
    }
    if let (Finding::Sound, Some(first)) = (&judgement.finding, bad_blobs.first()) {
        judgement.finding = first.clone().into_finding();
    }
    let head = examined.verified.clone();
    let verdict = Verification {
        thread,
        judgement,
        healed_bytes: 0,
        signers,
        lines: head.as_ref().map_or(0, |head| head.lines),
        bytes: head.as_ref().map_or(0, |head| head.bytes),
        head,
        erased: named.erased().len() as u64,
        erased_blobs: named.erased().iter().copied().collect(),
        bad_blobs,
        committed_with: committed_with.into_iter().collect(),
        remembered: remembered.into_iter().map(|memory| (memory.by, memory.version)).collect(),
        lost,
        unnamed_blobs,
        trailing_bytes: reader.trailing,
    };
    Ok((verdict, trust))
}

/// The version that a manifest shows, unverified.
fn shown_version(bytes: &[u8]) -> Option<u64> {
    let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    value.get("log_version")?.as_u64()
}
