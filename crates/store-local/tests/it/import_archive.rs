//! A thread as one file: the same bytes in another store, verified by the importer, and nothing else.

use std::fs;
use std::io::{self, Cursor};
use std::path::Path;
use std::sync::{Arc, Mutex};

use selvedge_log::Trust;
use selvedge_log::recovery::Finding;
use selvedge_model::event::Recovery;
use selvedge_model::{Batch, Changeset, Classify, Event, Expect, Part, Reason, ThreadId};
use selvedge_store::archive::ImportOutcome;
use selvedge_store::{Commit, Error, Ledger, Logs, Registry};
use selvedge_store_local::disk::{Disk, DiskFile, OpenMode, RealDisk};
use selvedge_store_local::{Access, LocalStore};

use crate::support::{Home, id, says, signed_log, thread_with};

/// A store with a thread that has a blob, and the thread as an archive.
fn exported() -> (Home, ThreadId, Vec<u8>) {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one", "two"]);
    store.put_blob(&thread, &b"payload".repeat(50_000)).unwrap();
    store.put_blob(&thread, b"other").unwrap();
    let archive = export(&store, &thread);
    assert_eq!(archive, export(&store, &thread), "the same thread gives the same file");
    store.close().unwrap();
    (home, thread, archive)
}

fn export(store: &LocalStore, thread: &ThreadId) -> Vec<u8> {
    let mut archive = Vec::new();
    store.export(thread, &mut archive).unwrap();
    archive
}

/// A store with another key that trusts that of `home`.
fn elsewhere(home: &Home) -> (Home, LocalStore) {
    let there = Home::new();
    let mut options = there.options(Access::ReadWrite);
    options.trust = Trust::of(&[home.signer().public(), there.signer().public()]);
    let store = LocalStore::open(options).unwrap();
    (there, store)
}

fn import(store: &LocalStore, archive: &[u8]) -> Result<selvedge_store::archive::ImportReport, Error> {
    store.import(&mut Cursor::new(archive), true)
}

#[test]
fn a_thread_is_imported_byte_for_byte_and_verifies_with_only_the_public_key() {
    let (home, thread, archive) = exported();
    let (there, store) = elsewhere(&home);
    let dry = store.import(&mut Cursor::new(&archive), false).unwrap();
    assert_eq!((dry.arrival, dry.blobs), (ImportOutcome::WouldImport, 2));
    assert!(matches!(store.head(&thread), Err(Error::NoThread(_))), "nothing was kept");
    let arrived = import(&store, &archive).unwrap();
    assert_eq!((arrived.arrival, arrived.head.version), (ImportOutcome::Imported, 2));
    let folder = |home: &Home| home.threads().join(thread.folder());
    for name in ["transcript.jsonl", "thread.json"] {
        assert_eq!(fs::read(folder(&home).join(name)).unwrap(), fs::read(folder(&there).join(name)).unwrap());
    }
    for blob in store.blobs(&thread).unwrap() {
        let name = format!("blobs/{blob}");
        assert_eq!(fs::read(folder(&home).join(&name)).unwrap(), fs::read(folder(&there).join(&name)).unwrap());
    }
    let verdict = store.verify(&thread, &mut |_| {}).unwrap();
    assert_eq!(verdict.judgement.unchanged_up_to, Some(2));
    assert_eq!(export(&store, &thread), archive, "exported again it is the same file");
    assert_eq!(import(&store, &archive).unwrap().arrival, ImportOutcome::Unchanged);
    let refused = store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, says("mine")))).unwrap_err();
    assert!(matches!(refused, Error::OtherSigner { .. }), "{refused}");
    store.close().unwrap();
    // A rebuild does not change that, nor the other files.
    let left: Vec<_> = fs::read_dir(there.threads()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
}

/// The machine's disk, with something that happens once after a folder is renamed.
#[derive(Debug)]
struct Meanwhile(Mutex<Option<Happens>>);

struct Happens(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Happens {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Happens")
    }
}

impl Disk for Meanwhile {
    fn open(&self, path: &Path, how: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        RealDisk.open(path, how)
    }
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.make_folder(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)?;
        let happens = self.0.lock().unwrap().take_if(|_| to.is_dir());
        happens.into_iter().for_each(|happens| happens.0());
        Ok(())
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }
    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_folder(path)
    }
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_folder(path)
    }
}

