//! The stamp of a document: parsed, made and verified.
//!
//! The parent module describes the format. A stamp has a single spelling, and every field of it is either covered by the
//! signature or determines the key.

use selvedge_model::digest::Digest;
use selvedge_model::time::Timestamp;

use super::{DocumentError, DocumentKind, is_kind};
use crate::keys::{DOMAIN_DOCUMENT, Fingerprint, SIGNATURE_CHARS, Signer};
use crate::trust::Trust;

/// The start of a stamp of any version.
pub(super) const MARK: &str = "selvedge:signed:";

const PREFIX: &str = "selvedge:signed:1:";
const TIME_CHARS: usize = "YYYY-MM-DDTHH:MM:SSZ".len();
const HEX_CHARS: usize = 64;

/// A parsed stamp.
pub(super) struct Stamp<'a> {
    kind: &'a str,
    time: String,
    pub(super) at: Timestamp,
    pub(super) hash: Digest,
    signature: String,
    pub(super) fingerprint: Fingerprint,
}

impl<'a> Stamp<'a> {
    /// Signs content of this hash.
    pub(super) fn sign(kind: DocumentKind, id: &str, hash: Digest, signer: &Signer, at: Timestamp) -> Stamp<'static> {
        let at = at.whole_seconds();
        let time = time_text(at);
        let signature = signer.sign(&domain(kind), &message(id, &time, &hash));
        Stamp { kind: kind.as_str(), time, at, hash, signature, fingerprint: signer.fingerprint() }
    }

    /// Parses a stamp. All fields but the kind have a fixed width, so the colons in the time are unambiguous.
    pub(super) fn parse(text: &'a str) -> Result<Self, DocumentError> {
        let malformed = |why| DocumentError::Malformed { why };
        let rest = text.strip_prefix(PREFIX).ok_or(malformed("its signature is of an unknown form or version"))?;
        let (kind, rest) = rest.split_once(':').ok_or(malformed("its signature is truncated"))?;
        if !is_kind(kind) {
            return Err(malformed("its signature has no valid kind"));
        }
        let fields = || {
            let (time, rest) = rest.split_at_checked(TIME_CHARS)?;
            let (hash, rest) = rest.strip_prefix(':')?.split_at_checked(HEX_CHARS)?;
            let (signature, rest) = rest.strip_prefix(':')?.split_at_checked(SIGNATURE_CHARS)?;
            let (fingerprint, rest) = rest.strip_prefix(':')?.split_at_checked(HEX_CHARS)?;
            rest.is_empty().then_some((time, hash, signature, fingerprint))
        };
        let (time, hash, signature, fingerprint) = fields().ok_or(malformed("its signature has the wrong length"))?;
        let at: Timestamp = time.parse().map_err(|_| malformed("its signature has no valid time"))?;
        if time_text(at) != time {
            return Err(malformed("its signature has a time in another form"));
        }
        Ok(Self {
            kind,
            time: time.to_owned(),
            at,
            hash: hash.parse().map_err(|_| malformed("its signature has no valid hash"))?,
            signature: signature.to_owned(),
            fingerprint: fingerprint.parse().map_err(|_| malformed("its signature has no valid fingerprint"))?,
        })
    }

    /// Verifies that a trusted key made this stamp for this kind, id and content.
    pub(super) fn verify(
        &self,
        kind: DocumentKind,
        id: &str,
        trust: &Trust,
        actual: impl FnOnce() -> Result<Digest, DocumentError>,
    ) -> Result<(), DocumentError> {
        if self.kind != kind.as_str() {
            let expected = kind.as_str().to_owned();
            let found = self.kind.chars().take(80).collect();
            return Err(DocumentError::WrongKind { expected, found });
        }
        let actual = actual()?;
        if actual != self.hash {
            return Err(DocumentError::HashMismatch { signed: self.hash, actual });
        }
        let fingerprint = self.fingerprint;
        let key = trust.key(&fingerprint).ok_or(match trust.known(&fingerprint) {
            Some(_) => DocumentError::RevokedKey { fingerprint },
            None => DocumentError::UntrustedKey { fingerprint },
        })?;
        key.verify(&domain(kind), &message(id, &self.time, &self.hash), &self.signature)
            .map_err(|_| DocumentError::BadSignature)
    }
}

impl std::fmt::Display for Stamp<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, time, hash, signature, fingerprint, .. } = self;
        write!(f, "{PREFIX}{kind}:{time}:{hash}:{signature}:{fingerprint}")
    }
}

fn domain(kind: DocumentKind) -> String {
    format!("{DOMAIN_DOCUMENT}{}", kind.as_str())
}

fn message(id: &str, time: &str, hash: &Digest) -> Vec<u8> {
    format!("{id}\n{time}\n{hash}").into_bytes()
}

/// The time in whole seconds, as `YYYY-MM-DDTHH:MM:SSZ`.
fn time_text(at: Timestamp) -> String {
    let text = at.whole_seconds().to_string();
    text.split_once('.').map_or(text.clone(), |(seconds, _)| format!("{seconds}Z"))
}
