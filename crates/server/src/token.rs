//! Tokens: who may use the API, and for what.
//!
//! A token is 32 random bytes, shown once when it is created. The file has only its SHA-256, its scope and its times. The file is in the
//! user's own folder, beside the keys, with mode 0600: who can write there decides which keys are trusted anyway, so no project and no
//! database can add a token.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use selvedge_log::hash::sha256;
use selvedge_model::{Classify, Digest, Ids, Kind, Timestamp};
use serde::{Deserialize, Serialize};

/// What a token begins with, so that a leaked one is recognized.
const PREFIX: &str = "selvedge_";
/// How many tokens the file may have.
const TOKENS_MAX: usize = 1000;
/// The most bytes of the file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What the holder of a token may do; each scope includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Read threads, logs, budgets and what waits for a decision.
    Read,
    /// Approve, deny and resolve calls.
    Decide,
    /// Start, send to, resume and stop threads.
    Run,
    /// Everything.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 4] = [Self::Read, Self::Decide, Self::Run, Self::Admin];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Decide => "decide",
            Self::Run => "run",
            Self::Admin => "admin",
        }
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|scope| scope.as_str() == text);
        found.ok_or_else(|| format!("`{text}` is no scope; scopes are read, decide, run and admin"))
    }
}

/// Why tokens could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The file could not be read or written.
    #[error("can't {what} `{}`: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file has another form.
    #[error("`{}` is not a list of tokens: {why}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// Other users could read or change the file.
    #[error("`{}` may be read or changed by other users", path.display())]
    Loose {
        /// The file.
        path: PathBuf,
    },
    /// There is no such token.
    #[error("there is no token `{0}`")]
    Absent(String),
    /// There are too many.
    #[error("there are {TOKENS_MAX} tokens already")]
    TooMany,
}

impl Classify for TokenError {
    fn kind(&self) -> Kind {
        match self {
            Self::Io { .. } => Kind::Broken,
            Self::Invalid { .. } | Self::Loose { .. } => Kind::Integrity,
            Self::Absent(_) => Kind::Absent,
            Self::TooMany => Kind::Exhausted,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Io { .. } => "io",
            Self::Invalid { .. } => "tokens_invalid",
            Self::Loose { .. } => "tokens_loose",
            Self::Absent(_) => "token_not_found",
            Self::TooMany => "tokens_full",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Io { .. } => None,
            Self::Invalid { path, .. } => {
                Some(format!("delete `{}` and create the tokens again with `selvedge token new`", path.display()))
            }
            Self::Loose { path } => Some(format!("`chmod 600 {}`, if only you have used it", path.display())),
            Self::Absent(_) => Some("`selvedge token list` shows all tokens".to_owned()),
            Self::TooMany => Some("`selvedge token revoke ID` removes one".to_owned()),
        }
    }
}

/// A token as it is kept: without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// Its id, to revoke it.
    pub id: String,
    /// What it may do.
    pub scope: Scope,
    /// What it is for, if that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it expires, if ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// The SHA-256 of the token.
    pub hash: Digest,
}

impl Token {
    /// Whether it has expired.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|expires_at| now >= expires_at)
    }
}

/// The form of the file.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    tokens: Vec<Token>,
}

/// The tokens of a user.
#[derive(Clone, Debug)]
pub struct Tokens {
    path: PathBuf,
}

impl Tokens {
    /// The tokens in the user's folder.
    pub fn of_home(home: &Path) -> Self {
        Self { path: home.join("tokens.json") }
    }