/// The slower process found the thread indexed, and removed files that the other had been told exist.
#[test]
fn a_thread_that_another_process_imported_meanwhile_stays() {
    let (home, thread, archive) = exported();
    let (there, fast) = elsewhere(&home);
    let fast = Arc::new(fast);
    let other = fast.clone();
    let bytes = archive.clone();
    let happens = Happens(Box::new(move || _ = import(&other, &bytes).unwrap()));
    let mut options = there.options(Access::ReadWrite);
    options.trust = Trust::of(&[home.signer().public(), there.signer().public()]);
    options.disk = Arc::new(Meanwhile(Mutex::new(Some(happens))));
    let slow = LocalStore::open(options).unwrap();
    let refused = import(&slow, &archive).unwrap_err();
    assert!(matches!(refused, Error::Exists(_)), "{refused}");
    let verdict = fast.verify(&thread, &mut |_| {}).unwrap();
    assert_eq!(verdict.judgement.unchanged_up_to, Some(2));
    assert_eq!(export(&fast, &thread), archive);
    slow.close().unwrap();
}

#[test]
fn the_same_key_can_continue_it() {
    let (home, thread, archive) = exported();
    let store = home.open();
    let longer = store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, says("three")))).unwrap();
    assert_eq!(longer.versions[0].1, 3);
    assert!(matches!(import(&store, &archive), Err(Error::Exists(_))), "a shorter one removes nothing");
    store.delete(&thread).unwrap();
    assert!(matches!(import(&store, &archive), Err(Error::Deleted(_))), "a deleted thread does not come back");
    drop(store);
    let there = Home::new();
    let mut options = there.options(Access::ReadWrite);
    options.trust = home.trust();
    options.signer = Some(home.signer());
    let store = LocalStore::open(options).unwrap();
    import(&store, &archive).unwrap();
    assert_eq!(store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, says("on")))).unwrap().versions[0].1, 3);
    assert_eq!(store.get(&thread).unwrap().version, 3);
}

#[test]
fn a_key_inside_an_archive_proves_nothing() {
    let (_, thread, archive) = exported();
    let there = Home::new();
    let store = there.open();
    let refused = import(&store, &archive).unwrap_err();
    assert_eq!(refused.code(), "untrusted_key");
    assert!(matches!(store.head(&thread), Err(Error::NoThread(_))));
    assert!(!there.threads().join(thread.folder()).exists());
}

#[test]
fn every_changed_byte_of_an_archive_is_refused_or_changes_nothing() {
    let (home, _, archive) = exported();
    let (there, store) = elsewhere(&home);
    let whole = store.import(&mut Cursor::new(&archive), false).unwrap();
    for at in (0..archive.len()).step_by(211) {
        let mut changed = archive.clone();
        changed[at] ^= 0x10;
        if let Ok(arrived) = store.import(&mut Cursor::new(&changed), false) {
            assert_eq!(arrived.head, whole.head, "byte {at}");
        }
    }
    for length in (0..archive.len() - 1024).step_by(509) {
        assert!(store.import(&mut Cursor::new(&archive[..length]), false).is_err(), "cut at {length}");
    }
    drop(there);
}

/// One entry with any path and kind, as a hostile archive has it. Verifies an archive without a store.
fn check(archive: &[u8], home: &Home) -> Result<selvedge_store::verify::Verification, Error> {
    let trust = Trust::of(&[home.signer().public()]);
    selvedge_store::archive::verify_archive(&mut Cursor::new(archive), &trust, &mut |_| {}).map(|(verdict, _)| verdict)
}

