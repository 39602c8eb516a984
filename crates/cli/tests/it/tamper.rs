//! The database changed by a program that has no key, between two commands.
//!
//! Every column of every table is changed, and every row is removed, put in again under another key, swapped with another thread's and
//! replaced by its own earlier self; and rows of several tables are put back or removed together. Whatever the next commands do then, nothing forged is signed, no denied call runs, no ceiling is
//! exceeded, no acknowledged write is lost, and unless the column is only a hint the change is named. Which columns are hints is read
//! from the table in `SECURITY.md`, so that the page says what is true.

mod extremes;
mod more;
mod search_index;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rusqlite::types::Value as Sql;
use rusqlite::{Connection, params_from_iter};
use selvedge_model::account::Posting;
use selvedge_model::id::ReservationId;
use selvedge_model::message::Block;
use selvedge_model::op::Op;
use selvedge_model::{
    Batch, Changeset, CommitKey, Expect, Message, MessageId, Money, Part, Patch, Posted, Reason, Request, RequestId,
    Role, ThreadId, Timestamp,
};
use selvedge_store::{Commit, Inbox};
use serde_json::{Value, json};

use crate::running::{TASK, pay, put, thread_of};
use crate::support::{HELLO, Ran, Sandbox, copy};

const SCRIPT: &str = "price: {input_per_million_tokens: 1, output_per_million_tokens: 2}\nturns:\n  - { say: One moment., usage: {input_tokens: 1000, output_tokens: 500}, calls: [{ tool: pay, arguments: { to: anna } }] }\n  - { say: Done., usage: {input_tokens: 1000, output_tokens: 500}, repeat: forever }\n";
const ASK: &str = "rules:\n  - { id: money, tool: pay, action: ask, reason: money }\n";

/// A store with rows in every table, and its database as it was a few commits before.
struct World {
    sandbox: Sandbox,
    earlier: Vec<u8>,
    ann: String,
    task: String,
    /// A thread with an account, and another one that posted to it.
    pot: String,
    dot: String,
}

fn says(text: &str, id: &str) -> Changeset {
    let message = Message::text(Role::User, text).with_id(MessageId::new(id).unwrap());
    let set = Op::Set { path: selvedge_model::path::Path::keys(["said"]), value: text.into() };
    let patches = vec![Patch::new(vec![set])];
    Changeset { messages: vec![message], patches, ..Changeset::empty(Reason::UserMessage) }
}

fn request(thread: &ThreadId, id: &str) -> Posted {
    let request = Request::Rename { title: format!("by {id}") };
    Posted { thread: thread.clone(), id: RequestId::new(id).unwrap(), at: Timestamp::from_micros(7), request }
}

