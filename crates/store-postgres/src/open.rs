//! Opening a store: migrations, the version of the schema, the key.

use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use selvedge_log::{Signer, Trust};
use selvedge_model::{Clock, Ids, OwnerId};
use selvedge_store::lease::LeaseQueue;
use selvedge_store::queue::Queues;
use selvedge_store::{Error, Result};

use crate::address::{Address, shown};
use crate::core::{Core, Memory, Signing};
use crate::error::{Failure, unusable};
use crate::pool::{Connection, Pool};
use crate::pulse::Pulse;
use crate::watch::Watch;

/// The migrations, in order. One that was released is never changed.
const MIGRATIONS: [&str; 1] = [include_str!("migrations/0001_initial.sql")];
/// How long the leases of a worker stand without a sign of life.
pub const LEASE: Duration = Duration::from_secs(30);

/// How a store is opened.
pub struct Options {
    /// The address: `postgres://USER@HOST/DATABASE`.
    pub address: String,
    /// The password, if the address has none.
    pub password: Option<String>,
    /// The key; without one, the store is only read.
    pub signer: Option<Signer>,
    /// The trusted keys.
    pub trust: Trust,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The source of ids.
    pub ids: Arc<dyn Ids>,
    /// How long leases stand without a renewal: [`LEASE`], shorter in tests.
    pub lease: Duration,
    /// This machine's name, for people.
    pub host: String,
}

/// Threads on PostgreSQL.
pub struct PostgresStore {
    pub(crate) core: Arc<Core>,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("PostgresStore").field("address", &self.core.shown).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Creates the store of an address, or brings an older schema up to date. Many processes may do it at once; one of them does.
    pub fn init(address: &str, password: Option<&str>, ids: &dyn Ids) -> Result<bool> {
        let pool = Pool::new(Address::parse(address, password)?)?;
        let mut connection = pool.get().map_err(|failure| unreachable(failure, address))?;
        let schema = pool.address().schema.clone();
        let name = format!("selvedge {schema} migrations");
        connection.execute("SELECT pg_advisory_lock(hashtextextended($1, 0))", &[&name])?;
        let migrated = migrate(&mut connection, &schema, &ids.hex32(), address);
        connection.execute("SELECT pg_advisory_unlock(hashtextextended($1, 0))", &[&name])?;
        migrated
    }

    /// Opens a store that exists.
    pub fn open(options: Options) -> Result<Self> {
        let Options { address, password, signer, trust, clock, ids, lease, host } = options;
        let pool = Arc::new(Pool::new(Address::parse(&address, password.as_deref())?)?);
        let mut connection = pool.get().map_err(|failure| unreachable(failure, &address))?;
        let schema = pool.address().schema.clone();
        match version(&mut connection, &schema)? {
            None => return Err(Error::NoStore { path: shown(&address) }),
            Some(found) if found < MIGRATIONS.len() => {
                let found = i64::try_from(found).unwrap_or(i64::MAX);
                return Err(Error::Outdated { found, current: MIGRATIONS.len() as i64 });
            }
            Some(found) => refuse_newer(found)?,
        }
        let row = connection.first("SELECT store_id FROM meta", &[])?;
        let store_id: String = row.map(|row| row.get(0)).ok_or_else(|| Error::NoStore { path: shown(&address) })?;
        let problems = Problems::default();
        if signer.is_some() {
            raise_feed(&mut connection)?;
            let settings =
                connection.first("SELECT current_setting('fsync'), current_setting('full_page_writes')", &[])?;
            let is_off = |row: &tokio_postgres::Row, at: usize| row.get::<_, String>(at) == "off";
            if settings.is_some_and(|row| is_off(&row, 0) || is_off(&row, 1)) {
                problems.add(
                    "the server runs with `fsync` or `full_page_writes` off: a power cut can lose what it acknowledged"
                        .to_owned(),
                );
            }
        }
        drop(connection);
        let owner = owner_of(&host, &ids.hex32())?;
        let signing =
            signer.map(|signer| Signing { rows: signer.seals().for_store(&store_id), seal: signer.seal_key(), signer });
        let core = Core {
            pulse: Pulse::new(pool.clone(), owner.clone(), lease),
            pool,
            signing,
            trust,
            clock,
            ids,
            owner,
            store_id,
            shown: shown(&address),
            host,
            queues: Arc::<Queues>::default(),
            lease_queue: LeaseQueue::default(),
            watch: Arc::<Watch>::default(),
            memory: Mutex::new(Memory::default()),
            problems,
            waited_at: AtomicI64::new(-1),
            is_closed: AtomicBool::new(false),
        };
        Ok(Self { core: Arc::new(core) })
    }

    /// What this handle finds amiss; it outlives the handle.
    pub fn problems(&self) -> Problems {
        self.core.problems.clone()
    }
}

/// What a store finds amiss.
#[derive(Clone, Debug, Default)]
pub struct Problems(Arc<Mutex<Vec<String>>>);

