//! The servers of this process: started when they are needed, shared, started again after a while when they die.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use selvedge_model::Cancel;
use selvedge_model::tool::{McpServerSpec, McpToolDefinition, SandboxReached};

use super::connection::{Connection, sandbox_of};
use crate::sandbox::Sandbox;

/// How long a server that died is left alone: this long after the first time, then twice as long each time, at most so long.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A server that lived this long had no trouble starting.
const LIVED: Duration = Duration::from_secs(60);

/// The surroundings of servers: passed in, because nothing here reads them itself.
#[derive(Clone, Debug, Default)]
pub struct McpEnvironment {
    /// The project's folder, in which servers are started.
    pub root: PathBuf,
    /// The environment; servers get the variables that their declarations name, and addresses their tokens.
    pub environment: BTreeMap<String, String>,
    /// What restricts servers that declare a sandbox.
    pub sandbox: Option<Sandbox>,
}

/// What a server offers.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// The version of the protocol.
    pub version: String,
    /// Its tools.
    pub tools: Vec<McpToolDefinition>,
}

/// The servers of a process. They end when the last copy of this is dropped, and with the process.
#[derive(Clone)]
pub struct Servers(Arc<Inner>);

struct Inner {
    around: McpEnvironment,
    /// By the whole declaration, so that a changed one is another server.
    places: Mutex<HashMap<String, Arc<Mutex<Place>>>>,
}

/// The place of one server.
#[derive(Default)]
struct Place {
    running: Option<(Arc<Connection>, Instant)>,
    deaths: u32,
    not_before: Option<Instant>,
    /// Why it did not start, or ended.
    why: String,
}

impl fmt::Debug for Servers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Servers").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Servers {
    /// No server yet.
    pub fn new(around: McpEnvironment) -> Self {
        Self(Arc::new(Inner { around, places: Mutex::default() }))
    }

    /// Starts a server, if it does not run, and asks what it offers now. The caller has the user's approval for that.
    pub fn list(&self, spec: &McpServerSpec, cancel: &Cancel) -> Result<Listed, String> {
        let connection = self.connection(spec, cancel)?;
        Ok(Listed { version: connection.version().to_owned(), tools: connection.list(cancel)? })
    }

    /// How much of a server's sandbox is enforced, if it declares one.
    pub fn sandbox(&self, spec: &McpServerSpec) -> Option<SandboxReached> {
        sandbox_of(spec, &self.0.around)
    }

    /// The running server, started if need be.
    pub(super) fn connection(&self, spec: &McpServerSpec, cancel: &Cancel) -> Result<Arc<Connection>, String> {
        let key = serde_json::to_string(spec).unwrap_or_default();
        let place = lock(&self.0.places).entry(key).or_default().clone();
        let mut place = lock(&place);
        if let Some((connection, _)) = place.running.clone().filter(|(connection, _)| connection.is_alive()) {
            return self.current(&mut place, connection, cancel);
        }
        if let Some((_, since)) = place.running.take() {
            place.died(since.elapsed() >= LIVED, "it died");
        }
        if let Some(left) = place.not_before.and_then(|at| at.checked_duration_since(Instant::now())) {
            let seconds = left.as_secs() + 1;
            return Err(format!("the server `{}` is started again in {seconds} s: {}", spec.name, place.why));
        }
        match Connection::open(spec, &self.0.around, cancel) {
            Ok(connection) => {
                let connection = Arc::new(connection);
                place.running = Some((connection.clone(), Instant::now()));
                Ok(connection)
            }
            Err(why) => {
                place.died(false, &why);
                Err(format!("the server `{}` can't be used: {why}", spec.name))
            }
        }
    }

    /// A server that said that its tools changed is asked for them before the next call.
    fn current(
        &self,
        place: &mut Place,
        connection: Arc<Connection>,
        cancel: &Cancel,
    ) -> Result<Arc<Connection>, String> {
        if !connection.have_tools_changed() {
            return Ok(connection);
        }
        let tools = connection.list(cancel)?;
        let changed = Arc::new(connection.with_tools(tools));
        let since = place.running.as_ref().map_or_else(Instant::now, |(_, since)| *since);
        place.running = Some((changed.clone(), since));
        Ok(changed)
    }
}

impl Place {
    fn died(&mut self, lived: bool, why: &str) {
        self.deaths = if lived { 1 } else { self.deaths + 1 };
        let pause = PAUSE.saturating_mul(1 << (self.deaths - 1).min(10)).min(PAUSE_MAX);
        self.not_before = Some(Instant::now() + pause);
        self.why = why.to_owned();
    }
}
