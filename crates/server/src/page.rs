//! The files of the page, which are part of the program: it works offline, and loads nothing from elsewhere.

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::listen::App;
use crate::problem::Problem;

/// The most bytes of a request's body.
const BODY_BYTES_MAX: u64 = 4 << 20;

/// A file: its path, its media type and its content.
struct PageFile {
    path: &'static str,
    kind: &'static str,
    content: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

const FILES: [PageFile; 10] = [
    PageFile { path: "/", kind: "text/html; charset=utf-8", content: include_str!("../web/index.html") },
    PageFile { path: "/style.css", kind: "text/css; charset=utf-8", content: include_str!("../web/style.css") },
    PageFile { path: "/app.js", kind: SCRIPT, content: include_str!("../web/app.js") },
    PageFile { path: "/api.js", kind: SCRIPT, content: include_str!("../web/api.js") },
    PageFile { path: "/dom.js", kind: SCRIPT, content: include_str!("../web/dom.js") },
    PageFile { path: "/threads.js", kind: SCRIPT, content: include_str!("../web/threads.js") },
    PageFile { path: "/thread.js", kind: SCRIPT, content: include_str!("../web/thread.js") },
    PageFile { path: "/inbox.js", kind: SCRIPT, content: include_str!("../web/inbox.js") },
    PageFile { path: "/check.js", kind: SCRIPT, content: include_str!("../web/check.js") },
    PageFile { path: "/verify.js", kind: SCRIPT, content: include_str!("../web/verify.js") },
];

/// The routes of the files. They need no token: nothing in them is about a project.
pub(crate) fn router() -> Router<App> {
    let mut router = Router::new();
    for file in FILES {
        let respond = move || async move {
            let kind = (header::CONTENT_TYPE, HeaderValue::from_static(file.kind));
            let cache = (header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            ([kind, cache], file.content)
        };
        router = router.route(file.path, get(respond));
    }
    router
}

pub(crate) async fn not_found() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no_route", "there is no such address").hint("the API begins at `/v1`")
}

/// Refuses a body that is too long before it is read, and one without a length.
pub(crate) async fn limit_body(request: Request, next: Next) -> Response {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let is_chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
    let is_too_long = length.is_some_and(|length| length.parse::<u64>().is_ok_and(|length| length > BODY_BYTES_MAX));
    if is_too_long || is_chunked {
        let message = format!("a body has a length, and at most {BODY_BYTES_MAX} bytes");
        return Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_long", message).into_response();
    }
    next.run(request).await
}
