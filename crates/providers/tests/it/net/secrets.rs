//! Keys and other credentials.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use selvedge_model::{Cancel, Model, ModelError, Prompt};
use selvedge_providers::Key;
use selvedge_providers::fake::{Dialogue, FakeAnswer, Reply};
use tempfile::TempDir;

use super::{KEY, MODEL, Stage, hello, remote, runtime};

fn write(path: &Path, content: &str, mode: u32) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

pub(crate) fn a_key_file_must_be_private(dialogue: &dyn Dialogue) {
    let mut stage = Stage::new(dialogue);
    let answer = dialogue.answer(&FakeAnswer::text(&["hi"]));
    stage.server.handle(move |_| Reply::events(&answer));
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("key");
    stage.host.key = Some(Key::File(file.clone()));
    for (mode, is_private) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o660, false)] {
        _ = fs::remove_file(&file);
        write(&file, "canary-file-7b2e\n", mode);
        if is_private {
            stage.ask().unwrap();
        } else {
            let error = stage.error();
            assert!(matches!(error, ModelError::Permanent { .. }), "{error:?}");
            assert!(error.to_string().contains(&format!("{mode:04o}")), "{error}");
            assert!(!error.to_string().contains("canary"), "{error}");
        }
    }
    let sent = stage.server.received();
    assert_eq!(sent.len(), 2, "nothing is sent with a key that others can read");
    let (name, value) = dialogue.credentials("canary-file-7b2e");
    assert_eq!(sent[0].header(name), Some(value.as_str()));
    _ = fs::remove_file(&file);
    write(&file, "canary-file-7b2e\n", 0o600);
    let link = folder.path().join("link");
    symlink(&file, &link).unwrap();
    for path in [link, folder.path().to_owned(), folder.path().join("missing")] {
        stage.host.key = Some(Key::File(path.clone()));
        let error = stage.error().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
    }
}

pub(crate) fn a_key_that_was_refused_is_read_again_once(dialogue: &dyn Dialogue) {
    let mut stage = Stage::new(dialogue);
    let answer = dialogue.answer(&FakeAnswer::text(&["hi"]));
    let (name, good) = dialogue.credentials("key-number-2");
    let refused = dialogue.error_body(401, "unknown key");
    stage.server.handle(move |request| {
        if request.header(name) == Some(&good) {
            Reply::events(&answer)
        } else {
            Reply::whole(401, &[("content-type", "application/json")], &refused)
        }
    });
    // The command prints another key each time.
    let folder = TempDir::new().unwrap();
    let count = folder.path().join("count");
    let script = format!("echo x >> {0}; echo key-number-$(wc -l < {0})", count.display());
    stage.host.key = Some(Key::Command(["sh", "-c", &script].map(str::to_owned).to_vec()));
    let model = remote(&stage.host);
    let messages = hello();
    let prompt = Prompt::new(MODEL, &messages);
    runtime().block_on(async {
        for _ in 0..3 {
            model.answer(&prompt, &mut |_| {}, &Cancel::new()).await.unwrap();
        }
    });
    assert_eq!(stage.server.received().len(), 4, "one was refused");
    assert_eq!(fs::read_to_string(&count).unwrap().lines().count(), 2, "the key is kept");
    // A key that stays wrong is tried once more at most.
    let file = folder.path().join("key");
    write(&file, "wrong-key-1", 0o600);
    stage.host.key = Some(Key::File(file));
    let error = stage.error();
    assert_eq!(error.status(), Some(401));
    assert_eq!(stage.server.received().len(), 5, "the same key is not sent again");
}

pub(crate) fn canaries_are_in_no_error_and_no_debug_output(dialogue: &dyn Dialogue) {
    let mut stage = Stage::new(dialogue);
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("key");
    write(&file, KEY, 0o600);
    let command = ["sh", "-c", &format!("echo {KEY}")].map(str::to_owned).to_vec();
    stage.host.headers = vec![("X-Extra-Token".to_owned(), "canary-header-93".to_owned())];
    let said = format!("the key {KEY} with canary-header-93 is wrong");
    let events = dialogue.answer(&FakeAnswer::text(&["half"]));
    let half = events.iter().position(|event| event.contains("half")).unwrap() + 1;
    for key in [Key::Value(KEY.into()), Key::File(file), Key::Command(command)] {
        stage.host.key = Some(key);
        let known = stage.host.secrets().len();
        assert_eq!(known, if matches!(stage.host.key, Some(Key::Command(_))) { 1 } else { 2 });
        let replies = [
            Reply::whole(401, &[("content-type", "application/json")], dialogue.error_body(401, &said)),
            Reply::whole(500, &[], &said),
            Reply::whole(200, &[("content-type", "text/plain")], &said),
            Reply::whole(307, &[("location", &format!("http://127.0.0.1/?key={KEY}"))], ""),
            Reply::stream().pieces(&events[..half]).piece(format!("data: {{{said}\n\n")).end(),
        ];
        for reply in replies {
            stage.server.push(reply);
            let error = stage.error();
            assert!(!error.to_string().contains("canary") && !format!("{error:?}").contains("canary"), "{error:?}");
        }
        let shown = format!("{:?} {:?}", stage.host, remote(&stage.host));
        assert!(!shown.contains("canary"), "{shown}");
    }
}
