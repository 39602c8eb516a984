//! Only files inside the allowed folders can be used.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use selvedge_model::event::EffectClass;
use selvedge_model::{Output, Tool, ToolError};
use selvedge_tools::{FileEdit, FileGlob, FileGrep, FileList, FileRead, FileWrite, Folders};
use serde_json::{Value, json};

use crate::support::{call, project, text, use_tool};

fn folders(root: &Path) -> Folders {
    Folders::new(root, ["."]).unwrap()
}

fn read(folders: &Folders, path: &str) -> Result<Output, ToolError> {
    use_tool(&FileRead::new(folders.clone()).unwrap(), json!({"path": path}))
}

fn write(folders: &Folders, path: &str, content: &str) -> Result<Output, ToolError> {
    use_tool(&FileWrite::new(folders.clone()).unwrap(), json!({"path": path, "content": content}))
}

fn list(folders: &Folders, path: &str) -> Result<Output, ToolError> {
    use_tool(&FileList::new(folders.clone()).unwrap(), json!({"path": path}))
}

/// The text of a refusal, from wherever it came.
#[track_caller]
fn refusal(answer: Result<Output, ToolError>) -> String {
    match answer {
        Ok(output) if output.is_error => text(&output).to_owned(),
        Ok(output) => panic!("it was not refused: {output:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_file_is_written_read_and_listed() {
    let (_folder, root) = project();
    let all = folders(&root);
    assert_eq!(text(&write(&all, "a/b/c.txt", "héllo").unwrap()), "wrote 6 bytes to `a/b/c.txt`");
    assert_eq!(text(&read(&all, "./a//b/c.txt").unwrap()), "héllo");
    symlink("c.txt", root.join("a/b/link")).unwrap();
    fs::create_dir(root.join("a/b/d")).unwrap();
    let entries = json!([
        {"name": "c.txt", "kind": "file", "bytes": 6},
        {"name": "d", "kind": "folder"},
        {"name": "link", "kind": "link"},
    ]);
    let content = json!({"path": "a/b", "entries": entries, "left_out": 0});
    assert_eq!(list(&all, "a/b").unwrap().content, content);
    assert_eq!(list(&all, ".").unwrap().content["entries"], json!([{"name": "a", "kind": "folder"}]));
}

#[test]
fn writing_replaces_the_file_whole_and_keeps_its_mode() {
    let (_folder, root) = project();
    let all = folders(&root);
    fs::write(root.join("run.sh"), "old and long").unwrap();
    fs::set_permissions(root.join("run.sh"), fs::Permissions::from_mode(0o750)).unwrap();
    for _ in 0..2 {
        write(&all, "run.sh", "new").unwrap();
        assert_eq!(fs::read_to_string(root.join("run.sh")).unwrap(), "new");
    }
    assert_eq!(fs::metadata(root.join("run.sh")).unwrap().permissions().mode() & 0o777, 0o750);
    assert_eq!(fs::read_dir(&root).unwrap().count(), 1, "no other file is left");
}

#[test]
fn an_interrupted_write_is_cleaned_up_by_the_same_call() {
    let (_folder, root) = project();
    let tool = FileWrite::new(folders(&root)).unwrap();
    // The name follows from the call's key.
    fs::create_dir(root.join("d")).unwrap();
    let started = tool.start(&call("file_write", json!({"path": "d/x", "content": "y"}))).unwrap();
    let key = sha256_hex_24("key1");
    fs::write(root.join("d").join(format!(".selvedge-{key}")), "half").unwrap();
    started.dispatch(&selvedge_model::Cancel::new()).wait().unwrap();
    let names: Vec<_> = fs::read_dir(root.join("d")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["x"]);
}

fn sha256_hex_24(text: &str) -> String {
    use sha2::Digest as _;
    selvedge_model::digest::hex(&sha2::Sha256::digest(text))[..24].to_owned()
}

#[test]
fn paths_that_lead_elsewhere_are_refused() {
    let (_folder, root) = project();
    let (_outside, outside) = project();
    fs::write(outside.join("secret"), "canary").unwrap();
    fs::create_dir(root.join("in")).unwrap();
    symlink(&outside, root.join("out")).unwrap();
    symlink(outside.join("secret"), root.join("in/secret")).unwrap();
    symlink(outside.join("new"), root.join("in/dangling")).unwrap();
    symlink("in", root.join("inner")).unwrap();
    let all = folders(&root);
    let absolute = outside.join("secret");
    let cases = [
        ("../secret", "`..`"),
        ("in/../../secret", "`..`"),
        ("in/..", "`..`"),
        (absolute.to_str().unwrap(), "absolute"),
        ("in/se\0cret", "NUL"),
        ("", "empty"),
        ("out/secret", "symbolic link"),
        ("inner/x", "symbolic link"),
        ("in/secret", "symbolic link"),
        ("in/dangling", "symbolic link"),
        (".ai/config/x.yaml", "closed"),
        ("in/.AI/x", "closed"),
        (".git/hooks/pre-commit", "closed"),
    ];
    for (path, why) in cases {
        for answer in [read(&all, path), write(&all, path, "x")] {
            let said = refusal(answer);
            assert!(said.contains(why), "{path:?}: {said}");
        }
        refusal(list(&all, path));
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "canary");
}

#[test]
fn paths_outside_the_allowed_folders_are_refused_and_the_folders_are_named() {
    let (_folder, root) = project();
    fs::create_dir_all(root.join("docs/deep")).unwrap();
    fs::create_dir(root.join("docs2")).unwrap();
    let some = Folders::new(&root, ["docs", "src/"]).unwrap();
    write(&some, "docs/deep/a", "x").unwrap();
    for path in ["a", "docs2/a", "do"] {
        let said = refusal(write(&some, path, "x"));
        assert!(said.contains("outside the allowed folders; allowed: `docs`, `src`"), "{said}");
    }
    refusal(list(&some, "."));
    refusal(read(&Folders::new(&root, []).unwrap(), "docs/deep/a"));
    assert!(Folders::new(&root, ["../x"]).is_err());
    assert!(Folders::new(root.join("nowhere"), ["."]).is_err());
}

#[test]
fn a_file_that_is_not_text_is_refused_at_once() {
    let (_folder, root) = project();
    fs::create_dir(root.join("folder")).unwrap();
    fs::write(root.join("binary"), b"ab\xff").unwrap();
    assert!(std::process::Command::new("mkfifo").arg(root.join("pipe")).status().unwrap().success());
    let all = folders(&root);
    assert!(refusal(read(&all, "folder")).contains("not a file"));
    assert!(refusal(read(&all, "pipe")).contains("not a file"));
    assert!(refusal(read(&all, "binary")).contains("byte 2 is not UTF-8"));
    assert!(refusal(read(&all, "nothing")).contains("does not exist"));
    assert!(refusal(read(&all, ".")).contains("folder"));
    assert!(refusal(write(&all, "folder", "x")).contains("is a folder"));
    assert!(refusal(write(&all, "pipe", "x")).contains("not a file"));
    assert!(refusal(write(&all, "binary/x", "x")).contains("not a folder"));
    assert!(refusal(list(&all, "binary")).contains("not a folder"));
}

#[test]
fn long_files_are_read_in_parts_and_written_up_to_a_bound() {
    let (_folder, root) = project();
    let whole = "ü".repeat(200_000);
    fs::write(root.join("long"), format!("x{whole}")).unwrap();
    let tool = FileRead::new(folders(&root)).unwrap();
    let first = use_tool(&tool, json!({"path": "long"})).unwrap();
    let (part, note) = text(&first).split_once('\n').unwrap();
    // The 131,072nd character would be cut in two, so it comes with the next part.
    assert_eq!(note, "[262143 of 400001 bytes; continue with `offset` 262143]");
    let second = use_tool(&tool, json!({"path": "long", "offset": 262_143})).unwrap();
    assert_eq!(format!("{part}{}", text(&second)), format!("x{whole}"));
    assert_eq!(text(&use_tool(&tool, json!({"path": "long", "offset": 1_000_000})).unwrap()), "");
    let said = refusal(write(&folders(&root), "big", &"x".repeat(1024 * 1024 + 1)));
    assert!(said.contains("more than"), "{said}");
    assert!(!root.join("big").exists());
}

#[test]
fn a_long_listing_is_cut_and_says_so() {
    let (_folder, root) = project();
    for index in 0..1003 {
        fs::write(root.join(format!("f{index:04}")), "").unwrap();
    }
    let content = list(&folders(&root), ".").unwrap().content;
    assert_eq!(content["entries"].as_array().map(Vec::len), Some(1000));
    assert_eq!(content["left_out"], json!(3));
}

#[test]
fn nothing_happens_before_dispatch_and_bad_arguments_start_nothing() {
    let (_folder, root) = project();
    let tool = FileWrite::new(folders(&root)).unwrap();
    let started = tool.start(&call("file_write", json!({"path": "a/b", "content": "x"}))).unwrap();
    assert!(started.process().is_none());
    drop(started);
    for bad in [
        json!({"path": "a"}),
        json!({"path": 1, "content": "x"}),
        json!({"path": "a", "content": "x", "mode": 1}),
        Value::Null,
    ] {
        assert!(matches!(use_tool(&tool, bad), Err(ToolError::NotStarted { .. })));
    }
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    let classes = [tool.spec().class, FileRead::new(folders(&root)).unwrap().spec().class];
    assert_eq!(classes, [EffectClass::Idempotent, EffectClass::Pure]);
}

fn edit(folders: &Folders, arguments: Value) -> Result<Output, ToolError> {
    use_tool(&FileEdit::new(folders.clone()).unwrap(), arguments)
}

fn glob(folders: &Folders, arguments: Value) -> Value {
    use_tool(&FileGlob::new(folders.clone()).unwrap(), arguments).unwrap().content
}

fn grep(folders: &Folders, arguments: Value) -> Result<Output, ToolError> {
    use_tool(&FileGrep::new(folders.clone()).unwrap(), arguments)
}

#[test]
fn lines_of_a_file_are_read_by_their_numbers() {
    let (_folder, root) = project();
    fs::write(root.join("f"), "one\ntwo\nthree\nfour").unwrap();
    let tool = FileRead::new(folders(&root)).unwrap();
    let read = |arguments| text(&use_tool(&tool, arguments).unwrap()).to_owned();
    assert_eq!(read(json!({"path": "f", "line": 2, "lines": 2})), "two\nthree\n[continue with `line` 4]");
    assert_eq!(read(json!({"path": "f", "line": 4})), "four");
    assert_eq!(read(json!({"path": "f", "lines": 4})), "one\ntwo\nthree\nfour");
    assert_eq!(read(json!({"path": "f", "line": 9})), "[the file has 4 lines]");
    assert!(use_tool(&tool, json!({"path": "f", "line": 1, "offset": 1})).is_err());
    fs::write(root.join("long"), format!("{}\nshort\n", "x".repeat(300_000))).unwrap();
    assert!(read(json!({"path": "long", "line": 1})).contains("more bytes of this line]"));
    assert_eq!(read(json!({"path": "long", "line": 2})), "short\n");
}

#[test]
fn an_edit_is_exact_keeps_the_mode_and_made_again_changes_nothing() {
    let (_folder, root) = project();
    let all = folders(&root);
    let file = root.join("run.sh");
    fs::write(&file, "echo one\necho two\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o750)).unwrap();
    let after = "echo one\necho more\necho two\n";
    let arguments = json!({"path": "run.sh", "old": "echo one\n", "new": "echo one\necho more\n"});
    let said = edit(&all, arguments.clone()).unwrap();
    use sha2::Digest as _;
    let digest = selvedge_model::digest::hex(&sha2::Sha256::digest(after));
    assert_eq!(text(&said), format!("edited 1 place in `run.sh`; its SHA-256 is {digest}"));
    assert_eq!(
        text(&edit(&all, arguments).unwrap()),
        format!("`run.sh` is already edited so; its SHA-256 is {digest}")
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), after);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o750);
    let stale = json!({"path": "run.sh", "old": "two", "new": "2", "digest": "0123456789ab"});
    assert!(refusal(edit(&all, stale)).contains("not the file that is meant"));
    let right = json!({"path": "run.sh", "old": "two", "new": "2", "digest": &digest[..12]});
    edit(&all, right.clone()).unwrap();
    assert!(text(&edit(&all, right).unwrap()).contains("already"));
    assert!(refusal(edit(&all, json!({"path": "run.sh", "old": "echo", "new": "say"}))).contains("3 times"));
    edit(&all, json!({"path": "run.sh", "old": "echo", "new": "say", "all": true})).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "say one\nsay more\nsay 2\n");
    assert!(refusal(edit(&all, json!({"path": "run.sh", "old": "a", "new": "a"}))).contains("same"));
    assert!(refusal(edit(&all, json!({"path": "none", "old": "a", "new": "b"}))).contains("does not exist"));
    assert_eq!(fs::read_dir(&root).unwrap().count(), 1, "no other file is left");
}

