//! What today's directive would give a new thread with the recorded inputs and agent.
//!
//! A thread keeps what it was created with, so this is only compared with the record, or used instead of it with
//! `--current-directive`. A child has no more than its parent, today as then.

use selvedge::items::capability::{Capabilities, Capability};
use selvedge::model::limits::Limits;
use selvedge::model::{Event, Manifest};
use selvedge::project::{DEFAULT_AGENT, PreparedRun, Project, ProjectError, RunOptions};
use selvedge::replay::Recording;
use selvedge_store::Backend;

use crate::error::{Failure, Result};

/// The job that the thread's directive makes today; `None` without a directive.
pub(super) fn today(
    store: &dyn Backend,
    project: &Project,
    born: &Manifest,
) -> Option<std::result::Result<PreparedRun, ProjectError>> {
    let options = RunOptions {
        inputs: born.inputs.clone(),
        agent: Some(born.agent_id.clone()).filter(|agent| agent.as_str() != DEFAULT_AGENT),
        // The model does not affect the text.
        model: Some("scripted".to_owned()),
        task: born.task_id.clone(),
        ..RunOptions::default()
    };
    let mut order = match project.prepare(born.directive.as_ref()?, options) {
        Ok(order) => order,
        Err(error) => return Some(Err(error)),
    };
    if let Some(parent) = born.parent_id.as_ref().and_then(|parent| store.get(parent).ok()) {
        narrow(&mut order, &parent.manifest, born);
    }
    Some(Ok(order))
}

/// Gives a child no more than its parent has. Its spend limit came from its call, or was a share of what was left then.
fn narrow(order: &mut PreparedRun, parent: &Manifest, born: &Manifest) {
    let parse =
        |tokens: &[String]| Capabilities::new(tokens.iter().filter_map(|token| token.parse::<Capability>().ok()));
    if let (Some(own), Some(most)) = (&order.thread.capabilities, &parent.capabilities) {
        order.thread.capabilities = Some(parse(own).meet(&parse(most)).to_strings());
    }
    order.thread.acknowledged.retain(|risk| parent.acknowledged.iter().any(|known| known >= risk));
    let limits = order.thread.limits.take().unwrap_or_default();
    let limits = limits.under(&parent.limits.clone().unwrap_or_default()).unwrap_or(limits);
    let spend = born.limits.as_ref().and_then(|limits| limits.spend);
    order.thread.limits = Some(Limits { spend, ..limits });
}

/// Creates the thread with what today's directive would give it.
pub(super) fn instead(
    today: Option<std::result::Result<PreparedRun, ProjectError>>,
    born: &mut Manifest,
    recording: &mut Recording,
) -> Result<()> {
    let Some(order) = today else {
        return Err(Failure::usage(format!("`{}` has no directive", born.thread_id)));
    };
    let thread = order?.thread;
    if let Some(Event::ThreadCreated(created)) = recording.steps.first_mut().and_then(|step| step.events.first_mut()) {
        created.thread.capabilities.clone_from(&thread.capabilities);
        created.thread.acknowledged.clone_from(&thread.acknowledged);
        created.thread.limits.clone_from(&thread.limits);
    }
    (born.capabilities, born.acknowledged, born.limits) = (thread.capabilities, thread.acknowledged, thread.limits);
    Ok(())
}
