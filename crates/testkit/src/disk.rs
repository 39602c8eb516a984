//! A simulated disk that loses power: what a trace made durable, and what else may or may not be left.
//!
//! The model is deliberately harsher than any known file system:
//!
//! - Everything before the trace is durable.
//! - A write or a truncation of a file is durable once that file was synced after it. Until then it may be present, absent,
//!   present in any of its 512-byte sectors, or present as zeros; each independently and in no order.
//! - A name (created, removed, renamed, linked) is durable once its folder was synced; a rename belongs to its target folder,
//!   and happens as a whole or not at all. Until then each may or may not be present, independently and in no order. Syncing a file
//!   does not make its name durable.
//! - After a failed sync, the pending changes may be lost for ever, even if a later sync of the same file succeeds.
//!
//! [`Disk::after`] applies one call at a time; [`Disk::states`] gives what may be left if the power fails right after it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_store::conformance::support::SeededIds;

use crate::trace::{Call, Record};
use crate::tree::{Node, Tree, is_volatile};

/// Sectors are written as a whole or not at all.
const SECTOR: u64 = 512;

/// One change of a file's content.
#[derive(Clone, Debug)]
enum Change {
    Write { offset: u64, data: Arc<Vec<u8>> },
    Cut(u64),
}

/// Whether a change is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Durability {
    /// Not synced yet.
    Pending,
    /// Its sync failed.
    SyncFailed,
    /// Synced, but after one that is not durable.
    Synced,
}

#[derive(Clone, Debug)]
enum Object {
    File { base: Arc<Vec<u8>>, changes: Vec<(Change, Durability)> },
    Folder { now: BTreeMap<String, usize>, durable: BTreeMap<String, usize> },
}

/// A change of names that happens as a whole or not at all.
#[derive(Clone, Debug)]
struct NameChange {
    /// The folder whose sync makes it durable.
    home: usize,
    changes: Vec<(usize, String, Option<usize>)>,
}

/// What may happen to a change that is not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    Dropped,
    /// Some of its sectors, chosen by this number.
    Torn(u64),
    /// Its full length, but zeros.
    Zeros,
}

/// A disk that can lose power.
#[derive(Clone, Debug)]
pub struct Disk {
    objects: Vec<Object>,
    name_changes: Vec<NameChange>,
}

impl Disk {
    /// A disk on which everything is durable.
    pub fn of(tree: &Tree) -> Self {
        let mut disk = Self { objects: vec![folder()], name_changes: Vec::new() };
        for (path, node) in &tree.0 {
            let object = match node {
                Node::Folder => folder(),
                Node::File(bytes) => Object::File { base: bytes.clone(), changes: Vec::new() },
            };
            let made = disk.make(object);
            if let Some((above, name)) = disk.place(path)
                && let Object::Folder { now, durable } = &mut disk.objects[above]
            {
                now.insert(name.clone(), made);
                durable.insert(name, made);
            }
        }
        disk
    }

    /// Applies the next call of a trace.
    pub fn after(&mut self, record: &Record) {
        if is_volatile(&record.path) || is_volatile(&record.second) || record.is_look() {
            return;
        }
        match record.call {
            Call::Sync => self.synced(&record.path, !record.failed),
            _ if record.failed && record.data.is_empty() => {}
            Call::Create => {
                let made = self.make(Object::File { base: Arc::default(), changes: Vec::new() });
                self.name(&record.path, Some(made), Vec::new());
            }
            Call::MakeFolder => {
                let made = self.make(folder());
                self.name(&record.path, Some(made), Vec::new());
            }
            Call::Write => {
                let change = Change::Write { offset: record.offset, data: Arc::new(record.data.clone()) };
                self.change(&record.path, change);
            }
            Call::Cut => self.change(&record.path, Change::Cut(record.offset)),
            Call::Rename => {
                let Some(moved) = self.find(&record.path) else { return };
                let gone = self.place(&record.path).map(|(above, name)| (above, name, None));
                self.name(&record.second, Some(moved), gone.into_iter().collect());
            }
            Call::Link => {
                let Some(linked) = self.find(&record.path) else { return };
                self.name(&record.second, Some(linked), Vec::new());
            }
            Call::Unlink | Call::RemoveFolder => self.name(&record.path, None, Vec::new()),
            Call::Lock | Call::Ack => {}
            // These change nothing.
            Call::Open | Call::Read | Call::Stat | Call::List | Call::Unlock => {}
        }
    }