impl Problems {
    /// What was found since the last call, a sentence each.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn add(&self, problem: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
    }
}

/// The name of this worker: its machine and process for people, and what makes it unique.
fn owner_of(host: &str, hex32: &str) -> Result<OwnerId> {
    let plain = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
    let host: String = host.to_ascii_lowercase().chars().map(plain).take(60).collect();
    OwnerId::new(format!("worker-{host}-{}-{hex32}", std::process::id())).map_err(crate::error::bad_row)
}

/// The version of the schema; none if there is no store.
fn version(connection: &mut Connection, schema: &str) -> Result<Option<usize>> {
    let there = connection.first("SELECT to_regclass($1)::text", &[&format!("{schema}.migrations")])?;
    if there.and_then(|row| row.get::<_, Option<String>>(0)).is_none() {
        return Ok(None);
    }
    let row = connection.first("SELECT COALESCE(max(version), 0)::bigint FROM migrations", &[])?;
    Ok(row.map(|row| usize::try_from(row.get::<_, i64>(0)).unwrap_or(0)))
}

fn refuse_newer(found: usize) -> Result<()> {
    if found <= MIGRATIONS.len() {
        return Ok(());
    }
    let why = format!("its schema has version {found}, and this program knows versions up to {}", MIGRATIONS.len());
    Err(unusable(why, Some("use a newer `selvedge`")))
}

/// Each migration is one transaction together with its row in the table of versions.
fn migrate(connection: &mut Connection, schema: &str, store_id: &str, address: &str) -> Result<bool> {
    let before = version(connection, schema)?;
    refuse_newer(before.unwrap_or(0))?;
    if before.is_none() {
        let there = connection.first("SELECT 1 FROM pg_namespace WHERE nspname = $1", &[&schema])?;
        let create = if there.is_none() { format!("CREATE SCHEMA {schema};") } else { String::new() };
        connection
            .batch(&format!(
                "BEGIN; {create} CREATE TABLE {schema}.migrations \
             (version bigint PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now()); COMMIT;"
            ))
            .map_err(|failure| unreachable(failure, address))?;
    }
    for (number, sql) in MIGRATIONS.iter().enumerate().skip(before.unwrap_or(0)) {
        let version = number + 1;
        let whole = format!("BEGIN; {sql}; INSERT INTO migrations (version) VALUES ({version}); COMMIT;");
        if let Err(failure) = connection.batch(&whole) {
            _ = connection.batch("ROLLBACK");
            return Err(failure.into());
        }
    }
    let sql = "INSERT INTO meta (store_id) VALUES ($1) ON CONFLICT DO NOTHING";
    Ok(connection.execute(sql, &[&store_id])? == 1)
}

/// Raises the positions of this server above those in the database: after a dump was restored, transaction ids may be lower than before.
fn raise_feed(connection: &mut Connection) -> Result<()> {
    let sql = "UPDATE meta SET feed_base = feed_base + missing FROM (SELECT greatest((SELECT max(position) FROM feed), \
               (SELECT max(arrival) FROM inboxes)) - horizon() + 4096 AS missing) AS m WHERE missing > 0 \
               AND (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint << 12) + feed_base \
               < greatest((SELECT max(position) FROM feed), (SELECT max(arrival) FROM inboxes))";
    Ok(connection.execute(sql, &[]).map(drop)?)
}

/// A server that can't be reached is named, without the password.
fn unreachable(failure: Failure, address: &str) -> Error {
    match failure {
        Failure::Lost(why) => Error::Unusable {
            what: format!("the PostgreSQL server of `{}`", shown(address)),
            why,
            hint: Some("check that it runs and that this machine may connect to it".to_owned()),
        },
        refused => refused.into(),
    }
}

/// What a server says of its standbys.
#[derive(Clone, Debug, Default)]
pub struct Replication {
    /// What a commit waits for, as `synchronous_standby_names` has it; empty if it waits for none.
    pub waits_for: String,
    /// Each standby's name, how it is connected, and how many bytes it is behind. Seen by a role with `pg_monitor` only.
    pub standbys: Vec<(String, String, i64)>,
}

/// Asks a server for its standbys.
pub fn replication(address: &str, password: Option<&str>) -> Result<Replication> {
    let pool = Pool::new(Address::parse(address, password)?)?;
    let mut connection = pool.get().map_err(|failure| unreachable(failure, address))?;
    let names = connection.first("SELECT current_setting('synchronous_standby_names')", &[])?;
    let sql = "SELECT application_name, COALESCE(sync_state, ''), \
               COALESCE(pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn), 0)::bigint FROM pg_stat_replication ORDER BY 1";
    // On a standby there is no current position.
    let found = connection.query(sql, &[]).unwrap_or_default();
    let standbys = found.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    Ok(Replication { waits_for: names.map(|row| row.get(0)).unwrap_or_default(), standbys })
}
