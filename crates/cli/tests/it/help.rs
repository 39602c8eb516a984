//! Help, error pages, completions and manual pages: they come from the code, and none is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{HELLO, Ran, Sandbox};

/// Every code that the sources know, with the exit codes that stand beside it.
#[derive(Default)]
struct Codes(BTreeMap<String, BTreeSet<u64>>);

impl Codes {
    fn add(&mut self, code: &str) -> &mut BTreeSet<u64> {
        self.0.entry(code.to_owned()).or_default()
    }

    /// The literals inside every `fn code(&self)`.
    fn read_errors(&mut self, source: &str) {
        for rest in source.split("fn code(&self) -> &'static str {").skip(1) {
            let end = rest.find("\n    }\n").expect("a method ends with its brace");
            for code in words_in_quotes(&rest[..end]) {
                self.add(code);
            }
        }
    }

    /// The codes of findings: the literal behind `Severity::…,`.
    fn read_findings(&mut self, source: &str) {
        let source: String = source.split_whitespace().collect::<Vec<_>>().join(" ");
        for rest in source.split("Severity::").skip(1) {
            let Some((between, literal)) = rest.split_once('"') else { continue };
            let code = literal.split('"').next().unwrap_or_default();
            let is_one_word = between.strip_suffix(", ").is_some_and(|word| word.chars().all(char::is_alphanumeric));
            // `"the store"` and the like are subjects.
            if is_one_word && is_code(code) {
                self.add(code);
            }
        }
    }

    /// The words for how a thread stands: those of `fn as_str(self)`, and the names of an enumeration that is written as it is.
    fn read_standings(&mut self, source: &str) {
        for rest in source.split("fn as_str(self) -> &'static str {").skip(1) {
            let end = rest.find("\n    }\n").expect("a method ends with its brace");
            for word in words_in_quotes(&rest[..end]) {
                self.add(word);
            }
        }
        let Some((_, reasons)) = source.split_once("pub enum SuspendReason {") else { return };
        let names = reasons.split('}').next().unwrap_or_default().lines().map(str::trim);
        for name in names.filter_map(|line| line.strip_suffix(',')).filter(|line| !line.starts_with("//")) {
            let apart = |c: char| if c.is_uppercase() { format!("_{}", c.to_lowercase()) } else { c.to_string() };
            self.add(name.chars().map(apart).collect::<String>().trim_start_matches('_'));
        }
    }

    /// Why a run ended or a thread waits: the literal behind a name for such a code, or behind the reason of a suspension.
    fn read_causes(&mut self, source: &str) {
        let source = source.split("#[cfg(test)]").next().unwrap_or_default();
        let source: String = source.split_whitespace().collect::<Vec<_>>().join(" ");
        let marks = [
            " code: ",
            "code: Some(",
            "trouble(",
            "reached(",
            "_EXCEEDED: &str = ",
            "PROCESS_LOST: &'static str = ",
            "termination_code: Some(",
            "done(",
        ];
        for mark in marks {
            let literals = source.split(mark).skip(1).filter_map(|rest| rest.strip_prefix('"')?.split_once('"'));
            for (code, _) in literals.filter(|(code, _)| is_code(code)) {
                self.add(code);
            }
        }
        // One of two, whichever holds.
        for rest in source.split(" code: if ").skip(1) {
            for code in words_in_quotes(rest.split(", ").next().unwrap_or_default()) {
                self.add(code);
            }
        }
        for rest in source.split("SuspendReason::").skip(1) {
            let rest = rest.trim_start_matches(char::is_alphanumeric);
            let code = rest.strip_prefix(", \"").and_then(|rest| rest.split('"').next());
            code.filter(|code| is_code(code)).map(|code| self.add(code));
        }
    }

    /// The literals that the server refuses with: `Problem::new(StatusCode::CONFLICT, "code"`.
    fn read_problems(&mut self, source: &str) {
        let source: String = source.split_whitespace().collect::<Vec<_>>().join(" ");
        for rest in source.split("StatusCode::").skip(1) {
            let rest = rest.trim_start_matches(|c: char| c.is_ascii_uppercase() || c == '_');
            let code = rest.strip_prefix(", \"").and_then(|rest| rest.split('"').next());
            code.filter(|code| is_code(code)).map(|code| self.add(code));
        }
    }

