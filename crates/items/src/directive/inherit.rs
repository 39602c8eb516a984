//! What a directive inherits from the one that it extends.

use super::{Context, Directive};
use crate::hook::Hook;
use crate::input::{Input, Output};

impl Directive {
    /// This directive with what it does not set inherited from `parent`, which has already inherited from its own parent.
    ///
    /// | inherited | how |
    /// |---|---|
    /// | model, permissions, continuation directive, body | if this one does not set it; so the nearest ancestor's count |
    /// | limits | each separately |
    /// | inputs, outputs, hooks | by name; this one's replace the parent's |
    /// | context | the parent's first, each once; suppressed entries and hooks are removed |
    #[must_use]
    pub fn inherit(mut self, parent: &Self) -> Self {
        self.model = self.model.or_else(|| parent.model.clone());
        self.permissions = self.permissions.or_else(|| parent.permissions.clone());
        self.continuation_directive = self.continuation_directive.or_else(|| parent.continuation_directive.clone());
        if self.body.is_empty() {
            self.body = parent.body.clone();
            self.body_line = parent.body_line;
        }
        let own = &mut self.limits;
        let theirs = &parent.limits;
        own.turns = own.turns.or(theirs.turns);
        own.tokens = own.tokens.or(theirs.tokens);
        own.spend = own.spend.or(theirs.spend);
        own.spawns = own.spawns.or(theirs.spawns);
        own.depth = own.depth.or(theirs.depth);
        own.duration_seconds = own.duration_seconds.or(theirs.duration_seconds);
        self.inputs = by_name(&parent.inputs, self.inputs, |input: &Input| &input.name);
        self.outputs = by_name(&parent.outputs, self.outputs, |output: &Output| &output.name);
        self.hooks = by_name(&parent.hooks, self.hooks, |hook: &Hook| &hook.id);
        self.context = self.context.below(&parent.context);
        self.hooks.retain(|hook| !self.context.suppress.contains(&hook.id));
        self
    }
}

impl Context {
    fn below(self, parent: &Self) -> Self {
        let suppress = joined(&parent.suppress, self.suppress);
        let list = |theirs: &[String], own: Vec<String>| {
            let mut list = joined(theirs, own);
            list.retain(|id| !suppress.contains(id));
            list
        };
        Self {
            system: list(&parent.system, self.system),
            before: list(&parent.before, self.before),
            after: list(&parent.after, self.after),
            suppress,
        }
    }
}

/// Both lists, one after the other, each entry once.
fn joined(first: &[String], second: Vec<String>) -> Vec<String> {
    let mut all = Vec::new();
    for id in first.iter().cloned().chain(second) {
        if !all.contains(&id) {
            all.push(id);
        }
    }
    all
}

fn by_name<T: Clone>(theirs: &[T], own: Vec<T>, name: fn(&T) -> &String) -> Vec<T> {
    let replaced = |one: &T| own.iter().any(|other| name(other) == name(one));
    let kept: Vec<T> = theirs.iter().filter(|one| !replaced(one)).cloned().collect();
    kept.into_iter().chain(own).collect()
}
