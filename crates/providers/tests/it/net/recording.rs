//! Recorded calls.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use selvedge_model::{Answer, Cancel, Message, Model, ModelError, Prompt, Role};
use selvedge_providers::fake::{Dialogue, FakeAnswer, Reply};
use selvedge_providers::recording::Recorded;
use tempfile::TempDir;

use super::{KEY, MODEL, Stage, hello, runtime, text};

fn answered(model: &dyn Model, messages: &[Arc<Message>]) -> Result<Answer, ModelError> {
    runtime().block_on(model.answer(&Prompt::new(MODEL, messages), &mut |_| {}, &Cancel::new()))
}

fn recording(dialogue: &dyn Dialogue) -> (Stage, TempDir) {
    let folder = TempDir::new().unwrap();
    let mut stage = Stage::new(dialogue);
    stage.host.record = Some(folder.path().join("calls"));
    (stage, folder)
}

fn calls(folder: &TempDir) -> std::path::PathBuf {
    folder.path().join("calls")
}

fn files(folder: &Path) -> Vec<(String, Vec<u8>, u32)> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap(), mode)
        })
        .collect();
    files.sort();
    files
}

pub(crate) fn a_recorded_call_is_answered_offline(dialogue: &dyn Dialogue) {
    let (stage, folder) = recording(dialogue);
    let first = dialogue.answer(&FakeAnswer::text(&["Grüße"]).call("call_a", "now", &["{}"]));
    stage.server.push(Reply::events(&first));
    stage.server.push(Reply::whole(529, &[("retry-after", "3")], dialogue.error_body(529, "busy")));
    let one = stage.ask().unwrap();
    let two = stage.error();
    let names: Vec<String> = files(&calls(&folder)).into_iter().map(|(name, ..)| name).collect();
    let expected = [
        "0001.call.json",
        "0001.request.json",
        "0001.response",
        "0002.call.json",
        "0002.request.json",
        "0002.response",
    ];
    assert_eq!(names, expected);
    for (name, bytes, mode) in files(&calls(&folder)) {
        assert_eq!(mode, 0o600, "{name}");
        if name == "0001.request.json" {
            assert_eq!(bytes, stage.server.received()[0].body, "the exact bytes of the request");
        }
        if name == "0001.response" {
            assert!(bytes.ends_with(first.concat().as_bytes()), "the exact bytes of the response");
        }
    }
    drop(stage);
    let model = Recorded::open(calls(&folder)).unwrap();
    assert_eq!(answered(&model, &hello()).unwrap(), one);
    assert_eq!(answered(&model, &hello()).unwrap_err(), two);
    let error = answered(&model, &hello()).unwrap_err();
    assert!(error.to_string().contains("was used"), "{error}");
}

pub(crate) fn a_request_that_differs_is_refused_with_its_place(dialogue: &dyn Dialogue) {
    let (stage, folder) = recording(dialogue);
    stage.server.push(Reply::events(dialogue.answer(&FakeAnswer::text(&["hi"]))));
    stage.ask().unwrap();
    let model = Recorded::open(calls(&folder)).unwrap();
    let other = [Arc::new(Message::text(Role::User, "something else"))];
    let error = answered(&model, &other).unwrap_err();
    assert!(matches!(error, ModelError::Permanent { .. }), "{error:?}");
    let error = error.to_string();
    assert!(error.contains("differs from 0001") && error.contains("[0]"), "{error}");
    assert_eq!(text(&answered(&model, &hello()).unwrap().content), "hi", "the call is still there");
    let empty = TempDir::new().unwrap();
    assert!(Recorded::open(empty.path()).is_err());
    assert!(Recorded::open(empty.path().join("missing")).is_err());
    fs::write(calls(&folder).join("0001.call.json"), "{}").unwrap();
    assert!(Recorded::open(calls(&folder)).unwrap_err().to_string().contains("0001.call.json"));
}

pub(crate) fn a_recorded_cut_is_a_cut_again(dialogue: &dyn Dialogue) {
    let (stage, folder) = recording(dialogue);
    let events = dialogue.answer(&FakeAnswer::text(&["half", "never"]));
    let half = events.iter().position(|event| event.contains("half")).unwrap() + 1;
    stage.server.push(Reply::stream().pieces(&events[..half]).reset());
    stage.server.push(Reply::nothing().cut());
    let ModelError::Cut { partial, .. } = stage.error() else { panic!("it is cut") };
    assert!(matches!(stage.error(), ModelError::Cut { .. }));
    let model = Recorded::open(calls(&folder)).unwrap();
    let Err(ModelError::Cut { partial: again, .. }) = answered(&model, &hello()) else { panic!("it is cut again") };
    assert_eq!(again, partial);
    assert!(matches!(answered(&model, &hello()), Err(ModelError::Unreached { .. })), "without a response");
}

pub(crate) fn canaries_are_in_no_recording(dialogue: &dyn Dialogue) {
    let (mut stage, folder) = recording(dialogue);
    stage.host.headers = vec![("X-Extra-Token".to_owned(), "canary-header-93".to_owned())];
    let stream = dialogue.answer(&FakeAnswer::text(&[KEY, " and canary-header-93"])).concat();
    // The key is split over two pieces.
    stage.server.push(Reply::stream().pieces(stream.as_bytes().chunks(11)).end());
    let cookie = ("set-cookie", "session=canary-cookie");
    stage.server.push(Reply::whole(401, &[cookie], dialogue.error_body(401, &format!("{KEY} is wrong"))));
    stage.ask().unwrap();
    stage.error();
    let messages = [Arc::new(Message::text(Role::User, format!("my key is {KEY}")))];
    stage.server.push(Reply::events(dialogue.answer(&FakeAnswer::text(&["hi"]))));
    answered(&super::remote(&stage.host), &messages).unwrap();
    let files = files(&calls(&folder));
    assert_eq!(files.len(), 9);
    for (name, bytes, _) in files {
        let content = String::from_utf8(bytes).unwrap();
        assert!(!content.contains("canary"), "{name}: {content}");
    }
}

pub(crate) fn calls_that_run_at_once_are_recorded_apart(dialogue: &dyn Dialogue) {
    const CALLS: usize = 20;
    let (stage, folder) = recording(dialogue);
    let answers: Vec<_> =
        (0..CALLS).map(|at| dialogue.answer(&FakeAnswer::text(&[&format!("answer {at}.")]))).collect();
    stage.server.handle(move |request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let asked = (0..CALLS).find(|at| body.contains(&format!("question {at}.")));
        Reply::events(&answers[asked.unwrap_or(0)])
    });
    let question = |at: usize| vec![Arc::new(Message::text(Role::User, format!("question {at}.")))];
    // One model for each call: they share nothing but the folder.
    std::thread::scope(|scope| {
        for at in 0..CALLS {
            let host = &stage.host;
            scope.spawn(move || answered(&super::remote(host), &question(at)).unwrap());
        }
    });
    let model = Recorded::open(calls(&folder)).unwrap();
    for at in (0..CALLS).rev() {
        assert_eq!(text(&answered(&model, &question(at)).unwrap().content), format!("answer {at}."));
    }
}
