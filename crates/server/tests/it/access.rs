//! Who is let in.

use std::sync::Arc;

use selvedge::store_local::system::{SystemClock, SystemIds};
use selvedge::{Timestamp, json};
use selvedge_model::{Classify, Clock};
use selvedge_server::{Options, ROUTES, Scope, Server, Tokens};

use crate::support::{Ask, asking, world};

fn path(path: &str) -> String {
    path.replace("{thread}", "missing").replace("{call}", "call_1").replace("{blob}", &"0".repeat(64))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_needs_a_token_of_its_scope() {
    let world = world().await;
    let tokens = Scope::ALL.map(|scope| (scope, world.token(scope)));
    for route in ROUTES {
        let path = path(route.path);
        let ask = |token| Ask { method: route.method, path: &path, token, headers: &[], body: Some(json!({})) };
        let refused = world.ask(ask(None)).await;
        assert_eq!((refused.status, refused.code().as_str()), (401, "no_token"), "{route:?}");
        let refused = world.ask(ask(Some("selvedge_0000"))).await;
        assert_eq!((refused.status, refused.code().as_str()), (401, "no_token"), "{route:?}");
        for (scope, token) in &tokens {
            if route.path == "/v1/events" && *scope >= route.scope {
                continue;
            }
            let answer = world.ask(ask(Some(token))).await;
            let is_refused = answer.status == 403 && answer.code() == "scope_too_low";
            assert_eq!(is_refused, *scope < route.scope, "{route:?} with {scope:?}: {}", answer.status);
            assert_ne!(answer.status, 401, "{route:?} with {scope:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_host_or_origin_is_refused_even_with_a_token() {
    let world = world().await;
    let token = world.token(Scope::Admin);
    let own = format!("origin: http://{}", world.address);
    let port = world.address.port();
    let named = format!("host: localhost:{port}");
    let named_origin = format!("origin: http://localhost:{port}");
    for (headers, status, code) in [
        (vec!["host: evil.example"], 421, "foreign_host"),
        (vec!["host: 127.0.0.1"], 421, "foreign_host"),
        (vec!["origin: http://evil.example"], 403, "foreign_origin"),
        (vec!["origin: null"], 403, "foreign_origin"),
        (vec![own.as_str()], 200, ""),
        (vec![named.as_str(), named_origin.as_str()], 200, ""),
        (vec!["host: selvedge.example"], 200, ""),
    ] {
        let ask = Ask { method: "GET", path: "/v1/threads", token: Some(&token), headers: &headers, body: None };
        let answer = world.ask(ask).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{headers:?}");
        assert!(answer.head.contains("content-security-policy: default-src 'none'"), "{}", answer.head);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_one_time_link_is_good_for_one_browser() {
    let world = world().await;
    let code = world.link.split_once("#code=").unwrap().1;
    let begin = |code: String| {
        let body = Some(json!({"code": code}));
        world.ask(Ask { method: "POST", path: "/v1/session", token: None, headers: &[], body })
    };
    assert_eq!(begin("selvedge_00".to_owned()).await.code(), "code_used");
    let session = begin(code.to_owned()).await;
    let token = session.json()["token"].as_str().unwrap().to_owned();
    assert_eq!(world.get("/v1/threads", &token).await.status, 200);
    assert_eq!(begin(code.to_owned()).await.code(), "code_used");
    // The code itself is no token.
    assert_eq!(world.get("/v1/threads", code).await.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_expired_or_was_revoked_is_refused_at_once() {
    let world = world().await;
    let soon = Timestamp::from_micros(SystemClock.now().as_micros() - 1);
    let (_, expired) = world.tokens.create(Scope::Admin, None, SystemClock.now(), Some(soon), &SystemIds).unwrap();
    assert_eq!(world.get("/v1/threads", &expired).await.status, 401);
    let (kept, token) = world.tokens.create(Scope::Read, None, SystemClock.now(), None, &SystemIds).unwrap();
    assert_eq!(world.get("/v1/threads", &token).await.status, 200);
    world.tokens.revoke(&kept.id).unwrap();
    assert_eq!(world.get("/v1/threads", &token).await.status, 401);
    // A list that another program made lets nobody in.
    std::fs::write(world.home.path().join("tokens.json"), "{}").unwrap();
    assert_eq!(world.get("/v1/threads", &token).await.code(), "tokens_invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_listens_on_this_machine_only() {
    let world = asking().await;
    let options = Options {
        address: ([0, 0, 0, 0], 0).into(),
        hosts: Vec::new(),
        is_behind_proxy: false,
        tokens: Tokens::of_home(world.home.path()),
        name: String::new(),
    };
    let refused = Server::bind(world.selvedge.clone(), options, Arc::new(SystemClock), Arc::new(SystemIds)).await;
    assert_eq!(refused.unwrap_err().code(), "no_tls");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_long_or_no_json_is_refused_before_anything_happens() {
    let world = world().await;
    let token = world.token(Scope::Run);
    let raw = |headers: &'static [&'static str]| {
        world.ask(Ask { method: "GET", path: "/v1/threads", token: Some(&token), headers, body: None })
    };
    assert_eq!(raw(&["content-length: 99999999"]).await.code(), "body_too_long");
    assert_eq!(raw(&["transfer-encoding: chunked"]).await.code(), "body_too_long");
    for body in
        [json!([]), json!({"text": 1}), json!({"text": "x", "unknown": 1}), json!({"text": "x", "directive": "y"})]
    {
        let refused = world.post("/v1/threads", &token, body).await;
        assert!((400..500).contains(&refused.status), "{}", refused.status);
        assert_eq!(refused.code(), "usage");
    }
    let none = world.get("/v1/threads", &token).await;
    assert_eq!(none.json()["threads"], json!([]));
}
