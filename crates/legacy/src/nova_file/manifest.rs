//! The manifest of the older form, kept as a whole except for `channel`, which its own readers ignore.

use selvedge_model::event::Fields;
use serde_json::Value;

/// The manifest of a file of the older form.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Manifest {
    fields: Fields,
}

impl Manifest {
    /// The manifest with these fields.
    pub fn of(mut fields: Fields) -> Self {
        fields.remove("channel");
        Self { fields }
    }

    /// Whether these fields can only be a manifest, even if unknown ones are among them.
    pub(super) fn is_plainly(fields: &Fields) -> bool {
        ["agentId", "createdAt", "updatedAt"].iter().any(|name| fields.get(*name).is_some_and(Value::is_string))
    }

    /// All its fields.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// The thread's own id; files of older programs have none.
    pub fn id(&self) -> Option<&str> {
        self.text("id")
    }

    /// The agent that owns the thread.
    pub fn agent_id(&self) -> Option<&str> {
        self.text("agentId")
    }

    /// The session of an external engine.
    pub fn session_id(&self) -> Option<&str> {
        self.text("sessionId")
    }

    /// The task that the thread is bound to.
    pub fn task_id(&self) -> Option<&str> {
        self.text("taskId")
    }

    /// Its title for display.
    pub fn title(&self) -> Option<&str> {
        self.text("title")
    }

    /// Sets the thread's own id.
    pub fn set_id(&mut self, id: &str) {
        self.set("id", id);
    }

    /// Sets the owner of the thread.
    pub fn set_agent_id(&mut self, agent: &str) {
        self.set("agentId", agent);
    }

    /// Sets the session.
    pub fn set_session_id(&mut self, session: &str) {
        self.set("sessionId", session);
    }

    /// Sets the task that the thread is bound to.
    pub fn set_task_id(&mut self, task: &str) {
        self.set("taskId", task);
    }

    /// Sets the title.
    pub fn set_title(&mut self, title: &str) {
        self.set("title", title);
    }

    /// Sets the time of creation.
    pub fn set_created_at(&mut self, time: &str) {
        self.set("createdAt", time);
    }

    /// Sets the time of the last change.
    pub fn set_updated_at(&mut self, time: &str) {
        self.set("updatedAt", time);
    }

    /// Removes all unknown fields, from a manifest that would be too long to keep.
    pub fn shorten(&mut self) {
        const KNOWN: [&str; 7] = ["id", "agentId", "sessionId", "taskId", "title", "createdAt", "updatedAt"];
        const LONG: usize = 2_000;
        self.fields
            .retain(|name, value| KNOWN.contains(&name.as_str()) && value.as_str().is_some_and(|t| t.len() <= LONG));
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.fields.get(name)?.as_str()
    }

    fn set(&mut self, name: &str, value: &str) {
        self.fields.insert(name.to_owned(), value.into());
    }
}
