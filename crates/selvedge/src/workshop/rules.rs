//! Rules about calls that name a tool nobody has: they say nothing, and whoever wrote one believes that it does.

use std::collections::BTreeSet;

use selvedge_items::config::Rule;
use selvedge_items::library::Kind;
use selvedge_items::nearest::nearest;
use selvedge_tools::directive_return;

use super::{OrderError, Workshop};
use crate::orchestrator::thread_tools;

/// Whose rules are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The project's. Its tools are known, so a name that none of them has is a mistake.
    Project,
    /// All. A user may well have a rule for a tool of another project.
    All,
}

impl Workshop {
    /// What to tell somebody of rules about calls whose tool is not there.
    pub fn rules_for_nothing(&self, whose: Whose) -> Result<Vec<String>, OrderError> {
        let known = self.tool_names()?;
        let approvals = &self.config.approvals;
        let user = approvals.user.rules.iter().filter(|_| whose == Whose::All);
        let rules = user.chain(&approvals.project.rules);
        let mut told = BTreeSet::new();
        for rule in rules {
            let unknown = rule.tool.as_deref().filter(|tool| !known.contains(*tool));
            told.extend(unknown.map(|tool| self.for_nothing(rule, tool, &known)));
        }
        Ok(told.into_iter().collect())
    }

    fn for_nothing(&self, rule: &Rule, tool: &str, known: &BTreeSet<String>) -> String {
        let key = format!("approvals.rules.{}.tool", rule.id);
        let said = self.config.explain(&key).ok().and_then(|explained| explained.values.into_iter().next_back());
        let place = said.map(|said| format!("{}, line {}: ", said.origin.file, said.origin.line)).unwrap_or_default();
        let advice = match nearest(tool, known.iter().map(String::as_str)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "`selvedge tool list` shows those that are".to_owned(),
        };
        format!("{place}`approvals.rules.{}` fits no call: there is no tool `{tool}` here; {advice}", rule.id)
    }

    /// What tools are called here, those that can't be used included.
    fn tool_names(&self) -> Result<BTreeSet<String>, OrderError> {
        let built_in = self.built_in_tools()?.into_iter().map(|tool| tool.spec().name.clone());
        let declared = self.library.list(Kind::Tool)?.into_iter();
        let declared = declared.filter_map(|entry| entry.id.rsplit('/').next().map(str::to_owned));
        let threads = thread_tools().into_iter().map(|spec| spec.name);
        let mut names: BTreeSet<String> = built_in.chain(declared).chain(threads).collect();
        names.insert(directive_return::NAME.to_owned());
        Ok(names)
    }
}