    /// The literals that the command line fails with: `Exit::Usage, "code"`, `Failure::new(exit, "code"`, `code: "code"`.
    fn read_failures(&mut self, source: &str) {
        let source: String = source.split_whitespace().collect::<Vec<_>>().join(" ");
        for (mark, has_exit) in [("Exit::", true), ("Failure::new(", false), (" code: ", false)] {
            for rest in source.split(mark).skip(1) {
                let rest = rest.trim_start();
                let (word, rest) = rest.split_at(rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len()));
                let Some((between, literal)) = rest.split_once('"') else { continue };
                let code = literal.split('"').next().unwrap_or_default();
                let follows = if mark == " code: " { word.is_empty() && between.is_empty() } else { between == ", " };
                if !follows || !is_code(code) {
                    continue;
                }
                let exits = self.add(code);
                exits.extend(has_exit.then(|| exit_code(word)));
            }
        }
    }
}

fn exit_code(name: &str) -> u64 {
    match name {
        "Failed" => 1,
        "Usage" => 2,
        "NotFound" => 3,
        "NotAllowed" => 4,
        "Conflict" => 5,
        "Integrity" => 6,
        "Decision" => 7,
        "Limit" => 8,
        "Interrupted" => 130,
        other => panic!("what is the number of `Exit::{other}`?"),
    }
}

fn is_code(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

fn words_in_quotes(text: &str) -> impl Iterator<Item = &str> {
    text.split('"').skip(1).step_by(2).filter(|word| is_code(word))
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let below = entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] });
    below.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

fn codes_of_the_sources() -> Codes {
    let mut codes = Codes::default();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for each in fs::read_dir(crates).unwrap() {
        let each = each.unwrap().path();
        for path in sources(&each.join("src")) {
            let source = fs::read_to_string(&path).unwrap();
            codes.read_errors(&source);
            // Wherever they stand.
            let names = ["pub enum Status {", "pub enum ThreadState {", "pub enum SuspendReason {"];
            if names.iter().any(|name| source.contains(name)) {
                codes.read_standings(&source);
            }
            if each.ends_with("engine") || path.ends_with("model/src/limits.rs") || path.ends_with("event/waiting.rs") {
                codes.read_causes(&source);
            }
            if path.to_string_lossy().contains("/doctor") {
                codes.read_findings(&source);
            }
            let is_table = path.starts_with(each.join("src/codes"));
            if each.ends_with("server") {
                codes.read_problems(&source);
            }
            if each.ends_with("cli") && !is_table {
                codes.read_failures(&source);
            }
        }
    }
    codes
}

#[test]
fn every_code_of_the_sources_has_a_page_and_every_page_a_code() {
    let pages = Sandbox::empty().run(&["help", "codes", "--json"]).records();
    let told: BTreeMap<&str, &Value> = pages.iter().map(|page| (page["code"].as_str().unwrap(), page)).collect();
    let Codes(mut known) = codes_of_the_sources();
    for word in [
        "stalled",
        "completed_with_errors",
        "context_too_small",
        "loop_detected",
        "outputs_missing",
        "already_recorded",
    ] {
        assert!(known.contains_key(word), "the sources are read: `{word}`");
    }
    // The help of the command says what this reason to wait means.
    assert!(known.remove("budget").is_some());
    assert!(known.len() > 100, "the sources are read: {}", known.len());
    let missing: Vec<&String> = known.keys().filter(|code| !told.contains_key(code.as_str())).collect();
    assert!(missing.is_empty(), "add these to a table in crates/cli/src/codes: {missing:?}");
    let stale: Vec<&&str> = told.keys().filter(|code| !known.contains_key(**code)).collect();
    assert!(stale.is_empty(), "no error has these codes any more: {stale:?}");
    for (code, exits) in known {
        let page = told[code.as_str()]["exit_codes"].as_array().unwrap();
        let unknown = exits.iter().find(|exit| !page.contains(&Value::from(**exit)));
        assert_eq!(unknown, None, "`{code}` exits with a code that its page does not have: {page:?}");
    }
}

