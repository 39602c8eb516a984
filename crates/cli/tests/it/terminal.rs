//! `selvedge chat` on a terminal, as a person sees it: `script` of util-linux makes one.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::running::put;
use crate::support::Sandbox;

const SCRIPT: &str = "\
turns:
  - when: { result: { contains: paid } }
    say: It is done.
    repeat: forever
  - when: { user: { contains: pay } }
    say: I will pay.
    calls: [{ tool: pay, arguments: { to: anna } }]
    repeat: forever
  - when: { user: { contains: loop } }
    calls: [{ tool: file_list, arguments: { path: . } }]
    repeat: forever
  - when: { user: { contains: slow } }
    say: ['Slowly, I ', { text: 'go on.', delay_ms: 60000 }]
    repeat: forever
  - when: { user: { contains: refuse } }
    error: { permanent: no such model }
    repeat: forever
  - say: \"You said: {user}\"
    repeat: forever
";

fn project() -> Sandbox {
    let sandbox = Sandbox::new();
    put(&sandbox, ".ai/agents/clerk.yaml", "capabilities: [tool.pay, tool.file.list]\nmodel: scripted:script.yaml\n");
    put(
        &sandbox,
        ".ai/tools/pay.yaml",
        "name: pay\ndescription: Pays.\ninput_schema: { type: object }\nclass: at_most_once\n\
         command: [sh, -c, \"echo paid | tee -a paid.txt\"]\nenvironment: [PATH]\n",
    );
    put(&sandbox, ".ai/config/agent/approvals.yaml", "rules: [{ id: money, tool: pay, action: ask }]\n");
    put(&sandbox, ".ai/config/agent/limits.yaml", "turns: 2\n");
    put(&sandbox, "script.yaml", SCRIPT);
    sandbox
}

/// A terminal with the command on it.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    shown: Receiver<Vec<u8>>,
    /// What was shown and not waited for yet, without the codes of colours.
    ahead: String,
}

impl Terminal {
    /// The command with these arguments; `less` needs no key to end here.
    fn start(sandbox: &Sandbox, arguments: &str) -> Self {
        Self::line(sandbox, &format!("env PAGER=cat {} {arguments}", env!("CARGO_BIN_EXE_selvedge")))
    }

    /// A command line, in place of the shell that reads it: a shell that stays would get a Ctrl-C too, and some end with its status.
    fn line(sandbox: &Sandbox, line: &str) -> Self {
        let mut command = sandbox.program("script");
        command.args(["--quiet", "--flush", "--return", "--command", &format!("exec {line}"), "/dev/null"]);
        command.env("NO_COLOR", "1").env("SHELL", "/bin/sh");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (tell, shown) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = screen.read(&mut bytes) {
                if tell.send(bytes[..read].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { child, keys, shown, ahead: String::new() }
    }

    /// Waits for a text; returns what was shown before it.
    #[track_caller]
    fn sees(&mut self, text: &str) -> String {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(at) = self.ahead.find(text) {
                let rest = self.ahead.split_off(at + text.len());
                return std::mem::replace(&mut self.ahead, rest);
            }
            match self.shown.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.ahead.push_str(&String::from_utf8_lossy(&bytes).replace('\r', "")),
                Err(why) => panic!("`{text}` was not shown ({why}): {}", self.ahead),
            }
        }
    }

    fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Types a line at the prompt.
    #[track_caller]
    fn says(&mut self, line: &str) {
        self.sees("› ");
        self.types(&format!("{line}\n"));
    }

    fn ended(mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        let rest: Vec<u8> = self.shown.iter().flatten().collect();
        (code, self.ahead + &String::from_utf8_lossy(&rest).replace('\r', ""))
    }
}

#[test]
fn a_conversation_is_typed_answered_stopped_and_left() {
    let sandbox = project();
    let mut terminal = Terminal::start(&sandbox, "chat");
    let greeting = terminal.sees("/help shows more.");
    assert!(greeting.contains("New chat with clerk (scripted:script.yaml)."), "{greeting}");
    terminal.says("hello");
    terminal.sees("You said: hello");
    terminal.says("be slow");
    terminal.sees("Slowly");
    terminal.types("\u{3}");
    terminal.sees("stopping the answer");
    terminal.sees("The answer was stopped. The thread continues with your next message.");
    terminal.says("and now?");
    terminal.sees("You said: and now?");
    terminal.sees("› ");
    terminal.types("\u{3}");
    terminal.sees("Press Ctrl-C again or Ctrl-D to leave.");
    terminal.sees("› ");
    terminal.types("\u{4}");
    let (code, rest) = terminal.ended();
    assert_eq!(code, Some(0), "{rest}");
    assert!(
        rest.contains("`selvedge chat clerk` continues clerk-") && rest.contains("`selvedge transcript clerk-"),
        "{rest}"
    );
    let mut terminal = Terminal::start(&sandbox, "chat");
    let greeting = terminal.sees("/help shows more.");
    assert!(greeting.contains("Chat with clerk (scripted:script.yaml) on thread clerk-"), "{greeting}");
    terminal.says("/quit");
    assert_eq!(terminal.ended().0, Some(0));
}

