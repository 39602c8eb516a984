//! Modified files of a closed store: nothing damaged is accepted as sound, nothing is signed on top of it, and
//! the part that is still proven is reported.

use std::fs;
use std::path::{Path, PathBuf};

use selvedge_log::recovery::Finding;
use selvedge_model::event::ManifestChanged;
use selvedge_model::{Batch, Changeset, Event, Expect, Part, ThreadId};
use selvedge_store::Commit;
use selvedge_store::conformance::support::{birth, id, new_thread, part, says, with_event};
use selvedge_store::heads::{Depth, Heads};
use selvedge_store::load::load;
use selvedge_store_local::{LocalStore, Repair};

use crate::LabResult;
use crate::check::{CheckResult, Kind, accepts_appends, all_consistent, breach, or};
use crate::home::Home;
use crate::run::Plan;
use crate::tally::Tally;
use crate::tree::{Node, Tree};

const AGAIN: &str = "cargo xtask crash --experiment damage";

/// Selects the files that are replaced by those of another key.
type Choice = Box<dyn Fn(&Path) -> bool>;

/// Two threads of three versions; their files before the last version are kept as well.
struct Sample {
    home: Home,
    threads: [ThreadId; 2],
    earlier: Tree,
    later: Tree,
    /// The ends of the logs, as a list that was kept elsewhere.
    heads: Heads,
}

impl Sample {
    fn make(root: &Path, seed: u64) -> LabResult<Self> {
        fs::create_dir(root)?;
        let home = Home::make(root, seed)?;
        let threads = [id("one-0123456789ab"), id("two-0123456789ab")];
        let say = |texts: &[&str]| -> LabResult<Tree> {
            let store = home.open()?;
            for thread in &threads {
                if texts.is_empty() {
                    store.commit(Batch::of(birth(thread, new_thread())))?;
                }
                for text in texts {
                    // With a title, so that `thread.json` has the version too.
                    let changed = ManifestChanged { title: Some((*text).to_owned()), ..ManifestChanged::default() };
                    let events = with_event(Event::ManifestChanged(changed)).events;
                    store.commit(Batch::of(part(thread, Changeset { events, ..says(text) })))?;
                }
            }
            store.close()?;
            Tree::take(root)
        };
        say(&[])?;
        let earlier = say(&["one"])?;
        let later = say(&["two"])?;
        let heads = home.read_only()?.heads()?.heads;
        Ok(Self { home, threads, earlier, later, heads })
    }

