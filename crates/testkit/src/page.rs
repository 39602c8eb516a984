//! The counts in `docs/LABORATORY.md`: a row for each experiment, with its command and commit.
//!
//! A run of one experiment replaces its row and keeps the others; a run of a single scenario or call is not recorded.

use std::collections::BTreeMap;

use crate::check::Kind;
use crate::tally::Tally;

const BEGIN: &str = "<!-- counts: written by `cargo xtask crash --record` -->";
const END: &str = "<!-- end of counts -->";
const HEAD: &str = "| experiment | scenarios | states | broken | command | commit |\n|---|---|---|---|---|---|\n";

/// How a run was started.
#[derive(Clone, Debug)]
pub struct RunInfo {
    /// The arguments of the command.
    pub words: String,
    /// The commit, with a `+` if the tree had uncommitted changes.
    pub commit: String,
}

/// The page with the rows of a run replaced; `None` if the page has no section for them.
pub fn with_counts(page: &str, tally: &Tally, made: &RunInfo) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (between, after) = rest.split_once(END)?;
    let row = |line: &str| Some((line.strip_prefix("| ")?.split(" |").next()?.to_owned(), line.to_owned()));
    let is_row = |line: &&str| !line.starts_with("| experiment ");
    let mut rows: BTreeMap<String, String> = between.lines().filter(is_row).filter_map(row).collect();
    let mut experiments: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
    for ((experiment, _), count) in &tally.counts {
        let (scenarios, states, breaches) = experiments.entry(experiment).or_default();
        *scenarios += 1;
        *states += count.states;
        *breaches += count.breaches;
    }
    for (experiment, (scenarios, states, breaches)) in experiments {
        let RunInfo { words, commit } = made;
        let line = format!("| {experiment} | {scenarios} | {states} | {breaches} | `{words}` | `{commit}` |");
        rows.insert(experiment.to_owned(), line);
    }
    let rows: String = rows.into_values().map(|line| line + "\n").collect();
    let [lost, blended, broken, stuck] =
        [Kind::Lost, Kind::Blended, Kind::Broken, Kind::Stuck].map(|kind| tally.of(kind));
    let last = format!(
        "The last run: {} states, {lost} lost, {blended} blended, {broken} broken, {stuck} stuck, at `{}`.\n",
        tally.states(),
        made.commit
    );
    Some(format!("{before}{BEGIN}\n\n{HEAD}{rows}\n{last}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_replaces_only_its_own_rows() {
        let made = |words: &str, commit: &str| RunInfo { words: words.to_owned(), commit: commit.to_owned() };
        let tally = |experiment, states: u64| {
            let mut tally = Tally::default();
            for _ in 0..states {
                tally.add(experiment, "append", String::new, Ok(()));
            }
            tally
        };
        let empty = format!("# Page\n\n{BEGIN}{END}\n\nmore\n");
        let one = with_counts(&empty, &tally("kill", 3), &made("--long", "abc")).unwrap();
        let two = with_counts(&one, &tally("look", 2), &made("--experiment look", "def")).unwrap();
        assert!(two.starts_with("# Page\n") && two.ends_with("\n\nmore\n"), "{two}");
        assert!(two.contains("| kill | 1 | 3 | 0 | `--long` | `abc` |\n"), "{two}");
        assert!(two.contains("| look | 1 | 2 | 0 | `--experiment look` | `def` |\n"), "{two}");
        let again = with_counts(&two, &tally("kill", 5), &made("--long", "123")).unwrap();
        assert!(again.contains("| kill | 1 | 5 | 0 | `--long` | `123` |") && !again.contains("`abc`"), "{again}");
        assert!(again.contains("The last run: 5 states, 0 lost, 0 blended, 0 broken, 0 stuck, at `123`."), "{again}");
        assert_eq!(with_counts("no place", &tally("kill", 1), &made("", "")), None);
    }
}
