//! Connections. The store's contracts block, so callers do; the sockets are served by one thread with a small runtime of its own.
//!
//! - A caller borrows a connection for as long as it needs one, at most [`CONNECTIONS_MAX`] at a time; the others wait.
//! - The futures of tokio-postgres only exchange messages with that thread, so they are polled by the calling thread itself.
//! - A connection that ended is dropped. A caller that only reads asks once more on a fresh one.
//! - Warnings are counted: the server warns when a commit is not known to be replicated, and answers as if it were.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use selvedge_model::blocking::wait;
use selvedge_store::{Error, Result};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Row, Statement};

use crate::address::Address;
use crate::error::{Failure, causes};
use crate::tls::Tls;

/// The most connections of one handle. The server writes the commits of all of them with one sync.
const CONNECTIONS_MAX: usize = 32;

/// The values of a statement.
pub(crate) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Called for each notification.
pub(crate) type Hear = Arc<dyn Fn(&str) + Send + Sync>;

/// The connections of one handle.
pub(crate) struct Pool {
    address: Address,
    tls: Tls,
    /// Dropped in the background: nothing of the store waits for it.
    runtime: Option<Runtime>,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    idle: Vec<Connection>,
    open: usize,
}

/// One connection.
pub(crate) struct Connection {
    client: Client,
    statements: HashMap<String, Statement>,
    warnings: Arc<AtomicU64>,
    /// The server's process for it, and when that was started.
    pub(crate) backend: (i32, String),
}

impl Pool {
    pub(crate) fn new(address: Address) -> Result<Self> {
        let tls = Tls::new(&address)?;
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("selvedge-postgres").enable_all().build();
        let runtime = runtime.map_err(|error| Error::Database { why: error.to_string(), retryable: false })?;
        let state = Mutex::default();
        Ok(Self { address, tls, runtime: Some(runtime), state, freed: Condvar::new() })
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Borrows a connection.
    pub(crate) fn get(&self) -> Result<Borrowed<'_>, Failure> {
        let mut state = self.state();
        loop {
            while let Some(idle) = state.idle.pop() {
                if !idle.client.is_closed() {
                    return Ok(Borrowed { pool: self, connection: Some(idle) });
                }
                state.open -= 1;
            }
            if state.open < CONNECTIONS_MAX {
                break;
            }
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.open += 1;
        drop(state);
        match self.connect(None) {
            Ok(connection) => Ok(Borrowed { pool: self, connection: Some(connection) }),
            Err(failure) => {
                self.state().open -= 1;
                self.freed.notify_one();
                Err(failure)
            }
        }
    }

    /// Opens a connection that does not count among the borrowed ones.
    pub(crate) fn connect(&self, hear: Option<Hear>) -> Result<Connection, Failure> {
        let (config, tls) = (self.address.config.clone(), self.tls.clone());
        let warnings = Arc::new(AtomicU64::new(0));
        let counted = warnings.clone();
        let (send, receive) = std::sync::mpsc::channel();
        let connecting = async move {
            let (client, mut connection) = match config.connect(tls).await {
                Ok(connected) => connected,
                Err(error) => return drop(send.send(Err(error))),
            };
            if send.send(Ok(client)).is_err() {
                return;
            }
            while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
                match (message, &hear) {
                    (AsyncMessage::Notice(notice), _) if notice.severity() == "WARNING" => {
                        counted.fetch_add(1, Ordering::SeqCst);
                    }
                    (AsyncMessage::Notification(heard), Some(hear)) => hear(heard.payload()),
                    _ => {}
                }
            }
            // The connection ended: who listens looks again.
            hear.inspect(|hear| hear(""));
        };
        let Some(runtime) = &self.runtime else { return Err(Failure::Lost("the store is closed".to_owned())) };
        runtime.spawn(connecting);
        let client = receive.recv().map_err(|error| Failure::Lost(error.to_string()))?.map_err(unreachable)?;
        let mut connection = Connection { client, statements: HashMap::new(), warnings, backend: (0, String::new()) };
        connection.prepare_session(&self.address.schema)?;
        Ok(connection)
    }

