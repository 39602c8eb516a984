//! The older Rye form of signed documents, which is verified but never written.
//!
//! ```text
//! rye:signed:TIME:HASH:SIG:KEYID[|PROVIDER@USER]
//!
//! TIME   YYYY-MM-DDTHH:MM:SSZ                     HASH   SHA-256 of what is covered, 64 lower-case hex characters
//! SIG    Ed25519 over those 64 characters, base64url with or without padding
//! KEYID  the first 16 hex characters of the SHA-256 of the public key's PEM, its last newline included
//! ```
//!
//! The signature is in `<!-- … -->`, `# …` or `// …` on the first line (the second after `#!/…`), or in the member
//! `_signature` of a JSON object.
//!
//! The scheme covers less than one may expect, so a verdict includes its [`Coverage`]. The time, the
//! key's name and the document's id are not signed; of a directive only its `<directive>` element is,
//! which leaves out its body, the very instructions of the agent. The covered part is found by its hash: it is one of a
//! few excerpts of the document, and the widest with the signed hash is reported. Nothing else is ever accepted.
//!
//! JSON is hashed as Python writes it, which the submodule `python` imitates.

mod python;

use selvedge_log::document::SIGNATURE_MEMBER;
use selvedge_log::hash::sha256;
use selvedge_log::keys::{PublicKey, SIGNATURE_CHARS};
use selvedge_log::strict::{self, Limits, StrictError};
use selvedge_model::digest::Digest;
use selvedge_model::error::{Classify, Kind};
use serde_json::Value;

const MARK: &str = "rye:signed:";
const TIME_FORM: &str = "0000-00-00T00:00:00Z";
const HEX_CHARS: usize = 64;
const KEY_ID_CHARS: usize = 16;
const LIMITS: Limits = Limits { bytes_max: 64 * 1024 * 1024, depth_max: 96 };

/// The part of a document that its signature covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// Every byte after the signature's line.
    Rest,
    /// Every byte but the shebang line and the signature's line.
    Script,
    /// The text after the metadata between two `---`, without white space around it.
    BehindMetadata,
    /// The `<directive>` element and nothing else.
    Directive,
    /// The value of the JSON object, without `_signature`; not its spelling.
    Value,
}

impl Coverage {
    /// A stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rest => "rest",
            Self::Script => "script",
            Self::BehindMetadata => "behind_metadata",
            Self::Directive => "directive",
            Self::Value => "value",
        }
    }

    /// What is covered, for people.
    pub fn covered(self) -> &'static str {
        match self {
            Self::Rest => "every byte after the signature's line",
            Self::Script => "every byte but the first line and the signature's",
            Self::BehindMetadata => "the text after the metadata, without white space around it",
            Self::Directive => "the `<directive>` element",
            Self::Value => "the value of the JSON object, in any spelling",
        }
    }

    /// What is not covered, for people.
    pub fn not_covered(self) -> Vec<&'static str> {
        let own = match self {
            Self::Rest | Self::Value => None,
            Self::Script => Some("the shebang line"),
            Self::BehindMetadata => Some("the metadata between the two `---`"),
            Self::Directive => Some(
                "everything outside the `<directive>` element: the body, with the agent's instructions, is NOT covered",
            ),
        };
        let always = [
            "the time, which anyone can change",
            "the kind of the item and its id: it could have been moved or renamed",
            "the provider named after a `|`",
        ];
        own.into_iter().chain(always).collect()
    }
}

/// A verified signature in the older form, and how much it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The key that signed.
    pub key: PublicKey,
    /// What is covered.
    pub coverage: Coverage,
    /// The hash of what is covered.
    pub hash: Digest,
    /// The time in the signature, which is not covered.
    pub time: String,
    /// The provider in the signature, which is not covered.
    pub provider: Option<String>,
}

