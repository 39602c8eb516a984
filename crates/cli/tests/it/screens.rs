//! Whole screens, as people see them; ids, times and folders are masked.

use insta::assert_snapshot;

use crate::support::{HELLO, Ran, Sandbox, masked};

fn screen(ran: &Ran, sandbox: &Sandbox) -> String {
    let text = format!("{}\n----- stderr -----\n{}\n----- exit {:?}", ran.stdout, ran.stderr, ran.code);
    masked(&text, sandbox)
}

#[test]
fn help() {
    let sandbox = Sandbox::empty();
    let mut pages = Vec::new();
    every_page(&[], &sandbox, &mut pages);
    // Every page ends with the same global options; once is enough.
    let global = pages[0].find("\nGlobal options:").unwrap();
    let options = pages[0][global..].to_owned();
    let rest = pages.iter().skip(1).map(|page| page.replace(options.trim_end(), "").trim_end().to_owned());
    let all: Vec<String> = std::iter::once(pages[0].clone()).chain(rest).collect();
    assert_snapshot!(all.join("\n\n==========\n\n"));
}

/// The long help of a command and of all below it, in the order people are shown them.
fn every_page(command: &[&str], sandbox: &Sandbox, pages: &mut Vec<String>) {
    pages.push(sandbox.run(&[command, &["--help"]].concat()).stdout);
    let page = sandbox.run(&[&["help", "--json"], command].concat()).json();
    for below in page["commands"].as_array().unwrap() {
        every_page(&[command, &[below.as_str().unwrap()]].concat(), sandbox, pages);
    }
}

#[test]
fn first_steps() {
    let sandbox = Sandbox::empty();
    let mut screens = Vec::new();
    let mut show = |args: &[&str]| {
        let ran = sandbox.run_with(args, HELLO.as_bytes());
        screens.push(format!("$ selvedge {}\n{}", args.join(" "), screen(&ran, &sandbox)));
    };
    show(&[]);
    show(&["thread", "list"]);
    show(&["init"]);
    show(&["init"]);
    show(&["thread", "list"]);
    show(&["thread", "new", "--agent", "scribe", "--id", "tea", "--title", "Tea time"]);
    show(&["append", "tea", "--expect", "0"]);
    show(&["append", "tea", "--expect", "0"]);
    show(&["log", "tea"]);
    show(&["thread", "show", "tea"]);
    show(&["thread", "list"]);
    show(&[]);
    show(&["thread", "rename", "tea", "Coffee"]);
    show(&["verify", "--all", "--explain"]);
    show(&["thread", "delete", "tea"]);
    show(&["thread", "delete", "tea", "--yes"]);
    show(&["thread", "show", "tea"]);
    assert_snapshot!(masked(&screens.join("\n\n"), &sandbox));
}

#[test]
fn keys_and_documents() {
    let (sandbox, thread) = Sandbox::with_thread();
    std::fs::write(sandbox.project().join("tea.md"), "# Tea\n").unwrap();
    let mut screens = Vec::new();
    for page in [
        &["sign"][..],
        &["keys"],
        &["keys", "list"],
        &["keys", "rotate"],
        &["keys", "trust"],
        &["keys", "revoke"],
        &["keys", "export"],
    ] {
        let text = sandbox.run(&[page, &["--help"]].concat()).stdout;
        screens.push(text.split("\nGlobal options:").next().unwrap_or_default().trim_end().to_owned());
    }
    let mut show = |args: &[&str]| {
        let ran = sandbox.run_with(args, HELLO.as_bytes());
        screens.push(format!("$ selvedge {}\n{}", args.join(" "), screen(&ran, &sandbox)));
    };
    show(&["sign", "tea.md"]);
    show(&["verify", "--document", "tea.md"]);
    show(&["verify", "--document", "tea.md", "--kind", "directive"]);
    show(&["keys", "rotate"]);
    show(&["append", &thread, "--expect", "0"]);
    show(&["keys", "list"]);
    let current = sandbox.run(&["keys", "list", "--json"]).json()["current"].as_str().unwrap().to_owned();
    show(&["keys", "revoke", &current]);
    std::fs::remove_file(sandbox.home().join("keys/signing/private_key.pem")).unwrap();
    show(&["append", &thread, "--expect", "1"]);
    show(&["keys", "list"]);
    show(&["keys", "revoke", "dead"]);
    assert_snapshot!(masked(&screens.join("\n\n==========\n\n"), &sandbox));
}

#[test]
fn maintenance() {
    let sandbox = Sandbox::new();
    let mut screens = Vec::new();
    for page in ["doctor", "backup", "restore", "erase", "prune"] {
        let text = sandbox.run(&[page, "--help"]).stdout;
        screens.push(text.split("\nGlobal options:").next().unwrap_or_default().trim_end().to_owned());
    }
    for id in ["tea", "coffee"] {
        sandbox.run(&["thread", "new", "--agent", "scribe", "--id", id]);
        sandbox.append(id, "0", HELLO);
    }
    let mut show = |args: &[&str]| {
        let ran = sandbox.run(args);
        screens.push(format!("$ selvedge {}\n{}", args.join(" "), screen(&ran, &sandbox)));
    };
    show(&["doctor"]);
    show(&["backup", "../copy"]);
    show(&["backup", "../copy"]);
    show(&["restore", "../copy"]);
    show(&["prune"]);
    show(&["erase", "tea", "0123", "--reason", "asked to"]);
    let path = sandbox.transcript("tea");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("hello", "hello there")).unwrap();
    std::fs::remove_file(sandbox.threads().join("coffee/thread.json")).unwrap();
    show(&["doctor"]);
    let all = masked(&screens.join("\n\n==========\n\n"), &sandbox);
    // The version of SQLite changes with the library.
    let all = all.lines().map(|line| match line.find("SQLite 3") {
        Some(at) => {
            format!("{}SQLite [VERSION]{}", &line[..at], &line[at + 7..].split_once(',').map_or("", |(_, rest)| rest))
        }
        None => line.to_owned(),
    });
    assert_snapshot!(all.collect::<Vec<_>>().join("\n"));
}

#[test]
fn damage() {
    let sandbox = Sandbox::new();
    for id in ["tea", "coffee"] {
        sandbox.run(&["thread", "new", "--agent", "scribe", "--id", id]);
        sandbox.append(id, "0", HELLO);
    }
    let path = sandbox.transcript("tea");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("hello", "hullo")).unwrap();
    assert_snapshot!(screen(&sandbox.run(&["verify", "--all"]), &sandbox));
}

#[test]
fn demo() {
    let sandbox = Sandbox::empty();
    let ran = sandbox.run(&["demo", "--dir", "demo"]);
    let text: Vec<String> = screen(&ran, &sandbox).lines().map(|line| mask_numbers(&same_every_time(line))).collect();
    assert_snapshot!(text.join("\n"));
}

/// Who wins the race differs from run to run.
fn same_every_time(line: &str) -> String {
    if line.contains("--expect") || line.contains("got a conflict") {
        line.replace("ann", "[NAME]").replace("bob", "[NAME]")
    } else {
        line.to_owned()
    }
}

/// Processes have other numbers every time, and keys make logs of other lengths.
fn mask_numbers(line: &str) -> String {
    let mut masked = String::new();
    for c in line.chars() {
        match c {
            '0'..='9' if masked.ends_with('#') => {}
            ',' if masked.ends_with('#') => {}
            '0'..='9' => masked.push('#'),
            c => masked.push(c),
        }
    }
    masked
}
