//! `selvedge erase`: the content is gone, and the log records it.

use selvedge_model::message::Block;
use selvedge_model::{Batch, Changeset, Expect, Message, Part, Reason, Role, ThreadId};
use selvedge_store::Commit;

use crate::support::Sandbox;

#[test]
fn an_erased_blob_is_gone_and_shown_as_erased_by_verify_and_log() {
    let (sandbox, thread) = Sandbox::with_thread();
    let store = sandbox.open();
    let id = ThreadId::new(thread.as_str()).unwrap();
    let blob = store.put_blob(&id, b"secret").unwrap();
    let image = Block::Image { blob, media_type: "text/plain".to_owned() };
    let message = Message { content: vec![image], ..Message::text(Role::User, "") };
    let shown = Changeset { messages: vec![message], ..Changeset::empty(Reason::UserMessage) };
    store.commit(Batch::of(Part::new(id, Expect::Any, shown))).unwrap();
    store.close().unwrap();
    let name = blob.to_string();
    sandbox.run(&["erase", &thread, &name, "--json"]).error(2, "usage");
    sandbox.run(&["erase", &thread, &name, "--reason", " ", "--json"]).error(2, "usage");
    sandbox.run(&["erase", &thread, "zz", "--reason", "r", "--json"]).error(3, "blob_not_found");
    let erased = sandbox.run(&["erase", &thread, &name[..8], "--reason", "asked to", "--json"]).json();
    assert_eq!((&erased["version"], &erased["blob"]), (&2.into(), &name.as_str().into()));
    assert!(!sandbox.threads().join(&thread).join("blobs").join(&name).exists());
    sandbox.run(&["erase", &thread, &name, "--reason", "r", "--json"]).error(3, "blob_erased");
    assert_eq!(sandbox.run(&["verify", &thread, "--json"]).json()["erased"], 1);
    assert!(sandbox.run(&["verify", &thread]).stdout.contains("erased: 1 blob"));
    assert!(sandbox.run(&["log", &thread]).stdout.contains("erased: asked to"));
    assert_eq!(sandbox.run(&["doctor", "--deep"]).code, Some(0));
}

#[test]
fn a_lost_blob_is_reported_as_damage() {
    let (sandbox, thread) = Sandbox::with_thread();
    let store = sandbox.open();
    let id = ThreadId::new(thread.as_str()).unwrap();
    let blob = store.put_blob(&id, b"secret").unwrap();
    let image = Block::Image { blob, media_type: "text/plain".to_owned() };
    let message = Message { content: vec![image], ..Message::text(Role::User, "") };
    let shown = Changeset { messages: vec![message], ..Changeset::empty(Reason::UserMessage) };
    store.commit(Batch::of(Part::new(id, Expect::Any, shown))).unwrap();
    store.close().unwrap();
    std::fs::remove_file(sandbox.threads().join(&thread).join("blobs").join(blob.to_string())).unwrap();
    let ran = sandbox.run(&["verify", &thread, "--json"]);
    let error = ran.error_beside_data(6, "blob_damaged");
    assert!(error["message"].as_str().unwrap().contains(&blob.short()), "{error}");
    sandbox.run(&["doctor", "--deep", "--json"]).error_beside_data(6, "doctor_damage");
}