/// Why a document in the older form is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RyeError {
    /// There is no signature in the older form.
    #[error("the document has no signature in the Rye form")]
    Unsigned,
    /// The signature is not understood.
    #[error("the document's Rye signature is malformed: {why}")]
    Malformed {
        /// What is wrong.
        why: &'static str,
    },
    /// No part of the document that could be covered has the signed hash.
    #[error("the document was changed after it was signed: nothing in it has the hash {signed}")]
    HashMismatch {
        /// The hash in the signature.
        signed: Digest,
    },
    /// The key is not trusted.
    #[error("the document is signed by the Rye key {key_id}, which is not trusted or is revoked")]
    UntrustedKey {
        /// The key's short name.
        key_id: String,
    },
    /// The signature is not this key's.
    #[error("the document's Rye signature does not match")]
    BadSignature,
    /// The JSON is not strict.
    #[error("the document can't be read as JSON: {0}")]
    NotStrict(#[from] StrictError),
}

impl Classify for RyeError {
    fn kind(&self) -> Kind {
        Kind::Integrity
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Unsigned => "document_unsigned",
            Self::Malformed { .. } => "document_malformed",
            Self::HashMismatch { .. } => "document_changed",
            Self::UntrustedKey { .. } => "document_untrusted_key",
            Self::BadSignature => "document_invalid_signature",
            Self::NotStrict(_) => "document_not_signable",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::UntrustedKey { .. } => {
                Some("name the key's file with `--public-key PUBLIC.pem`, if you know whose it is".to_owned())
            }
            Self::NotStrict(error) => error.hint(),
            _ => None,
        }
    }
}

/// The name of a key in the older form.
pub fn key_id(key: &PublicKey) -> String {
    sha256(key.to_pem().as_bytes()).short()
}

/// Whether a document has a signature in the older form, valid or not.
pub fn is_signed(bytes: &[u8]) -> bool {
    match as_json(bytes) {
        Some(value) => value.ok().and_then(|value| Some(signature_of(&value)?.starts_with(MARK))).unwrap_or(false),
        None => std::str::from_utf8(bytes).is_ok_and(|text| Lines::split(text).is_some()),
    }
}

/// Verifies a document with these keys.
pub fn verify<'a>(bytes: &[u8], keys: impl IntoIterator<Item = &'a PublicKey>) -> Result<Verified, RyeError> {
    let malformed = |why| RyeError::Malformed { why };
    if let Some(value) = as_json(bytes) {
        let value = value?;
        let text = signature_of(&value).filter(|text| text.starts_with(MARK)).ok_or(RyeError::Unsigned)?;
        let stamp = Stamp::parse(text)?;
        let canonical = python::canonical(&value, SIGNATURE_MEMBER, std::str::from_utf8(bytes).unwrap_or_default())?;
        return stamp.verify([(Coverage::Value, canonical.as_bytes())], keys);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| malformed("the document is not UTF-8"))?;
    let lines = Lines::split(text).ok_or(RyeError::Unsigned)?;
    Stamp::parse(lines.stamp)?.verify(lines.excerpts(), keys)
}

/// The document as JSON, if it looks like it.
fn as_json(bytes: &[u8]) -> Option<Result<Value, StrictError>> {
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace())?;
    (*first == b'{').then(|| strict::parse_within(bytes, LIMITS))
}

fn signature_of(value: &Value) -> Option<&str> {
    value.get(SIGNATURE_MEMBER)?.as_str()
}

/// A text with a signature on one of its lines.
struct Lines<'a> {
    shebang: Option<&'a str>,
    stamp: &'a str,
    rest: &'a str,
    is_markup: bool,
}

impl<'a> Lines<'a> {
    fn split(text: &'a str) -> Option<Self> {
        let (shebang, after_shebang) = match text.strip_prefix("#!/").and_then(|_| text.split_once('\n')) {
            Some((shebang, after_shebang)) => (Some(shebang), after_shebang),
            None => (None, text),
        };
        let (line, rest) = after_shebang.split_once('\n').unwrap_or((after_shebang, ""));
        let markup = line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(" -->"));
        let comment = || line.strip_prefix("# ").or_else(|| line.strip_prefix("// "));
        let stamp = markup.or_else(comment).filter(|stamp| stamp.starts_with(MARK))?;
        Some(Self { shebang, stamp, rest, is_markup: markup.is_some() })
    }

    /// The parts that could have been signed, the widest first.
    fn excerpts(&self) -> Vec<(Coverage, &'a [u8])> {
        let whole = if self.shebang.is_some() { Coverage::Script } else { Coverage::Rest };
        let mut excerpts = vec![(whole, self.rest.as_bytes())];
        if self.is_markup {
            let after = self.rest.strip_prefix("---").and_then(|rest| rest.split_once("---"));
            excerpts.extend(after.map(|(_, after)| (Coverage::BehindMetadata, strip(after).as_bytes())));
            excerpts.extend(directive(self.rest).map(|element| (Coverage::Directive, element.as_bytes())));
        }
        excerpts
    }
}

