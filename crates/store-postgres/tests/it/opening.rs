//! Opening: what is missing, too new, or not allowed is said.

use std::thread;

use selvedge_log::recovery::Finding;
use selvedge_model::Classify;
use selvedge_store::conformance::support::{append, create, says};
use selvedge_store::{Feed, ReadHeads, Verify};
use selvedge_store_postgres::PostgresStore;
use selvedge_store_postgres::test_server::{self, Server};

use crate::support::Home;

fn refused(home: &Home) -> String {
    match PostgresStore::open(home.options()) {
        Ok(_) => panic!("it was opened"),
        Err(error) => format!("{}: {error}; {}", error.code(), error.hint().unwrap_or_default()),
    }
}

#[test]
fn many_processes_may_create_the_same_store() {
    let address = test_server::schema(test_server::shared());
    let home = Home::at(address.clone());
    let created: usize = thread::scope(|scope| {
        let other = test_server::schema(test_server::shared());
        let tries: Vec<_> = (0..6)
            .map(|_| {
                let (other, home) = (other.clone(), &home);
                scope.spawn(move || usize::from(PostgresStore::init(&other, None, &*home.ids).unwrap()))
            })
            .collect();
        tries.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!(created, 1, "one of them creates it");
    let id = home.open().store_id().unwrap();
    assert!(!PostgresStore::init(&address, None, &*home.ids).unwrap(), "it is there");
    assert_eq!(home.open().store_id().unwrap(), id, "and stays what it is");
}

#[test]
fn an_address_without_a_store_is_absent() {
    let home = Home::new().with_address(test_server::schema(test_server::shared()));
    assert!(
        refused(&home).starts_with("store_not_found: there is no store in `postgres://postgres@"),
        "{}",
        refused(&home)
    );
}

#[test]
fn a_newer_schema_is_refused() {
    let home = Home::new();
    let (address, schema) = home.address.split_once("?schema=").unwrap();
    test_server::execute(address, &format!("INSERT INTO {schema}.migrations (version) VALUES (99)")).unwrap();
    let error = refused(&home);
    assert!(error.contains("its schema has version 99") && error.contains("newer `selvedge`"), "{error}");
    assert!(PostgresStore::init(&home.address, None, &*home.ids).is_err());
}

#[test]
fn a_wrong_password_a_missing_database_and_a_missing_server_are_told_apart() {
    let server = Server::start("");
    let home = Home::at(test_server::schema(&server.address()));
    let missing = home.with_address(server.address().trim_end_matches("/postgres").to_owned() + "/absent");
    assert!(refused(&missing).contains("database \"absent\" does not exist"), "{}", refused(&missing));
    server.stop("fast");
    let gone = refused(&home);
    assert!(gone.starts_with("store_unusable: the PostgreSQL server of `postgres://postgres@"), "{gone}");
    server.require_passwords();
    server.start_again();
    let wrong = home.with_address(home.address.replace("postgres@", "postgres:wrong@"));
    let error = refused(&wrong);
    assert!(error.contains("password authentication failed") && error.contains("PGPASSWORD"), "{error}");
    assert!(!error.contains(":wrong@"), "{error}");
}

/// A new server begins with lower transaction ids, and the feed is ordered by them.
#[test]
fn a_restored_dump_verifies_and_new_commits_follow_the_old_ones() {
    let (old, new) = (Server::start("fsync = off\n"), Server::start("fsync = off\n"));
    for _ in 0..300 {
        test_server::execute(&old.address(), "SELECT pg_current_xact_id()::text").unwrap();
    }
    let home = Home::at(test_server::schema(&old.address()));
    let store = home.open();
    let thread = create(&store, "dumped");
    append(&store, &thread, says("before"));
    let position = store.position().unwrap();
    old.dump_to(home.address.split_once("?schema=").unwrap().1, &new);
    let restored = home.with_address(home.address.replace(&old.address(), &new.address())).open();
    assert_eq!(restored.verify(&thread, &mut |_| {}).unwrap().judgement.finding, Finding::Sound);
    assert_eq!(restored.position().unwrap(), position, "the feed is the same");
    append(&restored, &thread, says("after"));
    let after = restored.after(position, 10).unwrap();
    assert_eq!(after.iter().map(|entry| entry.version).collect::<Vec<_>>(), [2], "a follower sees what is new");
    // Both are still whole: each continued its own log.
    append(&store, &thread, says("elsewhere"));
    assert_eq!(store.verify(&thread, &mut |_| {}).unwrap().judgement.finding, Finding::Sound);
}