#[test]
fn an_archive_is_verified_without_a_store_as_it_is_with_one() {
    let (home, thread, archive) = exported();
    let store = home.open();
    let here = store.verify(&thread, &mut |_| {}).unwrap();
    let there = check(&archive, &home).unwrap();
    assert_eq!(there.judgement.finding, Finding::Sound);
    assert_eq!(
        (there.lines, there.bytes, there.signers, there.head),
        (here.lines, here.bytes, here.signers, here.head)
    );
    for at in (0..archive.len()).step_by(211) {
        let mut changed = archive.clone();
        changed[at] ^= 0x10;
        if let Ok(verdict) = check(&changed, &home)
            && verdict.judgement.finding == Finding::Sound
        {
            assert_eq!((verdict.thread, verdict.bytes), (thread.clone(), here.bytes), "byte {at}");
        }
    }
    for length in (0..archive.len() - 1024).step_by(509) {
        assert!(check(&archive[..length], &home).is_err(), "cut at {length}");
    }
}

#[test]
fn a_blob_that_is_missing_or_changed_in_an_archive_is_reported() {
    use selvedge_model::message::Block;
    use selvedge_model::{Changeset, Message, Reason, Role};
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    let blob = store.put_blob(&thread, b"a picture of a pear").unwrap();
    let picture = Block::Image { blob, media_type: "image/png".to_owned() };
    let messages = vec![Message { content: vec![picture], ..Message::text(Role::User, "") }];
    let changeset = Changeset { messages, ..Changeset::empty(Reason::UserMessage) };
    store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, changeset))).unwrap();
    let archive = export(&store, &thread);
    assert_eq!(check(&archive, &home).unwrap().judgement.finding, Finding::Sound);
    let at = archive.windows(7).position(|bytes| bytes == b"picture").unwrap();
    let mut changed = archive.clone();
    changed[at] = b'P';
    let why = |archive: &[u8]| match check(archive, &home).unwrap().judgement.finding {
        Finding::Blob { blob: bad, version: 2, why } if bad == blob => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(why(&changed), "does not match its name");
    // The header of the blob is right before its content.
    let header = at / 512 * 512 - 512;
    let without = [&archive[..header], &archive[header + 1024..]].concat();
    assert_eq!(why(&without), "is missing");
}

