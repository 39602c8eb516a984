//! One error with stable codes.

use selvedge::{Error, Job, Kind, Selvedge, ThreadId, Tool, json};

use crate::support::folder;

fn is_error<T: std::error::Error + Send + Sync + 'static>() {}

#[test]
fn every_call_fails_with_a_code_a_kind_and_a_hint() {
    is_error::<Error>();
    let folder = folder();
    let selvedge = Selvedge::open(folder.path()).unwrap();
    let missing = ThreadId::new("missing-000000000000").unwrap();
    let error = selvedge.send(&missing, "hello").join().unwrap_err();
    assert_eq!((error.code(), error.kind(), error.is_retryable()), ("thread_not_found", Kind::Absent, false));
    assert!(error.hint().is_some());
    let shown = selvedge::serde_json::to_value(&error).unwrap();
    assert_eq!(shown["code"], "thread_not_found");
    assert_eq!(shown["retryable"], false);

    let unknown = selvedge.run(Job::say("hello").model("nothing")).join().unwrap_err();
    assert_eq!(unknown.code(), "model_not_found");
    let absent = selvedge.run(Job::directive("nothing/here")).join().unwrap_err();
    assert_eq!((absent.code(), absent.kind()), ("item_not_found", Kind::Absent));
    assert_eq!(selvedge.run(Job::directive("../x")).join().unwrap_err().code(), "usage");
}

#[test]
fn an_invalid_tool_is_refused_by_open() {
    let folder = folder();
    let refused = |tool: Tool| Selvedge::builder().project(folder.path()).tool(tool).open().unwrap_err().code();
    assert_eq!(refused(Tool::function("bad", "", json!({"type": 7}), |_, _| ())), "tool_invalid");
    assert_eq!(refused(Tool::function("a b", "", json!({}), |_, _| ())), "tool_invalid");
    assert_eq!(refused(Tool::function("good", "", json!({}), |_, _| ()).capability("x*")), "capability_invalid");
    let twice = Tool::function("one", "", json!({}), |_, _| ());
    let twice = Selvedge::builder().project(folder.path()).tool(twice.clone()).tool(twice).open();
    assert_eq!(twice.unwrap_err().code(), "tool_invalid");
}

#[test]
fn a_store_whose_key_is_elsewhere_gets_no_second_key() {
    let home = folder();
    let folder = folder();
    drop(Selvedge::builder().project(folder.path()).home(home.path()).open().unwrap());
    let error = Selvedge::open(folder.path()).unwrap_err();
    assert!(error.hint().unwrap().contains("home"), "{error:?}");
    assert!(!folder.path().join(".selvedge/keys").exists());
    let inside = folder.path().join(".ai/keys");
    let error = Selvedge::builder().project(folder.path()).home(inside).open().unwrap_err();
    assert_eq!(error.code(), "keys_in_project");
}
