//! Everything that somebody may do to the files of a closed store: nothing is accepted as sound, nothing is signed on top of it, and
//! what is still proven is said.

use std::fs;
use std::path::{Path, PathBuf};

use selvedge_log::recovery::Finding;
use selvedge_model::{Batch, Expect, Part, ThreadId};
use selvedge_store::Commit;
use selvedge_store::conformance::support::{birth, id, new_thread, part, says};
use selvedge_store::load::load;
use selvedge_store_local::{LocalStore, Repair};

use crate::Tried;
use crate::check::{Held, Kind, all_whole, breach, goes_on, or};
use crate::home::Home;
use crate::run::Plan;
use crate::tally::Tally;
use crate::tree::{Node, Tree};

const AGAIN: &str = "cargo xtask crash --experiment damage";

/// Which files are a stranger's.
type Choice = Box<dyn Fn(&Path) -> bool>;

/// Two threads of three versions; the database, logs and manifests of a moment before are kept as well.
struct Sample {
    home: Home,
    threads: [ThreadId; 2],
    earlier: Tree,
    later: Tree,
}

impl Sample {
    fn make(root: &Path, seed: u64) -> Tried<Self> {
        fs::create_dir(root)?;
        let home = Home::make(root, seed)?;
        let threads = [id("one-0123456789ab"), id("two-0123456789ab")];
        let say = |texts: &[&str]| -> Tried<Tree> {
            let store = home.open()?;
            for thread in &threads {
                if texts.is_empty() {
                    store.commit(Batch::of(birth(thread, new_thread())))?;
                }
                for text in texts {
                    store.commit(Batch::of(part(thread, says(text))))?;
                }
            }
            store.close()?;
            Tree::take(root)
        };
        say(&[])?;
        let earlier = say(&["one"])?;
        let later = say(&["two"])?;
        Ok(Self { home, threads, earlier, later })
    }