impl World {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        put(&sandbox, ".ai/directives/task.md", TASK);
        put(&sandbox, ".ai/tools/pay.yaml", &pay("echo ok"));
        put(&sandbox, "script.yaml", SCRIPT);
        put(&sandbox, ".ai/config/agent/approvals.yaml", ASK);
        let [ann, bob, cay, pot, dot] = ["ann", "bob", "cay", "pot", "dot"].map(|agent| sandbox.new_thread(agent));
        let gone = sandbox.new_thread("gone");
        assert_eq!(sandbox.run(&["thread", "delete", &gone, "--yes"]).code, Some(0));
        let ran = sandbox.run(&["run", "task", "--model", "scripted:script.yaml", "--limit", "spend=0.02", "--json"]);
        assert_eq!(ran.code, Some(7), "{ran:?}");
        let task = thread_of(&ran);
        Self::write(&sandbox, &ann, &bob, 1);
        Self::leave_lead(&sandbox, &cay);
        let money = |nanos| Money::from_nanos(nanos).unwrap();
        let account = ThreadId::new(&pot).unwrap();
        Self::post(&sandbox, &pot, Posting::Open { account: account.clone(), parent: None, max: Some(money(1_000)) });
        let earlier = database(&sandbox);
        let reservation = ReservationId::new("by-dot").unwrap();
        Self::post(&sandbox, &dot, Posting::Reserve { account, reservation, amount: money(900), child: None });
        Self::write(&sandbox, &ann, &bob, 2);
        Self { sandbox, earlier, ann, task, pot, dot }
    }

    /// Posts to an account from a thread that need not be its owner.
    fn post(sandbox: &Sandbox, thread: &str, posting: Posting) {
        let store = sandbox.open();
        let part = Part::new(ThreadId::new(thread).unwrap(), Expect::Any, Changeset::empty(Reason::Reserved));
        store.commit(Batch::of(Part { postings: vec![posting], ..part })).unwrap();
        store.close().unwrap();
    }

    /// Leaves a thread with an event that waits to lead its next changeset: foreign bytes were moved aside, and the commit behind failed.
    fn leave_lead(sandbox: &Sandbox, thread: &str) {
        let path = sandbox.transcript(thread);
        fs::write(&path, [fs::read(&path).unwrap(), b"foreign".to_vec()].concat()).unwrap();
        let ran = sandbox.run_with(&["append", thread, "--expect", "99"], HELLO.as_bytes());
        assert_ne!(ran.code, Some(0), "{ran:?}");
        let leads = "SELECT count(*) FROM leads";
        let database = Connection::open(sandbox.threads().join("registry.db")).unwrap();
        assert_eq!(database.query_row(leads, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
    }

    /// Writes to two threads: messages, a commit key, postings, a request that is consumed and one that waits, an erased blob.
    fn write(sandbox: &Sandbox, ann: &str, bob: &str, round: i64) {
        let store = sandbox.open();
        let money = |nanos| Money::from_nanos(nanos).unwrap();
        for name in [ann, bob] {
            let thread = ThreadId::new(name).unwrap();
            let account = thread.clone();
            let reservation = ReservationId::new(format!("r{round}")).unwrap();
            let mut postings =
                vec![Posting::Reserve { account: account.clone(), reservation, amount: money(round), child: None }];
            if round == 1 {
                postings.insert(0, Posting::Open { account, parent: None, max: Some(money(1_000)) });
            }
            let part = Part::new(thread.clone(), Expect::Any, says(&format!("round {round}"), &format!("m{round}")));
            let key = CommitKey::new(format!("k{round}-{name}")).unwrap();
            store.commit(Batch::of(Part { postings, ..part }).with_key(key)).unwrap();
            let blob = store.put_blob(&thread, format!("secret {round}").as_bytes()).unwrap();
            let image = Block::Image { blob, media_type: "text/plain".to_owned() };
            let shown = Message { content: vec![image], ..Message::text(Role::User, "") };
            let shown = Changeset { messages: vec![shown], ..Changeset::empty(Reason::UserMessage) };
            store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, shown))).unwrap();
            store.erase(&thread, &blob, "asked to").unwrap();
            store.post(request(&thread, &format!("q{round}"))).unwrap();
        }
        if round == 2 {
            // A process that died: what it committed may be in the database alone, and its requests wait.
            return drop(store);
        }
        store.close().unwrap();
        for name in [ann, bob] {
            let ran = sandbox.run(&["thread", "rename", name, "titled"]);
            assert_eq!(ran.code, Some(0), "{ran:?}");
        }
    }

    /// The same store elsewhere, with a database that `change` changed; nothing if there was nothing to change.
    fn changed(&self, change: &dyn Fn(&Connection) -> bool) -> Option<Sandbox> {
        let other = Sandbox::empty_in_memory();
        copy(&self.sandbox.root(), &other.root());
        keep_to_owner(&other.home());
        fs::write(other.root().join("earlier.db"), &self.earlier).unwrap();
        let database = Connection::open(other.threads().join("registry.db")).unwrap();
        let attach = other.root().join("earlier.db");
        database.execute("ATTACH ? AS earlier", [attach.to_str().unwrap()]).unwrap();
        change(&database).then_some(other)
    }
}

/// Keys are refused that others may read.
pub(crate) fn keep_to_owner(folder: &Path) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            keep_to_owner(&path);
        } else {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
}

