//! SHA-256 as the log uses it: a running hash of the segment, whose state is saved between processes.
//!
//! A commit needs the hash of everything before it. With [`RunningHash`] that costs the same at line 10 and at line
//! 100,000; its saved state spares the next process the first pass over the file.
//!
//! A saved state is dangerous: an attacker who could change it would make the next honest commit sign a forgery. So a state is saved
//! and restored only through [`SealKey`], and the invariants are:
//!
//! - a state is returned only if the tag over it and over its position is valid;
//! - the key of that tag is derived from the secret signing key, so only the signer can seal;
//! - an invalid state gives `None`, and the caller hashes the file again. There is no error to handle.
//!
//! ```text
//! sealed = state ‖ tag        tag = HMAC-SHA256(key, domain ‖ 0x00 ‖ log id length (u64) ‖ log id
//!                                   ‖ segment (u32) ‖ version (u64) ‖ offset (u64) ‖ state)     all big-endian
//! key    = HMAC-SHA256(secret signing key, key domain)
//! ```

use hmac::{Hmac, KeyInit, Mac};
use selvedge_model::digest::Digest;
use sha2::digest::common::hazmat::{SerializableState, SerializedState};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

/// Change the number whenever the layout of a saved state changes; old states are then hashed again.
const DOMAIN_STATE: &[u8] = b"selvedge/hash-state/1";
/// Separates tags over other content from those over hash states.
const DOMAIN_CONTENT: &[u8] = b"selvedge/content/1";
/// Separates the keys of individual stores from the key they are derived from.
const DOMAIN_STORE: &[u8] = b"selvedge/store/1";
const DOMAIN_KEY: &[u8] = b"selvedge/hash-state/1/key";
const TAG_BYTES: usize = 32;

/// Hashes all of `bytes`.
pub fn sha256(bytes: &[u8]) -> Digest {
    Digest(Sha256::digest(bytes).into())
}

/// A SHA-256 that gives the hash of all bytes so far at any point.
#[derive(Clone, Default)]
pub struct RunningHash(Sha256);

impl RunningHash {
    /// The hash of no bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of every byte added so far.
    pub fn digest(&self) -> Digest {
        Digest(self.0.clone().finalize().into())
    }

    /// The state as bytes. Not public: it must be sealed before it is stored.
    fn save(&self) -> Vec<u8> {
        self.0.serialize().to_vec()
    }

    /// The state that [`Self::save`] wrote.
    fn restore(saved: &[u8]) -> Option<Self> {
        let state = SerializedState::<Sha256>::try_from(saved).ok()?;
        Sha256::deserialize(&state).ok().map(Self)
    }
}

impl std::fmt::Debug for RunningHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RunningHash({})", self.digest())
    }
}

/// The position that a saved state belongs to; it is valid nowhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding<'a> {
    /// The random id of the log.
    pub log_id: &'a str,
    /// The segment of the log.
    pub segment: u32,
    /// The version after which the state was saved.
    pub version: u64,
    /// How many bytes of the segment the state covers.
    pub offset: u64,
}

/// Seals saved states. Derived by [`Signer::seal_key`](crate::keys::Signer::seal_key); wiped when dropped.
#[derive(Clone)]
pub struct SealKey(Zeroizing<[u8; 32]>);

impl SealKey {
    /// Derives the key from the secret half of a signing key.
    pub(crate) fn derive(secret: &[u8; 32]) -> Self {
        let mut mac = keyed(secret);
        mac.update(DOMAIN_KEY);
        Self(Zeroizing::new(mac.finalize().into_bytes().into()))
    }

    /// The key for one store: its seals are invalid in every other store of the same user.
    #[must_use]
    pub fn for_store(&self, store: &str) -> Self {
        let mut mac = keyed(&self.0);
        mac.update(DOMAIN_STORE);
        mac.update(&[0]);
        mac.update(store.as_bytes());
        Self(Zeroizing::new(mac.finalize().into_bytes().into()))
    }

    /// Makes a state safe to store where other programs could write.
    pub fn seal(&self, binding: &Binding<'_>, state: &RunningHash) -> Vec<u8> {
        let mut sealed = state.save();
        let tag = self.tag(binding, &sealed).finalize().into_bytes();
        sealed.extend_from_slice(&tag);
        sealed
    }

    /// The state that was sealed with this key for this position; `None` if it was not.
    pub fn open(&self, binding: &Binding<'_>, sealed: &[u8]) -> Option<RunningHash> {
        let (state, tag) = sealed.split_last_chunk::<TAG_BYTES>()?;
        // The comparison takes constant time.
        self.tag(binding, state).verify_slice(tag).ok()?;
        RunningHash::restore(state)
    }

    /// A tag that only this key can make, for content at this position that is stored where other programs could write.
    pub fn mark(&self, binding: &Binding<'_>, content: &[u8]) -> Digest {
        Digest(self.tagged(DOMAIN_CONTENT, binding, content).finalize().into_bytes().into())
    }

    /// Whether `mark` was made by this key for this content at this position.
    pub fn is_marked(&self, binding: &Binding<'_>, content: &[u8], mark: &Digest) -> bool {
        self.tagged(DOMAIN_CONTENT, binding, content).verify_slice(&mark.0).is_ok()
    }

