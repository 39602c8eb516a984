//! The older Rye form of signed documents, verified and never written.
//!
//! ```text
//! rye:signed:TIME:HASH:SIG:KEYID[|PROVIDER@USER]
//!
//! TIME   YYYY-MM-DDTHH:MM:SSZ                     HASH   SHA-256 of what is covered, 64 lower-case hex characters
//! SIG    Ed25519 over those 64 characters, base64url with or without padding
//! KEYID  the first 16 hex characters of the SHA-256 of the public key's PEM, its last newline included
//! ```
//!
//! The text stands in `<!-- … -->`, `# …` or `// …` on the first line (the second behind `#!/…`), or in the member
//! `_signature` of a JSON object.
//!
//! The scheme covers less than one may think, so a verdict says what it covers: [`Coverage`]. Neither the time, the
//! key's name nor where the document belongs is part of what is signed; of a directive only its `<directive>` element is,
//! which leaves out its body, the very text that an agent is told. What was covered is found by the hash: it is one of a
//! few excerpts of the document, and the widest whose hash agrees is named. Nothing else is ever believed.
//!
//! JSON is hashed as Python writes it, which the submodule `python` imitates.

mod python;

use selvedge_model::digest::Digest;
use selvedge_model::error::{Classify, Kind};
use serde_json::Value;

use crate::document::SIGNATURE_MEMBER;
use crate::hash::sha256;
use crate::keys::{PublicKey, SIGNATURE_CHARS};
use crate::strict::{self, Limits, StrictError};

const MARK: &str = "rye:signed:";
const TIME_FORM: &str = "0000-00-00T00:00:00Z";
const HEX_CHARS: usize = 64;
const KEY_ID_CHARS: usize = 16;
const LIMITS: Limits = Limits { bytes_max: 64 * 1024 * 1024, depth_max: 96 };

/// What of a document its signature covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// Every byte behind the signature's line.
    Rest,
    /// Every byte but the first line, which says what runs the file, and the signature's line.
    Script,
    /// What stands behind the metadata between two `---`, without the white space around it.
    BehindMetadata,
    /// The `<directive>` element and nothing else.
    Directive,
    /// The value of the JSON object, without `_signature`; not its spelling.
    Value,
}

impl Coverage {
    /// A stable word.
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
            Self::BehindMetadata => "the text behind the metadata, without white space around it",
            Self::Directive => "the `<directive>` element",
            Self::Value => "the value of the JSON object, however it is spelt",
        }
    }

    /// What is not covered, for people.
    pub fn not_covered(self) -> Vec<&'static str> {
        let own = match self {
            Self::Rest | Self::Value => None,
            Self::Script => Some("the first line, which says what runs the file"),
            Self::BehindMetadata => Some("the metadata between the two `---`"),
            Self::Directive => Some(
                "everything outside the `<directive>` element: the body, which an agent is told to do, is NOT covered",
            ),
        };
        let always = [
            "the time, which anybody can change",
            "what kind of item it is and where it belongs: it could have been moved or renamed",
            "who is named behind a `|`",
        ];
        own.into_iter().chain(always).collect()
    }
}

/// What a signature in the older form says, and how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The key that signed.
    pub key: PublicKey,
    /// What is covered.
    pub coverage: Coverage,
    /// The hash of what is covered.
    pub hash: Digest,
    /// When it says it was signed; anybody can have changed that.
    pub time: String,
    /// Who it says provided it; anybody can have changed that.
    pub provider: Option<String>,
}