    /// The number of changes that are not durable.
    pub fn pending(&self) -> usize {
        let open = |object: &Object| match object {
            Object::File { changes, .. } => {
                changes.iter().filter(|(_, durability)| *durability != Durability::Synced).count()
            }
            Object::Folder { .. } => 0,
        };
        self.name_changes.len() + self.objects.iter().map(open).sum::<usize>()
    }

    /// What may be left: all combinations if there are few, otherwise all and none; and some random ones, about `most` in total.
    pub fn states(&self, most: usize, chance: &SeededIds) -> Vec<Tree> {
        let pending = self.pending();
        let mut states = Vec::new();
        let all = if pending < 12 { 1_u64 << pending } else { u64::MAX };
        if all <= most as u64 {
            for choice in 0..all {
                let fates = |at: usize| if choice >> at & 1 == 1 { Fate::Kept } else { Fate::Dropped };
                states.push(self.state(&fates));
            }
        } else {
            states.push(self.state(&|_| Fate::Kept));
            states.push(self.state(&|_| Fate::Dropped));
        }
        if pending == 0 {
            return states;
        }
        while states.len() < most.max(all.min(most as u64) as usize + 2) {
            let fates = by_chance(pending, chance);
            states.push(self.state(&|at| fates[at]));
        }
        states
    }

    fn make(&mut self, object: Object) -> usize {
        self.objects.push(object);
        self.objects.len() - 1
    }

    /// The folder and the name of a path, in the current state.
    fn place(&self, path: &Path) -> Option<(usize, String)> {
        let above = self.find(path.parent()?)?;
        Some((above, path.file_name()?.to_string_lossy().into_owned()))
    }

    fn find(&self, path: &Path) -> Option<usize> {
        path.components().try_fold(0, |at, part| match &self.objects[at] {
            Object::Folder { now, .. } => now.get(&*part.as_os_str().to_string_lossy()).copied(),
            Object::File { .. } => None,
        })
    }

    fn name(&mut self, path: &Path, object: Option<usize>, mut changes: Vec<(usize, String, Option<usize>)>) {
        let Some((home, name)) = self.place(path) else { return };
        changes.push((home, name, object));
        for (above, name, object) in &changes {
            if let Object::Folder { now, .. } = &mut self.objects[*above] {
                put(now, name, *object);
            }
        }
        self.name_changes.push(NameChange { home, changes });
    }

    fn change(&mut self, path: &Path, change: Change) {
        if let Some(at) = self.find(path)
            && let Object::File { changes, .. } = &mut self.objects[at]
        {
            changes.push((change, Durability::Pending));
        }
    }

    fn synced(&mut self, path: &Path, succeeded: bool) {
        let Some(at) = self.find(path) else { return };
        match &mut self.objects[at] {
            Object::File { base, changes } => {
                for (_, durability) in changes.iter_mut().filter(|(_, durability)| *durability == Durability::Pending) {
                    *durability = if succeeded { Durability::Synced } else { Durability::SyncFailed };
                }
                let sure = changes.iter().take_while(|(_, durability)| *durability == Durability::Synced).count();
                if sure > 0 {
                    let content = Arc::make_mut(base);
                    for (change, _) in changes.drain(..sure) {
                        apply(content, &change, Fate::Kept);
                    }
                }
            }
            Object::Folder { .. } if succeeded => {
                let (done, open): (Vec<_>, Vec<_>) =
                    std::mem::take(&mut self.name_changes).into_iter().partition(|name_change| name_change.home == at);
                self.name_changes = open;
                for (above, name, object) in done.into_iter().flat_map(|name_change| name_change.changes) {
                    if let Object::Folder { durable, .. } = &mut self.objects[above] {
                        put(durable, &name, object);
                    }
                }
            }
            Object::Folder { .. } => {}
        }
    }

