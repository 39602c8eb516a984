//! The job of a new thread.

use std::time::Duration;

use selvedge_model::limits::Limits;
use selvedge_model::{Message, Money, Role};
use serde_json::{Map, Value};

/// The job of a new thread: a message for the program's agent, or a directive of the project.
///
/// ```
/// use selvedge::{Job, Limit};
///
/// let chat = Job::say("What is a selvedge?").title("weaving").limit(Limit::Turns(5));
/// let report = Job::directive("reports/weekly").input("week", 47).key("report-47");
/// # _ = (chat, report);
/// ```
#[derive(Clone, Debug)]
pub struct Job {
    pub(crate) task: Task,
    pub(crate) agent: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) limits: Limits,
    pub(crate) title: Option<String>,
    pub(crate) key: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) enum Task {
    Say(Vec<Message>),
    Directive { id: String, inputs: Map<String, Value> },
}

impl Job {
    /// A thread that answers a message. It may call the program's tools, and those that [`Builder::allow`](crate::Builder::allow) names.
    pub fn say(text: impl Into<String>) -> Self {
        Self::messages(vec![Message::text(Role::User, text)])
    }

    /// A thread that begins with these messages.
    pub fn messages(messages: Vec<Message>) -> Self {
        Self::of(Task::Say(messages))
    }

    /// A thread that runs a directive, such as `reports/weekly` for `.ai/directives/reports/weekly.md`. It may call the tools that the
    /// directive permits.
    pub fn directive(id: impl Into<String>) -> Self {
        Self::of(Task::Directive { id: id.into(), inputs: Map::new() })
    }

    fn of(task: Task) -> Self {
        Self { task, agent: None, model: None, limits: Limits::default(), title: None, key: None }
    }

    /// Sets an input of the directive. Ignored for a job without a directive.
    #[must_use]
    pub fn input(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        if let Task::Directive { inputs, .. } = &mut self.task {
            inputs.insert(name.into(), value.into());
        }
        self
    }

    /// The agent that runs it, instead of the builder's.
    #[must_use]
    pub fn agent(self, name: impl Into<String>) -> Self {
        Self { agent: Some(name.into()), ..self }
    }

    /// The model that answers, by the name it was registered under, instead of the default one.
    #[must_use]
    pub fn model(self, name: impl Into<String>) -> Self {
        Self { model: Some(name.into()), ..self }
    }

    /// Sets a limit of this thread, instead of the builder's.
    #[must_use]
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits = Limits::from(limit).over(&self.limits);
        self
    }

    /// The title that people see in lists.
    #[must_use]
    pub fn title(self, title: impl Into<String>) -> Self {
        Self { title: Some(title.into()), ..self }
    }

    /// An idempotency key: the same key again creates no second thread, and returns the first one.
    #[must_use]
    pub fn key(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }
}

impl From<&str> for Job {
    fn from(text: &str) -> Self {
        Self::say(text)
    }
}

impl From<String> for Job {
    fn from(text: String) -> Self {
        Self::say(text)
    }
}

/// A limit of a thread. A thread that reaches it is suspended, and continues when it is resumed with a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// Calls of the model.
    Turns(u64),
    /// Tokens sent and received.
    Tokens(u64),
    /// Money.
    Spend(Money),
    /// Children started.
    Spawns(u64),
    /// Levels of children below.
    Depth(u64),
    /// Running time, in whole seconds.
    Duration(Duration),
}

impl From<Limit> for Limits {
    fn from(limit: Limit) -> Self {
        let none = Self::default();
        match limit {
            Limit::Turns(turns) => Self { turns: Some(turns), ..none },
            Limit::Tokens(tokens) => Self { tokens: Some(tokens), ..none },
            Limit::Spend(spend) => Self { spend: Some(spend), ..none },
            Limit::Spawns(spawns) => Self { spawns: Some(spawns), ..none },
            Limit::Depth(depth) => Self { depth: Some(depth), ..none },
            Limit::Duration(duration) => Self { duration_seconds: Some(duration.as_secs()), ..none },
        }
    }
}
