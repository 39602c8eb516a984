//! Embedding: a program opens a folder, runs a thread, sends to it, and verifies it.
//!
//! `cargo run --example embed`. Offline, in a temporary folder.
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use selvedge::{Job, Limit, Selvedge};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A real program keeps its folder: it holds the threads and the key that signs them.
    let folder = tempfile::tempdir()?;
    let selvedge = Selvedge::builder()
        .project(folder.path())
        .instructions("Answer in one sentence.")
        .limit(Limit::Turns(10))
        .open()?;

    // A thread of a dead process is suspended now, and can be resumed where its log ends.
    for thread in selvedge.recovered() {
        println!("{thread} was left running");
    }

    // The key makes it one thread, however often this program is started.
    let outcome = selvedge.run(Job::say("What is a selvedge?").key("question-1")).join()?;
    println!("{}: {}", outcome.status, outcome.result.unwrap_or_default());
    let again = selvedge.run(Job::say("What is a selvedge?").key("question-1")).join()?;
    println!("asked again it is the same thread: {}", again.thread_id == outcome.thread_id);

    let thread = outcome.thread_id;
    let outcome = selvedge.send(&thread, "And a thread?").join()?;
    println!("{}: {}", outcome.status, outcome.result.unwrap_or_default());

    let proof = selvedge.verify(&thread).join()?;
    println!("{thread}: {}, {} lines", proof.finding, proof.lines);
    Ok(())
}
