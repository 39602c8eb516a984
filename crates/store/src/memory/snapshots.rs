//! Snapshots, kept as the signed bytes that a disk would hold, in folders of the same names.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Cursor as Bytes;

use selvedge_log::Head;
use selvedge_model::ThreadId;
use serde_json::Value;

use super::MemoryStore;
use super::inner::head_of;
use crate::error::{Error, Result};
use crate::snapshot::{self, Away, Before, Behind, Kept, Place, Read, Saved, Snapshots};

/// The snapshots of one thread.
#[derive(Default)]
pub(super) struct Drawer {
    newest: Option<Vec<u8>>,
    /// By folder and name.
    others: BTreeMap<(String, String), Vec<u8>>,
}

/// Where older ones lie.
const CHECKPOINTS: &str = "checkpoints";

impl Drawer {
    pub(super) fn newest(&self) -> Option<&Vec<u8>> {
        self.newest.as_ref()
    }

    fn newest_kept(&self) -> Option<Kept> {
        let bytes = self.newest.as_ref()?;
        snapshot::glance(bytes, bytes.len() as u64)
    }

    fn kept(&self, archive: &str) -> Vec<Kept> {
        let listed = |folder: &str, place: Place| -> Vec<Kept> {
            let here = self.others.iter().filter(|((at, _), _)| at == folder);
            here.filter_map(|((_, name), bytes)| snapshot::kept_as(place, name, bytes.len() as u64)).collect()
        };
        let mut kept: Vec<Kept> = self.newest_kept().into_iter().collect();
        kept.extend(listed(CHECKPOINTS, Place::Older));
        kept.extend(listed(archive, Place::Archived));
        kept.sort_by_key(|kept| (Reverse(kept.version), kept.place));
        kept
    }

    fn find(&self, kept: &Kept, archive: &str) -> Option<&Vec<u8>> {
        match place_of(kept, archive) {
            None => self.newest.as_ref(),
            Some(place) => self.others.get(&place),
        }
    }

    fn take(&mut self, kept: &Kept, archive: &str) -> Option<Vec<u8>> {
        match place_of(kept, archive) {
            None => self.newest.take(),
            Some(place) => self.others.remove(&place),
        }
    }

    fn put(&mut self, kept: &Kept, folder: &str, bytes: Vec<u8>) {
        let name = snapshot::name_of(kept.version, kept.saved_at, kept.base);
        self.others.insert((folder.to_owned(), name), bytes);
    }
}

/// The folder and name of a snapshot; none for the newest.
fn place_of(kept: &Kept, archive: &str) -> Option<(String, String)> {
    match kept.place {
        Place::Newest => None,
        Place::Older => Some((CHECKPOINTS.to_owned(), kept.name.clone())),
        Place::Archived => Some((archive.to_owned(), kept.name.clone())),
    }
}

impl Snapshots for MemoryStore {
    fn seal(&self, thread: &ThreadId, at: &Head) -> Result<Option<String>> {
        let inner = self.inner();
        let tail = &inner.slot(thread)?.tail;
        let is_there = tail.head.as_ref() == Some(at);
        Ok(is_there.then(|| snapshot::seal(&self.shared.signer.seal_key(), at, &tail.hash)))
    }

    fn save(&self, thread: &ThreadId, body: &Value) -> Result<Saved> {
        let mut inner = self.inner();
        let slot = inner.slot_mut(thread)?;
        let (text, hash) = snapshot::sign(thread, body, &self.shared.signer, self.shared.clock.now())?;
        let bytes = text.len() as u64;
        let before = slot.snapshots.newest_kept().zip(slot.snapshots.newest.replace(text));
        let before = before.map(|(kept, bytes)| {
            slot.snapshots.put(&kept, CHECKPOINTS, bytes);
            Before::Kept(kept.version)
        });
        Ok(Saved { hash, bytes, before })
    }

    fn kept(&self, thread: &ThreadId, archive: &str) -> Result<Vec<Kept>> {
        Ok(self.inner().slot(thread)?.snapshots.kept(archive))
    }

    fn read_snapshot(&self, thread: &ThreadId, kept: &Kept, archive: &str) -> Result<Read> {
        let inner = self.inner();
        let found = inner.slot(thread)?.snapshots.find(kept, archive).cloned();
        let gone = || Error::Unusable {
            what: format!("the snapshot `{}` of `{thread}`", kept.name),
            why: "it is not there".to_owned(),
            hint: None,
        };
        snapshot::verify(thread, &kept.name, found.ok_or_else(gone)?, &self.shared.trust)
    }

    fn put_away(&self, thread: &ThreadId, kept: &[Kept], archive: &str, away: Away<'_>) -> Result<()> {
        let mut inner = self.inner();
        let drawer = &mut inner.slot_mut(thread)?.snapshots;
        for kept in kept {
            match (drawer.take(kept, archive), away) {
                (Some(bytes), Away::Archive(folder)) => drawer.put(kept, folder, bytes),
                (_, Away::Delete) | (None, Away::Archive(_)) => {}
            }
        }
        Ok(())
    }

    fn behind(&self, thread: &ThreadId, at: &Head, seal: &str) -> Result<Option<Behind>> {
        let Some(hash) = snapshot::unseal(&self.shared.signer.seal_key(), at, seal) else { return Ok(None) };
        let inner = self.inner();
        let slot = inner.slot(thread)?;
        let head = head_of(slot);
        let rest = usize::try_from(at.bytes).ok().and_then(|from| slot.bytes.get(from..));
        match rest.filter(|_| head.log_id == at.log_id && head.segment == at.segment) {
            Some(rest) => Ok(Some(Behind { hash, head, bytes: Box::new(Bytes::new(rest.to_vec())) })),
            None => Ok(None),
        }
    }
}
