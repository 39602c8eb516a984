//! Ed25519 keys: fingerprints, signing and verifying.
//!
//! [`folder`] stores keys on disk; [`trust`](crate::trust) decides which keys are trusted.
//!
//! Invariants:
//!
//! - The message under a signature is always the ASCII domain, one zero byte, then the caller's bytes. No domain contains a
//!   zero byte, so a signature for one purpose is never valid for another.
//! - A signature is written as 86 characters of base64url without padding, in exactly one way.
//! - Verifying is strict: no weak keys, no second encoding of a point or scalar.
//! - A fingerprint is the SHA-256 of the 32 raw bytes of the public key, compared in full and shortened only for display.
//! - The secret half leaves a [`Signer`] only as the PEM for its own file; it is wiped when dropped and never shown.
//! - A [`Signer`] knows the keys it took over from; only the [`keychain`](crate::keychain) determines them.

mod fast_key;
pub mod folder;
pub(crate) mod secure_folder;

use std::collections::BTreeSet;
use std::fmt;

use base64ct::{Base64UrlUnpadded, Encoding};
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePrivateKey, DecodePublicKey, EncodePrivateKey, EncodePublicKey, KeypairBytes};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use selvedge_model::clock_and_ids::Ids;
use selvedge_model::digest::Digest;
use selvedge_model::error::{Classify, Kind};
use zeroize::{Zeroize, Zeroizing};

use crate::hash::{SealKey, Seals, sha256};
use fast_key::FastKey;
pub use folder::{KeyError, KeyFolder};

/// The domain of the signatures that end a changeset.
pub const DOMAIN_CHECKPOINT: &str = "selvedge/checkpoint/1";

/// The start of the domain of a signed document; its kind follows.
pub const DOMAIN_DOCUMENT: &str = "selvedge/document/1/";

/// The number of characters of a signature.
pub const SIGNATURE_CHARS: usize = 86;

/// SHA-256 over the 32 raw bytes of a public key. Its `short()` is for display only.
pub type Fingerprint = Digest;

/// A signature that is malformed, or not this key's for this message in this domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the signature does not match")]
pub struct BadSignature;

impl Classify for BadSignature {
    fn kind(&self) -> Kind {
        Kind::Integrity
    }

    fn code(&self) -> &'static str {
        "invalid_signature"
    }
}

/// Why a text or bytes are not a valid key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// Not 43 characters of base64url without padding.
    #[error("it is not 43 characters of unpadded base64url")]
    Text,
    /// Not the PEM of an Ed25519 key.
    #[error("it is not the PEM of an Ed25519 key")]
    Pem,
    /// Not a point on the curve, or a non-canonical encoding of one.
    #[error("it is not an Ed25519 public key")]
    Point,
    /// A key for which signatures can be forged.
    #[error("it is a weak Ed25519 key, for which anyone can forge signatures")]
    Weak,
}

impl Classify for InvalidKey {
    fn kind(&self) -> Kind {
        Kind::Invalid
    }

    fn code(&self) -> &'static str {
        "invalid_key"
    }
}

