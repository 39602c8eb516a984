//! The keys and statements that go along with a log: the chain of whoever exports it, and what arrived with it from elsewhere.
//!
//! What arrived lies in the thread's folder as it came, `keys/` and `chain/`, so that a thread that goes on from here is the same
//! file. It is believed no more here than it was in the archive, and what does not hold together is left behind.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use selvedge_log::Trust;
use selvedge_log::keychain::Voucher;
use selvedge_log::keys::PublicKey;
use selvedge_model::{Digest, ThreadId};

use super::check::KEY_BYTES_MAX;
use crate::core::Core;
use crate::disk;
use crate::layout::check_folder;

/// What goes along, by the names of the keys.
pub(super) struct Chain {
    pub(super) keys: BTreeMap<Digest, PublicKey>,
    pub(super) vouchers: Vec<Voucher>,
}

impl Core {
    /// The chain around the signers of a log.
    pub(super) fn chain_of(&self, thread: &ThreadId, signers: &[Digest]) -> Chain {
        let folder = self.layout.thread(thread);
        let mut keys = BTreeMap::new();
        for (name, bytes) in self.small_files(&folder.join("keys"), ".pem") {
            let key = std::str::from_utf8(&bytes).ok().and_then(|pem| PublicKey::from_pem(pem).ok());
            keys.extend(key.filter(|key| key.fingerprint() == name).map(|key| (name, key)));
        }
        let own = self.trust.vouchers_around(signers).into_iter().cloned().collect::<Vec<_>>();
        keys.extend(own.iter().flat_map(|one| [one.from, one.to]).chain(signers.iter().copied()).filter_map(|name| {
            let known = self.trust.key(&name)?;
            Some((name, *known))
        }));
        let mut all: BTreeMap<Digest, Voucher> = own.iter().map(|one| (one.to, one.clone())).collect();
        for (name, bytes) in self.small_files(&folder.join("chain"), ".json") {
            let arrived = Voucher::parse(&bytes).ok().filter(|one| one.to == name);
            let arrived = arrived.filter(|one| keys.get(&one.from).is_some_and(|old| one.check(old).is_ok()));
            arrived.into_iter().for_each(|one| _ = all.entry(name).or_insert(one));
        }
        let all: Vec<Voucher> = all.into_values().collect();
        // One heir each: where the two chains disagree, one's own is the one to hand on.
        let holds = Trust::default().vouched(&all, &[]).is_ok();
        let around = Trust::default().with_vouchers(if holds { &all } else { &own });
        let vouchers: Vec<Voucher> = around.vouchers_around(signers).into_iter().cloned().collect();
        let is_named =
            |key: &Digest| signers.contains(key) || vouchers.iter().any(|one| one.from == *key || one.to == *key);
        keys.retain(|key, _| is_named(key));
        Chain { keys, vouchers }
    }

    /// The files of a folder that are named by a fingerprint; what can't be read is passed over.
    fn small_files(&self, folder: &Path, ending: &str) -> Vec<(Digest, Vec<u8>)> {
        if !check_folder(folder).unwrap_or_default() {
            return Vec::new();
        }
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let read = |entry: fs::DirEntry| {
            let name = entry.file_name().to_str()?.strip_suffix(ending)?.parse::<Digest>().ok()?;
            Some((name, disk::read(&*self.disk, &entry.path(), KEY_BYTES_MAX).ok()?))
        };
        entries.filter_map(read).collect()
    }
}
