//! Decides by its signature whether an item may run.
//!
//! A signature of this project covers every byte of a file, including the body of a directive, and its kind and
//! path. The older form may leave the body out and never covers the path, so for running it counts as unsigned; one that does not
//! match is refused nevertheless.

use selvedge_legacy::rye::{self, RyeError};
use selvedge_log::document::{self, Comment, DocumentError, DocumentKind};
use selvedge_log::keys::Fingerprint;
use selvedge_log::trust::Trust;
use serde::Serialize;

/// The verdict on an item's signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum SignatureVerdict {
    /// It is built in.
    BuiltIn,
    /// It is signed by a trusted key, for this kind and path.
    Trusted {
        /// The key.
        signer: Fingerprint,
    },
    /// It is unsigned, or signed in the older form only.
    Unsigned {
        /// Whether it has a valid signature in the older form.
        older: bool,
    },
    /// It is signed by an unknown key, so nothing can be verified.
    Untrusted {
        /// The key, as far as the signature names it.
        signer: String,
    },
    /// It was changed after it was signed, was signed for another path, or its key was revoked.
    Broken {
        /// What is wrong.
        why: String,
    },
}

/// Which items may run. A [`SignatureVerdict::Broken`] one never may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// All items, including those signed by an unknown key.
    AllowUntrusted,
    /// Unsigned items, and those signed by a trusted key.
    #[default]
    AllowUnsigned,
    /// Only items signed by a trusted key.
    RequireTrusted,
}

impl Policy {
    /// Whether it may run, or the reason why not.
    pub fn permits(self, verdict: &SignatureVerdict) -> Result<(), String> {
        match (verdict, self) {
            (SignatureVerdict::BuiltIn | SignatureVerdict::Trusted { .. }, _) => Ok(()),
            (SignatureVerdict::Broken { why }, _) => Err(why.clone()),
            (_, Self::AllowUntrusted) | (SignatureVerdict::Unsigned { .. }, Self::AllowUnsigned) => Ok(()),
            (SignatureVerdict::Unsigned { older: false }, _) => {
                Err("it is not signed, and only signed items may run".to_owned())
            }
            (SignatureVerdict::Unsigned { older: true }, _) => {
                Err("it is signed in the older form only, which does not cover all of it".to_owned())
            }
            (SignatureVerdict::Untrusted { signer }, _) => {
                Err(format!("it is signed by the key {signer}, which is not trusted"))
            }
        }
    }
}

/// The verdict on the signature of these bytes, for this kind and path.
pub fn judge(kind: DocumentKind, place: &str, comment: Comment, bytes: &[u8], trust: &Trust) -> SignatureVerdict {
    match document::verify_text(kind, place, comment, bytes, trust) {
        Ok(verified) => SignatureVerdict::Trusted { signer: verified.signer },
        Err(DocumentError::UntrustedKey { fingerprint }) => {
            SignatureVerdict::Untrusted { signer: fingerprint.to_string() }
        }
        Err(DocumentError::Unsigned) if rye::is_signed(bytes) => judge_older(bytes, trust),
        Err(DocumentError::Unsigned) => SignatureVerdict::Unsigned { older: false },
        Err(error) => SignatureVerdict::Broken { why: error.to_string() },
    }
}

fn judge_older(bytes: &[u8], trust: &Trust) -> SignatureVerdict {
    let keys: Vec<_> = trust.iter().filter_map(|(fingerprint, _)| trust.key(fingerprint)).collect();
    match rye::verify(bytes, keys) {
        Ok(_) => SignatureVerdict::Unsigned { older: true },
        Err(RyeError::UntrustedKey { key_id }) => SignatureVerdict::Untrusted { signer: key_id },
        Err(error) => SignatureVerdict::Broken { why: error.to_string() },
    }
}
