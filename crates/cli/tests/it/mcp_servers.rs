//! MCP servers of other authors: the reference server *everything* (npm, the older era, both transports) and *time* (PyPI, the newer era).
//!
//! `cargo xtask test` installs them and passes their programs. Without them these tests do nothing.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use crate::support::Sandbox;

fn run(sandbox: &Sandbox, server: &str, calls: &str) -> String {
    let approved = sandbox.run(&["mcp", "approve", server, "--json"]);
    assert_eq!(approved.code, Some(0), "{}", approved.stderr);
    let project = sandbox.project();
    fs::create_dir_all(project.join(".ai/directives")).unwrap();
    fs::write(project.join(".ai/directives/go.md"), "---\nname: go\npermissions: [tool.mcp.*]\n---\nGo.\n").unwrap();
    fs::write(project.join("script.yaml"), format!("turns:\n  - calls: [{calls}]\n  - say: Done.\n")).unwrap();
    let ran = sandbox.run(&["run", "go", "--model", "scripted:script.yaml"]);
    assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
    assert_eq!(
        sandbox.run(&["mcp", "check", server, "--json"]).json()["approved"],
        true,
        "its definitions stay the same"
    );
    format!("{}{}", ran.stdout, ran.stderr)
}

#[test]
fn the_reference_server_is_used_over_its_standard_input_and_output() {
    let Ok(program) = std::env::var("SELVEDGE_TEST_MCP_EVERYTHING") else { return };
    let sandbox = Sandbox::new();
    sandbox.run(&["mcp", "add", "everything", "--env", "PATH", "--", &program]);
    let calls = "{ tool: everything.echo, arguments: { message: hi } }, { tool: everything.get-sum, arguments: { a: 1, b: 2 } }, \
                 { tool: everything.get-tiny-image }, { tool: everything.get-structured-content, arguments: { location: New York } }";
    let said = run(&sandbox, "everything", calls);
    for wanted in ["Echo: hi", "is 3.", "iVBORw0KGgo", "\"conditions\""] {
        assert!(said.contains(wanted), "{wanted} is not in {said}");
    }
}

#[test]
fn the_reference_server_is_used_over_http() {
    let Ok(program) = std::env::var("SELVEDGE_TEST_MCP_EVERYTHING") else { return };
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new(program);
    command.arg("streamableHttp").env("PORT", port.to_string()).stdin(Stdio::null());
    let mut server = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("listening")), "it starts");
    let sandbox = Sandbox::new();
    sandbox.run(&["mcp", "add", "far", "--url", &format!("http://127.0.0.1:{port}/mcp")]);
    let said = run(&sandbox, "far", "{ tool: far.echo, arguments: { message: hi } }");
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(said.contains("Echo: hi"), "{said}");
}

#[test]
fn a_server_of_the_newer_era_is_used() {
    let Ok(program) = std::env::var("SELVEDGE_TEST_MCP_TIME") else { return };
    let sandbox = Sandbox::new();
    sandbox.run(&["mcp", "add", "time", "--env", "PATH", "--", &program]);
    let said = run(&sandbox, "time", "{ tool: time.get_current_time, arguments: { timezone: Europe/Zurich } }");
    assert!(said.contains("Europe/Z") && said.contains("day_of_week"), "{said}");
}