#[test]
fn edits_made_at_once_do_not_undo_each_other() {
    let (_folder, root) = project();
    let all = folders(&root);
    let lines: String = (0..20).map(|line| format!("<{line}>\n")).collect();
    fs::write(root.join("f"), &lines).unwrap();
    std::thread::scope(|scope| {
        for line in 0..20 {
            let all = &all;
            scope.spawn(move || {
                edit(all, json!({"path": "f", "old": format!("<{line}>"), "new": format!("[{line}]")})).unwrap()
            });
        }
    });
    assert_eq!(fs::read_to_string(root.join("f")).unwrap(), lines.replace('<', "[").replace('>', "]"));
}

#[test]
fn files_are_found_by_name_and_by_content_and_links_and_closed_folders_are_left_out() {
    let (_folder, root) = project();
    let (_outside, outside) = project();
    fs::write(outside.join("secret.rs"), "needle").unwrap();
    for folder in ["src/deep", ".git", ".ai/tools"] {
        fs::create_dir_all(root.join(folder)).unwrap();
        fs::write(root.join(folder).join("x.rs"), "fn needle() {}\n// Needle again\n").unwrap();
    }
    symlink(&outside, root.join("src/out")).unwrap();
    symlink(outside.join("secret.rs"), root.join("src/link.rs")).unwrap();
    fs::write(root.join("src/a.txt"), "no\nneedle here").unwrap();
    fs::write(root.join("src/binary"), b"needle\0").unwrap();
    let all = folders(&root);
    let found = json!({"files": ["src/deep/x.rs"], "left_out": 0, "complete": true});
    assert_eq!(glob(&all, json!({"pattern": "*.rs"})), found);
    assert_eq!(glob(&all, json!({"pattern": "deep/*", "path": "src"})), found);
    assert_eq!(glob(&all, json!({"pattern": "src/*"}))["files"], json!(["src/a.txt", "src/binary"]));
    let said = grep(&all, json!({"pattern": "needle"})).unwrap().content;
    let matches = json!([
        {"path": "src/a.txt", "line": 2, "text": "needle here"},
        {"path": "src/deep/x.rs", "line": 1, "text": "fn needle() {}"},
    ]);
    assert_eq!(said, json!({"matches": matches, "skipped_files": 1, "complete": true}));
    let said = grep(&all, json!({"pattern": "^// needle", "files": "*.rs", "ignore_case": true})).unwrap().content;
    assert_eq!(said["matches"], json!([{"path": "src/deep/x.rs", "line": 2, "text": "// Needle again"}]));
    assert_eq!(grep(&all, json!({"pattern": "here", "path": "src/a.txt"})).unwrap().content["matches"][0]["line"], 2);
    for path in ["src/out", "src/link.rs", ".git", "../x"] {
        refusal(grep(&all, json!({"pattern": "x", "path": path})));
    }
    assert!(refusal(grep(&all, json!({"pattern": "("}))).contains("not a regular expression"));
}

#[test]
fn what_is_found_is_bounded_and_says_so() {
    let (_folder, root) = project();
    for index in 0..1003 {
        fs::write(root.join(format!("f{index:04}")), "hit\n").unwrap();
    }
    let all = folders(&root);
    let found = glob(&all, json!({"pattern": "f*"}));
    assert_eq!((found["files"].as_array().map(Vec::len), &found["left_out"]), (Some(1000), &json!(3)));
    let found = grep(&all, json!({"pattern": "hit"})).unwrap().content;
    assert_eq!((found["matches"].as_array().map(Vec::len), &found["complete"]), (Some(200), &json!(false)));
}
