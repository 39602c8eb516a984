//! Programs of the user, declared as tools.
//!
//! - The program is started directly, never by a shell: every argument is one element, whatever a model puts into it.
//! - It gets the environment variables that its definition names, if they were passed in, and `SELVEDGE_CALL_KEY` (the same for every
//!   dispatch of this call), `SELVEDGE_CALL`, `SELVEDGE_THREAD`, `SELVEDGE_RUN`. Nothing else.
//! - An exit status is the program's own answer and becomes the result: success (0) or an error. If the program was ended by the time limit
//!   or by a signal, its effect is unknown: the outcome of an `at_most_once` tool is lost then; for any other tool it is an error.
//! - A tool that declares `state` prints an output object, with the patches and state actions of the call: see `envelope`.
//! - `reconcile` is a second command that reports the outcome of a call. It exits with 0 and prints `{"done": true, "result": …}`,
//!   `{"done": true, "error": "…"}`, `{"done": false}` or `{"done": null}`. Anything else means that the outcome is unknown.

mod answer;
mod argv;
mod envelope;
mod reconcile;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use selvedge_model::event::{EffectClass, Process};
use selvedge_model::path::Path;
use selvedge_model::tool::{
    CommandSpec, Dispatch, Reconciled, SandboxLevel, SandboxReached, SandboxSpec, Started, Stdin,
};
use selvedge_model::{Call, CallId, Cancel, Tool, ToolError, ToolSpec};

use crate::error::InvalidTool;
use crate::in_process;
use crate::process::{Confinement, Gated, ProcessSpec};
use crate::sandbox::{self, Sandbox};
use crate::schema::Schema;
use argv::Argv;

/// The surroundings of a command: passed in, because nothing here reads them itself.
#[derive(Clone, Debug)]
pub struct CommandEnvironment {
    /// The project's folder.
    pub root: PathBuf,
    /// The environment; commands get the variables that their definitions name. Programs are searched for in its `PATH`.
    pub environment: BTreeMap<String, String>,
    /// What restricts commands that declare a sandbox; without it nothing does, and those that require one are refused.
    pub sandbox: Option<Sandbox>,
}

pub(crate) use argv::find as find_program;
pub(crate) use envelope::check_value;

/// A command as a tool.
#[derive(Debug)]
pub struct CommandTool {
    spec: ToolSpec,
    schema: Schema,
    command: Argv,
    reconcile: Option<Argv>,
    stdin: Stdin,
    /// The paths of the state that it may change.
    state: Vec<Path>,
    timeout: Duration,
    output_bytes_max: usize,
    root: PathBuf,
    folder: PathBuf,
    environment: Vec<(String, String)>,
    path: String,
    /// What its process may reach, and what sees to that.
    sandbox: Option<(SandboxSpec, Option<Sandbox>)>,
    /// Where temporary folders are made.
    temporary: PathBuf,
}

/// A year: the longest time limit.
const TIMEOUT_SECONDS_MOST: u64 = 366 * 24 * 60 * 60;
/// The most bytes of an output that are kept.
const OUTPUT_BYTES_MOST: u64 = 64 * 1024 * 1024;

impl CommandTool {
    /// Checks a definition. The program itself is searched for when it is called.
    pub fn new(command: CommandSpec, around: &CommandEnvironment) -> Result<Self, InvalidTool> {
        let invalid = |why: String| InvalidTool::new(&command.name, why);
        check_name(&command.name).map_err(invalid)?;
        if command.timeout_seconds == 0 || command.output_bytes_max == 0 {
            return Err(invalid("`timeout_seconds` and `output_bytes_max` must be above 0".to_owned()));
        }
        let argv = |words: &[String]| Argv::new(words, &command.input_schema);
        let reconcile = command.reconcile.as_deref().map(argv).transpose();
        let hash = in_process::hash(&command)
            .ok_or_else(|| invalid("it has a number that JSON can't hold exactly".to_owned()))?;
        Ok(Self {
            schema: Schema::compile(&command.name, &command.input_schema)?,
            reconcile: reconcile.map_err(|why| invalid(format!("as `reconcile`, {why}")))?,
            command: argv(&command.command).map_err(|why| invalid(format!("as `command`, {why}")))?,
            environment: allowed(&command.environment, &around.environment).map_err(invalid)?,
            path: around.environment.get("PATH").cloned().unwrap_or_default(),
            temporary: around.environment.get("TMPDIR").map_or_else(|| "/tmp".into(), PathBuf::from),
            sandbox: command
                .sandbox
                .filter(|spec| spec.level != SandboxLevel::Off)
                .map(|spec| (spec, around.sandbox.clone())),
            root: around.root.clone(),
            folder: around.root.join(command.working_folder.as_deref().unwrap_or_default()),
            timeout: Duration::from_secs(command.timeout_seconds.min(TIMEOUT_SECONDS_MOST)),
            output_bytes_max: usize::try_from(command.output_bytes_max.min(OUTPUT_BYTES_MOST)).unwrap_or(usize::MAX),
            stdin: command.stdin,
            state: command.state,
            spec: ToolSpec {
                name: command.name,
                description: command.description,
                input_schema: command.input_schema,
                class: command.class,
                capability: command.capability,
                risk: command.risk,
                hash,
            },
        })
    }