    /// The newest version of the first log whose bytes are all as they were.
    fn untouched(&self, damaged: &[u8]) -> Option<u64> {
        let ours = bytes(&self.later, &self.log(0)).unwrap_or_default();
        let same = ours.iter().zip(damaged).take_while(|(a, b)| a == b).count();
        let whole = ours[..same].split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
        let checkpoints = whole.filter(|line| String::from_utf8_lossy(line).contains(r#""event_type":"checkpoint""#));
        (checkpoints.count() as u64).checked_sub(1)
    }

    fn log(&self, which: usize) -> PathBuf {
        log_of(&self.threads[which])
    }
}

fn log_of(thread: &ThreadId) -> PathBuf {
    PathBuf::from("project/.ai/agent/threads").join(thread.folder()).join("transcript.jsonl")
}

fn bytes(tree: &Tree, path: &Path) -> Tried<Vec<u8>> {
    match tree.0.get(path) {
        Some(Node::File(bytes)) => Ok(bytes.as_ref().clone()),
        _ => Err(format!("`{}` is not there", path.display()).into()),
    }
}

/// Damages everything in every way, every `stride`th of the many.
pub fn run(plan: &Plan) -> Tried<Tally> {
    let folder = plan.bench.folder()?;
    let sample = Sample::make(&folder.path().join("home"), plan.seed)?;
    let mut tally = Tally::default();
    edits(plan, &sample, &mut tally)?;
    rollbacks(plan, &sample, &mut tally)?;
    strangers(plan, &sample, &mut tally)?;
    Ok(tally)
}

/// Bits, cuts, lines and splices of one log, under a store that only reads.
fn edits(plan: &Plan, sample: &Sample, tally: &mut Tally) -> Tried {
    let (ours, theirs) = (bytes(&sample.later, &sample.log(0))?, bytes(&sample.later, &sample.log(1))?);
    let store = sample.home.read_only()?;
    let mut tried = |kind: &'static str, damaged: Vec<u8>| -> Tried {
        if damaged != ours {
            tally.add(kind, "damage", || AGAIN.to_owned(), refused(sample, &store, &damaged));
        }
        Ok(())
    };
    let stride = plan.stride as usize;
    for bit in (0..ours.len() * 8).step_by(stride) {
        let mut damaged = ours.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        tried("flip", damaged)?;
    }
    for length in (0..ours.len()).step_by(stride) {
        tried("cut", ours[..length].to_vec())?;
    }
    let split = |bytes: &[u8]| bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (lines, others) = (split(&ours), split(&theirs));
    for at in 0..lines.len() {
        let mut removed = lines.clone();
        removed.remove(at);
        tried("lines", removed.concat())?;
        for from in 0..lines.len() {
            let mut doubled = lines.clone();
            doubled.insert(at, lines[from].clone());
            tried("lines", doubled.concat())?;
            let mut swapped = lines.clone();
            swapped.swap(at, from);
            tried("lines", swapped.concat())?;
        }
        for other in &others {
            let mut spliced = lines.clone();
            spliced[at] = other.clone();
            tried("splice", spliced.concat())?;
            let mut inserted = lines.clone();
            inserted.insert(at, other.clone());
            tried("splice", inserted.concat())?;
        }
        tried("splice", [&lines[..at], &others[at..]].concat().concat())?;
    }
    Ok(fs::write(sample.home.root().join(sample.log(0)), &ours)?)
}

/// Nothing but the log is changed: it is not sound, and what is loaded of it is at most what was signed.
fn refused(sample: &Sample, store: &LocalStore, damaged: &[u8]) -> Held {
    let path = sample.home.root().join(sample.log(0));
    fs::write(&path, damaged).map_err(or(Kind::Stuck, "the log can't be written"))?;
    let verdict = store.verify(&sample.threads[0], &mut |_| {}).map_err(or(Kind::Stuck, "it can't be judged"))?;
    let finding = verdict.judgement.finding;
    if finding == Finding::Sound {
        return Err(breach(Kind::Broken, "a damaged log is sound"));
    }
    let (proven, untouched) = (verdict.judgement.unchanged_up_to, sample.untouched(damaged));
    if proven != untouched {
        return Err(breach(
            Kind::Broken,
            format!("{proven:?} is said to be unchanged, and {untouched:?} is: {finding:?}"),
        ));
    }
    let loaded = load(store, &sample.threads[0], store.trust(), None);
    match loaded.is_ok() && !matches!(finding, Finding::Foreign { .. }) {
        true => Err(breach(Kind::Broken, format!("a damaged log is loaded: {finding:?}"))),
        false => Ok(()),
    }
}

/// Each file, or the whole database, as it was a moment before: it is found, or it changes nothing that matters.
fn rollbacks(plan: &Plan, sample: &Sample, tally: &mut Tally) -> Tried {
    for (path, node) in &sample.later.0 {
        let (Node::File(now), Some(Node::File(then))) = (node, sample.earlier.0.get(path)) else { continue };
        if now == then {
            continue;
        }
        let mut tree = sample.later.clone();
        tree.0.insert(path.clone(), Node::File(then.clone()));
        let held = rolled_back(plan, sample, &tree, path);
        tally.add("rollback", "damage", || AGAIN.to_owned(), held);
        tree.0.remove(path);
        let held = rolled_back(plan, sample, &tree, path);
        tally.add("removal", "damage", || AGAIN.to_owned(), held);
    }
    Ok(())
}

fn rolled_back(plan: &Plan, sample: &Sample, tree: &Tree, path: &Path) -> Held {
    let about = |why: String| format!("`{}`: {why}", path.display());
    let folder = plan.bench.folder().map_err(or(Kind::Stuck, "no folder"))?;
    let root = folder.path().join("home");
    tree.put(&root).map_err(or(Kind::Stuck, "no home"))?;
    let home = Home::at(&root, 77);
    // A store that is not opened at all has refused everything.
    let Ok(store) = home.open() else { return Ok(()) };
    for thread in &sample.threads {
        let verdict = store.verify(thread, &mut |_| {});
        let is_sound = verdict.as_ref().is_ok_and(|verdict| verdict.judgement.finding == Finding::Sound);
        let before = fs::read(root.join(log_of(thread))).unwrap_or_default();
        let next = store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, says("next"))));
        match (is_sound, next) {
            (true, Ok(committed)) if committed.versions[0].1 == 3 => {}
            (true, other) => return Err(breach(Kind::Blended, about(format!("sound, and then {other:?}")))),
            (false, Ok(committed)) => {
                return Err(breach(Kind::Blended, about(format!("{verdict:?}, and still {committed:?}"))));
            }
            (false, Err(_)) => {
                let after = fs::read(root.join(log_of(thread))).unwrap_or_default();
                if after != before {
                    return Err(breach(Kind::Blended, about("it was refused and changed all the same".to_owned())));
                }
                // What is behind in the database alone is mended, and then all is as it was.
                if path.ends_with("registry.db") {
                    let how = Repair::default();
                    store.repair(thread, how).map_err(or(Kind::Stuck, "a database that was rolled back"))?;
                }
            }
        }
    }
    if path.ends_with("registry.db") {
        all_whole(&store)?;
        goes_on(&store)?;
    }
    Ok(())
}