/// The public half of a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// Checks that these 32 bytes are a strong key.
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self, InvalidKey> {
        let key = VerifyingKey::from_bytes(bytes).map_err(|_| InvalidKey::Point)?;
        Self::check(key)
    }

    /// Reads the text that [`Self::to_text`] writes, and no other.
    pub fn from_text(text: &str) -> Result<Self, InvalidKey> {
        Self::from_bytes(&decode(text).ok_or(InvalidKey::Text)?)
    }

    /// Reads an SPKI PEM.
    pub fn from_pem(pem: &str) -> Result<Self, InvalidKey> {
        Self::check(VerifyingKey::from_public_key_pem(pem).map_err(|_| InvalidKey::Pem)?)
    }

    fn check(key: VerifyingKey) -> Result<Self, InvalidKey> {
        if key.is_weak() {
            return Err(InvalidKey::Weak);
        }
        // The library accepts a coordinate beyond the field's prime; one key would then have two fingerprints.
        if VerifyingKey::from(key.to_edwards()).as_bytes() != key.as_bytes() {
            return Err(InvalidKey::Point);
        }
        Ok(Self(key))
    }

    /// The 32 raw bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }

    /// The key as 43 characters of base64url without padding.
    pub fn to_text(&self) -> String {
        Base64UrlUnpadded::encode_string(self.as_bytes())
    }

    /// The key as SPKI PEM, ending in a newline.
    pub fn to_pem(&self) -> String {
        self.0.to_public_key_pem(LineEnding::LF).expect("32 bytes always fit into SPKI")
    }

    /// The fingerprint of the key.
    pub fn fingerprint(&self) -> Fingerprint {
        sha256(self.as_bytes())
    }

    /// Verifies that this key signed `message` in `domain`.
    pub fn verify(&self, domain: &str, message: &[u8], signature: &str) -> Result<(), BadSignature> {
        let signature = Signature::from_bytes(&decode(signature).ok_or(BadSignature)?);
        self.0.verify_strict(&in_domain(domain, message), &signature).map_err(|_| BadSignature)
    }

    /// Verifies that this key signed exactly `message`, without a domain. Only for what other programs signed: this project
    /// signs nothing like that.
    pub fn verify_bare(&self, message: &[u8], signature: &str) -> Result<(), BadSignature> {
        let signature = Signature::from_bytes(&decode(signature).ok_or(BadSignature)?);
        self.0.verify_strict(message, &signature).map_err(|_| BadSignature)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.to_text())
    }
}

/// A key pair: signs, and may continue logs of the keys that it took over from.
pub struct Signer {
    key: SigningKey,
    fast: Option<FastKey>,
    fingerprint: Fingerprint,
    predecessors: BTreeSet<Fingerprint>,
    /// The seal keys of retired keys that are available.
    former: Vec<SealKey>,
    is_wary: bool,
}

impl Signer {
    /// Makes a new key.
    pub fn generate(ids: &dyn Ids) -> Self {
        let mut secret = Zeroizing::new([0; 32]);
        ids.fill(secret.as_mut());
        Self::from_key(SigningKey::from_bytes(&secret))
    }

    /// Reads a PKCS#8 PEM, of this program or of `openssl genpkey -algorithm ed25519`.
    pub fn from_pem(pem: &str) -> Result<Self, InvalidKey> {
        SigningKey::from_pkcs8_pem(pem).map(Self::from_key).map_err(|_| InvalidKey::Pem)
    }

    fn from_key(key: SigningKey) -> Self {
        let fingerprint = sha256(key.verifying_key().as_bytes());
        let fast = FastKey::new(&key);
        Self { key, fast, fingerprint, predecessors: BTreeSet::new(), former: Vec::new(), is_wary: false }
    }

    /// The same key with its predecessors: the result of
    /// [`KeyChain::predecessors`](crate::keychain::KeyChain::predecessors).
    #[must_use]
    pub fn succeeding(mut self, predecessors: BTreeSet<Fingerprint>) -> Self {
        self.predecessors = predecessors;
        self
    }

    /// The same key, which also accepts seals of these retired keys.
    #[must_use]
    pub fn opening(mut self, former: Vec<SealKey>) -> Self {
        self.former = former;
        self
    }

    /// The same key, wary of the logs it continues: the result of [`KeyChain::has_gap_behind`](crate::keychain::KeyChain::has_gap_behind).
    #[must_use]
    pub fn wary(mut self, is_wary: bool) -> Self {
        self.is_wary = is_wary;
        self
    }

    /// Whether a log that this key signed last may contain changesets of a key that is no longer trusted. Such a log is verified as a
    /// whole before it is appended to.
    pub fn is_wary(&self) -> bool {
        self.is_wary
    }

    /// Whether this key took over from `other`, directly or indirectly.
    pub fn succeeds(&self, other: &Fingerprint) -> bool {
        self.predecessors.contains(other)
    }

