//! Whether an item may run, by what is known of its signature.
//!
//! A signature of this project covers every byte of a file, the body of a directive included, and what it is and where it
//! lies. The older form may leave the body out and never covers the place, so for running it counts as none; one that does not
//! match is refused all the same.

use selvedge_log::document::{self, Comment, DocumentError, DocumentKind};
use selvedge_log::keys::Fingerprint;
use selvedge_log::rye::{self, RyeError};
use selvedge_log::trust::Trust;
use serde::Serialize;

/// What is known of an item's signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// It came with the program.
    BuiltIn,
    /// It is what the holder of a trusted key signed, as this kind and in this place.
    Trusted {
        /// The key.
        signer: Fingerprint,
    },
    /// Nobody signed it, or only in the older form.
    Unsigned {
        /// Whether there is a good signature in the older form.
        older: bool,
    },
    /// It names a key that nobody decided to believe; so nothing is known.
    Untrusted {
        /// The key, as far as it is named.
        signer: String,
    },
    /// It was changed after it was signed, belongs elsewhere, or its key was revoked.
    Broken {
        /// What is wrong.
        why: String,
    },
}

/// What may run. What is [`Verdict::Broken`] never may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Also what a key signed that nobody decided to believe.
    AllowUntrusted,
    /// Also what nobody signed; but who signs must be trusted.
    #[default]
    AllowUnsigned,
    /// Only what the holder of a trusted key signed.
    RequireTrusted,
}

impl Policy {
    /// Whether it may run; if not, why.
    pub fn permits(self, verdict: &Verdict) -> Result<(), String> {
        match (verdict, self) {
            (Verdict::BuiltIn | Verdict::Trusted { .. }, _) => Ok(()),
            (Verdict::Broken { why }, _) => Err(why.clone()),
            (_, Self::AllowUntrusted) | (Verdict::Unsigned { .. }, Self::AllowUnsigned) => Ok(()),
            (Verdict::Unsigned { older: false }, _) => {
                Err("it is not signed, and only signed items may run".to_owned())
            }
            (Verdict::Unsigned { older: true }, _) => {
                Err("it is signed in the older form only, which does not cover all of it".to_owned())
            }
            (Verdict::Untrusted { signer }, _) => {
                Err(format!("it is signed by the key {signer}, which is not trusted"))
            }
        }
    }
}

/// What is known of the signature of these bytes, as this kind and in this place.
pub fn judge(kind: DocumentKind, place: &str, comment: Comment, bytes: &[u8], trust: &Trust) -> Verdict {
    match document::verify_text(kind, place, comment, bytes, trust) {
        Ok(verified) => Verdict::Trusted { signer: verified.signer },
        Err(DocumentError::UntrustedKey { fingerprint }) => Verdict::Untrusted { signer: fingerprint.to_string() },
        Err(DocumentError::Unsigned) if rye::is_signed(bytes) => judge_older(bytes, trust),
        Err(DocumentError::Unsigned) => Verdict::Unsigned { older: false },
        Err(error) => Verdict::Broken { why: error.to_string() },
    }
}

fn judge_older(bytes: &[u8], trust: &Trust) -> Verdict {
    let keys: Vec<_> = trust.iter().filter_map(|(fingerprint, _)| trust.key(fingerprint)).collect();
    match rye::verify(bytes, keys) {
        Ok(_) => Verdict::Unsigned { older: true },
        Err(RyeError::UntrustedKey { key_id }) => Verdict::Untrusted { signer: key_id },
        Err(error) => Verdict::Broken { why: error.to_string() },
    }
}
