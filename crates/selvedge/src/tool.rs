//! Tools of the embedding program: closures, or its own implementations of the contract.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use selvedge_model::event::{EffectClass, Process};
use selvedge_model::tool::{Dispatch, Reconciled, Risk, Started};
use selvedge_model::{Call, CallId, Cancel, Output, RunId, ThreadId, Tool as Contract, ToolError, ToolSpec};
use selvedge_tools::{InvalidTool, Schema, built_in};
use serde_json::Value;
use tokio::runtime::Handle;

use crate::runtime::inside;

/// A tool of the program: a closure, or an implementation of [`model::Tool`](crate::model::Tool).
///
/// ```
/// use selvedge::{Tool, json};
///
/// let add = Tool::function(
///     "add",
///     "Adds two numbers.",
///     json!({
///         "type": "object",
///         "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
///         "required": ["a", "b"],
///     }),
///     |arguments, _| json!(arguments["a"].as_f64().unwrap_or(0.0) + arguments["b"].as_f64().unwrap_or(0.0)),
/// )
/// .pure();
/// # _ = add;
/// ```
///
/// What holds:
///
/// - The closure is called with arguments that satisfy the schema. Others never reach it: the model gets an error result that names the path
///   and the reason of each violation, and may call again.
/// - A tool that is neither [`pure`](Tool::pure) nor [`idempotent`](Tool::idempotent) is called at most once for each call of the model. The
///   call is recorded before. If the process dies during the call, the thread is suspended until its outcome is resolved
///   ([`Choice::Done`](crate::Choice::Done), [`Choice::NotDone`](crate::Choice::NotDone)), unless
///   [`reconcile`](Tool::reconcile) knows it.
/// - A panic of the closure ends its call, never the run.
#[derive(Clone)]
pub struct Tool {
    body: Body,
    approval: Option<String>,
}

#[derive(Clone)]
enum Body {
    Function(Function),
    Own(Arc<dyn Contract>),
}

type Reconcile = Arc<dyn Fn(&CallContext) -> Reconciled + Send + Sync>;

#[derive(Clone)]
struct Function {
    name: String,
    description: String,
    schema: Value,
    class: EffectClass,
    risk: Risk,
    capability: Option<String>,
    work: Work,
    reconcile: Option<Reconcile>,
}

/// Starts a call.
type Work = Arc<dyn Fn(Value, CallContext, Option<Handle>) -> Dispatch + Send + Sync>;

impl Tool {
    /// A closure as a tool. It is called on its own thread and may block; a long one should return soon after
    /// [`CallContext::is_cancelled`].
    ///
    /// Its capability is derived from its name: `tool.send.mail` for `send_mail`.
    pub fn function<R: IntoOutput>(
        name: impl Into<String>,
        description: impl Into<String>,
        schema: Value,
        function: impl Fn(Value, CallContext) -> R + Send + Sync + 'static,
    ) -> Self {
        let function = Arc::new(function);
        Self::of(name.into(), description.into(), schema, move |arguments, context, _| {
            let function = function.clone();
            Dispatch::blocking(move || Ok(function(arguments, context).into_output()))
        })
    }

    /// An async closure as a tool. If [`Builder::open`](crate::Builder::open) is called inside a tokio runtime, the future runs in that
    /// runtime; it must not block. A call that is cancelled and does not end soon is dropped.
    pub fn async_function<F>(
        name: impl Into<String>,
        description: impl Into<String>,
        schema: Value,
        function: impl Fn(Value, CallContext) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output: IntoOutput> + Send + 'static,
    {
        let function = Arc::new(function);
        Self::of(name.into(), description.into(), schema, move |arguments, context, runtime| {
            let function = function.clone();
            let work = async move { function(arguments, context).await.into_output() };
            Dispatch::future(async move { Ok(inside(runtime, work).await) })
        })
    }

    fn of(
        name: String,
        description: String,
        schema: Value,
        work: impl Fn(Value, CallContext, Option<Handle>) -> Dispatch + Send + Sync + 'static,
    ) -> Self {
        let function = Function {
            name,
            description,
            schema,
            class: EffectClass::AtMostOnce,
            risk: Risk::Safe,
            capability: None,
            work: Arc::new(work),
            reconcile: None,
        };
        Self { body: Body::Function(function), approval: None }
    }

    /// Declares that the tool changes nothing: after a crash its calls are repeated.
    #[must_use]
    pub fn pure(self) -> Self {
        self.change(|function| function.class = EffectClass::Pure)
    }

    /// Declares that calling the tool twice has the effect of calling it once: after a crash its calls are repeated, with the same
    /// [`CallContext::key`].
    #[must_use]
    pub fn idempotent(self) -> Self {
        self.change(|function| function.class = EffectClass::Idempotent)
    }

    /// Declares the risk of the tool; default: safe.
    #[must_use]
    pub fn risk(self, risk: Risk) -> Self {
        self.change(|function| function.risk = risk)
    }

    /// The capability of the tool, such as `tool.mail.send`, instead of the one derived from its name.
    #[must_use]
    pub fn capability(self, capability: impl Into<String>) -> Self {
        self.change(|function| function.capability = Some(capability.into()))
    }

    /// Finds out what became of a call that was dispatched and whose outcome is not on record, because the process died. Only asked for a
    /// tool that is called at most once.
    #[must_use]
    pub fn reconcile(self, reconcile: impl Fn(&CallContext) -> Reconciled + Send + Sync + 'static) -> Self {
        self.change(|function| function.reconcile = Some(Arc::new(reconcile)))
    }

    /// Requires approval of each call: the thread is suspended until [`Selvedge::decide`](crate::Selvedge::decide), and the approver
    /// sees the reason.
    #[must_use]
    pub fn needs_approval(self, why: impl Into<String>) -> Self {
        Self { approval: Some(why.into()), ..self }
    }

    /// Changes the definition of a closure. An implementation of the trait has its own.
    fn change(mut self, change: impl FnOnce(&mut Function)) -> Self {
        if let Body::Function(function) = &mut self.body {
            change(function);
        }
        self
    }

    /// The tool for the engine, and the reason for approvals, if its calls need them.
    pub(crate) fn finish(self, runtime: Option<Handle>) -> Result<(Arc<dyn Contract>, Option<String>), InvalidTool> {
        let tool = match self.body {
            Body::Own(tool) => tool,
            Body::Function(function) => Arc::new(function.finish(runtime)?),
        };
        Ok((tool, self.approval))
    }
}

impl<T: Contract + 'static> From<T> for Tool {
    fn from(tool: T) -> Self {
        Self { body: Body::Own(Arc::new(tool)), approval: None }
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.body {
            Body::Function(function) => &function.name,
            Body::Own(tool) => &tool.spec().name,
        };
        formatter.debug_tuple("Tool").field(name).finish()
    }
}

