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
    let mut pages = vec![sandbox.run(&["--help"]).stdout];
    for command in ["demo", "init", "append", "log", "state", "verify", "thread"] {
        pages.push(sandbox.run(&[command, "--help"]).stdout);
    }
    for command in ["new", "list", "show", "find", "rename", "delete"] {
        pages.push(sandbox.run(&["thread", command, "--help"]).stdout);
    }
    // Every page ends with the same global options; once is enough.
    let global = pages[0].find("\nGlobal options:").unwrap();
    let options = pages[0][global..].to_owned();
    let rest = pages.iter().skip(1).map(|page| page.replace(options.trim_end(), "").trim_end().to_owned());
    let all: Vec<String> = std::iter::once(pages[0].clone()).chain(rest).collect();
    assert_snapshot!(all.join("\n\n==========\n\n"));
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

/// Who wins the race, and where in a commit the signal comes, differs from run to run.
fn same_every_time(line: &str) -> String {
    let line =
        line.replace(", and 1 more that it had not heard of yet", "").replace("ann", "[NAME]").replace("bob", "[NAME]");
    match line.find("drained") {
        Some(_) => "   [DRAINED], and the writer's lease died with it.".to_owned(),
        None => line,
    }
}

/// How far the writer came differs too, and with it every number.
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
