//! Own tools: closures, whose arguments are checked before they are called.
//!
//! `cargo run --example own_tool`. Offline, in a temporary folder.
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use selvedge::{RunEvent, Script, Scripted, Selvedge, Tool, Watched, json};

/// The model first calls with a number as room, gets an error, and calls again.
const SCRIPT: &str = "
turns:
  - {say: One moment., calls: [{tool: lights, arguments: {room: 7, on: true}}]}
  - {calls: [{tool: lights, arguments: {room: kitchen, on: true}}]}
  - {say: 'I did it: {result}.'}
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let lamps: Arc<Mutex<BTreeMap<String, bool>>> = Arc::default();
    let switched = lamps.clone();
    let lights = Tool::function(
        "lights",
        "Switches the lights of a room on or off.",
        json!({
            "type": "object",
            "properties": {"room": {"type": "string"}, "on": {"type": "boolean"}},
            "required": ["room", "on"],
        }),
        move |arguments, _| {
            let room = arguments["room"].as_str().unwrap_or_default().to_owned();
            let is_on = arguments["on"] == true;
            let said = format!("the lights in the {room} are {}", if is_on { "on" } else { "off" });
            switched.lock().unwrap_or_else(PoisonError::into_inner).insert(room, is_on);
            said
        },
    )
    // Switching them on twice does no harm, so after a crash the call is repeated.
    .idempotent();

    let folder = tempfile::tempdir()?;
    let model = Scripted::new(Script::parse(SCRIPT)?);
    let selvedge = Selvedge::builder().project(folder.path()).model("butler", model).tool(lights).open()?;
    let mut events = selvedge.subscribe(Watched::All);
    let outcome = selvedge.run("It is dark in here.").join()?;
    while let Some(event) = events.try_recv() {
        if let RunEvent::Committed { version, reason, .. } = event {
            println!("version {version}: {}", reason.as_str());
        }
    }
    println!("{}", outcome.result.unwrap_or_default());
    println!("lamps: {:?}", lamps.lock().unwrap_or_else(PoisonError::into_inner));
    println!("{} is {}", outcome.thread_id, outcome.status);
    Ok(())
}
