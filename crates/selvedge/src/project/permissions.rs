//! Permissions that match no tool: the author of a directive believes that they permit something.

use selvedge_items::capability::{Capability, Permissions};
use selvedge_items::directive::Directive;
use selvedge_items::library::Kind;
use selvedge_items::nearest::nearest;
use selvedge_model::{DirectiveId, ToolSpec};
use selvedge_tools::directive_return;

use super::{Project, ProjectError};
use crate::orchestrator::thread_tools;

/// What every token of a tool begins with.
const EXECUTE: &str = "selvedge.execute.";

impl Project {
    /// Warnings about a directive that only the whole project shows: permissions that match no tool, and a continuation directive that
    /// can't be used.
    pub fn directive_warnings(&self, directive: &Directive) -> Result<Vec<String>, ProjectError> {
        let tools = self.tools()?.ready;
        let mut warnings = self.unmatched_permissions(directive, tools.iter().map(|tool| tool.spec()))?;
        warnings.extend(self.continuation_warning(directive));
        warnings.extend(self.hook_warnings(&self.hooks(Some(directive))?)?);
        Ok(warnings)
    }

    /// Warnings about permissions that match none of these tools, the thread tools, and those that the project declares.
    pub(super) fn unmatched_permissions<'a>(
        &self,
        directive: &Directive,
        tools: impl Iterator<Item = &'a ToolSpec>,
    ) -> Result<Vec<String>, ProjectError> {
        let Some(Permissions { allow, .. }) = &directive.permissions else { return Ok(Vec::new()) };
        // A declared tool that can't be used has a warning of its own.
        let declared =
            self.library.list(Kind::Tool)?.into_iter().map(|entry| format!("tool.{}", entry.id.replace('/', ".")));
        let threads = thread_tools().into_iter().map(|spec| spec.capability);
        let known = tools.map(|spec| spec.capability.clone()).chain(threads).chain(declared);
        let known: Vec<Capability> = known.filter_map(|token| token.parse().ok()).collect();
        let is_return = |token: &Capability| token.to_string().ends_with(directive_return::NAME);
        let knowledge = ["fetch", "sign"].map(|verb| format!("selvedge.{verb}.knowledge.*").parse::<Capability>());
        let is_knowledge = |token: &Capability| knowledge.iter().flatten().any(|all| token.meet(all).is_some());
        let allow = allow.iter().filter(|token| !is_knowledge(token));
        let unmatched = allow.filter(|token| !known.iter().any(|needed| token.contains(needed)));
        Ok(unmatched.filter(|token| !is_return(token)).map(|token| warning(token, &known)).collect())
    }

    fn continuation_warning(&self, directive: &Directive) -> Option<String> {
        let id = directive.continuation_directive.as_ref()?;
        let error = DirectiveId::new(id.as_str()).ok().map(|id| self.library.directive(&id))?.err()?;
        Some(format!("its continuation directive `{id}` can't be used, so a successor gets a plain message: {error}"))
    }
}

fn warning(token: &Capability, known: &[Capability]) -> String {
    let short = |token: &Capability| token.to_string().trim_start_matches(EXECUTE).to_owned();
    let names: Vec<String> = known.iter().map(short).collect();
    let token = short(token);
    let advice = match nearest(&token, names.iter().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`selvedge tool list` shows the tools and their capabilities".to_owned(),
    };
    format!("the permission `{token}` matches no tool; {advice}")
}
