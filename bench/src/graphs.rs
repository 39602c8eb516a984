//! Graphs: durable steps a second of a graph that only has gates, and whether a late step costs more than an early one.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use selvedge_engine::graph::GraphRules;
use selvedge_engine::{Engine, Input, RunConfig, RunEvent};
use selvedge_items::Graph;
use selvedge_model::event::{GraphBirth, ThreadKind};
use selvedge_model::{Cancel, DirectiveId, NewThread, Price, Reason};
use selvedge_providers::{Script, Scripted};
use selvedge_store_local::Access;

use crate::home::{Home, Writer};
use crate::measure::{Spread, lap, timed};
use crate::report::{Goal, Report, Unit};
use crate::turns::agent::assigned;
use crate::turns::engine;
use crate::{Outcome, Plan};

/// The number of nodes.
const NODES: usize = 1_000;
/// How many steps early and late ones are.
const AROUND: usize = 50;
/// The bytes of text of the commits that steps are compared with: about as many as the two lines of a step have.
const TEXT_BYTES: usize = 300;

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let home = Home::make(&folder.join("store"))?;
    let store = Arc::new(home.open(Access::ReadWrite)?);
    let engine = engine(&home, store.clone())?;
    let work = work()?;
    run(&engine, &work)?;
    let mut rounds = Vec::new();
    for round in 0..plan.rounds {
        let steps = run(&engine, &work)?;
        let mut writer = Writer::create(&store, &format!("scribe-{round:012x}"), true)?;
        let commits = lap(NODES, || {
            let batch = writer.message_of(TEXT_BYTES)?;
            timed(|| writer.commit(batch))
        })?;
        rounds.push((steps, commits));
    }
    let second = |steps: &[f64]| 1e6 * steps.len() as f64 / steps.iter().sum::<f64>();
    let rate = Spread::over(&rounds, |(steps, _)| second(steps));
    report.figure("graph_steps_per_second", "durable steps of a gate-only graph", Unit::PerSecond, &rate, Goal::None);
    let ratio = Spread::over(&rounds, |(steps, commits)| second(steps) / second(&commits.each));
    let what = "  ÷ single-thread commits of as many bytes";
    report.figure("graph_steps_ratio", what, Unit::Times, &ratio, Goal::AtLeast(0.8));
    let median = |steps: &[f64]| Spread::of(steps).median;
    let late = Spread::over(&rounds, |(steps, _)| median(&steps[NODES - AROUND..]) / median(&steps[5..5 + AROUND]));
    report.figure(
        "graph_late_step_ratio",
        "  a step around 1,000 ÷ one around 10",
        Unit::Times,
        &late,
        Goal::AtMost(1.1),
    );
    report.method(
        "graphs",
        format!(
            "a graph of {NODES} gates that each assign a number to the state, through the engine with its own store; the time between the \
             commits of two steps; after each run as many commits of {TEXT_BYTES} bytes of text on one held thread of the same store; medians \
             of {AROUND} steps for early and late"
        ),
    );
    Ok(())
}

/// The run configuration of the graph.
fn work() -> Outcome<RunConfig> {
    let mut text = format!("max_steps: {0}\nsegment_steps: {0}\nstart: n1\nstate: {{ at: 0 }}\nnodes:\n", NODES + 1);
    for node in 1..NODES {
        writeln!(text, "  n{node}: {{ type: gate, assign: {{ at: {node} }}, next: n{} }}", node + 1)?;
    }
    writeln!(text, "  n{NODES}: {{ type: return, output: \"${{state.at}}\" }}")?;
    let graph = Graph::parse(&text).map_err(|flaw| flaw.to_string())?;
    let digest = graph.digest.ok_or("a graph without a digest")?;
    let mut work = assigned(Arc::new(Scripted::new(Script::parse("turns: [{ say: done }]")?)))?;
    work.price = Some(Price::default());
    work.graph = Some(Arc::new(GraphRules::new("gates", graph, digest, Default::default())));
    Ok(work)
}

/// Runs the graph; returns how long each step took, in microseconds.
fn run(engine: &Engine, work: &RunConfig) -> Outcome<Vec<f64>> {
    let graph = work.graph.as_ref().ok_or("no graph")?;
    let birth = GraphBirth { id: DirectiveId::new("gates")?, definition: graph.digest, position: None, single: false };
    let thread = NewThread { kind: ThreadKind::Graph, graph: Some(birth), ..NewThread::of(work.agent_id.clone()) };
    let thread = engine.create(thread, Input::nothing())?;
    let mut at = Vec::with_capacity(NODES + 2);
    let ended = engine.resume(&thread, Input::nothing(), work, &Cancel::new(), &mut |event| {
        if matches!(event, RunEvent::Committed { reason: Reason::StepCommitted, .. }) {
            at.push(Instant::now());
        }
    })?;
    if !ended.is_completed() || at.len() != NODES + 1 {
        return Err(format!("the graph of the bench ended as {:?} after {} commits", ended.status, at.len()).into());
    }
    Ok(at.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e6).collect())
}
