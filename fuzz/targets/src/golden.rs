//! The keys, the thread and the files that all targets start from.

use std::sync::{LazyLock, Mutex, PoisonError};

use selvedge_log::{Signer, Trust};
use selvedge_model::{Clock, Ids, ThreadId, Timestamp};

use crate::mutate::Random;

/// The first test key of RFC 8032, which signed the worked example of `FORMAT.md`. Never trust it.
const PEM: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n-----END PRIVATE KEY-----\n";
/// The second one: the successor of the first.
const HEIR_PEM: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIEzNCJsolpadudESj03g98jCpluWw6c71uhD96bw+6b7\n-----END PRIVATE KEY-----\n";

/// The worked example's log.
pub const TRANSCRIPT: &[u8] = include_bytes!("../../../crates/log/tests/golden/transcript.jsonl");
/// The worked example's document.
pub const DOCUMENT: &[u8] = include_bytes!("../../../crates/log/tests/golden/document.json");
/// A document that another program signed.
pub const RYE_DOCUMENT: &[u8] = include_bytes!("../../../crates/legacy/tests/golden/rye-document.md");
/// The key that signed it.
pub const RYE_KEY: &str = include_str!("../../../crates/legacy/tests/golden/rye-public-key.pem");

/// The signer of everything.
pub static SIGNER: LazyLock<Signer> = LazyLock::new(signer);
/// Its successor.
pub static HEIR: LazyLock<Signer> = LazyLock::new(|| Signer::from_pem(HEIR_PEM).expect("the key is whole"));
/// Trust in [`SIGNER`] alone.
pub static TRUST: LazyLock<Trust> = LazyLock::new(|| Trust::of(&[SIGNER.public()]));
/// The worked example's thread.
pub static THREAD: LazyLock<ThreadId> =
    LazyLock::new(|| ThreadId::new("scribe-0123456789ab").expect("the id is well formed"));

/// The same key once more, for a store.
pub fn signer() -> Signer {
    Signer::from_pem(PEM).expect("the key is whole")
}

/// A constant clock.
#[derive(Clone, Copy, Debug)]
pub struct ConstantClock;

impl Clock for ConstantClock {
    fn now(&self) -> Timestamp {
        at()
    }
}

/// Ids that are the same in every run, so that an input has the same effect in every process.
#[derive(Debug)]
pub struct SeededIds(Mutex<Random>);

impl SeededIds {
    /// Begins at a seed.
    pub fn from(seed: u64) -> Self {
        Self(Mutex::new(Random::new(seed)))
    }
}

impl Ids for SeededIds {
    fn fill(&self, bytes: &mut [u8]) {
        let mut random = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.iter_mut().for_each(|byte| *byte = random.number() as u8);
    }
}

/// The time of every signature.
pub fn at() -> Timestamp {
    Timestamp::from_micros(1_794_700_800_000_000)
}