    /// What to run for a call.
    fn plan(&self, argv: &Argv, call: &Call, leashed: bool) -> Result<ProcessSpec, String> {
        let (program, arguments) = argv.fill(&call.arguments)?;
        let mut environment = self.environment.clone();
        let ours = [
            ("SELVEDGE_CALL_KEY", call.key.as_str()),
            ("SELVEDGE_CALL", call.id.as_str()),
            ("SELVEDGE_THREAD", call.thread.as_str()),
            ("SELVEDGE_RUN", call.run.as_str()),
        ];
        environment.extend(ours.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let folder = self.working_folder()?;
        let program = argv::find(&program, &self.path, &folder)?;
        let (program, arguments, confinement) = self.confined(program, arguments, &mut environment)?;
        Ok(ProcessSpec {
            program,
            arguments,
            environment,
            folder,
            confinement,
            stdin: (self.stdin == Stdin::Json).then(|| format!("{}\n", call.arguments).into_bytes()),
            timeout: self.timeout,
            stdout_bytes_max: self.output_bytes_max,
            leashed,
        })
    }

    /// Puts the program into its sandbox, if it declares one.
    fn confined(
        &self,
        program: PathBuf,
        arguments: Vec<String>,
        environment: &mut Vec<(String, String)>,
    ) -> Result<(PathBuf, Vec<String>, Option<Confinement>), String> {
        let Some((spec, sandbox)) = &self.sandbox else { return Ok((program, arguments, None)) };
        let Some(sandbox) = sandbox else {
            let reached = sandbox::reached_nothing(spec);
            sandbox::refuse_less(&reached)?;
            return Ok((program, arguments, Some(Confinement { reached, temporary: None })));
        };
        let around = sandbox.around(spec, &self.root, &self.temporary, program, arguments)?;
        environment.retain(|(name, _)| around.environment.iter().all(|(ours, _)| ours != name));
        environment.extend(around.environment);
        let confinement = Confinement { reached: around.reached, temporary: around.temporary };
        Ok((around.program, around.arguments, Some(confinement)))
    }

    /// The folder in which the program is started, with every link followed: it must be inside the project.
    fn working_folder(&self) -> Result<PathBuf, String> {
        let shown = self.folder.display();
        let real = self.folder.canonicalize().ok().filter(|folder| folder.is_dir());
        let real = real.ok_or_else(|| format!("its working folder `{shown}` does not exist"))?;
        if !self.root.canonicalize().is_ok_and(|root| real.starts_with(root)) {
            return Err(format!("its working folder `{shown}` lies outside the project"));
        }
        Ok(real)
    }

    fn gated(&self, argv: &Argv, call: &Call, leashed: bool) -> Result<Gated, ToolError> {
        let started =
            self.plan(argv, call, leashed).and_then(|plan| Gated::start(plan).map_err(|error| error.to_string()));
        started.map_err(|why| ToolError::NotStarted { tool: self.spec.name.clone(), why })
    }
}

impl Tool for CommandTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn sandbox(&self) -> Option<SandboxReached> {
        let (spec, sandbox) = self.sandbox.as_ref()?;
        Some(sandbox.as_ref().map_or_else(|| sandbox::reached_nothing(spec), |sandbox| sandbox.reached(spec)))
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        self.schema.check(&self.spec.name, &call.arguments)?;
        let class = self.spec.class;
        let gated = self.gated(&self.command, call, class != EffectClass::AtMostOnce)?;
        let tool = self.spec.name.clone();
        let call = call.id.clone();
        let state = self.state.clone();
        Ok(Box::new(StartedCommand { tool, class, gated, call, state }))
    }

    fn reconcile(&self, call: &Call, cancel: &Cancel) -> Reconciled {
        let Some(argv) = &self.reconcile else { return Reconciled::Unsupported };
        let asked = self.gated(argv, call, true);
        asked.map_or(Reconciled::Unknown, |gated| {
            reconcile::read(&gated.run(cancel), &self.spec.name, &call.id, &self.state)
        })
    }
}

/// A command that waits at its gate.
struct StartedCommand {
    tool: String,
    class: EffectClass,
    gated: Gated,
    call: CallId,
    state: Vec<Path>,
}

impl Started for StartedCommand {
    fn process(&self) -> Option<Process> {
        self.gated.process().cloned()
    }

    fn sandbox(&self) -> Option<SandboxReached> {
        self.gated.reached().cloned()
    }

    fn dispatch(self: Box<Self>, cancel: &Cancel) -> Dispatch {
        let cancel = cancel.clone();
        match cancel.said() {
            Some(_) => Dispatch::Done(Err(ToolError::Stopped { tool: self.tool })),
            None => Dispatch::blocking(move || {
                let Self { tool, class, gated, call, state } = *self;
                answer::of(gated.run(&cancel), tool, class, &call, &state)
            }),
        }
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if name.is_empty() || name.len() > 64 || !name.bytes().all(is_word) {
        return Err("its name must be 1 to 64 of a-z, A-Z, 0-9, `_` and `-`".to_owned());
    }
    Ok(())
}

/// The named variables of the environment; one that is not set is left out.
fn allowed(names: &[String], environment: &BTreeMap<String, String>) -> Result<Vec<(String, String)>, String> {
    for name in names {
        if name.is_empty() || name.contains(['=', '\0']) || name.starts_with("SELVEDGE_") {
            return Err(format!("`environment` can't name `{}`", name.escape_debug()));
        }
    }
    let found = names.iter().filter_map(|name| Some((name.clone(), environment.get(name)?.clone())));
    Ok(found.collect())
}