    /// All tokens, oldest first.
    pub fn list(&self) -> Result<Vec<Token>, TokenError> {
        let failed = |what| move |source| TokenError::Io { what, path: self.path.clone(), source };
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file.map_err(failed("open"))?,
        };
        let about = file.metadata().map_err(failed("read"))?;
        if about.permissions().mode() & 0o077 != 0 {
            return Err(TokenError::Loose { path: self.path.clone() });
        }
        let invalid = |why: String| TokenError::Invalid { path: self.path.clone(), why };
        if !about.is_file() || about.size() > FILE_BYTES_MAX {
            return Err(invalid("it is not a small file".to_owned()));
        }
        let content: Content =
            serde_json::from_reader(io::BufReader::new(file)).map_err(|error| invalid(error.to_string()))?;
        match content.version {
            1 => Ok(content.tokens),
            newer => Err(invalid(format!("its version is {newer}, and this program knows version 1"))),
        }
    }

    /// Creates a token. On return it is durable; the text, which is not kept, is returned once.
    pub fn create(
        &self,
        scope: Scope,
        name: Option<String>,
        now: Timestamp,
        expires_at: Option<Timestamp>,
        ids: &dyn Ids,
    ) -> Result<(Token, String), TokenError> {
        let _lock = self.lock()?;
        let mut tokens = self.list()?;
        tokens.retain(|token| !token.is_expired(now));
        if tokens.len() >= TOKENS_MAX {
            return Err(TokenError::TooMany);
        }
        let text = secret(ids);
        let token = Token { id: ids.hex12(), scope, name, created_at: now, expires_at, hash: sha256(text.as_bytes()) };
        tokens.push(token.clone());
        self.write(tokens)?;
        Ok((token, text))
    }

    /// Removes a token; a server that runs refuses it from its next request on.
    pub fn revoke(&self, id: &str) -> Result<Token, TokenError> {
        let _lock = self.lock()?;
        let mut tokens = self.list()?;
        let place = tokens.iter().position(|token| token.id == id).ok_or_else(|| TokenError::Absent(id.to_owned()))?;
        let removed = tokens.remove(place);
        self.write(tokens)?;
        Ok(removed)
    }

    /// What the holder of this text may do; none if it is no token, or has expired.
    pub fn scope_of(&self, text: &str, now: Timestamp) -> Result<Option<Scope>, TokenError> {
        let hash = sha256(text.as_bytes());
        let mut found = None;
        // All are compared, and hashes of random texts: the time says nothing about a token.
        for token in self.list()? {
            if token.hash == hash && !token.is_expired(now) {
                found = Some(token.scope);
            }
        }
        Ok(found)
    }

    fn lock(&self) -> Result<File, TokenError> {
        let path = self.path.with_extension("lock");
        let failed = |source| TokenError::Io { what: "lock", path: path.clone(), source };
        let file =
            OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(failed)?;
        file.lock().map_err(failed)?;
        Ok(file)
    }

    /// Replaces the file: a reader sees the old list or the new one.
    fn write(&self, tokens: Vec<Token>) -> Result<(), TokenError> {
        let failed = |what| move |source| TokenError::Io { what, path: self.path.clone(), source };
        let path = self.path.with_extension("new");
        let text = serde_json::to_vec_pretty(&Content { version: 1, tokens })
            .map_err(|error| TokenError::Invalid { path: self.path.clone(), why: error.to_string() })?;
        let mut file = OpenOptions::new();
        let mut file =
            file.create(true).truncate(true).write(true).mode(0o600).open(&path).map_err(failed("create a copy of"))?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(failed("write"))?;
        fs::rename(&path, &self.path).map_err(failed("replace"))?;
        let folder = self.path.parent().unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("sync"))
    }
}

/// A new random secret.
pub(crate) fn secret(ids: &dyn Ids) -> String {
    let mut bytes = [0_u8; 32];
    ids.fill(&mut bytes);
    let mut text = PREFIX.to_owned();
    for byte in bytes {
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use selvedge::store_local::system::SystemIds;
    use selvedge_model::Timestamp;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn a_token_counts_until_it_expires_or_is_revoked_and_is_not_in_the_file() {
        let home = tempfile::tempdir().unwrap();
        let tokens = Tokens::of_home(home.path());
        let (token, text) = tokens.create(Scope::Decide, None, at(0), Some(at(100)), &SystemIds).unwrap();
        assert_eq!(tokens.scope_of(&text, at(99)).unwrap(), Some(Scope::Decide));
        assert_eq!(tokens.scope_of(&text, at(100)).unwrap(), None);
        assert_eq!(tokens.scope_of(&format!("{text}0"), at(1)).unwrap(), None);
        let file = fs::read_to_string(home.path().join("tokens.json")).unwrap();
        assert!(!file.contains(text.strip_prefix(PREFIX).unwrap()));
        tokens.revoke(&token.id).unwrap();
        assert_eq!(tokens.scope_of(&text, at(1)).unwrap(), None);
        assert_eq!(tokens.revoke(&token.id).unwrap_err().code(), "token_not_found");
    }

    #[test]
    fn a_file_that_others_can_read_or_that_was_damaged_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let tokens = Tokens::of_home(home.path());
        let (_, text) = tokens.create(Scope::Read, None, at(0), None, &SystemIds).unwrap();
        let path = home.path().join("tokens.json");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(tokens.scope_of(&text, at(1)).unwrap_err().code(), "tokens_loose");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, b"{\"version\":1,\"tokens\":[{}]}").unwrap();
        assert_eq!(tokens.scope_of(&text, at(1)).unwrap_err().code(), "tokens_invalid");
    }
}
