//! The first session of a newcomer, offline: from `init` to a verified transcript. Ids, times and folders are masked.

use insta::assert_snapshot;

use crate::support::{Sandbox, masked};

#[test]
fn the_first_session() {
    let sandbox = Sandbox::empty();
    let script = "\
turns:
  - say: I greet her.
    calls: [{ tool: greet, arguments: { who: Anna } }]
  - say: 'The tool said: {result}'
  - say: 'You said: {user}'
    repeat: forever
";
    std::fs::write(sandbox.project().join("talk.yaml"), script).unwrap();
    let mut screens = Vec::new();
    let mut show = |args: &[&str], input: &str| {
        let ran = sandbox.run_with(args, input.as_bytes());
        let typed: String = input.lines().map(|line| format!("< {line}\n")).collect();
        screens.push(format!(
            "$ selvedge {}\n{typed}{}\n----- stderr -----\n{}\n----- exit {:?}",
            args.join(" "),
            ran.stdout,
            ran.stderr,
            ran.code
        ));
    };
    show(&["init"], "");
    show(&["run", "hello"], "");
    show(&["chat", "--model", "scripted:talk.yaml"], "Please greet Anna.\n");
    show(&["chat"], "Thank you. \\\nGoodbye.\n");
    show(&["transcript", "@"], "");
    show(&["transcript", "@2"], "");
    show(&["verify", "@"], "");
    show(&["verify", "--all"], "");
    let screens = masked(&screens.join("\n\n"), &sandbox);
    let screens: Vec<String> = screens.lines().map(without_seconds).collect();
    assert_snapshot!(screens.join("\n"));
}

/// How long something took, and the length of a log, which depends on its key, differ from run to run; tokens differ with every word of a
/// prompt.
fn without_seconds(line: &str) -> String {
    let is_time = |word: &str| word.parse::<f64>().is_ok() && word.contains('.');
    let mut words: Vec<&str> = line.split(' ').collect();
    for index in 1..words.len() {
        if words[index] == "s" && is_time(words[index - 1]) {
            words[index - 1] = "[SECONDS]";
        }
        let is_counted = ["byte", "token"].iter().any(|noun| words[index].starts_with(noun));
        if is_counted && words[index - 1].chars().all(|c| c.is_ascii_digit() || c == ',') {
            words[index - 1] = "[COUNT]";
        }
    }
    words.join(" ")
}
