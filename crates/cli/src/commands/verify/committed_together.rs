//! Compares threads that were committed together.
//!
//! A checkpoint names the versions of the other threads of its batch. If such a thread now ends earlier, it was cut, even if the
//! rest of it is correctly signed.

use std::collections::BTreeMap;

use selvedge_model::ThreadId;

use super::verdict::ThreadVerdict;
use crate::error::Result;

/// The latest version of another thread that any verified log names, and which log that is.
fn known_versions(checked: &[ThreadVerdict]) -> BTreeMap<ThreadId, (u64, ThreadId)> {
    let mut most: BTreeMap<ThreadId, (u64, ThreadId)> = BTreeMap::new();
    for one in checked {
        for (other, version) in one.committed_with() {
            let known = most.entry(other.clone()).or_insert_with(|| (*version, one.thread().clone()));
            if *version > known.0 {
                *known = (*version, one.thread().clone());
            }
        }
    }
    most
}

/// Compares every verdict with the other logs. A thread that is not among them gets a verdict as well, if `is_gone` says that it
/// should exist at that version and does not.
pub(super) fn compare(
    checked: &mut Vec<ThreadVerdict>,
    has_come_to: impl Fn(&ThreadId, u64) -> bool,
    is_gone: impl Fn(&ThreadId, u64, &ThreadId) -> Result<bool>,
) -> Result<()> {
    for (other, (version, by)) in known_versions(checked) {
        // While the store is written to, a thread may have been verified before a batch that another log names.
        if has_come_to(&other, version) {
            continue;
        }
        match checked.iter_mut().find(|one| *one.thread() == other) {
            Some(one) => one.is_named_by(version, &by),
            None if is_gone(&other, version, &by)? => checked.push(ThreadVerdict::gone(other, version, &by)),
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
    use selvedge_store::verify::Verification;

    use super::*;

    fn id(name: &str) -> ThreadId {
        ThreadId::new(name).unwrap()
    }

    /// A sound log that ends at `version` and names `committed_together`.
    fn sound(name: &str, version: u64, committed_with: &[(&str, u64)]) -> ThreadVerdict {
        let verdict = Verification {
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
            committed_with: committed_with.iter().map(|(name, version)| (id(name), *version)).collect(),
            remembered: Vec::new(),
            lost: Vec::new(),
            unnamed_blobs: Vec::new(),
            trailing_bytes: 0,
        };
        ThreadVerdict::new(id(name), PathBuf::new(), Ok(verdict), None, &Trust::default())
    }

    fn failure(checked: &[ThreadVerdict], name: &str) -> Option<String> {
        let one = checked.iter().find(|one| one.thread().as_str() == name).unwrap();
        one.failure().map(|failure| format!("{}: {}", failure.code, failure.message))
    }

    #[test]
    fn a_thread_that_ends_before_the_version_that_another_log_names_is_truncated() {
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
    fn a_missing_thread_gets_a_verdict_and_a_deleted_one_does_not() {
        let mut checked = vec![sound("ann", 5, &[("bob", 3), ("eve", 1)])];
        compare(&mut checked, |_, _| false, |thread, _, _| Ok(thread.as_str() == "bob")).unwrap();
        assert_eq!(checked.len(), 2);
        assert_eq!(
            failure(&checked, "bob").unwrap(),
            "truncated: the log of `bob` is missing: the log of `ann` records version 3"
        );
    }
}
