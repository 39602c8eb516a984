//! Responses that are not an answer.

use std::time::Duration;

use selvedge_model::{Classify, ModelError};
use selvedge_providers::fake::{Dialogue, Reply};

use super::Stage;

type Headers = &'static [(&'static str, &'static str)];

const JSON: (&str, &str) = ("content-type", "application/json");

pub(crate) fn each_status_is_told_with_its_message(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    for (status, code) in [
        (400, "model_rejected"),
        (401, "model_rejected"),
        (403, "model_rejected"),
        (404, "model_rejected"),
        (408, "model_failed"),
        (413, "model_rejected"),
        (429, "model_rate_limited"),
        (500, "model_failed"),
        (503, "model_failed"),
        (529, "model_failed"),
    ] {
        stage.server.push(Reply::whole(status, &[JSON], dialogue.error_body(status, "the reason is 42")));
        let error = stage.error();
        assert_eq!((error.code(), error.retry_after()), (code, None), "{status}: {error:?}");
        assert!(error.to_string().contains("the reason is 42"), "{error}");
        // The same from something in between that does not speak the format.
        stage.server.push(Reply::whole(status, &[("content-type", "text/html")], "<h1>gateway</h1>\n<p>sorry"));
        let error = stage.error();
        assert_eq!((error.code(), error.status()), (code, Some(status)), "{error:?}");
        assert!(error.to_string().contains("<h1>gateway</h1> <p>sorry"), "{error}");
        stage.server.push(Reply::whole(status, &[], ""));
        assert_eq!(stage.error().code(), code);
    }
}

pub(crate) fn waiting_times_are_read_from_the_headers(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    const DATE: (&str, &str) = ("date", "Wed, 18 Nov 2026 09:00:00 GMT");
    let cases: [(u16, Headers, u64); 7] = [
        (429, &[("retry-after", "7")], 7000),
        (503, &[("retry-after", "2")], 2000),
        (529, &[("retry-after", "3")], 3000),
        (429, &[("retry-after-ms", "250"), ("retry-after", "1")], 250),
        (429, &[DATE, ("retry-after", "Wed, 18 Nov 2026 09:00:30 GMT")], 30_000),
        (
            429,
            &[
                DATE,
                ("anthropic-ratelimit-tokens-remaining", "0"),
                ("anthropic-ratelimit-tokens-reset", "2026-11-18T09:00:05Z"),
            ],
            5000,
        ),
        (429, &[("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "6m0s")], 360_000),
    ];
    for (status, headers, milliseconds) in cases {
        stage.server.push(Reply::whole(status, headers, dialogue.error_body(status, "slow down")));
        let error = stage.error();
        assert_eq!(error.retry_after(), Some(Duration::from_millis(milliseconds)), "{headers:?}: {error:?}");
        assert!(error.retryable());
    }
}

pub(crate) fn a_prompt_that_is_too_long_is_its_own_error(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    let (status, body) = dialogue.too_long();
    stage.server.push(Reply::whole(status, &[JSON], body));
    let error = stage.error();
    assert!(matches!(error, ModelError::ContextTooLong { .. }), "{error:?}");
}

pub(crate) fn a_success_that_is_no_stream_is_never_an_answer(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    stage.server.push(Reply::whole(200, &[("content-type", "text/html")], "<html>Log in to the network</html>"));
    let ModelError::Cut { why, partial, usage } = stage.error() else { panic!("it is cut") };
    assert!(why.contains("text/html") && why.contains("Log in"), "{why}");
    assert!(partial.is_empty() && usage.is_none());
    // An error that has the wrong status.
    stage.server.push(Reply::whole(200, &[JSON], dialogue.error_body(500, "broken inside")));
    let error = stage.error();
    assert!(error.to_string().contains("broken inside") && error.retryable(), "{error:?}");
    // An answer that was not streamed, and even a stream under another name.
    stage.server.push(Reply::whole(200, &[JSON], r#"{"content": [{"type": "text", "text": "hi"}]}"#));
    assert!(matches!(stage.error(), ModelError::Cut { .. }));
    stage.server.push(Reply::whole(204, &[], ""));
    assert!(matches!(stage.error(), ModelError::Cut { .. }));
}

pub(crate) fn a_redirect_is_an_error_that_names_its_target(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    let elsewhere = Stage::new(dialogue);
    let target = elsewhere.server.url() + "/v2";
    for status in [301, 302, 307, 308] {
        stage.server.push(Reply::whole(status, &[("location", &target)], ""));
        let error = stage.error();
        assert!(error.to_string().contains(&target) && !error.retryable(), "{error}");
    }
    assert!(elsewhere.server.received().is_empty(), "the key is not sent elsewhere");
}

pub(crate) fn a_huge_error_body_is_not_read_whole(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    let head = "HTTP/1.1 500 Fake\r\ncontent-length: 1000000000\r\n\r\n";
    stage.server.push(Reply::nothing().raw(head).repeat("x".repeat(1 << 20), 900).stall());
    let error = stage.error().to_string();
    assert!(error.len() < 5000, "{}", error.len());
    assert!(stage.server.saw_hangups(1, Duration::from_secs(10)), "the rest is not read");
}