    fn tag(&self, binding: &Binding<'_>, state: &[u8]) -> Hmac<Sha256> {
        self.tagged(DOMAIN_STATE, binding, state)
    }

    fn tagged(&self, domain: &[u8], binding: &Binding<'_>, state: &[u8]) -> Hmac<Sha256> {
        let mut mac = keyed(&self.0);
        mac.update(domain);
        mac.update(&[0]);
        mac.update(&(binding.log_id.len() as u64).to_be_bytes());
        mac.update(binding.log_id.as_bytes());
        mac.update(&binding.segment.to_be_bytes());
        mac.update(&binding.version.to_be_bytes());
        mac.update(&binding.offset.to_be_bytes());
        mac.update(state);
        mac
    }
}

impl std::fmt::Debug for SealKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealKey(..)")
    }
}

/// The keys whose marks are valid: the current one, and the available ones among those it took over from.
#[derive(Clone, Debug)]
pub struct Seals {
    current: SealKey,
    former: Vec<SealKey>,
}

impl Seals {
    /// Marks are made by `current`; those of `former` keys are valid too.
    pub fn new(current: SealKey, former: Vec<SealKey>) -> Self {
        Self { current, former }
    }

    /// The same keys, for one store alone.
    #[must_use]
    pub fn for_store(&self, store: &str) -> Self {
        let former = self.former.iter().map(|key| key.for_store(store)).collect();
        Self { current: self.current.for_store(store), former }
    }

    /// A tag that only the current key can make, for content at this position that is stored where other programs could write.
    pub fn mark(&self, binding: &Binding<'_>, content: &[u8]) -> Digest {
        self.current.mark(binding, content)
    }

    /// Whether `mark` was made by one of the keys for this content at this position.
    pub fn is_marked(&self, binding: &Binding<'_>, content: &[u8], mark: &Digest) -> bool {
        std::iter::once(&self.current).chain(&self.former).any(|key| key.is_marked(binding, content, mark))
    }
}

fn keyed(key: &[u8; 32]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC accepts a key of any length")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use selvedge_model::digest::hex;

    const HERE: Binding<'_> = Binding { log_id: "ab", segment: 0, version: 7, offset: 130 };

    fn hash_of(bytes: &[u8]) -> RunningHash {
        let mut hash = RunningHash::new();
        hash.update(bytes);
        hash
    }

    #[test]
    fn the_hash_is_sha256() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc").to_string(), abc);
        assert_eq!(hash_of(b"abc").digest().to_string(), abc);
        assert_eq!(RunningHash::new().digest(), sha256(b""));
    }

    #[test]
    fn a_sealed_state_with_a_flipped_bit_or_a_missing_byte_does_not_open() {
        let key = SealKey::derive(&[7; 32]);
        let sealed = key.seal(&HERE, &hash_of(&[1; 130]));
        assert_eq!(key.open(&HERE, &sealed).unwrap().digest(), sha256(&[1; 130]));
        for position in 0..sealed.len() {
            for bit in 0..8 {
                let mut changed = sealed.clone();
                changed[position] ^= 1 << bit;
                assert!(key.open(&HERE, &changed).is_none(), "byte {position} bit {bit}");
            }
            assert!(key.open(&HERE, &sealed[..position]).is_none());
            assert!(key.open(&HERE, &sealed[position + 1..]).is_none());
        }
        assert!(key.open(&HERE, &[sealed, vec![0]].concat()).is_none());
    }

    #[test]
    fn a_sealed_state_opens_only_with_its_key_at_its_position() {
        let key = SealKey::derive(&[7; 32]);
        let sealed = key.seal(&HERE, &hash_of(b"abc"));
        for elsewhere in [
            Binding { log_id: "ac", ..HERE },
            Binding { log_id: "", ..HERE },
            Binding { segment: 1, ..HERE },
            Binding { version: 8, ..HERE },
            Binding { offset: 131, ..HERE },
        ] {
            assert!(key.open(&elsewhere, &sealed).is_none(), "{elsewhere:?}");
        }
        assert!(SealKey::derive(&[8; 32]).open(&HERE, &sealed).is_none());
    }

    /// A state saved by one version of the hash library may meet another. If this fails, give the domains a new number.
    #[test]
    fn the_layout_of_a_saved_state_is_unchanged() {
        // Eight words of state, the number of complete blocks, the number of remaining bytes, those bytes.
        let words = "1cb85bdf26061ee894a845fb310fd44f16685eb2c199d4d6294990ab665e6300";
        let saved = hash_of(&[b'a'; 67]).save();
        assert_eq!(hex(&saved), format!("{words}0100000000000000{}{}", "03616161", "00".repeat(60)));
    }

    #[test]
    fn debug_output_does_not_show_the_key() {
        assert_eq!(format!("{:?}", SealKey::derive(&[7; 32])), "SealKey(..)");
    }

    proptest! {
        #[test]
        fn continuing_from_a_restored_state_equals_hashing_everything(
            before in prop::collection::vec(any::<u8>(), 0..300),
            after in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let key = SealKey::derive(&[1; 32]);
            let sealed = key.seal(&HERE, &hash_of(&before));
            let mut hash = key.open(&HERE, &sealed).unwrap();
            prop_assert_eq!(hash.digest(), sha256(&before));
            hash.update(&after);
            prop_assert_eq!(hash.digest(), sha256(&[before, after].concat()));
        }
    }
}