    /// The newest version of the first log whose bytes are all unchanged.
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

fn bytes(tree: &Tree, path: &Path) -> LabResult<Vec<u8>> {
    match tree.0.get(path) {
        Some(Node::File(bytes)) => Ok(bytes.as_ref().clone()),
        _ => Err(format!("`{}` does not exist", path.display()).into()),
    }
}

/// Applies every kind of damage; of the many variants, every `stride`th.
pub fn run(plan: &Plan) -> LabResult<Tally> {
    let folder = plan.bench.folder()?;
    let sample = Sample::make(&folder.path().join("home"), plan.seed)?;
    let mut tally = Tally::default();
    edits(plan, &sample, &mut tally)?;
    rollbacks(plan, &sample, &mut tally)?;
    together(plan, &sample, &mut tally)?;
    strangers(plan, &sample, &mut tally)?;
    Ok(tally)
}

/// Flipped bits, truncations, and moved or foreign lines of one log, with a store that only reads.
fn edits(plan: &Plan, sample: &Sample, tally: &mut Tally) -> LabResult {
    let ours = bytes(&sample.later, &sample.log(0))?;
    let theirs = bytes(&sample.later, &sample.log(1))?;
    let store = sample.home.read_only()?;
    let mut tried = |kind: &'static str, damaged: Vec<u8>| -> LabResult {
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
    let lines = split(&ours);
    let others = split(&theirs);
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

/// Only the log is changed: it is not sound, and at most its signed part is loaded.
fn refused(sample: &Sample, store: &LocalStore, damaged: &[u8]) -> CheckResult {
    let path = sample.home.root().join(sample.log(0));
    fs::write(&path, damaged).map_err(or(Kind::Stuck, "the log can't be written"))?;
    let verdict = store.verify(&sample.threads[0], &mut |_| {}).map_err(or(Kind::Stuck, "it can't be judged"))?;
    let finding = verdict.judgement.finding;
    if finding == Finding::Sound {
        return Err(breach(Kind::Broken, "a damaged log is sound"));
    }
    let proven = verdict.judgement.unchanged_up_to;
    let untouched = sample.untouched(damaged);
    if proven != untouched {
        return Err(breach(
            Kind::Broken,
            format!("{proven:?} is reported as unchanged instead of {untouched:?}: {finding:?}"),
        ));
    }
    let loaded = load(store, &sample.threads[0], store.trust(), None);
    if loaded.is_ok() && !matches!(finding, Finding::Foreign { .. }) {
        return Err(breach(Kind::Broken, format!("a damaged log is loaded: {finding:?}")));
    }
    Ok(())
}

/// Each file, or the whole database, in its earlier state: it is detected, or has no effect.
fn rollbacks(plan: &Plan, sample: &Sample, tally: &mut Tally) -> LabResult {
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

fn rolled_back(plan: &Plan, sample: &Sample, tree: &Tree, path: &Path) -> CheckResult {
    let about = |why: String| format!("`{}`: {why}", path.display());
    let folder = plan.bench.folder().map_err(or(Kind::Stuck, "no folder"))?;
    let root = folder.path().join("home");
    tree.put(&root).map_err(or(Kind::Stuck, "no home"))?;
    let home = Home::at(&root, 77);
    // A store that can't be opened has refused everything.
    let Ok(store) = home.open() else { return Ok(()) };
    for thread in &sample.threads {
        let verdict = store.verify(thread, &mut |_| {});
        let is_sound = verdict.as_ref().is_ok_and(|verdict| verdict.judgement.finding == Finding::Sound);
        let before = fs::read(root.join(log_of(thread))).unwrap_or_default();
        let next = store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, says("next"))));
        match (is_sound, next) {
            (true, Ok(committed)) if committed.versions[0].1 == 3 => {}
            (true, other) => return Err(breach(Kind::Blended, about(format!("sound, but then {other:?}")))),
            (false, Ok(committed)) => {
                return Err(breach(Kind::Blended, about(format!("{verdict:?}, but then {committed:?}"))));
            }
            (false, Err(_)) => {
                let after = fs::read(root.join(log_of(thread))).unwrap_or_default();
                if after != before {
                    return Err(breach(Kind::Blended, about("it was refused but changed nevertheless".to_owned())));
                }
                // A database that is behind is repaired, and then everything is as before.
                if path.ends_with("registry.db") {
                    let how = Repair::default();
                    store.repair(thread, how).map_err(or(Kind::Stuck, "a database that was rolled back"))?;
                }
            }
        }
    }
    if path.ends_with("registry.db") {
        all_consistent(&store)?;
        accepts_appends(&store)?;
    }
    Ok(())
}

/// Several files in their earlier state, in every combination. If everything that records a log's end was rolled back with it, the store
/// can't detect that by itself, but a list of heads that was kept elsewhere does.
fn together(plan: &Plan, sample: &Sample, tally: &mut Tally) -> LabResult {
    let changed: Vec<(&PathBuf, &Node)> = sample
        .earlier
        .0
        .iter()
        .filter(|(path, then)| {
            matches!(then, Node::File(_)) && sample.later.0.get(*path).is_some_and(|now| now != *then)
        })
        .collect();
    if changed.len() > 8 {
        return Err(format!("{} files changed between two commits: too many to combine", changed.len()).into());
    }
    for choice in (1_u32..1 << changed.len()).filter(|choice| choice.count_ones() > 1) {
        let mut tree = sample.later.clone();
        let back = changed.iter().enumerate().filter(|(at, _)| choice >> at & 1 == 1).map(|(_, file)| *file);
        let back: Vec<(&PathBuf, &Node)> = back.collect();
        tree.0.extend(back.iter().map(|(path, node)| ((*path).clone(), (*node).clone())));
        let names: Vec<&PathBuf> = back.iter().map(|(path, _)| *path).collect();
        let held = found_together(plan, sample, &tree, &names);
        tally.add("together", "damage", || AGAIN.to_owned(), held);
    }
    Ok(())
}

