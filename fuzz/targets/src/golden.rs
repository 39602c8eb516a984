//! The keys, the thread and the files that everything starts from.

use std::sync::{LazyLock, Mutex, PoisonError};

use selvedge_log::{Signer, Trust};
use selvedge_model::{Clock, Ids, ThreadId, Timestamp};

use crate::mutate::Chance;

/// The first test key of RFC 8032, which signed the worked example of `FORMAT.md`. Nobody should ever trust it.
const PEM: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n-----END PRIVATE KEY-----\n";
/// The second one; a key that took over.
const HEIR_PEM: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIEzNCJsolpadudESj03g98jCpluWw6c71uhD96bw+6b7\n-----END PRIVATE KEY-----\n";

/// The worked example's log.
pub const TRANSCRIPT: &[u8] = include_bytes!("../../../crates/log/tests/golden/transcript.jsonl");
/// The worked example's document.
pub const DOCUMENT: &[u8] = include_bytes!("../../../crates/log/tests/golden/document.json");
/// A document that another program signed.
pub const RYE_DOCUMENT: &[u8] = include_bytes!("../../../crates/legacy/tests/golden/rye-document.md");
/// The key that signed it.
pub const RYE_KEY: &str = include_str!("../../../crates/legacy/tests/golden/rye-public-key.pem");

/// Who signed everything.
pub static SIGNER: LazyLock<Signer> = LazyLock::new(signer);
/// Who took over.
pub static HEIR: LazyLock<Signer> = LazyLock::new(|| Signer::from_pem(HEIR_PEM).expect("the key is whole"));
/// Trust in [`SIGNER`] and nobody else.
pub static TRUST: LazyLock<Trust> = LazyLock::new(|| Trust::of(&[SIGNER.public()]));
/// The worked example's thread.
pub static THREAD: LazyLock<ThreadId> =
    LazyLock::new(|| ThreadId::new("scribe-0123456789ab").expect("the id is well formed"));

/// The same key once more, for a store to hold.
pub fn signer() -> Signer {
    Signer::from_pem(PEM).expect("the key is whole")
}

/// A clock that stands still.
#[derive(Clone, Copy, Debug)]
pub struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        at()
    }
}

/// Ids that are the same in every run, so that an input means the same in every process.
#[derive(Debug)]
pub struct Counted(Mutex<Chance>);

impl Counted {
    /// Begins at a seed.
    pub fn from(seed: u64) -> Self {
        Self(Mutex::new(Chance::new(seed)))
    }
}

impl Ids for Counted {
    fn fill(&self, bytes: &mut [u8]) {
        let mut chance = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.iter_mut().for_each(|byte| *byte = chance.number() as u8);
    }
}

/// When everything was signed.
pub fn at() -> Timestamp {
    Timestamp::from_micros(1_794_700_800_000_000)
}
