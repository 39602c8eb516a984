//! Connections: missing, broken, reused, encrypted, through a proxy.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use selvedge_model::{Cancel, Model, ModelError, Prompt};
use selvedge_providers::fake::{Dialogue, FakeAnswer, Reply, Server};
use selvedge_providers::wire::Dialect;
use selvedge_providers::{Connections, Remote};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::{KEY, MODEL, Stage, ask, hello, host, remote, runtime, text};

pub(crate) fn a_host_that_is_not_there_was_not_reached(dialogue: &dyn Dialogue) {
    let mut stage = Stage::new(dialogue);
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (_folder, file, _) = authority();
    for url in [format!("http://{closed}"), "http://host.invalid".to_owned(), format!("https://{closed}")] {
        stage.host.base_url = dialogue.base_url(&url);
        // The certificates of the system may be missing where this test runs.
        stage.host.ca_file = Some(file.clone());
        let error = stage.error();
        assert!(matches!(error, ModelError::Unreached { .. }), "{url}: {error:?}");
    }
    for url in ["ftp://127.0.0.1", "not a url", "", "http://größe.invalid"] {
        stage.host.base_url = url.to_owned();
        let error = stage.error();
        assert!(matches!(error, ModelError::Permanent { .. }), "{url}: {error:?}");
    }
}

pub(crate) fn a_connection_that_closes_without_a_response_is_cut(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    for reply in [Reply::nothing().cut(), Reply::nothing().reset(), Reply::nothing().raw("HTTP/1.1 20").cut()] {
        stage.server.push(reply);
        let error = stage.error();
        let ModelError::Cut { why, usage: None, .. } = &error else { panic!("it was sent: {error:?}") };
        assert!(why.starts_with("no response"), "{why}");
    }
}

pub(crate) fn a_connection_is_used_again(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    let answer = dialogue.answer(&FakeAnswer::text(&["hi"]));
    stage.server.handle(move |_| Reply::events(&answer));
    let model = remote(&stage.host);
    let messages = hello();
    let prompt = Prompt::new(MODEL, &messages);
    runtime().block_on(async {
        for _ in 0..5 {
            model.answer(&prompt, &mut |_| {}, &Cancel::new()).await.unwrap();
        }
    });
    assert_eq!((stage.server.received().len(), stage.server.connections()), (5, 1));
}

/// A certificate authority: its files in a folder, and the configuration of a server that it certifies.
fn authority() -> (TempDir, PathBuf, ServerConfig) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let server_key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let server = server.signed_by(&server_key, &issuer).unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, certificate.pem()).unwrap();
    let chain: Vec<CertificateDer<'static>> = vec![server.der().clone()];
    let secret = PrivateKeyDer::try_from(server_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    (folder, file, config.with_single_cert(chain, secret).unwrap())
}

pub(crate) fn an_unknown_certificate_is_refused_before_anything_is_sent(dialogue: &dyn Dialogue) {
    let (_folder, _, config) = authority();
    let (_other_folder, other, _) = authority();
    let server = Server::start_tls(config).unwrap();
    let mut host = host(dialogue, &server);
    host.ca_file = Some(other);
    let error = ask(&host).unwrap_err();
    assert!(matches!(error, ModelError::Unreached { .. }), "{error:?}");
    assert!(error.to_string().to_lowercase().contains("certificate"), "{error}");
    assert!(server.received().is_empty());
    // A server that speaks no TLS.
    let plain = Stage::new(dialogue);
    host.base_url = plain.host.base_url.replace("http:", "https:");
    host.timeouts.connect = Duration::from_millis(500);
    let error = ask(&host).unwrap_err();
    assert!(matches!(error, ModelError::Unreached { .. }), "{error:?}");
}