/// Errors of several types that are one situation, so that they share a code: the same file in two forms, the same answer of the operating
/// system, the same key, the same file of the user.
const SHARED: [&str; 11] = [
    "document_changed",
    "document_invalid_signature",
    "document_malformed",
    "document_not_signable",
    "document_unsigned",
    "document_untrusted_key",
    "io",
    "log_revoked_key",
    "permission_denied",
    "script_invalid",
    "untrusted_key",
];

/// `outcome_unknown` was a tool call that a person settles, and also a commit that is sent again: its help explained the wrong one.
#[test]
fn a_code_has_one_meaning() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut emitters = BTreeMap::<String, BTreeSet<String>>::new();
    let mut reasons = Codes::default();
    for each in fs::read_dir(crates).unwrap() {
        let each = each.unwrap().path();
        for path in sources(&each.join("src")) {
            let source = fs::read_to_string(&path).unwrap();
            // Each type of error by its name, wherever its codes are told.
            let mut before = String::new();
            for part in source.split("fn code(&self) -> &'static str {") {
                let emitter = before.rsplit(" for ").next().unwrap_or_default().split_whitespace().next();
                if let Some(emitter) = emitter {
                    let body = &part[..part.find("\n    }\n").expect("a method ends with its brace")];
                    for code in words_in_quotes(body) {
                        emitters.entry(code.to_owned()).or_default().insert(format!("{}::{emitter}", each.display()));
                    }
                }
                before = part.to_owned();
            }
            if ["pub enum Status {", "pub enum ThreadState {", "pub enum SuspendReason {"]
                .iter()
                .any(|name| source.contains(name))
            {
                reasons.read_standings(&source);
            }
            if each.ends_with("engine") || path.ends_with("model/src/limits.rs") || path.ends_with("event/waiting.rs") {
                reasons.read_causes(&source);
            }
        }
    }
    assert!(emitters.len() > 100 && reasons.0.contains_key("outcome_unknown"), "the sources are read");
    let shared = emitters.iter().filter(|(_, of)| of.len() > 1).map(|(code, _)| code.as_str());
    assert_eq!(shared.collect::<Vec<_>>(), SHARED, "errors of several types have these codes");
    // A code that says how a thread ended or what it waits for is never the code of an error.
    let both: Vec<&str> = emitters.keys().map(String::as_str).filter(|code| reasons.0.contains_key(*code)).collect();
    assert_eq!(both, <[&str; 0]>::default(), "these are codes of errors, and also say how a thread ended");
}

#[test]
fn commands_in_the_pages_exist() {
    let sandbox = Sandbox::empty();
    let pages = sandbox.run(&["help", "codes", "--json"]).records();
    let mut named = BTreeSet::new();
    for page in &pages {
        let remedies = page["remedies"].as_array().unwrap().iter().filter_map(Value::as_str);
        for text in remedies.chain(page["cause"].as_str()) {
            let commands = text.split('`').skip(1).step_by(2).filter_map(|code| code.strip_prefix("selvedge "));
            named.extend(commands.map(str::to_owned));
        }
    }
    assert!(named.len() > 30, "{named:?}");
    for command in named {
        let mut words = command.split(' ').filter(|word| !matches!(*word, "-C" | "DIR" | "…")).peekable();
        let is_word = |word: &&str| word.bytes().all(|b| b.is_ascii_lowercase());
        let path: Vec<&str> = std::iter::from_fn(|| words.next_if(is_word)).collect();
        // What follows `help` are the words of another page.
        let path = if path.first() == Some(&"help") { &path[1..] } else { &path };
        let help = sandbox.run(&[&["help"], path].concat());
        assert_eq!(help.code, Some(0), "`selvedge {command}`: {help:?}");
        for flag in words.filter(|word| word.starts_with("--") && *word != "--version") {
            assert!(help.stdout.contains(flag), "`selvedge {command}` has no {flag}");
        }
    }
}

