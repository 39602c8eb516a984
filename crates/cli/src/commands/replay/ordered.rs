//! What the directive of today would give a thread that were ordered now, with the inputs and the agent that it had.
//!
//! A thread keeps what it was born with, so none of this counts by itself: it is laid beside the record, or taken instead of it if
//! that is asked for. A child has no more than its parent, today as then.

use selvedge::items::capability::{Capabilities, Capability};
use selvedge::model::limits::Limits;
use selvedge::model::{Event, Manifest};
use selvedge::replay::Recording;
use selvedge::workshop::{DEFAULT_AGENT, Order, OrderError, Wishes, Workshop};
use selvedge_store::Backend;

use crate::error::{Failure, Result};

/// The directive of a thread, ordered today; nothing if it has none.
pub(super) fn today(
    store: &dyn Backend,
    workshop: &Workshop,
    born: &Manifest,
) -> Option<std::result::Result<Order, OrderError>> {
    let wishes = Wishes {
        inputs: born.inputs.clone(),
        agent: Some(born.agent_id.clone()).filter(|agent| agent.as_str() != DEFAULT_AGENT),
        // Which model it is says nothing of the words.
        model: Some("scripted".to_owned()),
        task: born.task_id.clone(),
        ..Wishes::default()
    };
    let mut order = match workshop.order(born.directive.as_ref()?, wishes) {
        Ok(order) => order,
        Err(error) => return Some(Err(error)),
    };
    if let Some(parent) = born.parent_id.as_ref().and_then(|parent| store.get(parent).ok()) {
        narrow(&mut order, &parent.manifest, born);
    }
    Some(Ok(order))
}

/// Gives a child no more than its parent has. How much it may spend was its call's to say, or a share of what was left then.
fn narrow(order: &mut Order, parent: &Manifest, born: &Manifest) {
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

/// Lets the thread be born with what the directive of today would give it.
pub(super) fn instead(
    today: Option<std::result::Result<Order, OrderError>>,
    born: &mut Manifest,
    recording: &mut Recording,
) -> Result<()> {
    let Some(order) = today else {
        return Err(Failure::usage(format!("`{}` has no directive that could be ordered now", born.thread_id)));
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
