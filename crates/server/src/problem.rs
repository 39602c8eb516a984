//! Errors as responses: `application/problem+json` (RFC 9457) with the stable code, the hint and whether a retry helps.

use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use selvedge_model::{Classify, Kind};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The result of a handler.
pub(crate) type Result<T, E = Problem> = std::result::Result<T, E>;

/// Why a request was refused.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    code: String,
    message: String,
    hint: Option<String>,
    is_retryable: bool,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self { status, code: code.to_owned(), message: message.into(), hint: None, is_retryable: false }
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A request that is not of the documented form.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "usage", message)
    }

    /// The problem of an error of the crates below.
    pub(crate) fn of(error: &impl Classify) -> Self {
        Self {
            status: status(error.kind()),
            code: error.code().to_owned(),
            message: error.to_string(),
            hint: error.hint(),
            is_retryable: error.retryable(),
        }
    }

    fn body(&self) -> Value {
        json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or_default(),
            "status": self.status.as_u16(),
            "detail": self.message,
            "code": self.code,
            "hint": self.hint,
            "retryable": self.is_retryable,
        })
    }
}

/// The status for a kind of error: the same classes as the exit codes of the command line.
fn status(kind: Kind) -> StatusCode {
    match kind {
        Kind::Absent => StatusCode::NOT_FOUND,
        Kind::Conflict => StatusCode::CONFLICT,
        Kind::Invalid => StatusCode::BAD_REQUEST,
        Kind::Denied => StatusCode::FORBIDDEN,
        Kind::Exhausted => StatusCode::UNPROCESSABLE_ENTITY,
        Kind::Integrity | Kind::Broken => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<selvedge::Error> for Problem {
    fn from(error: selvedge::Error) -> Self {
        Self {
            status: status(error.kind()),
            code: error.code().to_owned(),
            message: error.to_string(),
            hint: error.hint().map(str::to_owned),
            is_retryable: error.is_retryable(),
        }
    }
}

impl From<selvedge_store::Error> for Problem {
    fn from(error: selvedge_store::Error) -> Self {
        Self::of(&error)
    }
}

impl From<selvedge_model::id::InvalidId> for Problem {
    fn from(error: selvedge_model::id::InvalidId) -> Self {
        Self::invalid(error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The body of a request, as JSON. Refused unless it says that it is JSON: a form of a foreign page can't.
#[derive(Debug)]
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        match Json::<T>::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection) => Err(Problem::new(rejection.status(), "usage", rejection.body_text())),
        }
    }
}

/// The query of a request.
#[derive(Debug)]
pub(crate) struct Parameters<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Parameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(query)) => Ok(Self(query)),
            Err(rejection) => Err(Problem::invalid(rejection.body_text())),
        }
    }
}
