//! The server is stopped as in a crash, or its processes are ended, while writers commit: nothing acknowledged is lost, and nothing is
//! there twice.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use selvedge_model::{Batch, Classify, ThreadId};
use selvedge_store::Commit;
use selvedge_store::conformance::support::{create, id, part, says, verified};
use selvedge_store_postgres::PostgresStore;
use selvedge_store_postgres::test_server::{self, Server, schema};

use crate::support::Home;

const WRITERS: usize = 8;

/// Commits one message after the other until told to stop; returns the version that each was acknowledged with.
fn write(store: &PostgresStore, thread: &ThreadId, writer: usize, is_over: &AtomicBool) -> BTreeMap<String, u64> {
    let mut acknowledged = BTreeMap::new();
    for number in 0.. {
        if is_over.load(Ordering::SeqCst) {
            break;
        }
        let name = format!("{writer}-{number}");
        let batch = Batch::of(part(thread, says(&name))).with_key(id(&name));
        loop {
            match store.commit(batch.clone()) {
                Ok(committed) => {
                    acknowledged.insert(name, committed.version_of(thread).unwrap());
                    break;
                }
                // Asked again under the same key, it is answered, or committed now.
                Err(error) if error.retryable() => thread::sleep(Duration::from_millis(20)),
                Err(error) => panic!("{error}"),
            }
        }
    }
    acknowledged
}

/// Writers commit to threads of their own, and all to one, while `disturb` works.
fn disturbed(home: &Home, disturb: impl FnOnce()) {
    let first = home.open();
    let shared = create(&first, "shared");
    let threads: Vec<_> = (0..WRITERS).map(|writer| create(&first, &format!("own-{writer}"))).collect();
    let is_over = AtomicBool::new(false);
    let acknowledged: Vec<(ThreadId, BTreeMap<String, u64>)> = thread::scope(|scope| {
        let writers: Vec<_> = threads
            .iter()
            .enumerate()
            .map(|(writer, own)| {
                let thread = if writer % 4 == 0 { &shared } else { own };
                let is_over = &is_over;
                let store = home.open();
                scope.spawn(move || (thread.clone(), write(&store, thread, writer, is_over)))
            })
            .collect();
        disturb();
        is_over.store(true, Ordering::SeqCst);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let store = home.open();
    let mut by_thread: BTreeMap<ThreadId, BTreeMap<String, u64>> = BTreeMap::new();
    for (thread, found) in acknowledged {
        assert!(!found.is_empty(), "a writer committed nothing to `{thread}`");
        by_thread.entry(thread).or_default().extend(found);
    }
    for (thread, acknowledged) in by_thread {
        let entries = verified(&store, &home.trust(), &thread);
        let logged: BTreeMap<String, u64> = entries
            .iter()
            .filter_map(|entry| {
                let checkpoint = entry.checkpoint()?;
                Some((checkpoint.key.as_ref()?.to_string(), checkpoint.version))
            })
            .collect();
        assert_eq!(
            logged, acknowledged,
            "what was acknowledged is in the log of `{thread}` at its version, and nothing else"
        );
        assert_eq!(entries.len(), acknowledged.len() + 1, "nothing is there twice");
    }
}

/// How often the server crashes: `SELVEDGE_CRASHES=1000` for a long run.
fn rounds() -> usize {
    std::env::var("SELVEDGE_CRASHES").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(30)
}

#[test]
fn nothing_acknowledged_is_lost_when_the_server_crashes() {
    let server = Server::start("");
    let home = Home::at(schema(&server.address()));
    disturbed(&home, || {
        for round in 0..rounds() {
            thread::sleep(Duration::from_millis(50 + (round as u64 * 37) % 150));
            server.stop("immediate");
            server.start_again();
        }
        thread::sleep(Duration::from_millis(200));
    });
}

#[test]
fn nothing_acknowledged_is_lost_when_sessions_are_terminated() {
    let server = Server::start("");
    let home = Home::at(schema(&server.address()));
    let address = server.address();
    disturbed(&home, || {
        for _ in 0..100 {
            let sql = "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE application_name = 'selvedge' \
                       AND pid <> pg_backend_pid() ORDER BY random() LIMIT 2";
            test_server::execute(&address, sql).unwrap();
            thread::sleep(Duration::from_millis(10));
        }
    });
}

#[test]
fn nothing_acknowledged_is_lost_when_a_synchronous_standby_takes_over() {
    let primary = Server::start("wal_level = replica\nmax_wal_senders = 4\n");
    let standby = primary.standby();
    let home = Home::at(schema(&primary.address_with(&standby)));
    disturbed(&home, || {
        thread::sleep(Duration::from_millis(500));
        primary.stop("immediate");
        standby.promote();
        thread::sleep(Duration::from_millis(500));
    });
}
