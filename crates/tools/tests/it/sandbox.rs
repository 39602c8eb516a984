//! What a tool in a sandbox can't do. Where these tests run as root, the tool runs as another user: root is stopped by less.
#![cfg(target_os = "linux")]

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use selvedge_model::tool::{CommandSpec, Processes as _, ReachedLevel, SandboxLevel, SandboxReached, SandboxSpec};
use selvedge_model::{Cancel, Output, Stop, Tool, ToolError};
use selvedge_tools::sandbox::Support;
use selvedge_tools::{CommandEnvironment, CommandTool, ProcessGroups, Sandbox};
use serde_json::json;

use crate::support::{around, at_most_once, call, eventually, is_alive, project, script, text, use_tool};

const HELPER: &str = env!("CARGO_BIN_EXE_selvedge-sandbox-helper");
const NOBODY: u32 = 65534;
const TASK: &str = "SELVEDGE_TEST_SANDBOX";

/// Runs one of the tests below as a user who is not root, in a process of its own; true if this is that process.
fn is_other_user(test: &str) -> bool {
    if std::env::var_os(TASK).is_some() || !rustix::process::getuid().is_root() {
        return true;
    }
    // The other user must reach both programs.
    let (_folder, path) = project();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let test_program = path.join("it");
    fs::copy(std::env::current_exe().unwrap(), &test_program).unwrap();
    fs::copy(HELPER, path.join("helper")).unwrap();
    let mut command = Command::new(&test_program);
    command.args(["--exact", test, "--nocapture"]).env(TASK, path.join("helper")).uid(NOBODY).gid(NOBODY);
    let output = command.current_dir("/").stdin(Stdio::null()).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

fn sandbox() -> Sandbox {
    Sandbox::new(std::env::var_os(TASK).map_or_else(|| HELPER.into(), PathBuf::from))
}

fn environment(root: &Path, sandbox: Sandbox) -> CommandEnvironment {
    CommandEnvironment { sandbox: Some(sandbox), ..around(root) }
}

fn spec(level: SandboxLevel) -> SandboxSpec {
    SandboxSpec { level, ..SandboxSpec::default() }
}

fn confined(root: &Path, text: &str, spec: SandboxSpec) -> CommandTool {
    let command = CommandSpec { sandbox: Some(spec), ..script(text) };
    CommandTool::new(command, &environment(root, sandbox())).unwrap()
}

fn run(root: &Path, text: &str, spec: SandboxSpec) -> Output {
    use_tool(&confined(root, text, spec), json!({})).unwrap()
}

#[track_caller]
fn refused(output: &Output) {
    assert!(output.is_error, "it worked: {output:?}");
    let said = text(output);
    assert!(["ermission denied", "annot", "an't", "refused"].iter().any(|word| said.contains(word)), "{said}");
}

/// Whether this machine enforces all of it; the tests of one part ask for that part.
fn support() -> Support {
    sandbox().support().clone()
}

#[test]
fn a_tool_reads_and_writes_what_it_declares_and_nothing_else() {
    if !is_other_user("sandbox::a_tool_reads_and_writes_what_it_declares_and_nothing_else") || support().landlock < 3 {
        return;
    }
    let (_folder, root) = project();
    let (_outside, home) = project();
    fs::create_dir(home.join(".ssh")).unwrap();
    fs::write(home.join(".ssh/id"), "canary").unwrap();
    fs::write(root.join("notes"), "hello").unwrap();
    fs::create_dir(root.join("out")).unwrap();
    let declared = SandboxSpec { write: vec!["out".to_owned()], ..spec(SandboxLevel::Required) };
    let output = run(
        &root,
        "cat notes; echo made > out/file; cat out/file; echo x > $TMPDIR/y; cat $TMPDIR/y",
        declared.clone(),
    );
    assert_eq!(text(&output), "hellomade\nx\n", "{output:?}");
    let secret = home.join(".ssh/id");
    refused(&run(&root, &format!("cat {}", secret.display()), declared.clone()));
    refused(&run(&root, &format!("echo x >> {}", secret.display()), declared.clone()));
    refused(&run(&root, &format!(": > {}", secret.display()), declared.clone()));
    refused(&run(&root, "echo x > notes", declared.clone()));
    refused(&run(&root, "ln -s / out/all && cat out/all/etc/../tmp/../proc/1/environ", declared.clone()));
    refused(&run(&root, "mv out/file ..", declared));
    assert_eq!(fs::read_to_string(secret).unwrap(), "canary");
    assert_eq!(fs::read_to_string(root.join("notes")).unwrap(), "hello");
}

#[test]
fn a_tool_without_network_reaches_nobody() {
    if !is_other_user("sandbox::a_tool_without_network_reaches_nobody") {
        return;
    }
    let (_folder, root) = project();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let helper = sandbox().helper().display().to_string();
    let attempt = |what: &str, address: String, network| {
        let text = format!("{helper} --selvedge-sandbox-helper try {what} {address}");
        run(&root, &text, SandboxSpec { network, ..spec(SandboxLevel::Best) })
    };
    let reached = sandbox().reached(&spec(SandboxLevel::Best));
    let (tcp, udp) = (listener.local_addr().unwrap().to_string(), receiver.local_addr().unwrap().to_string());
    if reached.network == "none" {
        refused(&attempt("tcp", tcp.clone(), false));
        refused(&attempt("udp", udp.clone(), false));
    }
    assert!(!attempt("tcp", tcp, true).is_error && !attempt("udp", udp, true).is_error, "it may if that is declared");
}

#[test]
fn a_process_that_leaves_its_group_and_session_is_ended() {
    if !is_other_user("sandbox::a_process_that_leaves_its_group_and_session_is_ended") {
        return;
    }
    let with_namespaces = support();
    let without = Support { namespaces: false, network_namespace: false, tmpfs: false, ..with_namespaces.clone() };
    for support in [with_namespaces, without] {
        let (_folder, root) = project();
        let text = "setsid sh -c 'setsid sleep 1000 & sleep 1000' & setsid sleep 1000 & until pgrep -x sleep > seen; do :; done";
        let declared = SandboxSpec { write: vec![".".to_owned()], ..spec(SandboxLevel::Best) };
        let command = CommandSpec { sandbox: Some(declared), ..script(text) };
        let sandbox = Sandbox::with_support(sandbox().helper(), support.clone());
        let tool = CommandTool::new(command, &environment(&root, sandbox)).unwrap();
        let output = use_tool(&tool, json!({})).unwrap();
        assert!(!output.is_error, "{output:?}");
        let left: Vec<u32> = sleeping_in(&root);
        assert!(left.is_empty(), "{left:?} are left with {support:?}");
    }
}

/// The live processes of `sleep` whose working folder this is.
fn sleeping_in(root: &Path) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_here = |pid: &u32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|folder| folder == root);
    pids.filter(|pid| is_here(pid) && is_alive(*pid)).collect()
}

