//! Embedding: open, run, send, read, verify, export, open again.

use std::path::Path;
use std::time::{Duration, Instant};

use selvedge::{Filter, Input, Job, Kind, Limit, Limits, Role, Selvedge, Status, json};

use crate::support::{folder, scripted};

#[test]
fn a_folder_is_all_that_is_needed() {
    let folder = folder();
    let selvedge = Selvedge::open(folder.path()).unwrap();
    let outcome = selvedge.run("hello").join().unwrap();
    assert_eq!(outcome.status, Status::Completed);
    assert!(outcome.result.unwrap().contains("hello"));
    // The key is kept out of version control.
    assert_eq!(std::fs::read_to_string(folder.path().join(".selvedge/.gitignore")).unwrap(), "*\n");
}

#[test]
fn a_thread_is_run_sent_to_read_verified_and_exported() {
    let folder = folder();
    let selvedge = scripted(&folder, &json!([{"say": "One."}, {"say": "Two."}])).open().unwrap();
    let thread = selvedge.start(Job::say("Count.").title("counting")).join().unwrap();
    assert_eq!(selvedge.wait(&thread).join().unwrap().result.as_deref(), Some("One."));
    let outcome = selvedge.send(&thread, "Go on.").join().unwrap();
    assert_eq!(outcome.result.as_deref(), Some("Two."));
    let said: Vec<_> = selvedge.messages(&thread).join().unwrap();
    let said: Vec<_> = said.iter().map(|message| (message.role, message.plain_text())).collect();
    assert_eq!(said.len(), 4);
    assert_eq!(said[3], (Role::Assistant, "Two.".to_owned()));

    let page = selvedge.threads(Filter::default(), None, 10).join().unwrap();
    assert_eq!(page.items[0].manifest.title.as_deref(), Some("counting"));
    let hex = thread.as_str().rsplit('-').next().unwrap();
    assert_eq!(selvedge.find(hex).join().unwrap(), thread);

    let proof = selvedge.verify(&thread).join().unwrap();
    assert!(proof.is_sound && proof.code == "sound" && proof.signers.len() == 1, "{proof:?}");
    let file = folder.path().join("thread.tar");
    let archive = selvedge.export(&thread, &file).join().unwrap();
    assert_eq!(archive.thread, thread);
    assert!(file.metadata().unwrap().len() > 1000);
    assert_eq!(selvedge.export(&thread, &file).join().unwrap_err().code(), "io");
}

