//! Importing what another store exported: the log is the same bytes, can be continued, and a longer archive continues it.

use selvedge_log::recovery::Finding;
use selvedge_store::archive::{Archives, ImportOutcome};
use selvedge_store::conformance::support::{append, bytes_of, create, finishes, says, starts};
use selvedge_store::{Commit, Error, Feed, Logs, Registry, Verify};
use selvedge_store_postgres::{PostgresStore, test_server};

use crate::support::Home;

fn moved(from: &PostgresStore, to: &PostgresStore, thread: &selvedge_model::ThreadId) -> Result<ImportOutcome, Error> {
    let mut archive = Vec::new();
    from.export(thread, &mut archive).unwrap();
    Ok(Archives::import(to, &mut archive.as_slice(), true)?.arrival)
}

#[test]
fn an_imported_thread_has_the_same_bytes_and_is_continued() {
    let home = Home::new();
    let other = home.with_address(test_server::schema(test_server::shared()));
    PostgresStore::init(&other.address, None, &*other.ids).unwrap();
    let (from, to) = (home.open(), other.open());
    let thread = create(&from, "moved");
    let blob = from.put_blob(&thread, b"beside it").unwrap();
    append(&from, &thread, starts("run-1"));
    append(&from, &thread, says("hello"));
    append(&from, &thread, finishes("run-1", "natural"));
    assert_eq!(moved(&from, &to, &thread).unwrap(), ImportOutcome::Imported);
    assert_eq!(bytes_of(&from, &thread), bytes_of(&to, &thread));
    assert_eq!(to.verify(&thread, &mut |_| {}).unwrap().judgement.finding, Finding::Sound);
    assert_eq!(to.blob(&thread, &blob).unwrap(), b"beside it");
    assert_eq!(
        (from.runs(&thread).unwrap(), from.get(&thread).unwrap().manifest),
        (to.runs(&thread).unwrap(), to.get(&thread).unwrap().manifest)
    );
    let versions: Vec<_> = to.after(0, 10).unwrap().iter().map(|entry| (entry.version, entry.first_line)).collect();
    assert_eq!(versions.iter().map(|(version, _)| *version).collect::<Vec<_>>(), [0, 1, 2, 3], "each is announced");
    // It grows where it came from, and the longer archive continues it.
    append(&from, &thread, says("more"));
    assert_eq!(moved(&from, &to, &thread).unwrap(), ImportOutcome::Imported);
    assert_eq!(bytes_of(&from, &thread), bytes_of(&to, &thread));
    append(&to, &thread, says("here"));
    append(&from, &thread, says("there"));
    append(&from, &thread, says("and on"));
    assert!(matches!(moved(&from, &to, &thread), Err(Error::Exists(_))), "each went on by itself");
    assert_eq!(to.verify(&thread, &mut |_| {}).unwrap().judgement.finding, Finding::Sound);
}
