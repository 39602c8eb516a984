//! A project in a folder of its own: a store, directives, tools that are real programs, and scripts for the model.

mod watched;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use selvedge::items::{Library, Policy};
use selvedge::log::recovery::Finding;
use selvedge::log::{Signer, Trust};
use selvedge::model::answer::Drafts;
use selvedge::model::blocking::BoxFuture;
use selvedge::model::event::EffectClass;
use selvedge::model::message::Block;
use selvedge::model::scope::Scopes;
use selvedge::model::tool::{Function, Risk};
use selvedge::model::{
    Answer, Cancel, Digest, DirectiveId, Draft, Model, ModelError, Output, Prompt, Thread, ThreadId, Tool, ToolSpec,
};
use selvedge::project::{Models, PreparedRun, Program, Project, ProjectError, RunOptions};
use selvedge::store::{Acquire, Filter, Leases, Registry, Store};
use selvedge::store_local::disk::RealDisk;
use selvedge::store_local::system::{SystemClock, SystemIds};
use selvedge::store_local::{Access, LocalStore, Options};
use selvedge::tools::ProcessGroups;
use selvedge::{Engine, EngineOptions, Input, NoticeKind, Outcome, Redactor, RunEvent};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) use watched::Watched;

/// A tool that changes nothing, and says so.
pub(crate) fn look() -> Arc<dyn Tool> {
    let spec = ToolSpec {
        name: "look".to_owned(),
        description: String::new(),
        input_schema: json!({}),
        class: EffectClass::Pure,
        capability: "tool.look".to_owned(),
        risk: Risk::Safe,
        hash: Digest([0; 32]),
    };
    Arc::new(Function::new(spec, |_, _| Ok(Output::text("nothing new"))))
}

/// A project.
pub(crate) struct House {
    pub(crate) root: PathBuf,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) redactor: Redactor,
    _folder: Option<TempDir>,
}

/// What came of a run.
pub(crate) struct Ran {
    pub(crate) ended: Outcome,
    pub(crate) told: Vec<String>,
    pub(crate) thread: Thread,
}