/// The same threads under another key: log, log and database, everything but the trusted keys; and a saved hash state that
/// was sealed with that key.
fn strangers(plan: &Plan, sample: &Sample, tally: &mut Tally) -> Tried {
    let folder = plan.bench.folder()?;
    let forged = Sample::make(&folder.path().join("home"), plan.seed ^ 0xbad)?;
    let below = |part: &'static str| move |path: &Path| path.starts_with(part);
    let log = sample.log(0);
    let cases: [(&'static str, Choice); 4] = [
        ("log", Box::new(move |path| path == log)),
        ("database", Box::new(|path| path.to_string_lossy().contains("registry.db"))),
        ("store", Box::new(below("project"))),
        ("signing", Box::new(below("keys/signing"))),
    ];
    for (name, takes) in cases {
        let mut tree = sample.later.clone();
        tree.0.retain(|path, _| !takes(path) || path.to_string_lossy().ends_with("project"));
        tree.0.extend(
            forged.later.0.iter().filter(|(path, _)| takes(path)).map(|(path, node)| (path.clone(), node.clone())),
        );
        let root = folder.path().join(name);
        tree.put(&root)?;
        let held = believed_by_nobody(&Home::at(&root, 78), &sample.threads[0], name);
        tally.add("stranger", "damage", || AGAIN.to_owned(), held);
    }
    Ok(())
}

fn believed_by_nobody(home: &Home, thread: &ThreadId, name: &str) -> Held {
    let Ok(store) = home.open() else { return Ok(()) };
    let verdict = store.verify(thread, &mut |_| {});
    let is_sound = verdict.as_ref().is_ok_and(|verdict| verdict.judgement.finding == Finding::Sound);
    // A stranger's signing key beside our logs: these are sound, and nothing is added to them.
    if is_sound != (name == "signing") {
        return Err(breach(Kind::Broken, format!("{name} of a stranger: {verdict:?}")));
    }
    let committed = store.commit(Batch::of(part(thread, says("next"))));
    let after = store.verify(thread, &mut |_| {});
    let is_sound = after.as_ref().is_ok_and(|verdict| verdict.judgement.finding == Finding::Sound);
    match committed {
        // A commit does not read the log again: it signs what was signed before, and what lies there instead is still found.
        Ok(_) if name == "log" && !is_sound => Ok(()),
        Ok(committed) => Err(breach(Kind::Broken, format!("{name} of a stranger, and still {committed:?}"))),
        Err(_) => Ok(()),
    }
}