#[test]
fn a_stop_and_a_kill_end_all_of_it() {
    if !is_other_user("sandbox::a_stop_and_a_kill_end_all_of_it") {
        return;
    }
    let with_namespaces = support();
    let without = Support { namespaces: false, network_namespace: false, tmpfs: false, ..with_namespaces.clone() };
    for (stop, support) in [
        (Stop::Cancelled, with_namespaces.clone()),
        (Stop::Cancelled, without.clone()),
        (Stop::Killed, with_namespaces),
        (Stop::Killed, without),
    ] {
        let (_folder, root) = project();
        let text = "trap '' TERM; setsid sleep 1000 & echo 1 > ready; sleep 1000";
        let declared = SandboxSpec { write: vec![".".to_owned()], ..spec(SandboxLevel::Best) };
        let command = CommandSpec { sandbox: Some(declared), ..at_most_once(text) };
        let sandbox = Sandbox::with_support(sandbox().helper(), support.clone());
        let tool = CommandTool::new(command, &environment(&root, sandbox)).unwrap();
        let started = tool.start(&call("tool", json!({}))).unwrap();
        let process = started.process().unwrap();
        let cancel = Cancel::new();
        let dispatched = started.dispatch(&cancel);
        let ended = std::thread::spawn(move || dispatched.wait());
        eventually("it runs", || root.join("ready").exists());
        cancel.say(stop);
        assert!(matches!(ended.join().unwrap(), Err(ToolError::Stopped { .. })));
        eventually("nothing is left", || sleeping_in(&root).is_empty());
        assert_eq!(ProcessGroups.end(&process), Ok(false), "{support:?}");
    }
}