    /// The key as PKCS#8 PEM, ending in a newline; wiped when dropped.
    pub fn to_pem(&self) -> Zeroizing<String> {
        // Without the public half: that is version 1 of the format, which every tool supports.
        let mut bytes = KeypairBytes { secret_key: self.key.to_bytes(), public_key: None };
        let pem = bytes.to_pkcs8_pem(LineEnding::LF);
        bytes.secret_key.zeroize();
        pem.expect("32 bytes always fit into PKCS#8")
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.key.verifying_key())
    }

    /// The fingerprint of the key.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Signs `message` in `domain`; returns the signature as text.
    pub fn sign(&self, domain: &str, message: &[u8]) -> String {
        let message = in_domain(domain, message);
        let signature = match &self.fast {
            Some(fast) => fast.sign(&message),
            None => self.key.sign(&message).to_bytes(),
        };
        Base64UrlUnpadded::encode_string(&signature)
    }

    /// The keys whose marks on rows of a database are valid.
    pub fn seals(&self) -> Seals {
        Seals::new(self.seal_key(), self.former.clone())
    }

    /// The key that seals saved hash states of logs that this key signs.
    pub fn seal_key(&self) -> SealKey {
        SealKey::derive(self.key.as_bytes())
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({})", self.fingerprint.short())
    }
}

