//! Closures as tools: sync and async, checked against their schemas.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use selvedge::{Block, Output, Selvedge, Status, ThreadId, Tool, Value, json};

use crate::support::{folder, scripted};

/// The results of the tool calls of a thread, and whether each is an error.
fn results(selvedge: &Selvedge, thread: &ThreadId) -> Vec<(Value, bool)> {
    let messages = selvedge.messages(thread).join().unwrap();
    let blocks = messages.into_iter().flat_map(|message| message.content);
    blocks
        .filter_map(|block| match block {
            Block::ToolResult { content, is_error, .. } => Some((content, is_error)),
            _ => None,
        })
        .collect()
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"item": {"type": "object", "properties": {"amount": {"type": "integer", "minimum": 1}}}},
        "required": ["item"],
    })
}

#[test]
fn arguments_that_break_the_schema_never_reach_the_closure() {
    let folder = folder();
    let called = Arc::new(AtomicUsize::new(0));
    let counted = called.clone();
    let order = Tool::function("order", "Orders something.", schema(), move |arguments, context| {
        counted.fetch_add(1, Ordering::SeqCst);
        assert!(!context.key().is_empty() && !context.is_cancelled());
        format!("ordered {}", arguments["item"]["amount"])
    });
    let call = |arguments: Value| json!({"calls": [{"tool": "order", "arguments": arguments}]});
    let turns = json!([call(json!({"item": {"amount": 0}})), call(json!({})), call(json!({"item": {"amount": 2}})), {"say": "Done."}]);
    let selvedge = scripted(&folder, &turns).tool(order).open().unwrap();
    let outcome = selvedge.run("Order two.").join().unwrap();
    assert_eq!(outcome.status, Status::Completed);
    let results = results(&selvedge, &outcome.thread_id);
    let text = |at: usize| results[at].0.as_str().unwrap().to_owned();
    assert!(results[0].1 && text(0).contains("/item/amount") && text(0).contains("minimum"), "{}", text(0));
    assert!(results[1].1 && text(1).contains("item") && text(1).contains("required"), "{}", text(1));
    assert_eq!(results[2], (json!("ordered 2"), false));
    assert_eq!(called.load(Ordering::SeqCst), 1);
}

#[test]
fn what_a_closure_returns_is_what_the_model_sees() {
    let folder = folder();
    let any = || json!({"type": "object"});
    let turns = json!([
        {"calls": [{"tool": "text"}, {"tool": "data"}, {"tool": "fails"}, {"tool": "says"}, {"tool": "nothing"}, {"tool": "panics"}]},
        {"say": "Done."},
    ]);
    let selvedge = scripted(&folder, &turns)
        .tool(Tool::function("text", "", any(), |_, _| "a text").pure())
        .tool(Tool::function("data", "", any(), |_, _| json!({"n": 1})).pure())
        .tool(Tool::function("fails", "", any(), |_, _| "x".parse::<u8>().map(|n| n.to_string())).idempotent())
        .tool(Tool::function("says", "", any(), |_, _| Output::error("no")).pure())
        .tool(Tool::function("nothing", "", any(), |_, _| ()).pure())
        .tool(Tool::function("panics", "", any(), |_, _| -> String { panic!("oh") }).pure())
        .open()
        .unwrap();
    let outcome = selvedge.run("Try all.").join().unwrap();
    assert_eq!(outcome.status, Status::Completed);
    let results = results(&selvedge, &outcome.thread_id);
    assert_eq!(results[0], (json!("a text"), false));
    assert_eq!(results[1], (json!({"n": 1}), false));
    assert_eq!(results[2], (json!("invalid digit found in string"), true));
    assert_eq!(results[3], (json!("no"), true));
    assert_eq!(results[4], (json!("done"), false));
    assert!(results[5].1 && results[5].0.to_string().contains("oh"), "{:?}", results[5]);
}

/// An async tool uses sockets of the program's own runtime, although the engine polls it.
#[tokio::test]
async fn an_async_closure_runs_in_the_runtime_of_the_program() {
    let folder = folder();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let seen_by = seen.clone();
    let connect = Tool::async_function("connect", "Connects.", json!({"type": "object"}), move |_, context| {
        let seen = seen_by.clone();
        async move {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            tokio::net::TcpStream::connect(address).await.map_err(|error| error.to_string())?;
            seen.lock().unwrap().push(context.thread().clone());
            Ok::<_, String>("connected")
        }
    });
    let turns = json!([{"calls": [{"tool": "connect"}]}, {"say": "Done."}]);
    let selvedge = scripted(&folder, &turns).tool(connect).open().unwrap();
    let outcome = selvedge.run("Connect.").await.unwrap();
    assert_eq!(results_of(&selvedge, &outcome.thread_id).await, [(json!("connected"), false)]);
    assert_eq!(*seen.lock().unwrap(), [outcome.thread_id]);
    listener.accept().await.unwrap();
}

async fn results_of(selvedge: &Selvedge, thread: &ThreadId) -> Vec<(Value, bool)> {
    let selvedge = selvedge.clone();
    let thread = thread.clone();
    tokio::task::spawn_blocking(move || results(&selvedge, &thread)).await.unwrap()
}