/// From the first `<directive …>` to the last `</directive>`.
fn directive(text: &str) -> Option<&str> {
    const END: &str = "</directive>";
    let opens = |at: &usize| {
        let next = text[at + "<directive".len()..].chars().next();
        next.is_some_and(|next| next == '>' || next.is_whitespace())
    };
    let start = text.match_indices("<directive").map(|(at, _)| at).find(opens)?;
    let end = text.rfind(END)? + END.len();
    text.get(start..end).map(strip)
}

/// What Python's `strip` leaves.
fn strip(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c))
}

/// A parsed signature.
struct Stamp<'a> {
    time: &'a str,
    hash: Digest,
    signature: &'a str,
    key_id: &'a str,
    provider: Option<&'a str>,
}

impl<'a> Stamp<'a> {
    fn parse(text: &'a str) -> Result<Self, RyeError> {
        let malformed = |why| RyeError::Malformed { why };
        let (text, provider) = match text.split_once('|') {
            Some((text, provider)) => (text, Some(provider)),
            None => (text, None),
        };
        let fields = || {
            let (time, rest) = text.strip_prefix(MARK)?.split_at_checked(TIME_FORM.len())?;
            let (hash, rest) = rest.strip_prefix(':')?.split_at_checked(HEX_CHARS)?;
            let (signature, key_id) = rest.strip_prefix(':')?.split_once(':')?;
            Some((time, hash, signature, key_id))
        };
        let (time, hash, signature, key_id) = fields().ok_or(malformed("it is truncated"))?;
        if !is_time(time) {
            return Err(malformed("it has no valid time"));
        }
        let hash = hash.parse().map_err(|_| malformed("it has no valid hash"))?;
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if key_id.len() != KEY_ID_CHARS || !key_id.bytes().all(is_hex) {
            return Err(malformed("it has no valid key"));
        }
        let bare = signature.trim_end_matches('=');
        if bare.len() != SIGNATURE_CHARS || !matches!(signature.len() - bare.len(), 0 | 2) {
            return Err(malformed("its signature has the wrong length"));
        }
        if provider.is_some_and(|provider| provider.split('@').count() != 2 || provider.chars().any(char::is_control)) {
            return Err(malformed("the text after its `|` is not a provider and user"));
        }
        Ok(Self { time, hash, signature: bare, key_id, provider })
    }

    fn verify<'k, 'e>(
        &self,
        excerpts: impl IntoIterator<Item = (Coverage, &'e [u8])>,
        keys: impl IntoIterator<Item = &'k PublicKey>,
    ) -> Result<Verified, RyeError> {
        let mut excerpts = excerpts.into_iter();
        let found = excerpts.find(|(_, excerpt)| sha256(excerpt) == self.hash);
        let (coverage, _) = found.ok_or(RyeError::HashMismatch { signed: self.hash })?;
        let mut keys = keys.into_iter().filter(|key| key_id(key) == self.key_id).peekable();
        if keys.peek().is_none() {
            return Err(RyeError::UntrustedKey { key_id: self.key_id.to_owned() });
        }
        // Two keys could share these sixteen characters: every such key is tried.
        let message = self.hash.to_string();
        let key = keys.find(|key| key.verify_bare(message.as_bytes(), self.signature).is_ok());
        let key = *key.ok_or(RyeError::BadSignature)?;
        let time = self.time.to_owned();
        let provider = self.provider.map(str::to_owned);
        Ok(Verified { key, coverage, hash: self.hash, time, provider })
    }
}

fn is_time(text: &str) -> bool {
    let fits = |(byte, form): (u8, u8)| if form == b'0' { byte.is_ascii_digit() } else { byte == form };
    text.len() == TIME_FORM.len() && text.bytes().zip(TIME_FORM.bytes()).all(fits)
}

#[cfg(test)]
mod tests;