#[test]
fn help_of_a_command_is_what_its_flag_shows() {
    let sandbox = Sandbox::empty();
    for command in [&[][..], &["append"], &["thread"], &["thread", "new"], &["keys", "trust"]] {
        let asked = sandbox.run(&[&["help"], command].concat());
        let flag = sandbox.run(&[command, &["--help"]].concat());
        assert_eq!((asked.code, asked.stdout.trim_end()), (Some(0), flag.stdout.trim_end()));
        let page = sandbox.run(&[&["help", "--json"], command].concat()).json();
        assert_eq!(page["text"].as_str().unwrap().trim_end(), flag.stdout.trim_end());
        assert_eq!(page["command"], command.join(" "));
    }
}

/// Programs match codes. A new one needs no line here; one that is listed keeps its name and its exit codes.
#[test]
fn a_code_keeps_its_name_and_its_exit_codes() {
    let pages = Sandbox::empty().run(&["help", "codes", "--json"]).records();
    for line in include_str!("stable_codes.txt").lines() {
        let (code, exits) = line.split_once(' ').unwrap_or((line, ""));
        let page = pages.iter().find(|page| page["code"] == code);
        let page = page.unwrap_or_else(|| panic!("the code `{code}` is gone: programs match it"));
        let now: Vec<String> = page["exit_codes"].as_array().unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(now.join(" "), exits, "the exit codes of `{code}`");
    }
}

#[test]
fn the_page_of_a_code() {
    let sandbox = Sandbox::empty();
    insta::assert_snapshot!(sandbox.run(&["help", "version_conflict"]).stdout);
    let page = sandbox.run(&["help", "version_conflict", "--json"]).json();
    assert_eq!((&page["exit_codes"], &page["retry"]), (&serde_json::json!([5]), &Value::from("never")));
    let list = sandbox.run(&["help", "codes"]).stdout;
    let line = list.lines().find(|line| line.starts_with("version_conflict ")).unwrap();
    assert!(line.ends_with("The thread is at another version than expected, so nothing was appended"), "{line}");
}

#[test]
fn an_unknown_command_or_code_is_answered_with_the_nearest_one() {
    let sandbox = Sandbox::empty();
    let hint = |words: &[&str]| {
        let error = sandbox.run(&[&["help", "--json"], words].concat()).error(2, "usage");
        error["hint"].as_str().unwrap().to_owned()
    };
    assert_eq!(hint(&["version_conflit"]), "did you mean `selvedge help version_conflict`?");
    assert_eq!(hint(&["verfy"]), "did you mean `selvedge help verify`?");
    assert_eq!(hint(&["thread", "lst"]), "did you mean `selvedge help thread list`?");
    assert!(hint(&["spaghetti"]).contains("`selvedge help codes`"));
}

#[test]
fn an_error_names_its_help_page_in_text_mode_only() {
    let sandbox = Sandbox::new();
    let told = sandbox.run(&["log", "missing"]);
    assert_eq!(told.stderr.lines().last(), Some("more: selvedge help thread_not_found"), "{told:?}");
    assert!(!sandbox.run(&["log", "missing", "--json"]).stderr.contains("more:"));
}