#[test]
fn a_helper_that_is_killed_takes_its_program_along() {
    if !is_other_user("sandbox::a_helper_that_is_killed_takes_its_program_along") || !support().namespaces {
        return;
    }
    let (_folder, root) = project();
    let declared = SandboxSpec { write: vec![".".to_owned()], ..spec(SandboxLevel::Best) };
    let command =
        CommandSpec { sandbox: Some(declared), ..at_most_once("setsid sleep 1000 & echo 1 > ready; sleep 1000") };
    let tool = CommandTool::new(command, &environment(&root, sandbox())).unwrap();
    let started = tool.start(&call("tool", json!({}))).unwrap();
    let process = started.process().unwrap();
    let dispatched = started.dispatch(&Cancel::new());
    let ended = std::thread::spawn(move || dispatched.wait());
    eventually("it runs", || root.join("ready").exists());
    let pid = rustix::process::Pid::from_raw(i32::try_from(process.pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert!(matches!(ended.join().unwrap(), Err(ToolError::Lost { .. })));
    eventually("nothing is left", || sleeping_in(&root).is_empty());
}

#[test]
fn a_tool_can_signal_and_trace_no_process_outside() {
    if !is_other_user("sandbox::a_tool_can_signal_and_trace_no_process_outside") || support().landlock < 6 {
        return;
    }
    let (_folder, root) = project();
    let ours = std::process::id();
    let helper = sandbox().helper().display().to_string();
    refused(&run(&root, &format!("cat /proc/{ours}/environ"), spec(SandboxLevel::Best)));
    refused(&run(&root, &format!("cat /proc/{ours}/mem"), spec(SandboxLevel::Best)));
    let text = format!("{helper} --selvedge-sandbox-helper try signal {ours} || {{ echo refused >&2; exit 1; }}");
    refused(&run(&root, &text, spec(SandboxLevel::Best)));
}

#[test]
fn processes_files_memory_and_the_temporary_folder_are_bounded() {
    if !is_other_user("sandbox::processes_files_memory_and_the_temporary_folder_are_bounded") || !support().tmpfs {
        return;
    }
    let (_folder, root) = project();
    let declared = SandboxSpec {
        write: vec![".".to_owned()],
        processes_max: 8,
        file_bytes_max: Some(1 << 20),
        memory_bytes_max: Some(64 << 20),
        temporary_bytes_max: 1 << 20,
        ..spec(SandboxLevel::Best)
    };
    let output = run(&root, "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 5 & done; wait", declared.clone());
    assert!(output.is_error && text(&output).to_lowercase().contains("fork"), "{output:?}");
    let helper = sandbox().helper().display().to_string();
    let fill = |folder: &str| format!("{helper} --selvedge-sandbox-helper try fill {folder}");
    assert!(run(&root, &fill("."), declared.clone()).is_error);
    assert_eq!(fs::metadata(root.join("fill")).unwrap().len(), 1 << 20);
    let roomy = SandboxSpec { file_bytes_max: None, ..declared.clone() };
    let output = run(&root, &fill("$TMPDIR"), roomy.clone());
    assert!(output.is_error && text(&output).contains("No space left"), "{output:?}");
    let output = run(&root, "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}", roomy);
    assert!(output.is_error || !text(&output).starts_with("200000000"), "{output:?}");
    let left = fs::read_dir("/tmp").unwrap().flatten();
    let ours = format!("selvedge-tool-{}-", std::process::id());
    let left: Vec<_> =
        left.map(|entry| entry.file_name()).filter(|name| name.to_string_lossy().starts_with(&ours)).collect();
    assert!(left.is_empty(), "no temporary folder is left: {left:?}");
}

#[test]
fn a_tool_in_a_sandbox_has_its_own_session_no_descriptor_of_ours_and_answers_as_without() {
    if !is_other_user("sandbox::a_tool_in_a_sandbox_has_its_own_session_no_descriptor_of_ours_and_answers_as_without") {
        return;
    }
    let (_folder, root) = project();
    let best = || spec(SandboxLevel::Best);
    let output = run(&root, "ls /proc/self/fd | wc -l; test -r /dev/tty && cat /dev/tty; true", best());
    // Three, and the one of `ls` itself.
    assert_eq!(text(&output).trim(), "4");
    let output = run(&root, "grep -c NoNewPrivs:.1 /proc/self/status; env | cut -d= -f1 | sort | tr '\\n' ' '", best());
    assert_eq!(text(&output), "1\nPATH PWD SELVEDGE_CALL SELVEDGE_CALL_KEY SELVEDGE_RUN SELVEDGE_THREAD TMPDIR ");
    assert!(text(&run(&root, "echo said >&2; exit 3", best())).contains("status 3"));
    let signalled = confined(&root, "kill -SEGV $$", best());
    assert!(text(&use_tool(&signalled, json!({})).unwrap()).contains("signal 11"));
    let spec = CommandSpec { sandbox: Some(best()), timeout_seconds: 1, ..script("sleep 100") };
    let slow = CommandTool::new(spec, &environment(&root, sandbox())).unwrap();
    assert!(text(&use_tool(&slow, json!({})).unwrap()).contains("time limit"));
}

#[test]
fn required_is_refused_before_anything_runs_where_it_can_not_be_enforced() {
    let (_folder, root) = project();
    let required = CommandSpec { sandbox: Some(spec(SandboxLevel::Required)), ..at_most_once("touch ran") };
    let nothing = Sandbox::with_support(HELPER, Support::default());
    let tcp_only = Sandbox::with_support(HELPER, Support { landlock: 7, ..Support::default() });
    for (sandbox, why) in [(Some(nothing), "no Landlock"), (Some(tcp_only), "only TCP"), (None, "no Landlock")] {
        let around = CommandEnvironment { sandbox, ..around(&root) };
        let tool = CommandTool::new(required.clone(), &around).unwrap();
        let Err(ToolError::NotStarted { why: said, .. }) = use_tool(&tool, json!({})) else { panic!("it was started") };
        assert!(said.contains(why) && said.contains("required"), "{said}");
    }
    let gone =
        Sandbox::with_support("/nowhere/helper", Support { landlock: 7, socket_filter: true, ..Support::default() });
    let around = CommandEnvironment { sandbox: Some(gone), ..around(&root) };
    let output = use_tool(&CommandTool::new(required, &around).unwrap(), json!({})).unwrap();
    assert!(output.is_error, "without its helper a program does not run");
    assert!(!root.join("ran").exists());
}

#[test]
fn the_level_that_is_reached_is_known_before_dispatch() {
    let (_folder, root) = project();
    let best = CommandSpec { sandbox: Some(spec(SandboxLevel::Best)), ..at_most_once("true") };
    let nothing = Sandbox::with_support(HELPER, Support::default());
    let tool = CommandTool::new(best.clone(), &environment(&root, nothing)).unwrap();
    let started = tool.start(&call("tool", json!({}))).unwrap();
    let SandboxReached { level, network, .. } = started.sandbox().unwrap();
    assert_eq!((level, network.as_str()), (ReachedLevel::None, "open"));
    assert!(tool.sandbox() == started.sandbox());
    let off = CommandSpec { sandbox: Some(spec(SandboxLevel::Off)), ..best };
    let tool = CommandTool::new(off, &environment(&root, sandbox())).unwrap();
    assert_eq!(tool.start(&call("tool", json!({}))).unwrap().sandbox(), None);
}
