//! Which requests are let in.
//!
//! Three questions, in this order:
//!
//! 1. *Is this server meant?* A page of another site can point its own host name at 127.0.0.1 (DNS rebinding). So the `Host` header must be
//!    an address or a name that this server listens as.
//! 2. *Does a foreign page ask?* A request with an `Origin` other than this server is refused. No cookie is ever used, so a request without
//!    a token has no rights that a foreign page could borrow.
//! 3. *Who asks?* A token of sufficient scope, from the file of the user or handed out by this process for a one-time code.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use selvedge_log::hash::sha256;
use selvedge_model::{Clock, Digest, Ids};

use crate::listen::App;
use crate::problem::{Problem, Result};
use crate::token::{Scope, Tokens, secret};

/// How many browser sessions one process hands out.
const SESSIONS_MAX: usize = 100;

/// Who may do what, on this server.
pub(crate) struct Access {
    tokens: Tokens,
    /// The names and addresses, with the port where one is needed, under which this server is reached.
    hosts: Vec<String>,
    once: Mutex<Option<Digest>>,
    sessions: Mutex<BTreeMap<Digest, Scope>>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Access").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

impl Access {
    pub(crate) fn new(tokens: Tokens, hosts: Vec<String>) -> Self {
        Self { tokens, hosts, once: Mutex::default(), sessions: Mutex::default() }
    }

    /// Makes a code that is good for one session, and voids the one before.
    pub(crate) fn one_time_code(&self, ids: &dyn Ids) -> String {
        let code = secret(ids);
        *self.once.lock().unwrap_or_else(PoisonError::into_inner) = Some(sha256(code.as_bytes()));
        code
    }

    /// Exchanges the one-time code for the token of a session, which lasts as long as this process.
    pub(crate) fn begin_session(&self, code: &str, ids: &dyn Ids) -> Result<String> {
        let mut once = self.once.lock().unwrap_or_else(PoisonError::into_inner);
        if *once != Some(sha256(code.as_bytes())) {
            let problem = Problem::new(
                StatusCode::UNAUTHORIZED,
                "code_used",
                "this link was used before, or is another server's",
            );
            return Err(
                problem.hint("start `selvedge serve` again for a new link, or use a token of `selvedge token new`")
            );
        }
        *once = None;
        let token = secret(ids);
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.len() >= SESSIONS_MAX {
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "sessions_full", "too many sessions were begun"));
        }
        sessions.insert(sha256(token.as_bytes()), Scope::Admin);
        Ok(token)
    }

    /// The scope of the token in a request.
    fn scope(&self, headers: &HeaderMap, clock: &dyn Clock) -> Result<Option<Scope>> {
        let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(text) = value.and_then(|value| value.strip_prefix("Bearer ")) else { return Ok(None) };
        let session =
            self.sessions.lock().unwrap_or_else(PoisonError::into_inner).get(&sha256(text.as_bytes())).copied();
        match session {
            Some(scope) => Ok(Some(scope)),
            None => self.tokens.scope_of(text, clock.now()).map_err(|error| Problem::of(&error)),
        }
    }

    /// Refuses a request that is meant for another host, or comes from a page of another origin.
    fn check_host_and_origin(&self, headers: &HeaderMap) -> Result<()> {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        if !self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host)) {
            let message = format!("this server is not `{}`", shown(host));
            let problem = Problem::new(StatusCode::MISDIRECTED_REQUEST, "foreign_host", message);
            return Err(problem.hint("`selvedge serve --host NAME` adds a name"));
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        let origin = origin.to_str().unwrap_or_default();
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if authority.is_none_or(|authority| !authority.eq_ignore_ascii_case(host)) {
            let message = format!("pages of `{}` may not use this server", shown(origin));
            return Err(Problem::new(StatusCode::FORBIDDEN, "foreign_origin", message));
        }
        Ok(())
    }
}

/// A header in a message: short, and without control characters.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}

/// The names of a server that listens on this address: the address itself, and for a loopback address the names that mean it.
pub(crate) fn hosts(address: std::net::SocketAddr, more: &[String]) -> Vec<String> {
    let port = address.port();
    let mut names = vec![address.to_string()];
    if address.ip().is_loopback() {
        names.extend([format!("localhost:{port}"), format!("127.0.0.1:{port}"), format!("[::1]:{port}")]);
    }
    for name in more {
        let has_port = name.parse::<Authority>().is_ok_and(|name| name.port().is_some());
        names.push(if has_port { name.clone() } else { format!("{name}:{port}") });
        names.push(name.clone());
    }
    names
}

/// What every response says to a browser: nothing is loaded from elsewhere, framed, guessed or cached.
const HEADERS: [(HeaderName, HeaderValue); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'",
        ),
    ),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// The outermost layer: host, origin, and the headers of every response, refusals included.
pub(crate) async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let mut response = match app.access.check_host_and_origin(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, value);
    }
    response.headers_mut().entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// The layer of a route: a token of this scope.
pub(crate) async fn require(
    State((app, scope)): State<(App, Scope)>,
    request: Request,
    next: Next,
) -> Result<Response> {
    match app.access.scope(request.headers(), &*app.clock)? {
        None => {
            let problem = Problem::new(StatusCode::UNAUTHORIZED, "no_token", "this needs a token");
            Err(problem.hint("send `Authorization: Bearer TOKEN`; `selvedge token new` creates one"))
        }
        Some(has) if has < scope => {
            let message =
                format!("this needs a token of the scope `{}`, and this one has `{}`", scope.as_str(), has.as_str());
            Err(Problem::new(StatusCode::FORBIDDEN, "scope_too_low", message))
        }
        Some(_) => Ok(next.run(request).await),
    }
}