    /// The tree that these fates leave; `fates` is called for each change that is not durable.
    fn state(&self, fates: &dyn Fn(usize) -> Fate) -> Tree {
        let mut asked = 0;
        let mut next = || {
            asked += 1;
            fates(asked - 1)
        };
        let mut names: BTreeMap<usize, BTreeMap<String, usize>> = BTreeMap::new();
        for name_change in &self.name_changes {
            if next() == Fate::Dropped {
                continue;
            }
            for (above, name, object) in &name_change.changes {
                put(names.entry(*above).or_insert_with(|| self.durable(*above)), name, *object);
            }
        }
        let mut contents: BTreeMap<usize, Arc<Vec<u8>>> = BTreeMap::new();
        for (at, object) in self.objects.iter().enumerate() {
            if let Object::File { base, changes } = object
                && !changes.is_empty()
            {
                let mut content = base.as_ref().clone();
                for (change, durability) in changes {
                    let fate = if *durability == Durability::Synced { Fate::Kept } else { next() };
                    apply(&mut content, change, fate);
                }
                contents.insert(at, Arc::new(content));
            }
        }
        let mut tree = Tree::default();
        let mut folders = vec![(0, PathBuf::new(), 0)];
        while let Some((at, path, depth)) = folders.pop() {
            let entries = names.get(&at).cloned().unwrap_or_else(|| self.durable(at));
            for (name, object) in entries {
                let path = path.join(name);
                match &self.objects[object] {
                    Object::Folder { .. } => {
                        tree.0.insert(path.clone(), Node::Folder);
                        // A folder that a dropped rename left at two paths has one content; a cycle is not possible.
                        if depth < 32 {
                            folders.push((object, path, depth + 1));
                        }
                    }
                    Object::File { base, .. } => {
                        let content = contents.get(&object).unwrap_or(base).clone();
                        tree.0.insert(path, Node::File(content));
                    }
                }
            }
        }
        tree
    }

    fn durable(&self, at: usize) -> BTreeMap<String, usize> {
        match &self.objects[at] {
            Object::Folder { durable, .. } => durable.clone(),
            Object::File { .. } => BTreeMap::new(),
        }
    }
}

fn folder() -> Object {
    Object::Folder { now: BTreeMap::new(), durable: BTreeMap::new() }
}

fn put(names: &mut BTreeMap<String, usize>, name: &str, object: Option<usize>) {
    match object {
        Some(object) => _ = names.insert(name.to_owned(), object),
        None => _ = names.remove(name),
    }
}

/// A fate for each change that is not durable. Some patterns are fixed, so that unlikely combinations are reached too.
fn by_chance(pending: usize, chance: &SeededIds) -> Vec<Fate> {
    let pattern = chance.below(6);
    let stop = chance.below(pending as u64 + 1) as usize;
    (0..pending)
        .map(|at| match pattern {
            // Kept in order up to a point, the change there torn.
            0 if at < stop => Fate::Kept,
            0 if at == stop => Fate::Torn(chance.below(u64::MAX)),
            0 => Fate::Dropped,
            // All but one; only one.
            1 if at == stop => Fate::Dropped,
            1 => Fate::Kept,
            2 if at == stop => Fate::Kept,
            2 => Fate::Dropped,
            // Mostly torn.
            3 => Fate::Torn(chance.below(u64::MAX)),
            _ => match chance.below(8) {
                0..3 => Fate::Kept,
                3..6 => Fate::Dropped,
                6 => Fate::Torn(chance.below(u64::MAX)),
                _ => Fate::Zeros,
            },
        })
        .collect()
}

