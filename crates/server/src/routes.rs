//! All routes of the API, each with the scope of the token that it needs.

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{MethodRouter, get, post};

use crate::access::{guard, require};
use crate::listen::App;
use crate::token::Scope;
use crate::{decisions, inbox, live, log, page, threads};

/// A route of the API.
#[derive(Clone, Copy)]
pub struct Route {
    /// Its method.
    pub method: &'static str,
    /// Its path; `{…}` are parameters.
    pub path: &'static str,
    /// The scope that it needs.
    pub scope: Scope,
    handler: fn() -> MethodRouter<App>,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Route").field("method", &self.method).field("path", &self.path).finish_non_exhaustive()
    }
}

const fn read(path: &'static str, handler: fn() -> MethodRouter<App>) -> Route {
    Route { method: "GET", path, scope: Scope::Read, handler }
}

const fn write(path: &'static str, scope: Scope, handler: fn() -> MethodRouter<App>) -> Route {
    Route { method: "POST", path, scope, handler }
}

/// The routes. There is no other way to add one, so none is without a scope.
pub const ROUTES: [Route; 19] = [
    read("/v1/threads", || get(threads::list)),
    read("/v1/threads/{thread}", || get(threads::show)),
    read("/v1/threads/{thread}/log", || get(log::lines)),
    read("/v1/threads/{thread}/transcript.jsonl", || get(log::transcript)),
    read("/v1/threads/{thread}/messages", || get(threads::messages)),
    read("/v1/threads/{thread}/blobs/{blob}", || get(log::blob)),
    read("/v1/threads/{thread}/verify", || get(log::verify)),
    read("/v1/threads/{thread}/budget", || get(threads::budget)),
    read("/v1/inbox", || get(inbox::list)),
    read("/v1/search", || get(threads::search)),
    read("/v1/keys", || get(log::keys)),
    read("/v1/events", || get(live::events)),
    write("/v1/threads", Scope::Run, || post(threads::start)),
    write("/v1/threads/{thread}/send", Scope::Run, || post(threads::send)),
    write("/v1/threads/{thread}/resume", Scope::Run, || post(threads::resume)),
    write("/v1/threads/{thread}/cancel", Scope::Run, || post(threads::cancel)),
    write("/v1/threads/{thread}/kill", Scope::Run, || post(threads::kill)),
    write("/v1/threads/{thread}/calls/{call}/decision", Scope::Decide, || post(decisions::decide)),
    read("/v1/whoami", || get(threads::whoami)),
];

/// The router of a server.
pub(crate) fn router(app: &App) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        let layer = from_fn_with_state((app.clone(), route.scope), require);
        router = router.route(route.path, (route.handler)().route_layer(layer));
    }
    let open = Router::new().route("/v1/session", post(threads::session)).merge(page::router());
    router
        .merge(open)
        .fallback(page::not_found)
        .layer(from_fn(page::limit_body))
        .layer(from_fn_with_state(app.clone(), guard))
        .with_state(app.clone())
}