fn database(sandbox: &Sandbox) -> Vec<u8> {
    let path = sandbox.threads().join("registry.db");
    let connection = Connection::open(&path).unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(connection);
    fs::read(path).unwrap()
}

/// Why a column may be believed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Hint,
    Checked,
    Sealed,
}

/// Why each column may be believed, as `SECURITY.md` says.
fn classes() -> BTreeMap<(String, String), Class> {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../SECURITY.md")).unwrap();
    let mut classes = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [table, sealed, checked, hint] = cells[..] else { continue };
        for (names, class) in [(sealed, Class::Sealed), (checked, Class::Checked), (hint, Class::Hint)] {
            for name in names.split(", ").filter(|name| *name != "–") {
                classes.insert((table.trim_matches('`').to_owned(), name.to_owned()), class);
            }
        }
    }
    assert!(classes.contains_key(&("feed".to_owned(), "line".to_owned())), "the table is not found");
    classes
}

/// The tables and their columns, of the schema itself.
fn columns(world: &World) -> BTreeMap<String, Vec<String>> {
    let database = Connection::open(world.sandbox.threads().join("registry.db")).unwrap();
    let sql = "SELECT m.name, c.name FROM sqlite_schema AS m, pragma_table_xinfo(m.name) AS c \
               WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' AND c.hidden = 0";
    let mut statement = database.prepare(sql).unwrap();
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))).unwrap();
    for (table, column) in rows.map(rusqlite::Result::unwrap) {
        found.entry(table).or_default().push(column);
    }
    found
}

/// Every row of a table, by the names of its columns.
fn rows(database: &Connection, table: &str) -> Vec<Vec<Sql>> {
    let mut statement = database.prepare(&format!("SELECT * FROM {table}")).unwrap();
    let plain: Vec<usize> = (0..statement.column_count()).collect();
    let rows = statement.query_map([], |row| plain.iter().map(|at| row.get(*at)).collect()).unwrap();
    rows.map(rusqlite::Result::unwrap).collect()
}

/// Another value of the same type.
fn other(value: &Sql) -> Sql {
    match value {
        Sql::Null => Sql::Text("0123456789abcdef0123456789abcdef".to_owned()),
        Sql::Integer(number) => Sql::Integer(number + 1),
        Sql::Real(number) => Sql::Real(number + 1.0),
        Sql::Text(text) => match text.find(|c: char| c.is_ascii_digit()) {
            // A number in JSON stays one, and a name stays a name.
            Some(at) => {
                let digit = if text.as_bytes()[at] == b'9' { "8" } else { "9" };
                Sql::Text(format!("{}{digit}{}", &text[..at], &text[at + 1..]))
            }
            None => Sql::Text(format!("{text}x")),
        },
        Sql::Blob(bytes) if bytes.is_empty() => Sql::Blob(vec![7]),
        Sql::Blob(bytes) => {
            Sql::Blob(bytes.iter().enumerate().map(|(at, b)| if at == 0 { b ^ 1 } else { *b }).collect())
        }
    }
}

/// How a table is changed.
#[derive(Clone, Debug)]
enum Change {
    Value {
        column: String,
    },
    Swap {
        column: String,
    },
    /// A row like one that is there, with another value in one column.
    Insert {
        column: String,
    },
    Remove,
    Earlier,
}

