//! Snapshots, kept as the signed bytes that a disk would have, in folders of the same names.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Cursor as Bytes;

use selvedge_log::Head;
use selvedge_model::ThreadId;
use serde_json::Value;

use super::MemoryStore;
use super::inner::head_of;
use crate::error::{Error, Result};
use crate::snapshot::{
    self, Disposal, LogRest, Replaced, SavedSnapshot, SnapshotFolder, SnapshotInfo, Snapshots, VerifiedSnapshot,
};

/// The snapshots of one thread.
#[derive(Default)]
pub(super) struct ThreadSnapshots {
    newest: Option<Vec<u8>>,
    /// By folder and name.
    others: BTreeMap<(String, String), Vec<u8>>,
}

/// The folder of older snapshots.
const CHECKPOINTS: &str = "checkpoints";

impl ThreadSnapshots {
    pub(super) fn newest(&self) -> Option<&Vec<u8>> {
        self.newest.as_ref()
    }

    fn newest_kept(&self) -> Option<SnapshotInfo> {
        let bytes = self.newest.as_ref()?;
        snapshot::peek(bytes, bytes.len() as u64)
    }

    fn kept(&self, archive: &str) -> Vec<SnapshotInfo> {
        let listed = |folder: &str, place: SnapshotFolder| -> Vec<SnapshotInfo> {
            let here = self.others.iter().filter(|((at, _), _)| at == folder);
            here.filter_map(|((_, name), bytes)| snapshot::parse_name(place, name, bytes.len() as u64)).collect()
        };
        let mut kept: Vec<SnapshotInfo> = self.newest_kept().into_iter().collect();
        kept.extend(listed(CHECKPOINTS, SnapshotFolder::Older));
        kept.extend(listed(archive, SnapshotFolder::Archived));
        kept.sort_by_key(|kept| (Reverse(kept.version), kept.place));
        kept
    }

    fn find(&self, kept: &SnapshotInfo, archive: &str) -> Option<&Vec<u8>> {
        match place_of(kept, archive) {
            None => self.newest.as_ref(),
            Some(place) => self.others.get(&place),
        }
    }

    fn take(&mut self, kept: &SnapshotInfo, archive: &str) -> Option<Vec<u8>> {
        match place_of(kept, archive) {
            None => self.newest.take(),
            Some(place) => self.others.remove(&place),
        }
    }

    fn put(&mut self, kept: &SnapshotInfo, folder: &str, bytes: Vec<u8>) {
        let name = snapshot::name_of(kept.version, kept.saved_at, kept.base);
        self.others.insert((folder.to_owned(), name), bytes);
    }
}

/// The folder and name of a snapshot; none for the newest.
fn place_of(kept: &SnapshotInfo, archive: &str) -> Option<(String, String)> {
    match kept.place {
        SnapshotFolder::Newest => None,
        SnapshotFolder::Older => Some((CHECKPOINTS.to_owned(), kept.name.clone())),
        SnapshotFolder::Archived => Some((archive.to_owned(), kept.name.clone())),
    }
}

impl Snapshots for MemoryStore {
    fn seal(&self, thread: &ThreadId, at: &Head) -> Result<Option<String>> {
        let inner = self.inner();
        let tail = &inner.slot(thread)?.tail;
        let is_there = tail.head.as_ref() == Some(at);
        Ok(is_there.then(|| snapshot::seal(&self.shared.signer.seal_key(), at, &tail.hash)))
    }

    fn save(&self, thread: &ThreadId, body: &Value) -> Result<SavedSnapshot> {
        let mut inner = self.inner();
        let slot = inner.slot_mut(thread)?;
        let (text, hash) = snapshot::sign(thread, body, &self.shared.signer, self.shared.clock.now())?;
        let bytes = text.len() as u64;
        let before = slot.snapshots.newest_kept().zip(slot.snapshots.newest.replace(text));
        let before = before.map(|(kept, bytes)| {
            slot.snapshots.put(&kept, CHECKPOINTS, bytes);
            Replaced::Kept(kept.version)
        });
        Ok(SavedSnapshot { hash, bytes, before })
    }

    fn list_snapshots(&self, thread: &ThreadId, archive: &str) -> Result<Vec<SnapshotInfo>> {
        Ok(self.inner().slot(thread)?.snapshots.kept(archive))
    }

    fn read_snapshot(&self, thread: &ThreadId, kept: &SnapshotInfo, archive: &str) -> Result<VerifiedSnapshot> {
        let inner = self.inner();
        let found = inner.slot(thread)?.snapshots.find(kept, archive).cloned();
        let missing = || Error::Unusable {
            what: format!("the snapshot `{}` of `{thread}`", kept.name),
            why: "it does not exist".to_owned(),
            hint: None,
        };
        snapshot::verify(thread, &kept.name, found.ok_or_else(missing)?, &self.shared.trust)
    }

    fn dispose(&self, thread: &ThreadId, kept: &[SnapshotInfo], archive: &str, away: Disposal<'_>) -> Result<()> {
        let mut inner = self.inner();
        let drawer = &mut inner.slot_mut(thread)?.snapshots;
        for kept in kept {
            match (drawer.take(kept, archive), away) {
                (Some(bytes), Disposal::Archive(folder)) => drawer.put(kept, folder, bytes),
                (_, Disposal::Delete) | (None, Disposal::Archive(_)) => {}
            }
        }
        Ok(())
    }

    fn log_after(&self, thread: &ThreadId, at: &Head, seal: &str) -> Result<Option<LogRest>> {
        let Some(hash) = snapshot::unseal(&self.shared.signer.seal_key(), at, seal) else { return Ok(None) };
        let inner = self.inner();
        let slot = inner.slot(thread)?;
        let head = head_of(slot);
        let rest = usize::try_from(at.bytes).ok().and_then(|from| slot.bytes.get(from..));
        match rest.filter(|_| head.log_id == at.log_id && head.segment == at.segment) {
            Some(rest) => Ok(Some(LogRest { hash, head, bytes: Box::new(Bytes::new(rest.to_vec())) })),
            None => Ok(None),
        }
    }
}