/// Waits until no process holds the store: it is closed soon after the last handle is dropped.
fn until_closed(project: &Path) {
    let owners = project.join(".ai/agent/threads/owners");
    let until = Instant::now() + Duration::from_secs(10);
    while std::fs::read_dir(&owners).unwrap().next().is_some() {
        assert!(Instant::now() < until, "the store is still open");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_edited_log_is_found() {
    let folder = folder();
    let selvedge = scripted(&folder, &json!([{"say": "The truth."}])).open().unwrap();
    let thread = selvedge.start("Speak.").join().unwrap();
    selvedge.wait(&thread).join().unwrap();
    assert!(selvedge.shut_down(Duration::from_secs(5)).join().unwrap());
    drop(selvedge);
    until_closed(folder.path());
    let log = folder.path().join(".ai/agent/threads").join(thread.folder()).join("transcript.jsonl");
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, text.replace("The truth.", "A lie, er.")).unwrap();
    let selvedge = Selvedge::builder().project(folder.path()).read_only().open().unwrap();
    let proof = selvedge.verify(&thread).join().unwrap();
    assert!(!proof.is_sound, "{proof:?}");
    assert_eq!(selvedge.messages(&thread).join().unwrap_err().kind(), Kind::Integrity);
}

#[test]
fn a_program_that_only_reads_starts_nothing() {
    let folder = folder();
    let thread = Selvedge::open(folder.path()).unwrap().run("hello").join().unwrap().thread_id;
    let reader = Selvedge::builder().project(folder.path()).read_only().open().unwrap();
    assert_eq!(reader.status(&thread).join().unwrap().status, Status::Completed);
    assert_eq!(reader.wait(&thread).join().unwrap().status, Status::Completed);
    let refused = reader.run("more").join().unwrap_err();
    assert_eq!((refused.code(), refused.kind()), ("store_unusable", Kind::Denied), "{refused:?}");
    // Nothing is made where nothing is.
    let empty = tempfile::tempdir().unwrap();
    let refused = Selvedge::builder().project(empty.path()).read_only().open().unwrap_err();
    assert_eq!(refused.kind(), Kind::Absent, "{refused:?}");
    assert!(std::fs::read_dir(empty.path()).unwrap().next().is_none());
}

#[test]
fn a_key_names_one_thread_and_one_run() {
    let folder = folder();
    let selvedge = scripted(&folder, &json!([{"say": "Once."}])).open().unwrap();
    let first = selvedge.run(Job::say("Do it.").key("it")).join().unwrap();
    let again = selvedge.run(Job::say("Do it.").key("it")).join().unwrap();
    assert_eq!((first.thread_id, first.result), (again.thread_id, again.result));
    assert_eq!(selvedge.threads(Filter::default(), None, 10).join().unwrap().items.len(), 1);
}

#[test]
fn a_limit_suspends_and_a_higher_one_resumes() {
    let folder = folder();
    let turns = json!([{"calls": [{"tool": "nothing"}]}, {"say": "Done."}]);
    let selvedge = scripted(&folder, &turns).limit(Limit::Turns(1)).open().unwrap();
    let suspended = selvedge.run("Go.").join().unwrap();
    assert_eq!(suspended.status, Status::Suspended);
    let higher = Input::nothing().raising(Limits { turns: Some(5), ..Limits::default() });
    let outcome = selvedge.resume(&suspended.thread_id, higher).join().unwrap();
    assert_eq!((outcome.status.status(), outcome.result.as_deref()), (Some(Status::Completed), Some("Done.")));
}

#[test]
fn a_directive_of_the_project_runs_with_its_inputs() {
    let folder = folder();
    std::fs::create_dir_all(folder.path().join(".ai/directives")).unwrap();
    let directive = "---\nname: greet\ninputs: [{name: who, type: string}]\n---\n\nGreet {input:who}.\n";
    std::fs::write(folder.path().join(".ai/directives/greet.md"), directive).unwrap();
    let selvedge = scripted(&folder, &json!([{"say": "Hello."}])).open().unwrap();
    let outcome = selvedge.run(Job::directive("greet").input("who", "Ann").model("script")).join().unwrap();
    let messages = selvedge.messages(&outcome.thread_id).join().unwrap();
    assert!(messages[0].plain_text().contains("Greet Ann."), "{messages:?}");
    assert_eq!(outcome.result.as_deref(), Some("Hello."));
}

#[test]
fn threads_continue_in_the_next_process() {
    let folder = folder();
    let turns = json!([{"say": "First."}, {"say": "Second."}]);
    let first = scripted(&folder, &turns).open().unwrap();
    let thread = first.run("Begin.").join().unwrap().thread_id;
    drop(first);
    let second = scripted(&folder, &turns).open().unwrap();
    assert!(second.recovered().is_empty());
    assert_eq!(second.send(&thread, "Go on.").join().unwrap().result.as_deref(), Some("Second."));
}

#[test]
fn a_message_under_a_key_runs_once_also_in_the_next_process() {
    let folder = folder();
    let turns = json!([{"say": "First."}, {"say": "Second."}, {"say": "Third."}]);
    let first = scripted(&folder, &turns).open().unwrap();
    let thread = first.run("Begin.").join().unwrap().thread_id;
    let sent = first.send_as(&thread, "monday", "Go on.").join().unwrap();
    assert_eq!(sent.result.as_deref(), Some("Second."));
    drop(first);
    let second = scripted(&folder, &turns).open().unwrap();
    second.submit_as(&thread, "monday", "Go on.").join().unwrap();
    let again = second.send_as(&thread, "monday", "Go on.").join().unwrap();
    assert_eq!((again.run_id, again.result), (sent.run_id, sent.result));
    assert_eq!(second.messages(&thread).join().unwrap().len(), 4);
    assert_eq!(second.send_as(&thread, "monday", "Stop.").join().unwrap_err().code(), "idempotency_key_reused");
    assert!(second.answer_abandoned().join().unwrap().is_empty());
}

#[test]
fn after_shutting_down_nothing_is_started() {
    let folder = folder();
    let selvedge = Selvedge::open(folder.path()).unwrap();
    let thread = selvedge.create("hello").join().unwrap();
    assert!(selvedge.shut_down(Duration::from_secs(5)).join().unwrap());
    let refused = selvedge.resume(&thread, Input::nothing()).join().unwrap_err();
    assert_eq!(refused.code(), "shut_down");
    assert_eq!(selvedge.run("more").join().unwrap_err().code(), "shut_down");
    // Reading goes on.
    assert_eq!(selvedge.status(&thread).join().unwrap().status, Status::Created);
}
