use crate::support::*;
use selvedge_store::{Logs, Registry, load::load};

#[test]
fn a_thread_is_written_closed_opened_and_verified() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one", "two", "three"]);
    assert_eq!(store.get(&thread).unwrap().version, 3);
    store.close().unwrap();
    println!("{}", std::fs::read_to_string(home.transcript(&thread)).unwrap());
    println!("{}", std::fs::read_to_string(home.threads().join(thread.folder()).join("thread.json")).unwrap());
    let store = home.read_only();
    let verdict = store.verify(&thread, &mut |_| {}).unwrap();
    println!("{verdict:#?}");
    assert_eq!(verdict.judgement.unchanged_up_to, Some(3));
    let loaded = load(&store, &thread, &home.trust(), None).unwrap();
    assert_eq!(loaded.thread.messages.len(), 3);
    assert_eq!(store.read(&thread, 2, 10).unwrap().len(), (store.head(&thread).unwrap().lines - 2) as usize);
}