impl Function {
    fn finish(self, runtime: Option<Handle>) -> Result<FunctionTool, InvalidTool> {
        let Self { name, description, schema, class, risk, capability, work, reconcile } = self;
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
        if name.is_empty() || !name.chars().all(is_letter) {
            return Err(InvalidTool::new(&name, "its name may only have letters, digits, `_` and `-`"));
        }
        let check = Schema::compile(&name, &schema)?;
        let mut spec = built_in(&name, &description, schema, class, risk);
        if let Some(capability) = capability {
            spec.capability = capability;
        }
        Ok(FunctionTool { spec, schema: check, work, reconcile, runtime })
    }
}

/// A started call of a closure.
struct FunctionTool {
    spec: ToolSpec,
    schema: Schema,
    work: Work,
    reconcile: Option<Reconcile>,
    runtime: Option<Handle>,
}

impl Contract for FunctionTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        self.schema.check(&self.spec.name, &call.arguments)?;
        let call = call.clone();
        let work = self.work.clone();
        let runtime = self.runtime.clone();
        Ok(Box::new(ReadyCall { call, work, runtime }))
    }

    fn reconcile(&self, call: &Call, cancel: &Cancel) -> Reconciled {
        match (self.spec.class, &self.reconcile) {
            (EffectClass::Pure | EffectClass::Idempotent, _) => Reconciled::NotDone,
            (EffectClass::AtMostOnce, Some(reconcile)) => {
                reconcile(&CallContext { call: call.clone(), cancel: cancel.clone() })
            }
            (EffectClass::AtMostOnce, None) => Reconciled::Unsupported,
        }
    }
}

struct ReadyCall {
    call: Call,
    work: Work,
    runtime: Option<Handle>,
}

impl Started for ReadyCall {
    fn process(&self) -> Option<Process> {
        None
    }

    fn dispatch(self: Box<Self>, cancel: &Cancel) -> Dispatch {
        let Self { call, work, runtime } = *self;
        let arguments = call.arguments.clone();
        work(arguments, CallContext { call, cancel: cancel.clone() }, runtime)
    }
}

/// The context of a call, for its tool.
#[derive(Clone, Debug)]
pub struct CallContext {
    call: Call,
    cancel: Cancel,
}

impl CallContext {
    /// The calling thread.
    pub fn thread(&self) -> &ThreadId {
        &self.call.thread
    }

    /// The calling run.
    pub fn run(&self) -> &RunId {
        &self.call.run
    }

    /// The call.
    pub fn id(&self) -> &CallId {
        &self.call.id
    }

    /// The idempotency key of the call: unique, and the same when the call is repeated. Pass it to services that deduplicate.
    pub fn key(&self) -> &str {
        &self.call.key
    }

    /// The arguments, as the model wrote them.
    pub fn arguments(&self) -> &Value {
        &self.call.arguments
    }

    /// Whether the call is cancelled and should end soon.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.said().is_some()
    }

    /// The cancellation token: to sleep on in a blocking closure, or to await.
    pub fn cancel(&self) -> &Cancel {
        &self.cancel
    }
}

/// What a tool may return: text, JSON, an [`Output`], nothing, or a `Result` of these, whose error becomes an error result.
pub trait IntoOutput {
    /// The result for the model.
    fn into_output(self) -> Output;
}

impl IntoOutput for Output {
    fn into_output(self) -> Output {
        self
    }
}

impl IntoOutput for Value {
    fn into_output(self) -> Output {
        Output { content: self, ..Output::default() }
    }
}

impl IntoOutput for String {
    fn into_output(self) -> Output {
        Output::text(self)
    }
}

impl IntoOutput for &str {
    fn into_output(self) -> Output {
        Output::text(self)
    }
}

impl IntoOutput for () {
    fn into_output(self) -> Output {
        Output::text("done")
    }
}

impl<T: IntoOutput, E: fmt::Display> IntoOutput for Result<T, E> {
    fn into_output(self) -> Output {
        match self {
            Ok(value) => value.into_output(),
            Err(error) => Output::error(error.to_string()),
        }
    }
}
