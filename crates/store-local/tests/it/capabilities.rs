//! `capabilities.md` is written once, complete, and signed for its thread alone.

use std::fs;
use std::sync::Barrier;
use std::thread;

use selvedge_log::document::{Comment, DocumentKind, verify_text};
use selvedge_log::recovery::Finding;
use selvedge_store::Error;
use selvedge_store_local::{Access, Repair, RepairStep, doctor};

use crate::support::{Home, id, thread_with};

#[test]
fn capabilities_are_signed_for_their_thread_and_never_written_again() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one", &[]);
    let other = id("other");
    assert!(store.write_capabilities(&one, || "# First\n".to_owned()).unwrap());
    assert!(!store.write_capabilities(&one, || unreachable!("it is there")).unwrap());
    let bytes = fs::read(home.threads().join("one/capabilities.md")).unwrap();
    let kind = DocumentKind::new("capabilities");
    let verified = verify_text(kind, one.as_str(), Comment::Html, &bytes, &home.trust()).unwrap();
    assert_eq!(verified.value, "# First\n");
    assert!(
        verify_text(kind, other.as_str(), Comment::Html, &bytes, &home.trust()).is_err(),
        "it belongs to one thread"
    );
}

#[test]
fn a_link_in_its_place_is_refused_and_not_followed() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one", &[]);
    let elsewhere = home.folder.path().join("elsewhere");
    fs::write(&elsewhere, "mine").unwrap();
    std::os::unix::fs::symlink(&elsewhere, home.threads().join("one/capabilities.md")).unwrap();
    assert!(store.write_capabilities(&one, || "# First\n".to_owned()).is_err());
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "mine");
}

/// The file was widened by hand, and no command noticed.
#[test]
fn an_edited_file_is_found_and_refused_until_it_is_moved_aside() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one", &["hello"]);
    store.write_capabilities(&one, || "# May call nothing\n".to_owned()).unwrap();
    let path = home.threads().join("one/capabilities.md");
    let signed = fs::read_to_string(&path).unwrap();
    assert_eq!(store.verify(&one, &mut |_| {}).unwrap().judgement.finding, Finding::Sound);
    let elsewhere = home.folder.path().join("elsewhere");
    fs::write(&elsewhere, &signed).unwrap();
    let edits: [&dyn Fn(); 3] = [
        &|| fs::write(&path, signed.replace("nothing", "anything")).unwrap(),
        &|| fs::write(&path, "# May call anything\n").unwrap(),
        &|| {
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        },
    ];
    for edit in edits {
        edit();
        let error = store.write_capabilities(&one, || unreachable!("it is there")).unwrap_err();
        assert!(matches!(&error, Error::Integrity { what, .. } if what.contains("capabilities.md")), "{error}");
        let finding = store.verify(&one, &mut |_| {}).unwrap().judgement.finding;
        assert!(matches!(&finding, Finding::Contradicted { by, .. } if by == "capabilities.md"), "{finding:?}");
        let report = doctor::examine(home.options(Access::ReadOnly), doctor::Depth::Ends, &mut |_, _| {});
        let codes: Vec<_> = report.findings.iter().map(|finding| finding.code).collect();
        assert!(codes.contains(&"capabilities_refused"), "{codes:?}");
        let mended = store.repair(&one, Repair::default()).unwrap().mended;
        assert!(matches!(&mended[..], [RepairStep::Capabilities { aside: Some(_), .. }]), "{mended:?}");
        assert!(
            store.write_capabilities(&one, || "# May call nothing\n".to_owned()).unwrap(),
            "the next run writes it"
        );
        assert_eq!(store.verify(&one, &mut |_| {}).unwrap().judgement.finding, Finding::Sound);
    }
}

#[test]
fn of_many_processes_that_first_run_a_thread_at_once_one_writes() {
    for _ in 0..8 {
        let home = Home::new();
        let one = thread_with(&home.open(), "one", &[]);
        let start = Barrier::new(8);
        let written: Vec<bool> = thread::scope(|scope| {
            let write = |worker: usize| {
                // Another process, as far as the store can tell.
                let store = home.open();
                start.wait();
                store.write_capabilities(&one, || format!("# By {worker}\n")).unwrap()
            };
            let writers: Vec<_> = (0..8).map(|worker| scope.spawn(move || write(worker))).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        assert_eq!(written.iter().filter(|written| **written).count(), 1);
        let by = written.iter().position(|written| *written).unwrap();
        let text = fs::read_to_string(home.threads().join("one/capabilities.md")).unwrap();
        assert!(text.ends_with(&format!("# By {by}\n")), "{text}");
    }
}
