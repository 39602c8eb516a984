//! `selvedge mcp add`: declares a server.

use std::fs;
use std::path::Path;

use selvedge::items::mcp::{FILE, parse};
use serde::Serialize;
use serde_json::json;

use crate::context::Context;
use crate::document::{refuse_link, replace};
use crate::error::{Exit, Failure, Result};
use crate::new_file::write_item;

/// Declare an MCP server in .ai/config/agent/mcp.yaml
///
/// The server is a program that speaks on its standard input and output, or an address. It is started only after `selvedge mcp approve`.
/// Servers in a `.mcp.json` of the project's folder are declared without this.
///
/// JSON: {"server", "file"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Its name: a-z, 0-9 and `-`
    name: String,
    /// The address of a server on the network
    #[arg(long, conflicts_with_all = ["command", "environment"])]
    url: Option<String>,
    /// A variable of your environment that the program gets; may be repeated
    #[arg(long = "env", value_name = "NAME")]
    environment: Vec<String>,
    /// The variable with the bearer token of an address
    #[arg(long, value_name = "NAME", requires = "url")]
    token_env: Option<String>,
    /// The program and its arguments
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "url")]
    command: Vec<String>,
}

#[derive(Serialize)]
struct Declared<'a> {
    server: &'a str,
    #[serde(serialize_with = "crate::text::in_json")]
    file: &'a Path,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let project = context.project()?;
    let file = project.join(".ai").join(FILE);
    let lines = declaration(args);
    let before = match fs::read_to_string(&file) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(Failure::io("read", &file, &error)),
    };
    // JSON is YAML on one line, so nothing in it needs to be quoted otherwise.
    let text = match &before {
        None => format!("servers:\n{lines}"),
        Some(text) if text.trim().is_empty() => format!("servers:\n{lines}"),
        Some(text) => format!("{}\n{lines}", text.trim_end()),
    };
    let invalid = |flaw| Failure::usage(format!("`{}` can't be declared: {flaw}", args.name));
    let known = before.as_deref().map(parse).transpose().map_err(invalid)?.unwrap_or_default();
    if known.iter().any(|spec| spec.name == args.name) {
        let message = format!("`{}` is declared already in `{}`", args.name, file.display());
        return Err(Failure::new(Exit::Conflict, "file_exists", message).hint("edit that file, or give another name"));
    }
    let after = parse(&text).map_err(invalid)?;
    if after.len() != known.len() + 1 {
        let message = format!("`{}` has something after its servers", file.display());
        return Err(Failure::usage(message).hint("add the server with an editor"));
    }
    match before {
        None => write_item(&project, &file, &text)?,
        Some(_) => {
            refuse_link(&file)?;
            replace(&file, text.as_bytes())?;
        }
    }
    if context.output.is_json() {
        return context.output.record(&Declared { server: &args.name, file: &file });
    }
    context.output.text(file.display())?;
    context
        .output
        .tell(format!("Next: `selvedge mcp approve {}` starts it, shows its tools and approves them", args.name));
    Ok(())
}

fn declaration(args: &Args) -> String {
    match &args.url {
        Some(url) => {
            let token = args.token_env.as_ref();
            let token =
                token.map(|name| format!("\n    token: {{ environment: {} }}", json!(name))).unwrap_or_default();
            format!("  {}:\n    url: {}{token}\n", args.name, json!(url))
        }
        None => {
            let environment = if args.environment.is_empty() {
                String::new()
            } else {
                format!("\n    environment: {}", json!(args.environment))
            };
            format!("  {}:\n    command: {}{environment}\n", args.name, json!(args.command))
        }
    }
}