fn entry(path: &str, kind: u8, content: &[u8]) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..path.len()].copy_from_slice(path.as_bytes());
    block[100..108].copy_from_slice(b"0000600\0");
    block[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
    block[136..148].copy_from_slice(b"00000000000\0");
    block[148..156].copy_from_slice(b"        ");
    block[156] = kind;
    block[157..165].copy_from_slice(b"/etc/pwd");
    block[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block.extend_from_slice(content);
    block.resize(block.len().next_multiple_of(512), 0);
    block
}

#[test]
fn tricks_with_paths_links_and_duplicates_are_refused_and_nothing_is_left() {
    let (home, thread, archive) = exported();
    let (there, store) = elsewhere(&home);
    let body = &archive[..archive.len() - 1024];
    let zeros = [0; 1024];
    let folder = thread.folder();
    let before = there.folder.path().join("outside");
    let tricks = [
        ("a path upwards", entry("../outside", b'0', b"x")),
        ("a path from the root", entry("/tmp/outside", b'0', b"x")),
        ("dots inside", entry(&format!("{folder}/../outside"), b'0', b"x")),
        ("dots in blobs", entry(&format!("{folder}/blobs/../../outside"), b'0', b"x")),
        ("a name of its own", entry(&format!("{folder}/capabilities"), b'0', b"x")),
        ("a symbolic link", entry(&format!("{folder}/blobs"), b'2', b"")),
        ("a hard link", entry(&format!("{folder}/thread.json"), b'1', b"")),
        ("a device", entry(&format!("{folder}/thread.json"), b'3', b"")),
        ("the log twice", entry(&format!("{folder}/transcript.jsonl"), b'0', b"x")),
        ("a second thread", entry("other-0123456789ab/transcript.jsonl", b'0', b"x")),
        ("a blob of another content", entry(&format!("{folder}/blobs/{}", "a".repeat(64)), b'0', b"x")),
    ];
    for (what, trick) in tricks {
        for hostile in [[body, &trick[..], &zeros].concat(), [&trick[..], body, &zeros].concat()] {
            let refused = import(&store, &hostile).unwrap_err();
            assert_eq!(refused.kind(), selvedge_model::Kind::Integrity, "{what}: {refused}");
            assert!(!before.exists() && !there.threads().join(&folder).exists(), "{what}");
        }
    }
    // A size larger than the archive.
    let mut huge = entry(&format!("{folder}/transcript.jsonl"), b'0', b"");
    huge[124..136].copy_from_slice(b"77777777777\0");
    huge[148..156].copy_from_slice(b"        ");
    let sum: u32 = huge.iter().map(|byte| u32::from(*byte)).sum();
    huge[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    assert!(import(&store, &huge).is_err());
    let left: Vec<_> = fs::read_dir(there.threads()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
    import(&store, &archive).unwrap();
}

#[test]
fn an_interrupted_import_is_removed_or_indexed() {
    let (home, thread, archive) = exported();
    let (there, store) = elsewhere(&home);
    // Killed before anything was moved into place, by an owner that is dead.
    let staged = there.threads().join(".arriving-00112233445566778899aabbccddeeff-0123456789ab");
    fs::create_dir(&staged).unwrap();
    // Killed when the folder was in place and not indexed.
    let folder = there.threads().join(thread.folder());
    fs::create_dir(&folder).unwrap();
    fs::copy(home.transcript(&thread), folder.join("transcript.jsonl")).unwrap();
    assert_eq!(import(&store, &archive).unwrap().arrival, ImportOutcome::Imported);
    assert!(!staged.exists());
    assert_eq!(store.verify(&thread, &mut |_| {}).unwrap().judgement.unchanged_up_to, Some(2));
}

#[test]
fn a_very_long_id_still_fits() {
    let home = Home::new();
    let store = home.open();
    let thread = id(&"x".repeat(200));
    store.commit(crate::support::birth(&thread)).unwrap();
    let archive = export(&store, &thread);
    store.close().unwrap();
    let (_there, elsewhere) = elsewhere(&home);
    assert_eq!(import(&elsewhere, &archive).unwrap().thread, thread);
}

#[test]
fn it_can_be_unpacked_with_tar() {
    let (home, thread, archive) = exported();
    let file = home.folder.path().join("archive.tar");
    fs::write(&file, &archive).unwrap();
    let unpacked = home.folder.path().join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let tar = std::process::Command::new("tar").arg("xf").arg(&file).arg("-C").arg(&unpacked).status();
    let Ok(status) = tar else {
        eprintln!("skipped: there is no tar on this machine");
        return;
    };
    assert!(status.success());
    let folder = unpacked.join(thread.folder());
    assert_eq!(fs::read(folder.join("transcript.jsonl")).unwrap(), fs::read(home.transcript(&thread)).unwrap());
    let key = folder.join("keys").join(format!("{}.pem", home.signer().fingerprint()));
    assert_eq!(fs::read_to_string(key).unwrap(), home.signer().public().to_pem());
    // Packed again by tar itself, in any order and with anything it adds, it is still accepted.
    let again = home.folder.path().join("again.tar");
    let packed = std::process::Command::new("tar")
        .args(["--format=ustar", "-cf"])
        .arg(&again)
        .arg("-C")
        .arg(&unpacked)
        .arg(thread.folder())
        .status();
    assert!(packed.unwrap().success());
    let (_there, store) = elsewhere(&home);
    assert_eq!(import(&store, &fs::read(&again).unwrap()).unwrap().arrival, ImportOutcome::Imported);
}

/// A folder of such a name blocked every writer until it was moved away by hand.
#[test]
fn a_thread_whose_folder_would_collide_with_a_file_of_the_store_is_refused() {
    let home = Home::new();
    let store = home.open();
    for name in ["registry.db-journal", "registry.db.new", "store.json", "commit.lock", "owners", "search.db-wal"] {
        let log = signed_log(&home.signer(), &id(name), vec![says("hello")]);
        let archive = [entry(&format!("{name}/transcript.jsonl"), b'0', &log), vec![0; 1024]].concat();
        for keep in [false, true] {
            let refused = store.import(&mut Cursor::new(&archive), keep).unwrap_err();
            assert!(refused.to_string().contains("the store itself has a file of that name"), "{name}: {refused}");
        }
    }
    thread_with(&store, "scribe-0123456789ab", &["one"]);
    store.close().unwrap();
}

#[test]
fn the_capabilities_of_a_thread_are_included() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    store.write_capabilities(&thread, || "# Tools\n".to_owned()).unwrap();
    let archive = export(&store, &thread);
    let (there, arrived) = elsewhere(&home);
    import(&arrived, &archive).unwrap();
    let page = |home: &Home| fs::read(home.threads().join(thread.folder()).join("capabilities.md")).unwrap();
    assert_eq!(page(&there), page(&home));
    assert_eq!(export(&arrived, &thread), archive, "exported again it is the same file");
    // A changed file is refused by an import, and reported by a verification.
    let at = archive.windows(7).position(|part| part == b"# Tools").unwrap();
    let mut changed = archive.clone();
    changed[at + 2] = b'F';
    let refused = import(&elsewhere(&home).1, &changed).unwrap_err();
    assert!(refused.to_string().contains("capabilities.md"), "{refused}");
    let finding = check(&changed, &home).unwrap().judgement.finding;
    assert!(matches!(&finding, Finding::Contradicted { by, .. } if by == "capabilities.md"), "{finding:?}");
}

/// A parent with an account, its child with one, and what each posts to the other's: imported in any order, the accounts are the same, and
/// until all logs are present the incomplete ones are reported.
#[test]
fn a_family_imported_in_any_order_has_the_right_budget() {
    let (home, threads) = crate::family::with_budgets();
    let store = home.open();
    let archives: Vec<_> = threads.iter().map(|thread| export(&store, thread)).collect();
    let accounts = |store: &LocalStore| threads.iter().map(|thread| store.account(thread).unwrap()).collect::<Vec<_>>();
    let truth = accounts(&store);
    assert!(truth.iter().all(Option::is_some), "{truth:?}");
    for order in [[0, 1], [1, 0]] {
        let (_there, arriving) = elsewhere(&home);
        let first = import(&arriving, &archives[order[0]]).unwrap();
        assert!(first.accounts.values().any(|is_whole| !is_whole), "a part is incomplete: {:?}", first.accounts);
        let last = import(&arriving, &archives[order[1]]).unwrap();
        assert!(last.accounts.values().all(|is_whole| *is_whole), "{order:?}: {:?}", last.accounts);
        assert_eq!(accounts(&arriving), truth, "{order:?}");
    }
}

/// Content that no signature covers is reported, so that it is not taken for verified.
#[test]
fn content_of_an_archive_beyond_its_log_is_reported() {
    let (home, _, archive) = exported();
    let verdict = check(&archive, &home).unwrap();
    assert_eq!((verdict.unnamed_blobs.len(), verdict.trailing_bytes), (2, 0), "its blobs are named by no message");
    let padded = [&archive[..], &[0; 8192]].concat();
    assert_eq!(check(&padded, &home).unwrap().trailing_bytes, 0, "tar fills its last block with zeros");
    let followed = [&padded[..], b"and more"].concat();
    assert_eq!(check(&followed, &home).unwrap().trailing_bytes, 8);
    let store = home.open();
    let verdict = store.verify(&id("scribe-0123456789ab"), &mut |_| {}).unwrap();
    assert_eq!(verdict.unnamed_blobs.len(), 2);
}

#[test]
fn an_archive_whose_folder_has_another_name_than_its_thread_is_refused() {
    let home = Home::new();
    let store = home.open();
    let log = signed_log(&home.signer(), &id("scribe-0123456789ab"), vec![says("hello")]);
    for (folder, is_right) in
        [("scribe-0123456789ab", true), ("other", false), ("00112233445566778899aabbccddeeff", false)]
    {
        let archive = [entry(&format!("{folder}/transcript.jsonl"), b'0', &log), vec![0; 1024]].concat();
        let checked = check(&archive, &home);
        assert_eq!(checked.is_ok(), is_right, "{folder}");
        assert_eq!(store.import(&mut Cursor::new(&archive), false).is_ok(), is_right, "{folder}");
        if let Err(refused) = checked {
            assert!(refused.to_string().contains(folder), "{refused}");
        }
    }
}

/// A store accepts what a verifier accepts; the version after the last possible one is refused and does not wrap around.
#[test]
fn a_log_at_the_last_possible_version_is_imported_and_ends_there() {
    let home = Home::new();
    let store = home.open();
    let thread = id("scribe-0123456789ab");
    let last = i64::MAX.cast_unsigned();
    let loss = Recovery {
        found: Recovery::LOSS.to_owned(),
        from_version: Some(1),
        to_version: Some(last - 1),
        ..Recovery::default()
    };
    let lost = Changeset { events: vec![Event::Recovery(loss)], ..Changeset::empty(Reason::Lifecycle) };
    let log = signed_log(&home.signer(), &thread, vec![lost]);
    let archive = [entry(&format!("{thread}/transcript.jsonl"), b'0', &log), vec![0; 1024]].concat();
    assert_eq!(import(&store, &archive).unwrap().head.version, last);
    assert_eq!(store.get(&thread).unwrap().version, last);
    let refused = store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, says("on")))).unwrap_err();
    assert_eq!(refused.code(), "versions_exhausted", "{refused}");
    let verdict = store.verify(&thread, &mut |_| {}).unwrap();
    assert_eq!((verdict.judgement.finding, verdict.judgement.unchanged_up_to), (Finding::Sound, Some(last)));
    store.close().unwrap();
    fs::remove_file(home.threads().join("registry.db")).unwrap();
    crate::reindex::reindex(&home);
    assert_eq!(home.read_only().get(&thread).unwrap().version, last);
}