pub(crate) fn a_private_authority_is_trusted_by_its_file(dialogue: &dyn Dialogue) {
    let (folder, file, config) = authority();
    let server = Server::start_tls(config).unwrap();
    server.push(Reply::events(dialogue.answer(&FakeAnswer::text(&["private"]))));
    let mut host = host(dialogue, &server);
    host.ca_file = Some(file);
    assert_eq!(text(&ask(&host).unwrap().content), "private");
    for (name, content) in [("missing.pem", None), ("empty.pem", Some("")), ("text.pem", Some("no certificate"))] {
        let file = folder.path().join(name);
        if let Some(content) = content {
            std::fs::write(&file, content).unwrap();
        }
        host.ca_file = Some(file);
        let error = ask(&host).unwrap_err();
        assert!(matches!(error, ModelError::Permanent { .. }), "{error:?}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

pub(crate) fn custom_headers_are_sent_and_replace_others(dialogue: &dyn Dialogue) {
    let mut stage = Stage::new(dialogue);
    let answer = dialogue.answer(&FakeAnswer::text(&["hi"]));
    stage.server.handle(move |_| Reply::events(&answer));
    stage.ask().unwrap();
    let (name, _) = dialogue.credentials(KEY);
    stage.host.headers = vec![
        ("X-Title".to_owned(), "my project".to_owned()),
        (name.to_uppercase(), "mine".to_owned()),
        ("User-Agent".to_owned(), "custom/1".to_owned()),
    ];
    stage.ask().unwrap();
    stage.host.headers.clear();
    stage.host.key = None;
    stage.ask().unwrap();
    let received = stage.server.received();
    let [plain, custom, open] = &received[..] else { panic!("three requests") };
    assert_eq!((plain.method.as_str(), plain.path.as_str()), ("POST", dialogue.path()));
    assert_eq!(plain.header(name), Some(dialogue.credentials(KEY).1.as_str()));
    assert_eq!(plain.header("content-type"), Some("application/json"));
    assert_eq!(plain.header("accept"), Some("text/event-stream"));
    assert!(plain.header("user-agent").unwrap().starts_with("selvedge/"));
    assert_eq!(custom.header("x-title"), Some("my project"));
    assert_eq!((custom.header(name), custom.header("user-agent")), (Some("mine"), Some("custom/1")));
    assert_eq!(open.header(name), None, "without a key no credentials are sent");
    stage.host.headers = vec![("bad name".to_owned(), "x".to_owned())];
    assert!(matches!(stage.error(), ModelError::Permanent { .. }));
}

pub(crate) fn requests_go_through_a_proxy(dialogue: &dyn Dialogue) {
    let mut stage = Stage::new(dialogue);
    stage.server.push(Reply::events(dialogue.answer(&FakeAnswer::text(&["by proxy"]))));
    stage.host.base_url = dialogue.base_url("http://models.invalid");
    stage.host.proxy = Some(stage.server.url().replace("http://", "http://me:canary-proxy@"));
    assert_eq!(text(&stage.ask().unwrap().content), "by proxy");
    let received = stage.server.received();
    assert_eq!(received[0].path, format!("http://models.invalid{}", dialogue.path()));
    assert!(received[0].header("proxy-authorization").unwrap().starts_with("Basic "));
    stage.host.proxy = Some("http://me:canary-proxy@127.0.0.1:1".to_owned());
    let error = stage.error();
    assert!(matches!(error, ModelError::Unreached { .. }), "{error:?}");
    assert!(!error.to_string().contains("canary"), "{error}");
}

pub(crate) fn many_calls_run_at_once(dialogue: &dyn Dialogue) {
    const CALLS: usize = 100;
    let stage = Stage::new(dialogue);
    let events = dialogue.answer(&FakeAnswer::text(&["one ", "of many"]));
    let half = events.len() / 2;
    stage.server.handle(move |_| {
        // Long enough that all are open at once.
        let reply = Reply::stream().pieces(&events[..half]).pause(Duration::from_millis(500));
        reply.pieces(&events[half..]).end()
    });
    let model = Arc::new(Remote::new(&Connections::new(), stage.host.clone(), MODEL, Dialect::default()));
    runtime().block_on(async {
        let mut calls = JoinSet::new();
        for _ in 0..CALLS {
            let model = model.clone();
            calls.spawn(async move {
                let messages = hello();
                model.answer(&Prompt::new(MODEL, &messages), &mut |_| {}, &Cancel::new()).await
            });
        }
        while let Some(answer) = calls.join_next().await {
            assert_eq!(text(&answer.unwrap().unwrap().content), "one of many");
        }
    });
    assert_eq!(stage.server.received().len(), CALLS);
}

pub(crate) fn a_probe_reports_what_answered(dialogue: &dyn Dialogue) {
    let mut stage = Stage::new(dialogue);
    runtime().block_on(remote(&stage.host).check()).unwrap();
    assert_eq!(stage.server.connections(), 0, "a check does not connect");
    stage.server.push(Reply::events(dialogue.answer(&FakeAnswer::text(&["ok"]))));
    let probe = runtime().block_on(remote(&stage.host).probe()).unwrap();
    assert_eq!((probe.input_tokens, probe.output_tokens), (Some(10), Some(5)));
    assert!(!probe.model.is_empty() && probe.elapsed > Duration::ZERO);
    stage.server.push(Reply::whole(401, &[], dialogue.error_body(401, "wrong key")));
    let error = runtime().block_on(remote(&stage.host).probe()).unwrap_err();
    assert_eq!(error.status(), Some(401));
    stage.host.ca_file = Some("/nonexistent/ca.pem".into());
    let error = runtime().block_on(remote(&stage.host).check()).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/ca.pem"), "{error}");
}