fn found_together(plan: &Plan, sample: &Sample, tree: &Tree, names: &[&PathBuf]) -> CheckResult {
    let folder = plan.bench.folder().map_err(or(Kind::Stuck, "no folder"))?;
    let root = folder.path().join("home");
    tree.put(&root).map_err(or(Kind::Stuck, "no home"))?;
    let home = Home::at(&root, 79);
    let Ok(reader) = home.read_only() else { return Ok(()) };
    let differing = reader.compare_heads(&sample.heads, Depth::Whole).differs;
    drop(reader);
    // A store that can't be opened has refused everything.
    let Ok(store) = home.open() else { return Ok(()) };
    for thread in &sample.threads {
        let verdict = store.verify(thread, &mut |_| {});
        let is_sound = verdict.as_ref().is_ok_and(|verdict| verdict.judgement.finding == Finding::Sound);
        let next = store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, says("next"))));
        let is_listed = differing.iter().any(|differs| differs.thread == *thread);
        let was = |end: &str| names.iter().any(|name| name.ends_with(end));
        let is_documented = was("registry.db") && names.iter().any(|name| **name == log_of(thread));
        match next {
            // Nothing is lost: it continues after the newest version.
            Ok(committed) if committed.versions[0].1 == 3 => {}
            // Log and database together: only a list that was kept elsewhere detects it.
            Ok(_) if is_sound && is_documented && is_listed => {}
            Ok(committed) => {
                return Err(breach(Kind::Blended, format!("{names:?}: {verdict:?}, but then {committed:?}")));
            }
            Err(_) if is_sound => return Err(breach(Kind::Stuck, format!("{names:?}: sound, but accepts no append"))),
            Err(_) => {}
        }
    }
    Ok(())
}

/// The same threads signed by another key: log, log and database, everything but the trusted keys; and a saved hash state
/// sealed with that key.
fn strangers(plan: &Plan, sample: &Sample, tally: &mut Tally) -> LabResult {
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
        let held = not_accepted(&Home::at(&root, 78), &sample.threads[0], name);
        tally.add("stranger", "damage", || AGAIN.to_owned(), held);
    }
    Ok(())
}

fn not_accepted(home: &Home, thread: &ThreadId, name: &str) -> CheckResult {
    let Ok(store) = home.open() else { return Ok(()) };
    let verdict = store.verify(thread, &mut |_| {});
    let is_sound = verdict.as_ref().is_ok_and(|verdict| verdict.judgement.finding == Finding::Sound);
    // Rows that were not sealed with the signing key are not believed, even if the log is that of a trusted key.
    if is_sound {
        return Err(breach(Kind::Broken, format!("{name} of another key: {verdict:?}")));
    }
    let committed = store.commit(Batch::of(part(thread, says("next"))));
    let after = store.verify(thread, &mut |_| {});
    let is_sound = after.as_ref().is_ok_and(|verdict| verdict.judgement.finding == Finding::Sound);
    match committed {
        // A commit does not read the log again: it signs what was signed before, and the replaced log is still detected.
        Ok(_) if name == "log" && !is_sound => Ok(()),
        Ok(committed) => Err(breach(Kind::Broken, format!("{name} of another key, but then {committed:?}"))),
        Err(_) => Ok(()),
    }
}