fn apply(content: &mut Vec<u8>, change: &Change, fate: Fate) {
    match (change, fate) {
        (_, Fate::Dropped) => {}
        (Change::Cut(length), Fate::Kept) => content.resize(*length as usize, 0),
        // A partial truncation is none.
        (Change::Cut(_), Fate::Torn(_) | Fate::Zeros) => {}
        (Change::Write { offset, data }, Fate::Kept) => write(content, *offset, data),
        (Change::Write { offset, data }, Fate::Zeros) => {
            let end = *offset as usize + data.len();
            if content.len() < end {
                content.resize(end, 0);
            }
        }
        (Change::Write { offset, data }, Fate::Torn(choice)) => {
            let mut at = 0;
            while at < data.len() {
                let from = offset + at as u64;
                let sector = from / SECTOR;
                let next = (((sector + 1) * SECTOR - from) as usize).min(data.len() - at);
                if choice.rotate_left((sector % 64) as u32) & 1 == 1 {
                    write(content, from, &data[at..at + next]);
                }
                at += next;
            }
        }
    }
}

fn write(content: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let start = offset as usize;
    let end = start + data.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[start..end].copy_from_slice(data);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(call: Call, path: &str, second: &str, data: &[u8]) -> Record {
        Record {
            call,
            failed: false,
            file: 3,
            count: 0,
            path: path.into(),
            second: second.into(),
            offset: 0,
            data: data.to_vec(),
        }
    }

    fn contents(states: &[Tree], path: &str) -> Vec<Option<String>> {
        let text = |tree: &Tree| match tree.0.get(Path::new(path)) {
            Some(Node::File(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        };
        let mut found: Vec<_> = states.iter().map(text).collect();
        found.sort();
        found.dedup();
        found
    }

    #[test]
    fn unsynced_changes_may_be_absent_and_synced_ones_are_present() {
        let chance = SeededIds::new(1);
        let mut disk = Disk::of(&Tree::default());
        disk.after(&record(Call::Create, "a", "", b""));
        disk.after(&record(Call::Write, "a", "", b"one"));
        disk.after(&record(Call::Sync, "a", "", b""));
        assert_eq!(contents(&disk.states(8, &chance), "a"), [None, Some("one".to_owned())], "its name is not durable");
        disk.after(&record(Call::Sync, "", "", b""));
        assert_eq!(contents(&disk.states(8, &chance), "a"), [Some("one".to_owned())]);
        disk.after(&record(Call::Write, "a", "", b"two"));
        let found = contents(&disk.states(8, &chance), "a");
        assert!(found.contains(&Some("one".to_owned())) && found.contains(&Some("two".to_owned())), "{found:?}");
        disk.after(&record(Call::Sync, "a", "", b""));
        assert_eq!(contents(&disk.states(8, &chance), "a"), [Some("two".to_owned())]);
    }

    #[test]
    fn a_rename_is_atomic_and_changes_of_a_failed_sync_may_be_lost_for_ever() {
        let chance = SeededIds::new(1);
        let mut disk = Disk::of(&Tree::default());
        disk.after(&record(Call::Create, "new", "", b""));
        disk.after(&record(Call::Sync, "", "", b""));
        disk.after(&record(Call::Write, "new", "", b"one"));
        disk.after(&Record { failed: true, ..record(Call::Sync, "new", "", b"") });
        disk.after(&record(Call::Sync, "new", "", b""));
        let found = contents(&disk.states(8, &chance), "new");
        assert!(found.contains(&Some(String::new())), "a second sync proves nothing: {found:?}");
        disk.after(&record(Call::Rename, "new", "old", b""));
        for tree in disk.states(16, &chance) {
            let names: Vec<_> = tree.0.keys().map(|path| path.to_string_lossy().into_owned()).collect();
            assert!(names == ["new"] || names == ["old"], "{names:?}");
        }
    }
}