#[test]
fn an_approval_is_decided_at_the_prompt_and_typing_ahead_decides_nothing() {
    let sandbox = project();
    let mut terminal = Terminal::start(&sandbox, "chat");
    terminal.sees("› ");
    // The second line was typed before the question.
    terminal.types("please pay\ny\n");
    terminal.sees("? pay {\"to\":\"anna\"} needs approval");
    terminal.sees("approve? y, n, or n and a reason ›");
    assert!(!sandbox.project().join("paid.txt").exists());
    terminal.types("maybe\n");
    terminal.sees("Please answer y or n.");
    terminal.sees("›");
    terminal.types("\u{3}");
    terminal.sees("Not decided. /resume asks again");
    terminal.says("/resume");
    terminal.sees("approve? y, n, or n and a reason ›");
    terminal.types("y\n");
    terminal.sees("It is done.");
    terminal.says("/quit");
    assert_eq!(terminal.ended().0, Some(0));
    assert_eq!(std::fs::read_to_string(sandbox.project().join("paid.txt")).unwrap(), "paid\n");
}

/// Each hint names what works at the prompt.
#[test]
fn what_a_conversation_waits_for_is_said_with_what_to_type() {
    let sandbox = project();
    let mut terminal = Terminal::start(&sandbox, "chat");
    terminal.says("loop");
    terminal.sees("has reached a limit: turns_exceeded, 2 of 2");
    terminal.sees("`/raise turns=…` raises it and continues; so does a message, which starts the count again");
    terminal.says("/raise turns=3");
    terminal.sees("has reached a limit: turns_exceeded, 3 of 3");
    terminal.says("refuse this");
    terminal.sees("no such model");
    terminal.sees("your next message tries again; `selvedge model check --probe` checks keys and hosts");
    terminal.says("/resume");
    terminal.sees("there is nothing to resume: your next message continues the conversation");
    terminal.says("hello");
    terminal.sees("You said: hello");
    terminal.says("/quit");
    assert_eq!(terminal.ended().0, Some(0));
}

#[test]
fn of_money_only_a_raise_gives_more() {
    let sandbox = project();
    put(
        &sandbox,
        "script.yaml",
        &format!("price: {{ input_per_million_tokens: 1, output_per_million_tokens: 100 }}\n{SCRIPT}"),
    );
    put(&sandbox, ".ai/config/agent/limits.yaml", "spend: 0.0001\n");
    let mut terminal = Terminal::start(&sandbox, "chat");
    terminal.says("hello");
    terminal.sees("`/raise spend=…` raises it and continues\n");
    terminal.says("/raise spend=5");
    terminal.sees("You said: hello");
    terminal.says("/quit");
    assert_eq!(terminal.ended().0, Some(0));
}

#[test]
fn a_transcript_is_shown_in_the_pager() {
    let sandbox = project();
    assert_eq!(sandbox.run_with(&["chat"], b"hello\n").code, Some(0));
    put(&sandbox, "pager.sh", "#!/bin/sh\necho paged:\ncat\n");
    let mut terminal = Terminal::start(&sandbox, "transcript @");
    terminal.sees("You said: hello");
    assert_eq!(terminal.ended().0, Some(0));
    let line = format!(
        "env PAGER='sh {}' {} transcript @",
        sandbox.project().join("pager.sh").display(),
        env!("CARGO_BIN_EXE_selvedge")
    );
    let mut terminal = Terminal::line(&sandbox, &line);
    terminal.sees("paged:");
    terminal.sees("You said: hello");
    assert_eq!(terminal.ended().0, Some(0));
    let mut terminal = Terminal::line(&sandbox, &line.replace("transcript @", "transcript @ --no-pager"));
    let before = terminal.sees("You said: hello");
    assert!(!before.contains("paged:"), "{before}");
    assert_eq!(terminal.ended().0, Some(0));
}