impl House {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        LocalStore::init(folder.path(), Arc::new(RealDisk)).unwrap();
        fs::create_dir(folder.path().join("keys")).unwrap();
        fs::write(folder.path().join("keys/signer.pem"), Signer::generate(&SystemIds).to_pem().as_bytes()).unwrap();
        let root = folder.path().to_owned();
        Self { _folder: Some(folder), ..Self::at(&root) }
    }

    /// A project that another process made.
    pub(crate) fn at(root: &Path) -> Self {
        let path = ("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned());
        let environment = BTreeMap::from([path]);
        Self { root: root.to_owned(), environment, redactor: Redactor::default(), _folder: None }
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A directive that may call these tools.
    pub(crate) fn directive(&self, name: &str, tools: &[&str], body: &str) {
        let allow: Vec<_> = tools.iter().map(|tool| format!("tool.{tool}")).collect();
        let inputs = r#"[{"name": "x", "type": "string", "default": "an x"}]"#;
        let head = format!("name: {name}\npermissions: {}\ninputs: {inputs}", json!(allow));
        self.write(&format!(".ai/directives/{name}.md"), &format!("---\n{head}\n---\n\n{body}\n"));
    }

    /// A tool that runs a shell script, with the call's `a` as its first argument.
    pub(crate) fn tool(&self, name: &str, class: &str, script: &str, more: Value) {
        let mut tool = json!({
            "name": name,
            "description": "A tool.",
            "input_schema": {"type": "object", "properties": {"a": {}}, "additionalProperties": false},
            "command": ["/bin/sh", "-c", script, name, "{input:a?}"],
            "environment": ["PATH"],
            "class": class,
        });
        tool.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        self.write(&format!(".ai/tools/{name}.yaml"), &tool.to_string());
    }

    /// A script in which the model calls a tool once and then says `Done.`, and whatever it is told afterwards `Going on.`
    pub(crate) fn calls_once(&self, tool: &str, arguments: &Value) {
        let call = json!({"calls": [{"tool": tool, "arguments": arguments}]});
        let rest = json!({"say": "Going on.", "repeat": "forever"});
        self.script(&json!([call, {"say": "Done."}, rest]));
    }

    pub(crate) fn script(&self, turns: &Value) {
        self.write("script.yaml", &json!({ "turns": turns }).to_string());
    }

    fn signer(&self) -> Signer {
        Signer::from_pem(&fs::read_to_string(self.root.join("keys/signer.pem")).unwrap()).unwrap()
    }

    pub(crate) fn trust(&self) -> Trust {
        Trust::of(&[self.signer().public()])
    }

    pub(crate) fn open(&self) -> LocalStore {
        let options = Options {
            project: self.root.clone(),
            access: Access::ReadWrite,
            trust: self.trust(),
            signer: Some(self.signer()),
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            disk: Arc::new(RealDisk),
        };
        LocalStore::open(options).unwrap()
    }

    pub(crate) fn project(&self) -> Project {
        let project = Some(self.root.join(".ai"));
        let library = Library { project, user: None, trust: self.trust(), policy: Policy::default() };
        Project {
            library,
            folder: self.root.clone(),
            environment: self.environment.clone(),
            config: selvedge::items::Config::built_in(),
            models: Models::default(),
            program: Program::default(),
            sandbox: None,
            mcp: selvedge::tools::Servers::new(selvedge::tools::McpEnvironment {
                root: self.root.clone(),
                environment: self.environment.clone(),
                sandbox: None,
            }),
        }
    }

    pub(crate) fn engine(&self, store: Arc<dyn Store>) -> Engine {
        Engine::new(EngineOptions {
            store,
            trust: self.trust(),
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            processes: Arc::new(ProcessGroups),
            scopes: Scopes::builtin(),
            redactor: self.redactor.clone(),
            snapshots: None,
            prepare: None,
        })
    }

    /// A directive made ready, with the script as its model.
    pub(crate) fn prepare(&self, directive: &str) -> Result<PreparedRun, ProjectError> {
        let model = Some("scripted:script.yaml".to_owned());
        let id = DirectiveId::new(directive).unwrap();
        let mut order = self.project().prepare(&id, RunOptions { model, ..RunOptions::default() })?;
        order.run_config.retries.wait = Duration::from_millis(1);
        Ok(order)
    }

    /// Runs a directive on a store of its own, to its end.
    pub(crate) fn run(&self, directive: &str) -> Ran {
        self.run_until(directive, &Cancel::new(), |_| {})
    }

    /// Runs a directive until it ends or is cancelled.
    pub(crate) fn run_until(&self, directive: &str, cancel: &Cancel, change: impl FnOnce(&mut PreparedRun)) -> Ran {
        let mut order = self.prepare(directive).unwrap();
        change(&mut order);
        let engine = self.engine(Arc::new(self.open()));
        let thread = engine.create(order.thread, Vec::new()).unwrap();
        self.hear(&engine, &thread, Input::text(order.task), &order.run_config, cancel)
    }

    /// Says something more to a thread.
    pub(crate) fn send(&self, thread: &ThreadId, text: &str) -> Ran {
        let store = self.open();
        let mut work = self.project().run_config(&store.get(thread).unwrap().manifest).unwrap();
        work.retries.wait = Duration::from_millis(1);
        let engine = self.engine(Arc::new(store));
        self.hear(&engine, thread, Input::text(text), &work, &Cancel::new())
    }

    fn hear(
        &self,
        engine: &Engine,
        thread: &ThreadId,
        input: Input,
        work: &selvedge::RunConfig,
        cancel: &Cancel,
    ) -> Ran {
        let mut told = Vec::new();
        let ended = engine.send(thread, input, work, cancel, &mut |one| told.extend(word(&one))).unwrap();
        let loaded = selvedge::store::load::load(&**engine.store(), thread, &self.trust(), None).unwrap();
        Ran { ended, told, thread: loaded.thread }
    }

    /// What must always hold: every log verifies, and nothing is running.
    #[track_caller]
    pub(crate) fn assert_settled(&self) {
        let store = self.open();
        for thread in store.list(&Filter::default(), None, 100).unwrap().items {
            let id = &thread.manifest.thread_id;
            let verdict = store.verify(id, &mut |_| {}).unwrap();
            assert_eq!(verdict.judgement.finding, Finding::Sound, "{id}");
            assert_ne!(thread.manifest.status, selvedge::model::Status::Running, "{id}");
            eventually("every process of the thread is gone", || processes_of(id).is_empty());
            // No live process holds it, and no request is pending.
            let lease = store.acquire(id, Acquire::default()).unwrap();
            store.release(&lease).unwrap();
        }
    }
}

/// What was told, in a word each; that a run ended is known anyway.
fn word(told: &RunEvent) -> Option<String> {
    Some(match told {
        RunEvent::Committed { reason, .. } => reason.as_str().to_owned(),
        RunEvent::Draft { draft: Draft::Void, .. } => "void".to_owned(),
        RunEvent::Draft { .. } => "draft".to_owned(),
        RunEvent::Calling { tool, .. } => format!("calling {tool}"),
        RunEvent::Retrying { .. } => "retrying".to_owned(),
        RunEvent::Notice { kind: NoticeKind::StateError, why, .. } => format!("state error: {why}"),
        RunEvent::Notice { kind, why, .. } => format!("{}: {why}", kind.as_str()),
        RunEvent::Missed { .. } => "missed".to_owned(),
        _ => return None,
    })
}

/// The results of tools, in order: what was said, and whether it is an error.
pub(crate) fn results(thread: &Thread) -> Vec<(String, bool)> {
    let blocks = thread.messages.iter().flat_map(|message| &message.content);
    let result = |block: &Block| match block {
        Block::ToolResult { content, is_error, .. } => {
            Some((content.as_str().map_or_else(|| content.to_string(), str::to_owned), *is_error))
        }
        _ => None,
    };
    blocks.filter_map(result).collect()
}

/// Processes that a call of this thread started, wherever they went: they carry its name in their environment.
pub(crate) fn processes_of(thread: &ThreadId) -> Vec<u32> {
    let mark = format!("SELVEDGE_THREAD={thread}");
    let numbers = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_ours = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    numbers.filter(is_ours).collect()
}

#[track_caller]
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < until, "it never came to this: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A model that answers as another does, and remembers what it was shown.
pub(crate) struct Listening {
    pub(crate) inner: Arc<dyn Model>,
    pub(crate) heard: Mutex<Vec<String>>,
}

impl Model for Listening {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        draft: &'a mut Drafts<'a>,
        cancel: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            let messages: Vec<_> = prompt.messages.iter().map(|message| &**message).collect();
            let shown = json!({"system": prompt.system, "messages": messages, "tools": prompt.tools});
            self.heard.lock().unwrap().push(shown.to_string());
            self.inner.answer(prompt, draft, cancel).await
        })
    }

    fn context_tokens_max(&self, model: &str) -> Option<u64> {
        self.inner.context_tokens_max(model)
    }
}
