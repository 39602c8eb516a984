//! Every table and column of the database, and how it is protected.
//!
//! A program that can write the database and has no key must not get anything signed, spent, dispatched or answered. So every column that a
//! commit or a run relies on is *sealed* (by a mark that only the holder of the key can make, [`selvedge_store::seal`]), *checked* (against
//! bytes that are signed themselves), or a *hint*, which affects only speed and display. Tests compare this list with the schema and with
//! `SECURITY.md`.

/// How a column is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trusted {
    /// A mark covers it.
    Sealed,
    /// Its value is compared with signed bytes before it is used.
    Checked,
    /// It affects only speed and display.
    Hint,
}

use Trusted::{Checked, Hint, Sealed};

/// The tables, and how their columns are protected. `root`, which begins most of them, follows from the sealed manifest of a thread: a row
/// with another one is not found.
pub(crate) const COLUMNS: [(&str, &[(&str, Trusted)]); 20] = [
    ("migrations", &[("version", Hint), ("applied_at", Hint)]),
    // Another id makes every seal fail; positions are followed, and decide nothing.
    ("meta", &[("one", Hint), ("store_id", Sealed), ("feed_base", Hint)]),
    // Who is alive: a lease that is taken over raises the sealed epoch.
    ("owners", &[("owner", Sealed), ("host", Hint), ("beat", Sealed), ("mark", Sealed), ("alive_until", Hint)]),
    (
        "threads",
        &[
            ("root", Checked),
            ("thread", Sealed),
            ("number", Sealed),
            ("head", Sealed),
            ("hash", Hint), // A running hash that carries a seal of its own; without one the log is hashed again.
            ("manifest", Sealed),
            ("epoch", Sealed),
            ("owner", Sealed),
            ("updated_at", Sealed),
            ("posted", Sealed),
            ("consumed", Sealed),
            ("mark", Sealed),
            ("version", Hint),
            ("agent", Hint),
            ("directive", Hint),
            ("status", Hint),
            ("parent", Hint),
            ("chain", Hint),
            ("title", Hint),
            ("hex", Hint),
            ("imported", Hint),
        ],
    ),
    (
        "log",
        &[
            ("root", Hint),
            ("thread", Checked),
            ("version", Hint),
            ("first_byte", Checked),
            ("first_line", Hint),
            ("lines", Hint),
            ("bytes", Checked),
        ],
    ),
    ("messages", &[("root", Hint), ("thread", Sealed), ("message", Sealed), ("digest", Sealed), ("mark", Sealed)]),
    (
        "runs",
        &[
            ("root", Hint),
            ("thread", Sealed),
            ("run", Sealed),
            ("number", Hint),
            ("body", Sealed),
            ("updated_at", Hint),
            ("mark", Sealed),
        ],
    ),
    ("keys", &[("root", Sealed), ("key", Sealed), ("request", Sealed), ("answer", Sealed), ("mark", Sealed)]),
    (
        "feed",
        &[
            ("root", Hint),
            ("position", Hint),
            ("thread", Hint),
            ("version", Hint),
            ("first_line", Hint),
            ("lines", Hint),
        ],
    ),
    ("tombstones", &[("root", Hint), ("thread", Checked), ("document", Checked)]),
    ("accounts", &[("root", Hint), ("account", Hint), ("parent", Hint), ("body", Sealed), ("mark", Sealed)]),
    ("reservations", &[("root", Hint), ("account", Hint), ("reservation", Hint), ("body", Sealed)]),
    (
        "requests",
        &[
            ("root", Hint),
            ("chain", Sealed),
            ("number", Sealed),
            ("thread", Checked), // The seal names the chain, and the sealed inbox of a chain the numbers that were posted to it.
            ("request", Sealed),
            ("holds", Hint),
            ("posted_at", Sealed),
            ("body", Sealed),
            ("mark", Sealed),
            ("arrival", Hint),
        ],
    ),
    ("inboxes", &[("root", Hint), ("chain", Sealed), ("posted", Sealed), ("mark", Sealed), ("arrival", Hint)]),
    (
        "answers",
        &[
            ("root", Hint),
            ("chain", Sealed),
            ("request", Sealed),
            ("thread", Sealed),
            ("version", Sealed),
            ("mark", Sealed),
        ],
    ),
    ("blobs", &[("root", Hint), ("thread", Hint), ("name", Checked), ("bytes", Checked)]),
    (
        "erasures",
        &[
            ("root", Hint),
            ("thread", Sealed),
            ("blob", Sealed),
            ("reason", Sealed),
            ("erased_at", Sealed),
            ("mark", Sealed),
        ],
    ),
    ("documents", &[("root", Hint), ("thread", Checked), ("folder", Hint), ("name", Hint), ("bytes", Checked)]),
    ("knowledge", &[("id", Checked), ("document", Checked)]),
    ("effects", &[("effect", Hint), ("state", Hint)]),
];

/// The tables of which nothing decides: usage and the search index are derived, and a hit is read back from the verified log.
pub(crate) const DERIVED: [&str; 3] = ["usage_records", "passages", "unsearched"];

mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A column that is added must be sealed, checked or a hint, and be listed here.
    #[test]
    fn every_column_of_the_schema_is_accounted_for() {
        let address = crate::test_server::schema(crate::test_server::shared());
        struct Zeros;
        impl selvedge_model::Ids for Zeros {
            fn fill(&self, bytes: &mut [u8]) {
                bytes.fill(7);
            }
        }
        crate::PostgresStore::init(&address, None, &Zeros).unwrap();
        let schema = address.split_once("schema=").unwrap().1;
        let sql = format!(
            "SELECT string_agg(table_name || ' ' || column_name, ';') FROM information_schema.columns WHERE table_schema = '{schema}'"
        );
        let all = crate::test_server::execute(&address, &sql).unwrap().unwrap();
        let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for pair in all.split(';') {
            let (table, column) = pair.split_once(' ').unwrap();
            if !DERIVED.contains(&table) {
                found.entry(table).or_default().push(column);
            }
        }
        let mut here: BTreeMap<&str, Vec<&str>> =
            COLUMNS.iter().map(|(table, columns)| (*table, columns.iter().map(|(name, _)| *name).collect())).collect();
        for columns in found.values_mut().chain(here.values_mut()) {
            columns.sort_unstable();
        }
        assert_eq!(here, found);
    }

    /// The table of `SECURITY.md` is this one.
    #[test]
    fn security_md_has_the_same_table_of_columns() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../SECURITY.md");
        let page = std::fs::read_to_string(page).unwrap();
        for row in rows() {
            assert!(page.contains(&row), "SECURITY.md lacks: {row}");
        }
    }

    fn rows() -> Vec<String> {
        let named = |columns: &[(&str, Trusted)], wanted: Trusted| {
            let names: Vec<_> = columns.iter().filter(|(_, why)| *why == wanted).map(|(name, _)| *name).collect();
            if names.is_empty() { "–".to_owned() } else { names.join(", ") }
        };
        let row = |(table, columns): &(&str, &[(&str, Trusted)])| {
            let [sealed, checked, hint] = [Sealed, Checked, Hint].map(|wanted| named(columns, wanted));
            format!("| PostgreSQL `{table}` | {sealed} | {checked} | {hint} |")
        };
        COLUMNS.iter().map(row).collect()
    }
}
