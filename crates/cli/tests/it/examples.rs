//! The examples at the end of every command's help: each is run in a project with the threads that they name.

use std::process::Command;

use crate::running::put;
use crate::support::{HELLO, Ran, Sandbox};

const REPORT: &str = "---\nname: report\nmodel: scripted:report.yaml\ninputs: [{ name: city, required: true }]\npermissions: [tool.weather]\n---\nReport the weather of {input:city}.\n";
const PAYDAY: &str = "---\nname: payday\nmodel: scripted:payday.yaml\npermissions: [tool.pay]\n---\nPay anna.\n";
const TRANSFER: &str = "---\nname: transfer\nmodel: scripted:transfer.yaml\npermissions: [tool.send]\n---\nSend it.\n";
const COUNT: &str =
    "---\nname: count\nmodel: scripted:count.yaml\npermissions: [tool.file.list]\nlimits: { turns: 1 }\n---\nCount.\n";
const REVIEW: &str = "inputs: [{ name: city }]\npermissions: [tool.file.list]\nstart: look\nstate: { files: [] }\nnodes:\n  look: { action: { item_type: tool, item_id: file_list, params: { path: . } }, assign: { files: '${result}' }, next: end }\n  end: { type: return, output: '${inputs.city}: ${state.files}' }\n";
const PRICE: &str = "price: { input_per_million_tokens: 1, output_per_million_tokens: 1 }\n";
/// A result of more than 32 KiB, so that there is one blob in the store.
const LONG_REPORT: &str = "name: weather\ndescription: The weather.\ncommand: [sh, -c, \"echo rain; head -c 40000 /dev/zero | tr '\\\\0' x\"]\nenvironment: [PATH]\nclass: pure\n";

/// The project that the examples speak of, with two files that another command made. Gives the words that differ from run to run.
/// An MCP server without tools.
const SERVER: &str = r#"while read -r line; do
  id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
  printf '{"jsonrpc":"2.0","id":%s,"result":{"supportedVersions":["2026-07-28"],"tools":[]}}\n' "$id"
done
"#;

fn world() -> (Sandbox, Vec<(&'static str, String)>) {
    let sandbox = Sandbox::new();
    for (file, text) in [
        (".ai/agents/scribe.yaml", "description: Keeps notes.\n"),
        (".ai/directives/report.md", REPORT),
        (".ai/directives/payday.md", PAYDAY),
        (".ai/directives/transfer.md", TRANSFER),
        (".ai/directives/count.md", COUNT),
        (".ai/tools/weather.yaml", LONG_REPORT),
        (".ai/graphs/review.yaml", REVIEW),
        (".ai/knowledge/house/rules.md", "Be polite.\n"),
        (".ai/tools/pay.yaml", "name: pay\ndescription: Pays.\ncommand: [echo, paid]\n"),
        (
            ".ai/tools/send.yaml",
            "name: send\ndescription: Sends.\ncommand: [sh, -c, \"kill -9 $$\"]\nenvironment: [PATH]\n",
        ),
        (".ai/config/agent/mcp.yaml", "servers:\n  hello: { command: [sh, server.sh], environment: [PATH] }\n"),
        ("server.sh", SERVER),
        (".ai/config/agent/approvals.yaml", "rules: [{ id: money, tool: pay, action: ask }]\n"),
        ("payday.yaml", "turns:\n  - calls: [{ tool: pay }]\n  - { say: Done., repeat: forever }\n"),
        ("transfer.yaml", "turns:\n  - calls: [{ tool: send, id: call_9 }]\n  - { say: Done., repeat: forever }\n"),
        ("count.yaml", "turns:\n  - calls: [{ tool: file_list }]\n  - { say: Done., repeat: forever }\n"),
        (
            "report.yaml",
            &format!("{PRICE}turns:\n  - calls: [{{ tool: weather }}]\n  - {{ say: It rains., repeat: forever }}\n"),
        ),
    ] {
        put(&sandbox, file, text);
    }
    let done = |line: &str, code: i32| {
        let ran = sandbox.shell(line);
        assert_eq!(ran.code, Some(code), "{line}: {ran:?}");
        ran
    };
    done("selvedge thread new --agent scribe --id minutes --title 'Minutes of Monday'", 0);
    sandbox.append("minutes", "0", HELLO);
    done("selvedge run report --input city=Bern", 0);
    done("selvedge run payday", 7);
    done("selvedge run transfer", 7);
    done("selvedge run count", 8);
    done("selvedge export report -o report.tar", 0);
    done("selvedge keys export > me.pem", 0);
    done("mkdir ~/backups && selvedge backup ~/backups/monday", 0);
    done("SELVEDGE_HOME=~/ben selvedge init && SELVEDGE_HOME=~/ben selvedge keys export > ben.pem", 0);
    done("selvedge heads export ~/heads.json", 0);
    let blobs = sandbox.threads().read_dir().unwrap().map(|entry| entry.unwrap().path().join("blobs"));
    let blob = blobs.filter(|folder| folder.is_dir()).flat_map(|folder| folder.read_dir().unwrap()).next();
    let blob = blob.unwrap().unwrap().file_name().into_string().unwrap();
    let bens = done("SELVEDGE_HOME=~/ben selvedge keys list --json", 0).json()["current"].as_str().unwrap().to_owned();
    let token = done("selvedge token new --scope read --json", 0).json()["id"].as_str().unwrap().to_owned();
    (sandbox, vec![("9f86d081", blob), ("5c1e07aa", bens), ("3f2a9c0d11e7", token)])
}

/// What must be done before an example that the project alone is not enough for.
fn before(command: &str) -> &'static str {
    match command {
        "restore" => "rm -r .ai",
        "mcp check" => "selvedge mcp approve hello",
        "keys revoke" => "selvedge keys trust ben.pem --owner ben",
        "keys export" => "rm me.pem",
        _ => "true",
    }
}

/// Every command with the examples of its help.
fn examples(command: &[&str], sandbox: &Sandbox, found: &mut Vec<(String, Vec<String>)>) {
    let page = sandbox.run(&[&["help", "--json"], command].concat()).json();
    let text = page["text"].as_str().unwrap();
    if !command.is_empty() {
        let (_, lines) = text.rsplit_once("\nExample").unwrap_or_else(|| panic!("{command:?} has no example: {text}"));
        let (_, lines) = lines.split_once(":\n").unwrap();
        let lines = lines.replace("|\n", "| ");
        found.push((command.join(" "), lines.lines().map(|line| line.trim().to_owned()).collect()));
    }
    for below in page["commands"].as_array().unwrap() {
        examples(&[command, &[below.as_str().unwrap()]].concat(), sandbox, found);
    }
}

#[test]
fn the_example_of_every_command_works() {
    let (world, words) = world();
    let mut found = Vec::new();
    examples(&[], &world, &mut found);
    let mut failed: Vec<(String, Ran)> = Vec::new();
    for (command, lines) in found {
        let sandbox = Sandbox::empty();
        // With the modes of the keys' folders.
        let from = world.root().join(".");
        assert!(Command::new("cp").arg("-a").args([from, sandbox.root()]).status().unwrap().success());
        assert_eq!(sandbox.shell(before(&command)).code, Some(0), "{command}");
        for line in lines {
            // A server runs until it is told to end.
            let line = if command == "serve" {
                format!("timeout --foreground --preserve-status -s INT 2 {line}")
            } else {
                line
            };
            let line = words.iter().fold(line, |line, (shown, real)| line.replace(shown, real));
            let ran = sandbox.shell(&line);
            if ran.code != Some(0) {
                failed.push((line, ran));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
