//! Declarations of command tools: `.ai/tools/<name>.yaml`. Only parsed and checked here, not executed.
//!
//! ```yaml
//! name: pay
//! description: Pays an amount once.
//! input_schema: { type: object, properties: { amount: { type: integer } }, required: [amount] }
//! command: [./pay.sh, "{input:amount}"]
//! ```
//!
//! A command is a list of arguments and never passes through a shell. The program itself is fixed: the model's input can be an
//! argument, or part of one, and nothing else.

use selvedge_model::event::EffectClass;
use selvedge_model::path::{Path, Segment};
use selvedge_model::tool::{CommandSpec, Risk, SandboxSpec, Stdin};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::capability::Capability;
use crate::error::Flaw;
use crate::interpolate::argument_inputs;
use crate::yaml::parse_yaml;

/// The default timeout of a command.
pub const TIMEOUT_SECONDS: u64 = 60;
const TIMEOUT_SECONDS_MAX: u64 = 7 * 24 * 3600;
/// How much of its output is kept by default.
pub const OUTPUT_BYTES_MAX: u64 = 1 << 20;
const OUTPUT_BYTES_CEILING: u64 = 64 << 20;
const ARGUMENTS_MAX: usize = 256;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    name: String,
    description: String,
    input_schema: Option<Value>,
    command: Vec<String>,
    #[serde(default)]
    stdin: Stdin,
    timeout_seconds: Option<u64>,
    output_bytes_max: Option<u64>,
    #[serde(default)]
    environment: Vec<String>,
    working_folder: Option<String>,
    #[serde(default)]
    class: EffectClass,
    reconcile: Option<Vec<String>>,
    capability: Option<Capability>,
    risk: Option<Risk>,
    #[serde(default)]
    state: Vec<Path>,
    sandbox: Option<SandboxSpec>,
}

/// Parses a declaration; `id` is its path below the folder of tools, without its extension.
pub fn parse(id: &str, text: &str) -> Result<CommandSpec, Flaw> {
    let fields: Fields = parse_yaml(text, 1)?;
    let name = id.rsplit('/').next().unwrap_or(id);
    if fields.name != name {
        let why = format!("it is named `{}`, but its file `{name}`", fields.name.escape_debug());
        return Err(Flaw::new(why).hint("rename one of them"));
    }
    let capability = match fields.capability {
        Some(capability) => capability,
        None => format!("tool.{}", id.replace('/', ".")).parse().map_err(|_| {
            Flaw::new(format!("no capability can be derived from `{id}`"))
                .hint("set the one it needs: `capability: tool.…`")
        })?,
    };
    let declaration = CommandSpec {
        name: fields.name,
        description: fields.description,
        input_schema: fields
            .input_schema
            .unwrap_or_else(|| json!({ "type": "object", "properties": {}, "additionalProperties": false })),
        command: fields.command,
        stdin: fields.stdin,
        timeout_seconds: fields.timeout_seconds.unwrap_or(TIMEOUT_SECONDS),
        output_bytes_max: fields.output_bytes_max.unwrap_or(OUTPUT_BYTES_MAX),
        environment: fields.environment,
        working_folder: fields.working_folder,
        class: fields.class,
        reconcile: fields.reconcile,
        capability: capability.to_string(),
        risk: fields.risk.unwrap_or(Risk::Write),
        state: fields.state,
        sandbox: fields.sandbox,
    };
    if !capability.is_exact() {
        return Err(Flaw::new("the capability of a tool can't contain `*`"));
    }
    check(&declaration)?;
    Ok(declaration)
}