/// Applies a change to the row of this place; false if there is nothing to change.
fn apply(database: &Connection, table: &str, columns: &[String], place: usize, change: &Change) -> bool {
    let found = rows(database, table);
    let Some(row) = found.get(place) else { return false };
    let condition = columns.iter().map(|name| format!("{name} IS ?")).collect::<Vec<_>>().join(" AND ");
    let names: Vec<String> = column_names(database, table);
    let at = |column: &str| names.iter().position(|name| name == column).unwrap();
    let plain = |row: &[Sql]| columns.iter().map(|name| row[at(name)].clone()).collect::<Vec<_>>();
    match change {
        Change::Value { column } => {
            let changed = other(&row[at(column)]);
            let sql = format!("UPDATE OR IGNORE {table} SET {column} = ? WHERE {}", condition);
            let bound = std::iter::once(changed).chain(plain(row));
            database.execute(&sql, params_from_iter(bound)).is_ok_and(|count| count == 1)
        }
        Change::Swap { column } => {
            let Some(next) = found.iter().find(|next| next[at(column)] != row[at(column)]) else { return false };
            let sql = format!("UPDATE OR IGNORE {table} SET {column} = ? WHERE {}", condition);
            let first =
                database.execute(&sql, params_from_iter(std::iter::once(next[at(column)].clone()).chain(plain(row))));
            let second =
                database.execute(&sql, params_from_iter(std::iter::once(row[at(column)].clone()).chain(plain(next))));
            first.is_ok_and(|count| count == 1) | second.is_ok_and(|count| count == 1)
        }
        Change::Insert { column } => {
            let list = columns.join(", ");
            let marks = vec!["?"; columns.len()].join(", ");
            let planted =
                columns.iter().map(|name| if name == column { other(&row[at(name)]) } else { row[at(name)].clone() });
            let sql = format!("INSERT OR IGNORE INTO {table} ({list}) VALUES ({marks})");
            database.execute(&sql, params_from_iter(planted)).is_ok_and(|count| count == 1)
        }
        Change::Remove => {
            let sql = format!("DELETE FROM {table} WHERE {}", condition);
            database.execute(&sql, params_from_iter(plain(row))).is_ok_and(|count| count == 1)
        }
        Change::Earlier => {
            let list = columns.join(", ");
            let before: Vec<Vec<Sql>> = rows(database, &format!("earlier.{table}"));
            let is_gone = |before: &&Vec<Sql>| !found.iter().any(|now| plain(now) == plain(before));
            let Some(before) = before.iter().filter(is_gone).nth(place) else { return false };
            let sql =
                format!("INSERT OR REPLACE INTO {table} ({list}) VALUES ({})", vec!["?"; columns.len()].join(", "));
            database.execute(&sql, params_from_iter(plain(before))).is_ok()
        }
    }
}

fn column_names(database: &Connection, table: &str) -> Vec<String> {
    let statement = database.prepare(&format!("SELECT * FROM {table}")).unwrap();
    statement.column_names().map(str::to_owned).collect()
}

/// What a command names: exit code 6, notices about the database, and what `doctor` found.
fn named(ran: &Ran) -> BTreeSet<String> {
    let mut named: BTreeSet<String> = BTreeSet::new();
    if ran.code == Some(6) {
        named.insert("exit code 6".to_owned());
    }
    let words = ["registry.db", "sealed with your key", "removed from the database", "tombstone"];
    named.extend(words.iter().filter(|word| ran.stderr.contains(**word)).map(|word| (*word).to_owned()));
    for record in ran.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        for finding in record["findings"].as_array().into_iter().flatten() {
            named.insert(format!("{} {}", finding["code"], finding["subject"]));
        }
        named.extend(record["notices"].as_array().into_iter().flatten().map(ToString::to_string));
        named.extend(record["left_out"].as_array().into_iter().flatten().map(ToString::to_string));
    }
    named
}

/// What the log of a thread says, without what was added since.
fn log(sandbox: &Sandbox, thread: &str) -> String {
    fs::read_to_string(sandbox.transcript(thread)).unwrap_or_default()
}

/// What the commands that come after a change did.
struct After {
    ran: Vec<Ran>,
    /// Whether the append, and the same one again, was acknowledged; whether the denial was.
    appended: bool,
    appended_again: bool,
    denied: bool,
    /// The lines that were signed since.
    added: Vec<Value>,
    is_whole: bool,
    paid: bool,
    acknowledged: usize,
    /// What is left once the database is derived from the logs, if it was.
    rebuilt: Option<Rebuilt>,
}

/// What is left once the database is derived from the logs.
struct Rebuilt {
    doctored: Option<i32>,
    holds_ceilings: bool,
}

impl After {
    /// Runs the commands: some that write and run, some that look, and what is left once the database is derived from the logs.
    fn of(world: &World, other: &Sandbox) -> Self {
        Self::of_steps(world, other, true)
    }

