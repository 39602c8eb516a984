//! `selvedge blob`, and the tool with which a model reads the blobs of its own thread.

use crate::running::{put, thread_of};
use crate::support::{Ran, Sandbox};

/// A result of more than 32 KiB: numbered lines, so that each part can be told from the others.
const LONG: &str = "name: long\ndescription: Much.\ncommand: [seq, '1', '9000']\nenvironment: [PATH]\nclass: pure\n";
const ASK: &str = "---\nname: ask\nmodel: scripted:script.yaml\npermissions: [tool.long, tool.blob.read]\n---\nGo.\n";
const SCRIPT: &str = "turns:\n  - calls: [{ tool: long }]\n  - { say: Done., repeat: forever }\n";

fn whole() -> String {
    (1..=9000).map(|number| format!("{number}\n")).collect()
}

/// A thread with a blob; its id and the blob's name, which the model was told with the tool that reads it.
fn with_blob() -> (Sandbox, String, String) {
    let sandbox = Sandbox::new();
    put(&sandbox, ".ai/tools/long.yaml", LONG);
    put(&sandbox, ".ai/directives/ask.md", ASK);
    put(&sandbox, "script.yaml", SCRIPT);
    let ran = sandbox.run(&["run", "ask", "--json"]);
    let thread = thread_of(&ran);
    let told = ran.stdout.split("the whole is in blob ").nth(1).unwrap();
    assert!(told[64..].starts_with("; the tool `blob_read` reads it in parts"), "{}", &told[..200]);
    (sandbox, thread, told[..64].to_owned())
}

fn bytes(sandbox: &Sandbox, args: &[&str]) -> Vec<u8> {
    let output = sandbox.command(args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    output.stdout
}

#[test]
fn a_blob_is_given_byte_for_byte_by_any_unique_beginning_of_its_name() {
    let (sandbox, thread, blob) = with_blob();
    for name in [blob.as_str(), &blob[..8], &blob[..1], &blob[..8].to_uppercase()] {
        assert_eq!(bytes(&sandbox, &["blob", &thread, name]), whole().as_bytes(), "{name}");
    }
    let shown = sandbox.run(&["blob", "@", &blob[..8], "--json"]).json();
    assert_eq!((shown["blob"].as_str(), shown["text"].as_str()), (Some(blob.as_str()), Some(whole().as_str())));
    assert_eq!(sandbox.run(&["blob", "@", &blob, "-o", "out.txt"]).code, Some(0));
    assert_eq!(std::fs::read_to_string(sandbox.project().join("out.txt")).unwrap(), whole());
    sandbox.run(&["blob", "@", &blob, "-o", "out.txt", "--json"]).error(5, "file_exists");
    sandbox.run(&["blob", "@", "zz", "--json"]).error(3, "blob_not_found");
    sandbox.run(&["blob", "@", "", "--json"]).error(3, "blob_not_found");
}

#[test]
fn an_erased_blob_and_a_file_that_no_log_names_are_refused() {
    let (sandbox, thread, blob) = with_blob();
    let id = selvedge_model::ThreadId::new(thread.as_str()).unwrap();
    let store = sandbox.open();
    let stray = selvedge_store::Commit::put_blob(&store, &id, b"nobody names it").unwrap().to_string();
    store.close().unwrap();
    sandbox.run(&["blob", &thread, &stray, "--json"]).error(3, "blob_not_found");
    assert_eq!(sandbox.run(&["erase", &thread, &blob, "--reason", "asked to"]).code, Some(0));
    for name in [blob.as_str(), &blob[..8]] {
        let error = sandbox.run(&["blob", &thread, name, "--json"]).error(3, "blob_erased");
        assert!(error["message"].as_str().unwrap().contains("asked to"), "{error}");
    }
}

/// Lets the model call `blob_read` with these arguments; gives its result.
fn read(sandbox: &Sandbox, thread: &str, arguments: &str) -> (Ran, String) {
    let call = format!(
        "turns:\n  - calls: [{{ tool: long }}]\n  - {{ say: Done. }}\n  - calls: [{{ tool: blob_read, arguments: {arguments} }}]\n  - {{ say: Done., repeat: forever }}\n"
    );
    put(sandbox, "script.yaml", &call);
    let ran = sandbox.run(&["send", thread, "read it", "--json"]);
    let records = ran.records();
    let mut results = records.iter().filter(|record| record["payload"]["role"] == "tool");
    let block = &results.next_back().unwrap()["payload"]["content"][0]["content"];
    let text = block.as_str().map_or_else(|| block.to_string(), str::to_owned);
    (ran, text)
}

#[test]
fn a_model_reads_a_blob_of_its_own_thread_in_parts() {
    let (sandbox, thread, blob) = with_blob();
    let whole = whole();
    let whole = whole.as_str();
    let (_, text) = read(&sandbox, &thread, &format!("{{ blob: '{}' }}", &blob[..12]));
    let total = whole.len();
    assert_eq!(text, format!("{}\n[bytes 0 to 8192 of {total}; continue with `offset` 8192]", &whole[..8192]));
    for (arguments, expected) in [
        (
            "offset: 8192, bytes: 10",
            format!("{}\n[bytes 8192 to 8202 of {total}; continue with `offset` 8202]", &whole[8192..8202]),
        ),
        (&format!("offset: {}", total - 9), whole[total - 9..].to_owned()),
    ] {
        let (sandbox, thread, blob) = with_blob();
        let (_, text) = read(&sandbox, &thread, &format!("{{ blob: '{blob}', {arguments} }}"));
        assert_eq!(text, expected);
    }
}

#[test]
fn a_model_reads_no_blob_of_another_thread_and_none_without_the_capability() {
    let (sandbox, first, _) = with_blob();
    // The same tool in another thread has another blob: one number more.
    put(&sandbox, ".ai/tools/long.yaml", &LONG.replace("9000", "9001"));
    put(&sandbox, "script.yaml", SCRIPT);
    let ran = sandbox.run(&["run", "ask", "--json"]);
    let other = ran.stdout.split("the whole is in blob ").nth(1).unwrap()[..64].to_owned();
    let (_, text) = read(&sandbox, &first, &format!("{{ blob: '{other}' }}"));
    assert!(text.contains("this thread names no blob"), "{text}");

    put(&sandbox, ".ai/directives/ask.md", &ASK.replace(", tool.blob.read", ""));
    put(&sandbox, "script.yaml", SCRIPT);
    let thread = thread_of(&sandbox.run(&["run", "ask", "--json"]));
    let (_, text) = read(&sandbox, &thread, &format!("{{ blob: '{other}' }}"));
    assert!(text.contains("tool.blob.read"), "{text}");
}