    /// Reads, once more on a fresh connection if one was lost.
    pub(crate) fn read<T>(&self, mut work: impl FnMut(&mut Connection) -> Result<T, Problem>) -> Result<T> {
        let first = self.get().map_err(Problem::from).and_then(|mut connection| work(&mut connection));
        match first {
            Err(Problem::Server(Failure::Lost(_))) => {
                let mut connection = self.get()?;
                Ok(work(&mut connection)?)
            }
            other => Ok(other?),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Also in a thread of an async runtime, where waiting for it would panic.
        self.runtime.take().map(Runtime::shutdown_background).unwrap_or_default();
    }
}

/// What reading may fail with.
pub(crate) enum Problem {
    Server(Failure),
    Store(Error),
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        Self::Server(failure)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        match problem {
            Problem::Server(failure) => failure.into(),
            Problem::Store(error) => error,
        }
    }
}

/// A failure to connect: what the server refuses stays that, everything else is that it can't be reached.
fn unreachable(error: tokio_postgres::Error) -> Failure {
    match error.as_db_error() {
        Some(_) => error.into(),
        None => Failure::Lost(causes(&error)),
    }
}

impl Connection {
    /// Sets what every statement relies on. A role or database may have turned off that a commit waits for the disk.
    fn prepare_session(&mut self, schema: &str) -> Result<(), Failure> {
        let sql = format!(
            "SET search_path = {schema}; SET client_min_messages = warning; SET lock_timeout = 0; SET statement_timeout = 0; \
             SET default_transaction_isolation = 'read committed'; SET TIME ZONE 'UTC'; \
             SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') IN ('off', 'local');"
        );
        wait(self.client.batch_execute(&sql))?;
        let sql = "SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()";
        let found = wait(self.client.query_opt(sql, &[]))?;
        if let Some(found) = found {
            self.backend = (found.get(0), found.get::<_, Option<String>>(1).unwrap_or_default());
        }
        Ok(())
    }

    fn statement(&mut self, sql: &str) -> Result<Statement, Failure> {
        if let Some(known) = self.statements.get(sql) {
            return Ok(known.clone());
        }
        let statement = wait(self.client.prepare(sql))?;
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    pub(crate) fn query(&mut self, sql: &str, values: Values<'_>) -> Result<Vec<Row>, Failure> {
        let statement = self.statement(sql)?;
        Ok(wait(self.client.query(&statement, values))?)
    }

    pub(crate) fn first(&mut self, sql: &str, values: Values<'_>) -> Result<Option<Row>, Failure> {
        Ok(self.query(sql, values)?.into_iter().next())
    }

    pub(crate) fn execute(&mut self, sql: &str, values: Values<'_>) -> Result<u64, Failure> {
        let statement = self.statement(sql)?;
        Ok(wait(self.client.execute(&statement, values))?)
    }

    /// Several statements without values, in one transaction if they say so.
    pub(crate) fn batch(&mut self, sql: &str) -> Result<(), Failure> {
        Ok(wait(self.client.batch_execute(sql))?)
    }

    /// How many warnings came so far.
    pub(crate) fn warnings(&self) -> u64 {
        self.warnings.load(Ordering::SeqCst)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }
}

/// A borrowed connection, given back when it is dropped.
pub(crate) struct Borrowed<'a> {
    pool: &'a Pool,
    connection: Option<Connection>,
}

impl Deref for Borrowed<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().unwrap_or_else(|| unreachable!("it is there until it is dropped"))
    }
}

impl DerefMut for Borrowed<'_> {
    fn deref_mut(&mut self) -> &mut Connection {
        self.connection.as_mut().unwrap_or_else(|| unreachable!("it is there until it is dropped"))
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        match self.connection.take().filter(|connection| !connection.is_closed()) {
            Some(connection) => state.idle.push(connection),
            None => state.open -= 1,
        }
        drop(state);
        self.pool.freed.notify_one();
    }
}