    /// The same; a rebuild is much of the work, and not every variant of a change needs one.
    fn of_steps(world: &World, other: &Sandbox, rebuilds: bool) -> Self {
        let ann = world.ann.as_str();
        let task = world.task.as_str();
        let mut ran: Vec<Ran> = Vec::new();
        let mut run = |args: &[&str], input: &str| {
            ran.push(other.run_with(args, input.as_bytes()));
            ran[ran.len() - 1].code
        };
        let message = json!({"id": "new", "role": "user", "content": "acknowledged"});
        let message = json!({"reason": "UserMessage", "messages": [message]}).to_string();
        let append = ["append", ann, "--expect", "any", "--key", "fresh", "--json"];
        let appended = run(&append, &message) == Some(0);
        let denied = run(&["deny", "call_1", "--thread", task, "--json"], "") == Some(0);
        run(&["budget", task, "--verify", "--json"], "");
        run(&["resume", task, "--json"], "");
        run(&["doctor", "--deep", "--json"], "");
        let appended_again = run(&append, &message) == Some(0);
        let rebuilt = rebuilds.then(|| {
            run(&["reindex", "--json"], "");
            // It verifies every signature of every log, and compares the rows with them.
            let doctored = run(&["doctor", "--deep", "--json"], "");
            run(&["budget", task, "--verify", "--json"], "");
            doctored
        });
        let rebuilt = rebuilt.map(|doctored| {
            let audit = ran.last().map(|ran| ran.stdout.clone()).unwrap_or_default();
            let audit: Value = serde_json::from_str(audit.lines().next().unwrap_or("null")).unwrap_or_default();
            Rebuilt { doctored, holds_ceilings: audit["verified"]["holds"] == true }
        });
        let mut added = Vec::new();
        let mut is_whole = true;
        for thread in [ann, task] {
            let before = log(&world.sandbox, thread);
            let now = log(other, thread);
            match now.strip_prefix(before.as_str()) {
                Some(new) => added.extend(new.lines().map(|line| serde_json::from_str::<Value>(line).unwrap())),
                None => is_whole = false,
            }
        }
        let paid = other.project().join("paid.txt").exists();
        let acknowledged = log(other, ann).matches("acknowledged").count();
        Self { ran, appended, appended_again, denied, added, is_whole, paid, acknowledged, rebuilt }
    }

    fn named(&self) -> BTreeSet<String> {
        self.ran.iter().flat_map(named).collect()
    }

    fn kinds(&self) -> BTreeSet<String> {
        self.added.iter().map(|line| line["event_type"].as_str().unwrap().to_owned()).collect()
    }

    /// What does not hold; `control` is what the same commands do with the database as it was.
    fn broken(&self, control: &Self, class: Class) -> Vec<String> {
        let mut broken = Vec::new();
        let mut must = |holds: bool, why: &str| {
            if !holds {
                broken.push(why.to_owned())
            }
        };
        must(!self.paid, "a denied call ran");
        must(self.is_whole, "signed lines are lost or changed");
        let least = usize::from(self.appended || self.appended_again);
        must(self.acknowledged >= least, "what was acknowledged is lost");
        must(self.acknowledged <= 1, "what was sent twice under one key is there twice");
        let mut known = control.kinds();
        known.insert("recovery".to_owned());
        let unasked: Vec<_> = self.kinds().difference(&known).cloned().collect();
        must(unasked.is_empty(), &format!("events were signed that no command asked for: {unasked:?}"));
        let approves = |line: &Value| line["event_type"] == "decision" && line["payload"]["action"] != "deny";
        must(!self.added.iter().any(approves), "a decision was signed that no command made");
        let title = |line: &Value| line["payload"]["title"].as_str().is_some_and(|title| title != "by q2");
        must(!self.added.iter().any(title), "a title was signed that no command gave");
        if let Some(rebuilt) = &self.rebuilt {
            // It also warns of what is no damage, such as a disk that is nearly full.
            must(matches!(rebuilt.doctored, Some(0 | 1)), "`doctor` finds damage after `reindex`");
            must(rebuilt.holds_ceilings, "a ceiling was exceeded");
        }
        let is_as_if_nothing_was = self.appended && self.denied;
        let is_named = !self.named().is_subset(&control.named());
        match class {
            Class::Hint => must(is_as_if_nothing_was, "a hint decides"),
            Class::Checked => must(is_as_if_nothing_was || is_named, "it was not named"),
            Class::Sealed => must(is_named, "it was not named"),
        }
        broken
    }
}