/// What a shell is offered behind these words.
fn offered(command: &mut Command, words: &[&str]) -> Vec<String> {
    command.env("COMPLETE", "bash").env("_CLAP_IFS", "\n").env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
    let ran = Ran::of(command.arg("--").args(words).spawn().unwrap());
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    ran.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn a_shell_is_offered_the_existing_threads() {
    let sandbox = Sandbox::new();
    for id in ["tea", "team", "coffee"] {
        sandbox.run(&["thread", "new", "--agent", "scribe", "--id", id, "--title", "A tea"]);
    }
    let here = |words: &[&str]| {
        let mut found = offered(&mut sandbox.command(&[]), words);
        found.sort();
        found.retain(|word| !word.starts_with('-'));
        found
    };
    assert_eq!(here(&["selvedge", "log", ""]), ["coffee", "tea", "team"]);
    assert_eq!(here(&["selvedge", "thread", "show", "te"]), ["tea", "team"]);
    assert_eq!(here(&["selvedge", "verify", "tea", "co"]), ["coffee"]);
    assert_eq!(here(&["selvedge", "thread", "list", "--parent", "c"]), ["coffee"]);
    for command in ["send", "resume", "cancel", "kill"] {
        assert_eq!(here(&["selvedge", command, "te"]), ["tea", "team"]);
    }
    assert_eq!(here(&["selvedge", "settle", "call_1", "--thread", "c"]), ["coffee"]);
    sandbox.run(&["thread", "delete", "coffee", "--yes"]);
    assert_eq!(here(&["selvedge", "log", ""]), ["tea", "team"]);
    assert_eq!(here(&["selvedge", "help", "version_c"]), ["version_conflict"]);
    assert_eq!(here(&["selvedge", "ver"]), ["verify"]);
}

#[test]
fn completing_finds_the_store_where_the_flags_say() {
    let sandbox = Sandbox::new();
    let empty = Sandbox::empty();
    sandbox.run(&["thread", "new", "--agent", "scribe", "--id", "tea"]);
    let project = sandbox.project();
    let elsewhere = || {
        let mut command = sandbox.command(&[]);
        command.current_dir(empty.project());
        command
    };
    assert_eq!(offered(&mut elsewhere(), &["selvedge", "log", "t"]), Vec::<String>::new());
    assert_eq!(offered(&mut elsewhere(), &["selvedge", "-C", project.to_str().unwrap(), "log", "t"]), ["tea"]);
    assert_eq!(offered(elsewhere().env("SELVEDGE_DIR", &project), &["selvedge", "log", "t"]), ["tea"]);
    assert_eq!(offered(&mut elsewhere(), &["selvedge", "-C", "/nowhere", "log", "t"]), Vec::<String>::new());
}

#[test]
fn completing_changes_nothing() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.append(&thread, "0", HELLO);
    let transcript = fs::read(sandbox.transcript(&thread)).unwrap();
    let database = fs::read(sandbox.threads().join("registry.db")).unwrap();
    assert_eq!(offered(&mut sandbox.command(&[]), &["selvedge", "log", "scr"]), [thread.as_str()]);
    assert_eq!(fs::read(sandbox.transcript(&thread)).unwrap(), transcript);
    assert_eq!(fs::read(sandbox.threads().join("registry.db")).unwrap(), database);
}

#[test]
fn a_script_is_printed_for_every_shell() {
    let sandbox = Sandbox::empty();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = sandbox.run(&["completions", shell]);
        assert_eq!((script.code, script.stderr.as_str()), (Some(0), ""));
        assert!(script.stdout.contains("COMPLETE") && script.stdout.contains("selvedge"), "{script:?}");
        assert_eq!(sandbox.run(&["completions", shell, "--json"]).json()["script"], script.stdout);
    }
    sandbox.run(&["completions", "abacus", "--json"]).error(2, "usage");
}

#[test]
fn an_unknown_shell_in_the_environment_is_an_error() {
    let sandbox = Sandbox::empty();
    let ran = Ran::of(sandbox.command(&["--json"]).env("COMPLETE", "abacus").spawn().unwrap());
    let error = ran.error(2, "usage");
    assert!(error["message"].as_str().unwrap().contains("abacus"), "{error}");
}

#[test]
fn every_command_has_a_manual_page() {
    let sandbox = Sandbox::empty();
    let page = sandbox.run(&["man", "thread", "new"]).stdout;
    assert!(page.contains(".TH selvedge\\-thread\\-new 1") || page.contains(".TH selvedge-thread-new 1"), "{page}");
    assert!(page.contains("Create a thread and print its id"), "{page}");
    let written = sandbox.run(&["man", "--out", "pages", "--json"]).records();
    let commands: Vec<&str> = written.iter().map(|page| page["command"].as_str().unwrap()).collect();
    for command in ["selvedge", "selvedge thread new", "selvedge keys rotate", "selvedge man"] {
        assert!(commands.contains(&command), "{commands:?}");
    }
    let thread_new = fs::read_to_string(sandbox.project().join("pages/selvedge-thread-new.1")).unwrap();
    assert_eq!(thread_new, page);
    assert_eq!(fs::read_dir(sandbox.project().join("pages")).unwrap().count(), written.len());
    sandbox.run(&["man", "nothing", "--json"]).error(2, "usage");
}
