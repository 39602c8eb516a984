//! Errors of the server and of the connection.
//!
//! A lost connection is not a refusal: what was asked may have happened. So it is a case of its own, and whoever writes resolves it.

use selvedge_store::Error;
use tokio_postgres::error::SqlState;

/// Why a statement gave no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection ended before the answer came.
    Lost(String),
    /// The server refused it; nothing of it is there.
    Refused(Refusal),
}

/// The server's error.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) detail: Option<String>,
}

/// A row changed since it was read.
pub(crate) const STALE: &str = "SV001";
/// A request is not pending.
pub(crate) const GONE: &str = "SV002";

impl Failure {
    /// Whether the server refused with this code.
    pub(crate) fn is(&self, code: &str) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.code == code)
    }

    /// Whether the same statement may succeed at once: another transaction was in the way.
    pub(crate) fn is_in_the_way(&self) -> bool {
        self.is(STALE)
            || self.is(SqlState::T_R_DEADLOCK_DETECTED.code())
            || self.is(SqlState::T_R_SERIALIZATION_FAILURE.code())
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(found) = error.as_db_error() else { return Self::Lost(causes(&error)) };
        let code = found.code().code();
        // The server is going down, or ended this session: it may have committed before it said so.
        if code.starts_with("57P0") || code.starts_with("08") {
            return Self::Lost(found.message().to_owned());
        }
        let detail = found.detail().map(str::to_owned);
        Self::Refused(Refusal { code: code.to_owned(), message: found.message().to_owned(), detail })
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Lost(why) => {
                Self::Database { why: format!("the connection to the server was lost: {why}"), retryable: true }
            }
            Failure::Refused(Refusal { code, message, detail }) => refused(&code, message, detail),
        }
    }
}

fn refused(code: &str, message: String, detail: Option<String>) -> Error {
    let hint = match code {
        "28P01" | "28000" => "check user and password in the address, or set PGPASSWORD",
        "3D000" => "create the database first: `createdb NAME`",
        "42501" => "the role lacks a permission: `docs/postgres.md` lists what each role needs",
        _ => {
            let is_passing = matches!(code, "40001" | "40P01" | "53300" | "55P03" | "57014");
            let why = detail.map_or_else(|| message.clone(), |detail| format!("{message} ({detail})"));
            return Error::Database { why, retryable: is_passing };
        }
    };
    Error::Unusable { what: "the PostgreSQL server".to_owned(), why: message, hint: Some(hint.to_owned()) }
}

/// An error with everything below it: the outermost says only what was attempted.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = cause.source();
    }
    text
}

/// The server has something that Selvedge never writes.
pub(crate) fn bad_row(why: impl std::fmt::Display) -> Error {
    Error::Integrity {
        what: "the PostgreSQL store".to_owned(),
        why: why.to_string(),
        hint: Some("restore a backup of the database, or import the threads from their archives".to_owned()),
    }
}

/// An error for something that this store can't do now.
pub(crate) fn unusable(why: impl Into<String>, hint: Option<&str>) -> Error {
    Error::Unusable { what: "the store".to_owned(), why: why.into(), hint: hint.map(str::to_owned) }
}