/// How many rows of a table are removed or put back, one at a time; no table of [`World`] has more.
const ROWS_MAX: usize = 24;

/// Tries every change of one table.
fn try_table(table: &str) {
    let world = World::new();
    let classes = classes();
    let columns = columns(&world).remove(table).unwrap_or_else(|| panic!("there is no table `{table}`"));
    let mut changes: Vec<Change> = columns.iter().map(|column| Change::Value { column: column.clone() }).collect();
    changes.extend(columns.iter().map(|column| Change::Swap { column: column.clone() }));
    changes.extend(columns.iter().map(|column| Change::Insert { column: column.clone() }));
    changes.extend([Change::Remove, Change::Earlier]);
    let control = world.changed(&|_| true).map(|same| After::of(&world, &same)).unwrap();
    assert_eq!(control.broken(&control, Class::Hint), [] as [String; 0], "{:#?}", control.ran);
    assert!(!control.named().contains("exit code 6"), "nothing was changed: {:#?}", control.ran);
    let mut tried = 0;
    let mut failures = Vec::new();
    for change in changes {
        let column = match &change {
            Change::Value { column } | Change::Swap { column } => Some(column.clone()),
            Change::Insert { .. } | Change::Remove | Change::Earlier => None,
        };
        let class_of = |column: &String| classes[&(table.to_owned(), column.clone())];
        // A whole row is what the most careful of its columns is.
        let class = column.as_ref().map_or_else(|| columns.iter().map(class_of).max().unwrap(), class_of);
        // A value in the row of the thread that the commands are about and in the next one. A swap concerns both, and a row that is
        // planted is like either. Every row, as a whole.
        let rows = match change {
            Change::Value { .. } => 2,
            Change::Swap { .. } | Change::Insert { .. } => 1,
            Change::Remove | Change::Earlier => ROWS_MAX,
        };
        for place in 0..rows {
            let change_it = |database: &Connection| apply(database, table, &columns, place, &change);
            let Some(other) = world.changed(&change_it) else { continue };
            tried += 1;
            // Once for each column and each row: a rebuild derives what it finds in the logs, whichever value it replaces.
            let rebuilds = place == 0 && !matches!(change, Change::Swap { .. }) || column.is_none();
            let after = After::of_steps(&world, &other, rebuilds);
            let broken = after.broken(&control, class);
            if !broken.is_empty() {
                failures.push(format!("row {place}, {change:?}: {broken:?}\n{:#?}", after.ran));
            }
        }
    }
    assert!(tried > 0, "nothing of `{table}` could be changed");
    assert!(failures.is_empty(), "{} of {tried} changes of `{table}`:\n{}", failures.len(), failures.join("\n"));
}