/// It is unchanged since it was signed, and nothing is appended to a log that is not understood.
#[test]
fn a_log_that_is_not_understood_is_reported_as_that_and_not_as_damaged() {
    let home = Home::new();
    let thread = id("scribe-0123456789ab");
    let log = signed_log(&home.signer(), &thread, vec![says("hello")]);
    let text = String::from_utf8(log).unwrap();
    // Its creation, and a message of an unknown role, signed by hand.
    let birth: String = text.split_inclusive('\n').take(2).collect();
    let message = text.lines().nth(2).unwrap().replace(r#""role":"user""#, r#""role":"oracle""#);
    let before = format!("{birth}{message}\n");
    let said: serde_json::Value = serde_json::from_str(text.lines().nth(3).unwrap()).unwrap();
    let said = |name: &str| said["payload"][name].to_string();
    let unsigned = text.lines().nth(3).unwrap().split(r#","sig":""#).next().unwrap().to_owned();
    let unsigned = unsigned
        .replace(&said("hash"), &format!("\"{}\"", selvedge_log::hash::sha256(before.as_bytes())))
        .replace(&format!(r#""byte_offset":{}"#, said("byte_offset")), &format!(r#""byte_offset":{}"#, before.len()));
    let sig = home.signer().sign(selvedge_log::keys::DOMAIN_CHECKPOINT, unsigned.as_bytes());
    let log = format!("{before}{unsigned},\"sig\":\"{sig}\"}}}}\n");
    let archive = [entry(&format!("{thread}/transcript.jsonl"), b'0', log.as_bytes()), vec![0; 1024]].concat();
    let verdict = check(&archive, &home).unwrap();
    // Both signatures were checked, that of the line that is not understood included.
    assert_eq!(verdict.signers, [(home.signer().fingerprint(), 2)]);
    assert_eq!((verdict.lines, verdict.bytes), (4, log.len() as u64));
    let judged = verdict.judgement;
    assert!(matches!(&judged.finding, Finding::Unread(at) if (at.line, at.version) == (3, 1)), "{judged:?}");
    assert_eq!(judged.unchanged_up_to, Some(1));
    let store = home.open();
    assert_eq!(import(&store, &archive).unwrap_err().code(), "unknown_payload");
    let folder = home.threads().join(thread.folder());
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("transcript.jsonl"), &log).unwrap();
    let verdict = store.verify(&thread, &mut |_| {}).unwrap();
    assert_eq!((verdict.signers, verdict.lines), (vec![(home.signer().fingerprint(), 2)], 4));
    let verdict = verdict.judgement;
    assert!(matches!(verdict.finding, Finding::Unread(_)), "{verdict:?}");
    assert_eq!(verdict.unchanged_up_to, Some(1));
    assert!(store.repair(&thread, selvedge_store_local::Repair::default()).is_err());
    assert_eq!(fs::read_to_string(folder.join("transcript.jsonl")).unwrap(), log);
}
