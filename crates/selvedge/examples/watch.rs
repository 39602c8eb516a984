//! Subscribing to two concurrent threads: one subscriber gets the drafts and the commits of both, in order for each thread, and blocks
//! neither of them.
//!
//! `cargo run --example watch`. Offline, in a temporary folder.
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::collections::BTreeMap;
use std::time::Duration;

use selvedge::{Draft, Input, Job, RunEvent, Script, Scripted, Selvedge, Subscription, ThreadId, Watched};

const POEMS: [(&str, &str); 2] = [
    ("a river", "turns: [{say: [Slow water, {text: ' finds', delay_ms: 20}, {text: ' the sea.', delay_ms: 20}]}]"),
    ("a mountain", "turns: [{say: [Old, {text: ' stone', delay_ms: 20}, {text: ' holds the sky.', delay_ms: 20}]}]"),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let mut builder = Selvedge::builder().project(folder.path());
    for (title, script) in POEMS {
        builder = builder.model(title.replace(' ', "-"), Scripted::new(Script::parse(script)?));
    }
    let selvedge = builder.open()?;

    let mut titles = BTreeMap::new();
    for (title, _) in POEMS {
        let job = Job::say(format!("A poem about {title}, please.")).model(title.replace(' ', "-"));
        titles.insert(selvedge.create(job).join()?, title);
    }
    // From here on. `Watched::Thread` follows one thread through its handoffs.
    let subscription = selvedge.subscribe(Watched::All);
    let runs: Vec<_> = titles.keys().map(|thread| selvedge.resume(thread, Input::nothing())).collect();
    watch(subscription, &titles);
    for run in runs {
        run.join()?;
    }
    Ok(())
}

/// Prints events until every thread's run has ended.
fn watch(mut subscription: Subscription, titles: &BTreeMap<ThreadId, &str>) {
    let mut running = titles.len();
    while running > 0 {
        let Some(event) = subscription.recv(Duration::from_secs(10)) else { return };
        let title = event.thread().and_then(|thread| titles.get(thread)).copied().unwrap_or("?");
        match event {
            RunEvent::Draft { draft: Draft::Text { text }, .. } => println!("[{title}] draft {text:?}"),
            RunEvent::Committed { version, reason, .. } => println!("[{title}] version {version}: {}", reason.as_str()),
            RunEvent::Ended { status, .. } => {
                println!("[{title}] ended: {status}");
                running -= 1;
            }
            // A subscriber that was too slow reads these lines with `Selvedge::follow`.
            RunEvent::Missed { drafts, first_lines, .. } => {
                println!("missed {drafts} drafts, lines from {first_lines:?}")
            }
            _ => {}
        }
    }
}
