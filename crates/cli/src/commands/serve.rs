//! `selvedge serve`: the API and the page of a project.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use selvedge::Selvedge;
use selvedge_server::{Options, Server, Tokens};
use selvedge_store_local::system::{SystemClock, SystemIds};
use serde::Serialize;

use crate::context::{Context, User};
use crate::error::{Failure, Result};
use crate::running::{environment, secrets, wait_for_interrupt};

/// How long runs may take to end after Ctrl-C.
const GRACE: Duration = Duration::from_secs(10);

/// Serve the API and the page of this project
///
/// Prints a link to the page with a code that is good for one browser. Everything that the page does is an HTTP request below `/v1`,
/// with the JSON and the codes of the command line; `selvedge token new` creates a token for another program. Threads that are started
/// over HTTP run in this process. Ctrl-C ends it; a run that has not ended after 10 seconds is cut off, and `selvedge resume`
/// continues it.
///
/// It listens on this machine only. `docs/server.md` describes the API.
///
/// JSON: {"address", "link"}.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to listen; port 0 takes any free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7227")]
    listen: SocketAddr,
    /// A further name under which the server is reached, such as that of a proxy
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Listen beyond this machine without TLS: a proxy in front of the server has it
    #[arg(long)]
    behind_proxy: bool,
    /// Open the page in the browser
    #[arg(long)]
    open: bool,
}

#[derive(Serialize)]
struct Started {
    address: String,
    link: String,
}

pub(crate) fn run(args: Args, context: &Context<'_>) -> Result<()> {
    let project = context.project()?;
    let user = User::find()?;
    let name = project.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let interrupted = wait_for_interrupt();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::io("start threads in", Path::new("this process"), &error))?;
    runtime.block_on(async {
        let variables = environment();
        let mut builder = Selvedge::builder().project(&project).home(&user.folder).environment(variables.clone());
        for secret in secrets(&variables) {
            builder = builder.secret(secret);
        }
        let selvedge = tokio::task::block_in_place(|| builder.open())?;
        for notice in selvedge.take_notices() {
            context.output.say(notice);
        }
        let options = Options {
            address: args.listen,
            hosts: args.host,
            is_behind_proxy: args.behind_proxy,
            tokens: Tokens::of_home(&user.folder),
            name,
        };
        let (clock, ids) = (Arc::new(SystemClock), Arc::new(SystemIds));
        let server = Server::bind(selvedge.clone(), options, clock, ids).await.map_err(|error| Failure::of(&error))?;
        let started = Started { address: server.address().to_string(), link: server.one_time_link() };
        if context.output.is_json() {
            context.output.record(&started)?;
        } else {
            context.output.text(&started.link)?;
            context.output.say("the link is good for one browser; Ctrl-C ends the server");
        }
        if args.open {
            open(&started.link, context);
        }
        server.serve(async { _ = interrupted.await }).await;
        if !selvedge.shut_down(GRACE).await? {
            context.output.say("a run was cut off: `selvedge inbox` shows it, and `selvedge resume` continues it");
        }
        Ok(())
    })
}

/// Opens a page in the user's browser. The link is printed too, so a failure is only a notice.
fn open(link: &str, context: &Context<'_>) {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let started =
        Command::new(program).arg(link).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    if let Err(error) = started {
        context.output.say(format!("the browser could not be opened: `{program}`: {error}"));
    }
}