fn check(tool: &CommandSpec) -> Result<(), Flaw> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if tool.name.is_empty() || tool.name.len() > 64 || !tool.name.bytes().all(plain) {
        let why = format!("`{}` can't be the name of a tool", tool.name.escape_debug());
        return Err(Flaw::new(why).hint("use at most 64 letters, digits, `_` and `-`"));
    }
    if tool.input_schema.get("type") != Some(&json!("object")) {
        return Err(Flaw::new("`input_schema` does not describe an object").hint("start it with `type: object`"));
    }
    check_command(tool, "command", &tool.command)?;
    if let Some(reconcile) = &tool.reconcile {
        check_command(tool, "reconcile", reconcile)?;
    }
    if tool.timeout_seconds == 0 || tool.timeout_seconds > TIMEOUT_SECONDS_MAX {
        return Err(Flaw::new("`timeout_seconds` must be between 1 and a week"));
    }
    if tool.output_bytes_max == 0 || tool.output_bytes_max > OUTPUT_BYTES_CEILING {
        return Err(Flaw::new("`output_bytes_max` must be between 1 and 64 MiB"));
    }
    if let Some(name) = tool.environment.iter().find(|name| !is_variable(name)) {
        return Err(Flaw::new(format!("`{}` is not the name of a variable", name.escape_debug())));
    }
    for path in &tool.state {
        check_path(path)?;
    }
    tool.sandbox.as_ref().map_or(Ok(()), check_sandbox)?;
    if let Some(folder) = tool.working_folder.as_deref().filter(|folder| !is_inside(folder)) {
        let why = format!("`{}` is outside of the project", folder.escape_debug());
        return Err(Flaw::new(why).hint("give a folder relative to the project, without `..`"));
    }
    Ok(())
}

fn check_command(tool: &CommandSpec, what: &str, command: &[String]) -> Result<(), Flaw> {
    let Some((program, arguments)) = command.split_first().filter(|(program, _)| !program.is_empty()) else {
        return Err(Flaw::new(format!("`{what}` is empty")).hint("write the program and its arguments as a list"));
    };
    if arguments.len() > ARGUMENTS_MAX || command.iter().any(|argument| argument.contains('\0')) {
        return Err(Flaw::new(format!("`{what}` has too many arguments, or a NUL in one")));
    }
    if argument_inputs(program) != Ok(Vec::new()) {
        let flaw = Flaw::new(format!("the program of `{what}` would be chosen by the model"));
        return Err(flaw.hint("name the program, and use `{input:…}` in its arguments only"));
    }
    for argument in arguments {
        let names = argument_inputs(argument).map_err(|other| {
            let why = format!("`{}` is not supported in the arguments of `{what}`", other.escape_debug());
            Flaw::new(why).hint("write `{input:k}`, or `{input:k?}` if it is optional")
        })?;
        let properties = tool.input_schema.get("properties");
        let unknown = |name: &&String| properties.and_then(|known| known.get(name.as_str())).is_none();
        if let Some(name) = names.iter().find(unknown) {
            let flaw = Flaw::new(format!("`{what}` uses `{name}`, which `input_schema` does not have"));
            return Err(flaw.hint(format!("add `{name}` to its `properties`")));
        }
    }
    Ok(())
}

fn check_sandbox(sandbox: &SandboxSpec) -> Result<(), Flaw> {
    let folders = || sandbox.read.iter().chain(&sandbox.write);
    if let Some(folder) = folders().find(|folder| folder.is_empty() || folder.contains('\0')) {
        return Err(Flaw::new(format!("`sandbox` has a folder `{}`", folder.escape_debug())));
    }
    if let Some(folder) = folders().find(|folder| folder.starts_with('~')) {
        let flaw = Flaw::new(format!("`sandbox` has a folder `{}`, and `~` means nothing here", folder.escape_debug()));
        return Err(flaw.hint("write the whole path"));
    }
    let limits = [sandbox.memory_bytes_max, sandbox.file_bytes_max, sandbox.processor_seconds_max];
    if limits.contains(&Some(0)) || sandbox.processes_max == 0 || sandbox.temporary_bytes_max == 0 {
        return Err(Flaw::new("the limits of `sandbox` must be above 0"));
    }
    Ok(())
}

/// A part of the state that a tool may change: below a key of its own, not the whole state and nothing that the engine keeps there.
fn check_path(path: &Path) -> Result<(), Flaw> {
    let key = match path.segments().first() {
        Some(Segment::Key(key)) => key,
        _ => return Err(Flaw::new("`state` has a path without a key").hint("list paths such as `[notes]`")),
    };
    if key.starts_with("__") {
        let why = format!("`state` can't have `{}`: the engine keeps its own values there", path);
        return Err(Flaw::new(why).hint("use a key that does not begin with `__`"));
    }
    if path.segments().iter().any(|segment| matches!(segment, Segment::Index(_))) {
        let why = format!("`{path}` in `state` has an index, and elements of an array move");
        return Err(Flaw::new(why).hint("name the array"));
    }
    Ok(())
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn is_inside(folder: &str) -> bool {
    !folder.is_empty()
        && !folder.starts_with('/')
        && !folder.contains('\0')
        && !folder.split('/').any(|part| part == "..")
}