/// The bytes that Ed25519 signs.
fn in_domain(domain: &str, message: &[u8]) -> Vec<u8> {
    debug_assert!(domain.is_ascii() && !domain.contains('\0'), "a domain is ASCII without a zero byte");
    let mut bytes = Vec::with_capacity(domain.len() + 1 + message.len());
    bytes.extend_from_slice(domain.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(message);
    bytes
}

/// Decodes exactly `N` bytes from their one base64url text.
fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    // With the length checked first, the library alone checks the unused bits of the last character.
    if text.len() != (N * 8).div_ceil(6) || Base64UrlUnpadded::decode(text, &mut bytes).ok()?.len() != N {
        return None;
    }
    Some(bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use ed25519_dalek::Verifier as _;

    /// The key whose secret half is this byte, 32 times.
    pub(crate) fn signer(byte: u8) -> Signer {
        Signer::from_key(SigningKey::from_bytes(&[byte; 32]))
    }

    #[test]
    fn a_signature_in_one_domain_is_valid_in_no_other() {
        let signer = signer(7);
        let signature = signer.sign("selvedge-one", b"text");
        assert!(signer.public().verify("selvedge-one", b"text", &signature).is_ok());
        // The signed bytes as a message are not covered either.
        for (domain, message) in
            [("selvedge-two", &b"text"[..]), ("selvedge-two", b"selvedge-one\0text"), ("", b"selvedge-one\0text")]
        {
            assert!(signer.public().verify(domain, message, &signature).is_err(), "{domain}");
        }
    }

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
    }

    /// RFC 8032, section 7.1, tests 1 to 3: secret, public, message, signature.
    const RFC_8032: [[&str; 4]; 3] = [
        [
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ],
        [
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ],
        [
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
        ],
    ];

    #[test]
    fn both_libraries_sign_as_in_rfc_8032() {
        for [secret, public, message, signature] in RFC_8032 {
            let key = SigningKey::from_bytes(&unhex(secret).try_into().unwrap());
            assert_eq!(key.verifying_key().as_bytes().as_slice(), unhex(public));
            assert_eq!(key.sign(&unhex(message)).to_bytes().as_slice(), unhex(signature));
            if let Some(fast) = FastKey::new(&key) {
                assert_eq!(fast.sign(&unhex(message)).as_slice(), unhex(signature));
            }
        }
    }

    #[test]
    fn the_message_under_a_signature_is_domain_zero_message() {
        let text = signer(1).sign("some/domain", b"message");
        let raw = Signature::from_bytes(&decode(&text).unwrap());
        assert!(signer(1).key.verifying_key().verify(b"some/domain\0message", &raw).is_ok());
    }

    #[test]
    fn a_signature_is_valid_only_for_its_key_domain_and_message() {
        let text = signer(1).sign(DOMAIN_CHECKPOINT, b"message");
        assert_eq!(text.len(), SIGNATURE_CHARS);
        let public = signer(1).public();
        assert_eq!(public.verify(DOMAIN_CHECKPOINT, b"message", &text), Ok(()));
        assert_eq!(public.verify(DOMAIN_CHECKPOINT, b"massage", &text), Err(BadSignature));
        assert_eq!(public.verify(DOMAIN_DOCUMENT, b"message", &text), Err(BadSignature));
        assert_eq!(signer(2).public().verify(DOMAIN_CHECKPOINT, b"message", &text), Err(BadSignature));
    }

    #[test]
    fn a_signature_is_written_in_one_way_only() {
        let text = signer(1).sign("d", b"m");
        let public = signer(1).public();
        let last = text.chars().last().unwrap();
        for other in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/=".chars() {
            let changed = format!("{}{other}", &text[..85]);
            assert_eq!(public.verify("d", b"m", &changed).is_ok(), other == last, "{other}");
        }
        let others =
            [&text[..85], &format!("{text}=="), &format!("{text}A"), &format!("{text}\n"), "", &"é".repeat(43)];
        for other in others {
            assert_eq!(public.verify("d", b"m", other), Err(BadSignature), "{other}");
        }
    }

    #[test]
    fn a_scalar_beyond_the_group_order_is_refused() {
        let mut raw: [u8; 64] = decode(&signer(1).sign("d", b"m")).unwrap();
        let order = unhex("edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010");
        let mut carry = 0;
        for (byte, add) in raw[32..].iter_mut().zip(order) {
            let sum = u16::from(*byte) + u16::from(add) + carry;
            *byte = sum as u8;
            carry = sum >> 8;
        }
        let text = Base64UrlUnpadded::encode_string(&raw);
        assert_eq!(signer(1).public().verify("d", b"m", &text), Err(BadSignature));
    }

    #[test]
    fn public_keys_survive_text_and_pem_and_bad_ones_are_refused() {
        let public = signer(1).public();
        assert_eq!(PublicKey::from_text(&public.to_text()), Ok(public));
        assert_eq!(PublicKey::from_pem(&public.to_pem()), Ok(public));
        assert_eq!(public.fingerprint(), sha256(public.as_bytes()));
        assert_eq!(public.fingerprint(), signer(1).fingerprint());

        let text = public.to_text();
        assert_eq!(PublicKey::from_text(&format!("{text}=")), Err(InvalidKey::Text));
        assert_eq!(PublicKey::from_text(&text[1..]), Err(InvalidKey::Text));
        assert_eq!(PublicKey::from_pem(&signer(1).to_pem()), Err(InvalidKey::Pem));
        assert_eq!(PublicKey::from_pem(""), Err(InvalidKey::Pem));
        let mut bytes = [0; 32];
        assert_eq!(PublicKey::from_bytes(&bytes), Err(InvalidKey::Weak), "order 4");
        bytes[0] = 1;
        assert_eq!(PublicKey::from_bytes(&bytes), Err(InvalidKey::Weak), "the neutral point");
        bytes[0] = 2;
        assert_eq!(PublicKey::from_bytes(&bytes), Err(InvalidKey::Point), "not on the curve");
    }

    #[test]
    fn a_coordinate_beyond_the_prime_is_refused() {
        // y = p + k for the small k that are on the curve: the second spelling of an ordinary point.
        let refused = (0..19).filter_map(|k| {
            let mut bytes = [0xff; 32];
            bytes[0] = 0xed + k;
            bytes[31] = 0x7f;
            VerifyingKey::from_bytes(&bytes).is_ok().then(|| PublicKey::from_bytes(&bytes))
        });
        let refused: Vec<_> = refused.collect();
        assert!(refused.contains(&Err(InvalidKey::Point)), "{refused:?}");
        assert!(refused.iter().all(Result::is_err), "{refused:?}");
    }

    #[test]
    fn a_signer_survives_pem_and_does_not_show_its_secret() {
        let signer = signer(0xab);
        let again = Signer::from_pem(&signer.to_pem()).unwrap();
        assert_eq!(again.sign("d", b"m"), signer.sign("d", b"m"));
        assert!(signer.to_pem().starts_with("-----BEGIN PRIVATE KEY-----\n"));
        let shown = format!("{signer:?} {signer:#?}");
        assert!(!shown.contains("171") && !shown.contains("abab"), "{shown}");
        assert_eq!(Signer::from_pem(&signer.public().to_pem()).unwrap_err(), InvalidKey::Pem);
    }

    #[test]
    fn a_key_made_by_openssl_is_read() {
        // The example of RFC 8410, section 10.3.
        let pem = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n-----END PRIVATE KEY-----\n";
        let signer = Signer::from_pem(pem).unwrap();
        assert_eq!(signer.to_pem().as_str(), pem);
        let public = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n";
        assert_eq!(signer.public().to_pem(), public);
    }
}
