//! Approval rules that name a tool which does not exist: they have no effect, probably by mistake.

use std::collections::BTreeSet;

use selvedge_items::config::Rule;
use selvedge_items::library::Kind;
use selvedge_items::nearest::nearest;
use selvedge_tools::directive_return;

use super::{Project, ProjectError};
use crate::orchestrator::{knowledge_tools, thread_tools};

/// Which rules are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleSource {
    /// The project's. Its tools are known, so another name is a mistake.
    Project,
    /// All. A rule of the user may be for a tool of another project.
    All,
}

impl Project {
    /// The notices on rules whose tool does not exist.
    pub fn unmatched_rules(&self, source: RuleSource) -> Result<Vec<String>, ProjectError> {
        let known = self.tool_names()?;
        let approvals = &self.config.approvals;
        let user = approvals.user.rules.iter().filter(|_| source == RuleSource::All);
        let rules = user.chain(&approvals.project.rules);
        let mut notices = BTreeSet::new();
        for rule in rules {
            let unknown = rule.tool.as_deref().filter(|tool| !known.contains(*tool));
            notices.extend(unknown.map(|tool| self.unmatched(rule, tool, &known)));
        }
        Ok(notices.into_iter().collect())
    }

    fn unmatched(&self, rule: &Rule, tool: &str, known: &BTreeSet<String>) -> String {
        let key = format!("approvals.rules.{}.tool", rule.id);
        let set = self.config.explain(&key).ok().and_then(|explained| explained.values.into_iter().next_back());
        let place = set.map(|set| format!("{}, line {}: ", set.origin.file, set.origin.line)).unwrap_or_default();
        let advice = match nearest(tool, known.iter().map(String::as_str)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "`selvedge tool list` lists the tools".to_owned(),
        };
        format!("{place}`approvals.rules.{}` matches no call: there is no tool `{tool}`; {advice}", rule.id)
    }

    /// The names of all tools, including invalid ones.
    pub(super) fn tool_names(&self) -> Result<BTreeSet<String>, ProjectError> {
        let built_in = self.built_in_tools()?.into_iter().map(|tool| tool.spec().name.clone());
        let declared = self.library.list(Kind::Tool)?.into_iter();
        let declared = declared.filter_map(|entry| entry.id.rsplit('/').next().map(str::to_owned));
        let threads = thread_tools().into_iter().map(|spec| spec.name);
        let knowledge = knowledge_tools().into_iter().map(|spec| spec.name);
        let mut names: BTreeSet<String> = built_in.chain(declared).chain(threads).chain(knowledge).collect();
        names.insert(directive_return::NAME.to_owned());
        Ok(names)
    }
}