/// What happens to the rows of a table.
#[derive(Clone, Copy, Debug)]
enum Together {
    /// They are as they were earlier.
    Back(&'static str),
    Gone(&'static str),
    /// The same for the account that another thread posted to.
    PotBack(&'static str),
    /// That other thread has no rows and no folder.
    DotGone,
}

impl Together {
    fn apply(self, world: &World, columns: &BTreeMap<String, Vec<String>>, database: &Connection) {
        let execute = |sql: &str, values: &[&str]| database.execute(sql, params_from_iter(values)).unwrap();
        let put = |table: &str, condition: &str, values: &[&str]| {
            let list = columns[table].join(", ");
            execute(&format!("DELETE FROM {table} WHERE {condition}"), values);
            let rows = format!("SELECT {list} FROM earlier.{table} WHERE {condition}");
            execute(&format!("INSERT INTO {table} ({list}) {rows}"), values);
        };
        match self {
            Self::Back(table) => put(table, "true", &[]),
            Self::Gone(table) => drop(execute(&format!("DELETE FROM {table}"), &[])),
            Self::PotBack(table) => {
                let column = if table == "reservations" { "account" } else { "thread_id" };
                put(table, &format!("{column} = ?"), &[&world.pot]);
            }
            Self::DotGone => {
                let number = "(SELECT id FROM threads WHERE thread_id = ?)";
                for table in ["redo", "feed", "messages", "runs", "states"] {
                    execute(&format!("DELETE FROM {table} WHERE thread = {number}"), &[&world.dot]);
                }
                execute(&format!("DELETE FROM heads WHERE id = {number}"), &[&world.dot]);
                execute("DELETE FROM threads WHERE thread_id = ?", &[&world.dot]);
            }
        }
    }
}

/// Rows of several tables that fit each other, each with its genuine seal.
const TOGETHER: [&[Together]; 9] = {
    use Together::{Back, DotGone, Gone, PotBack};
    [
        &[Back("requests"), Back("inboxes")],
        &[Gone("requests"), Back("inboxes")],
        &[Gone("requests"), Gone("inboxes")],
        &[Back("requests"), Back("inboxes"), Back("anchor")],
        &[Back("budget_ledger"), Back("reservations")],
        &[Gone("budget_ledger"), Gone("reservations")],
        &[Back("budget_ledger"), Back("reservations"), Back("anchor")],
        &[PotBack("budget_ledger"), PotBack("reservations"), DotGone],
        &[PotBack("budget_ledger"), PotBack("reservations"), DotGone, Back("anchor")],
    ]
};

/// A request that was removed with its older inbox, and an account that was put back while the thread that posted to it was removed, were
/// lost without a word.
#[test]
fn older_rows_of_several_tables_that_fit_each_other_are_detected() {
    let world = World::new();
    let columns = columns(&world);
    let control = world.changed(&|_| true).map(|same| After::of(&world, &same)).unwrap();
    let mut failures = Vec::new();
    for changes in TOGETHER {
        let change = |database: &Connection| {
            database.pragma_update(None, "foreign_keys", false).unwrap();
            changes.iter().for_each(|one| one.apply(&world, &columns, database));
            true
        };
        let other = world.changed(&change).unwrap();
        if changes.iter().any(|one| matches!(one, Together::DotGone)) {
            fs::remove_dir_all(other.threads().join(&world.dot)).unwrap();
        }
        let after = After::of(&world, &other);
        let broken = after.broken(&control, Class::Sealed);
        if !broken.is_empty() {
            failures.push(format!("{changes:?}: {broken:?}\n{:#?}", after.ran));
        }
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), TOGETHER.len(), failures.join("\n"));
}

macro_rules! tables {
    ($($test:ident: $table:literal,)*) => {
        $(#[test]
        fn $test() {
            try_table($table);
        })*

        /// A new table is covered, or this fails.
        #[test]
        fn every_table_is_tried() {
            let tried = BTreeSet::from([$($table),*]);
            let world = World::new();
            let tables = columns(&world);
            assert_eq!(tried, tables.keys().map(String::as_str).collect());
        }
    };
}

tables! {
    threads_changed_without_the_key: "threads",
    heads_changed_without_the_key: "heads",
    redo_changed_without_the_key: "redo",
    leads_changed_without_the_key: "leads",
    messages_changed_without_the_key: "messages",
    states_changed_without_the_key: "states",
    runs_changed_without_the_key: "runs",
    commit_keys_changed_without_the_key: "keys",
    the_feed_changed_without_the_key: "feed",
    tombstones_changed_without_the_key: "tombstones",
    accounts_changed_without_the_key: "budget_ledger",
    reservations_changed_without_the_key: "reservations",
    erasures_changed_without_the_key: "erasures",
    requests_changed_without_the_key: "requests",
    inboxes_changed_without_the_key: "inboxes",
    the_anchor_changed_without_the_key: "anchor",
    answers_changed_without_the_key: "answers",
}
