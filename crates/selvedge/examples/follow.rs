//! Following a thread of another process: a program that only reads sees every committed line once, whichever process writes it.
//!
//! `cargo run --example follow`. Offline, in a temporary folder.
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::time::Duration;

use selvedge::{Event, Input, Result, Selvedge, Status, ThreadId};

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let writer = Selvedge::open(folder.path())?;
    let thread = writer.create("hello").join()?;
    // The follower opens the project by itself, as another process would.
    let reader = Selvedge::builder().project(folder.path()).read_only().open()?;
    let followed = thread.clone();
    let follower = std::thread::spawn(move || follow(&reader, &followed));
    writer.resume(&thread, Input::nothing()).join()?;
    follower.join().map_err(|_| "the follower panicked")??;
    Ok(())
}

/// Prints the committed lines of a thread until its run has ended.
fn follow(selvedge: &Selvedge, thread: &ThreadId) -> Result<()> {
    let mut follow = selvedge.follow(thread, 0);
    loop {
        match follow.recv(Duration::from_millis(200))? {
            Some(line) => {
                if let Event::Message(message) = line.event {
                    println!("{}: {}", format!("{:?}", message.role).to_lowercase(), message.plain_text());
                }
            }
            None => {
                let status = selvedge.status(thread).join()?.status;
                if status != Status::Created && status != Status::Running {
                    println!("{thread} is {status}");
                    return Ok(());
                }
            }
        }
    }
}