/// Why a document in the older form is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RyeError {
    /// There is no signature in the older form.
    #[error("the document has no signature in the Rye form")]
    Unsigned,
    /// There is one that can't be understood.
    #[error("the document's Rye signature is malformed: {why}")]
    Malformed {
        /// What is wrong.
        why: &'static str,
    },
    /// Nothing of the document that could be covered has the hash that was signed.
    #[error("the document was changed after it was signed: nothing in it has the hash {signed}")]
    HashMismatch {
        /// The hash that was signed.
        signed: Digest,
    },
    /// Nobody decided to believe this key.
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
            Self::BadSignature => "document_bad_signature",
            Self::NotStrict(_) => "document_not_strict",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::UntrustedKey { .. } => {
                Some("name the key's file with `--key PUBLIC.pem`, if you know whose it is".to_owned())
            }
            Self::NotStrict(error) => error.hint(),
            _ => None,
        }
    }
}

/// The name that the older form gives a key.
pub fn key_id(key: &PublicKey) -> String {
    sha256(key.to_pem().as_bytes()).short()
}

/// Whether a document carries a signature in the older form, good or bad.
pub fn is_signed(bytes: &[u8]) -> bool {
    match as_json(bytes) {
        Some(value) => value.ok().and_then(|value| Some(signature_of(&value)?.starts_with(MARK))).unwrap_or(false),
        None => std::str::from_utf8(bytes).is_ok_and(|text| Lines::split(text).is_some()),
    }
}

/// Checks a document against these keys.
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
        let (shebang, behind) = match text.strip_prefix("#!/").and_then(|_| text.split_once('\n')) {
            Some((shebang, behind)) => (Some(shebang), behind),
            None => (None, text),
        };
        let (line, rest) = behind.split_once('\n').unwrap_or((behind, ""));
        let markup = line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(" -->"));
        let comment = || line.strip_prefix("# ").or_else(|| line.strip_prefix("// "));
        let stamp = markup.or_else(comment).filter(|stamp| stamp.starts_with(MARK))?;
        Some(Self { shebang, stamp, rest, is_markup: markup.is_some() })
    }

    /// What could have been signed, the widest first.
    fn excerpts(&self) -> Vec<(Coverage, &'a [u8])> {
        let whole = if self.shebang.is_some() { Coverage::Script } else { Coverage::Rest };
        let mut excerpts = vec![(whole, self.rest.as_bytes())];
        if self.is_markup {
            let behind = self.rest.strip_prefix("---").and_then(|rest| rest.split_once("---"));
            excerpts.extend(behind.map(|(_, behind)| (Coverage::BehindMetadata, strip(behind).as_bytes())));
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

/// The signature text, taken apart.
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
        let (time, hash, signature, key_id) = fields().ok_or(malformed("it is cut"))?;
        if !is_time(time) {
            return Err(malformed("it has no time"));
        }
        let hash = hash.parse().map_err(|_| malformed("it has no hash"))?;
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if key_id.len() != KEY_ID_CHARS || !key_id.bytes().all(is_hex) {
            return Err(malformed("it names no key"));
        }
        let bare = signature.trim_end_matches('=');
        if bare.len() != SIGNATURE_CHARS || !matches!(signature.len() - bare.len(), 0 | 2) {
            return Err(malformed("its signature has not the right length"));
        }
        if provider.is_some_and(|provider| provider.split('@').count() != 2 || provider.chars().any(char::is_control)) {
            return Err(malformed("what stands behind its `|` is no provider and user"));
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
        // Sixteen characters are few enough that two keys could share them: every such key is asked.
        let message = self.hash.to_string();
        let key = keys.find(|key| key.verify_bare(message.as_bytes(), self.signature).is_ok());
        let key = *key.ok_or(RyeError::BadSignature)?;
        let (time, provider) = (self.time.to_owned(), self.provider.map(str::to_owned));
        Ok(Verified { key, coverage, hash: self.hash, time, provider })
    }
}

fn is_time(text: &str) -> bool {
    let fits = |(byte, form): (u8, u8)| if form == b'0' { byte.is_ascii_digit() } else { byte == form };
    text.len() == TIME_FORM.len() && text.bytes().zip(TIME_FORM.bytes()).all(fits)
}

#[cfg(test)]
mod tests;
