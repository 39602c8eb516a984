//! What the logs of one batch remember of each other.
//!
//! A checkpoint names the versions to which the other threads of its batch came. If such a thread now ends earlier, it was
//! cut, however well signed what is left of it may be.

use std::collections::BTreeMap;

use selvedge_model::ThreadId;

use super::verdict::Checked;
use crate::error::Result;

/// The furthest that any checked log remembers of another thread, and which log that is.
fn remembered(checked: &[Checked]) -> BTreeMap<ThreadId, (u64, ThreadId)> {
    let mut most: BTreeMap<ThreadId, (u64, ThreadId)> = BTreeMap::new();
    for one in checked {
        for (mate, version) in one.mates() {
            let known = most.entry(mate.clone()).or_insert_with(|| (*version, one.thread().clone()));
            if *version > known.0 {
                *known = (*version, one.thread().clone());
            }
        }
    }
    most
}

/// Holds every verdict against what the other logs remember. A thread that is not among them gets a verdict as well, if
/// `is_gone` says that it should be there at that version, by the log that remembers it, and is not.
pub(super) fn compare(
    checked: &mut Vec<Checked>,
    has_come_to: impl Fn(&ThreadId, u64) -> bool,
    is_gone: impl Fn(&ThreadId, u64, &ThreadId) -> Result<bool>,
) -> Result<()> {
    for (mate, (version, by)) in remembered(checked) {
        // In a store that is being written to, a mate may have been judged before the batch that the other log tells of.
        if has_come_to(&mate, version) {
            continue;
        }
        match checked.iter_mut().find(|one| *one.thread() == mate) {
            Some(one) => one.is_remembered_by(version, &by),
            None if is_gone(&mate, version, &by)? => checked.push(Checked::gone(mate, version, &by)),
            None => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use selvedge_log::Trust;
    use selvedge_log::recovery::{Finding, Judgement, Plan};
    use selvedge_store::verify::Verdict;

    use super::*;

    fn id(name: &str) -> ThreadId {
        ThreadId::new(name).unwrap()
    }

    /// A sound log that ends at `version` and remembers `mates`.
    fn sound(name: &str, version: u64, mates: &[(&str, u64)]) -> Checked {
        let verdict = Verdict {
            thread: id(name),
            judgement: Judgement { finding: Finding::Sound, plan: Plan::GoOn, unchanged_up_to: Some(version) },
            head: None,
            healed_bytes: 0,
            erased: 0,
            erased_blobs: Vec::new(),
            bad_blobs: Vec::new(),
            signers: Vec::new(),
            lines: 0,
            bytes: 0,
            mates: mates.iter().map(|(name, version)| (id(name), *version)).collect(),
            remembered: Vec::new(),
            lost: Vec::new(),
            unnamed_blobs: Vec::new(),
            trailing_bytes: 0,
        };
        Checked::new(id(name), PathBuf::new(), Ok(verdict), None, &Trust::default())
    }

    fn failure(checked: &[Checked], name: &str) -> Option<String> {
        let one = checked.iter().find(|one| one.thread().as_str() == name).unwrap();
        one.failure().map(|failure| format!("{}: {}", failure.code, failure.message))
    }

    #[test]
    fn a_mate_that_ends_before_what_another_log_remembers_is_truncated() {
        let mut checked =
            vec![sound("ann", 5, &[("bob", 3)]), sound("bob", 2, &[("ann", 5)]), sound("eve", 0, &[("bob", 1)])];
        compare(&mut checked, |_, _| false, |_, _, _| Ok(false)).unwrap();
        assert!(failure(&checked, "ann").is_none() && failure(&checked, "eve").is_none());
        let found = failure(&checked, "bob").unwrap();
        assert_eq!(
            found,
            "truncated: the log of `bob` is cut off: it ends at version 2, and the log of `ann` records version 3"
        );
    }

    #[test]
    fn a_mate_that_is_gone_gets_a_verdict_and_one_that_was_deleted_does_not() {
        let mut checked = vec![sound("ann", 5, &[("bob", 3), ("eve", 1)])];
        compare(&mut checked, |_, _| false, |thread, _, _| Ok(thread.as_str() == "bob")).unwrap();
        assert_eq!(checked.len(), 2);
        assert_eq!(
            failure(&checked, "bob").unwrap(),
            "truncated: the log of `bob` is missing: the log of `ann` records version 3"
        );
    }
}
