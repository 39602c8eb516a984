//! When a run is stopped that only goes in circles, or that has done what it was to do.
//!
//! Pure: it looks at the rounds of the run so far. A round is one answer of the model and the tools it asked for; it is judged once
//! all of them have answered.

use selvedge_items::config::Stops;
use serde_json::Value;

/// One answer of the model and what came of the tools it asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Round {
    /// The tools, with what they were called with, in the order of the calls.
    pub(crate) calls: Vec<(String, Value)>,
    /// Whether every call failed.
    pub(crate) has_failed: bool,
}

/// A policy that was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Met {
    pub(crate) code: &'static str,
    pub(crate) detail: String,
    /// Whether something is wrong that somebody should look at.
    pub(crate) is_trouble: bool,
}

/// The first policy that the rounds of a run meet; `text` is what the model said last.
pub(crate) fn met(stops: &Stops, rounds: &[Round], text: Option<&str>) -> Option<Met> {
    let last = rounds.last();
    let trouble = |code, detail| Met { code, detail, is_trouble: true };
    let reached = |code, detail| Met { code, detail, is_trouble: false };
    if let Some(tool) = last.and_then(|round| round.calls.iter().find(|(name, _)| stops.stop_on_tools.contains(name))) {
        return Some(reached("tool_called", format!("the tool `{}` was called", tool.0)));
    }
    if let Some(found) = text.and_then(|text| stops.content_match.iter().find(|wanted| text.contains(wanted.as_str())))
    {
        return Some(reached("content_matched", format!("the model said `{found}`")));
    }
    let failed = rounds.iter().rev().take_while(|round| round.has_failed).count() as u64;
    if stops.consecutive_errors > 0 && failed >= stops.consecutive_errors {
        return Some(trouble("consecutive_errors_exceeded", format!("every tool failed, {failed} rounds in a row")));
    }
    let same =
        rounds.iter().rev().take_while(|round| Some(*round).map(|round| &round.calls) == last.map(|last| &last.calls));
    let same = same.count() as u64;
    if stops.repeated_calls > 1 && same >= stops.repeated_calls {
        return Some(trouble("loop_detected", format!("the same calls were made {same} times in a row")));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stops() -> Stops {
        Stops {
            consecutive_errors: 2,
            repeated_calls: 3,
            stop_on_tools: vec!["done".to_owned()],
            content_match: vec!["THE END".to_owned()],
        }
    }

    fn round(name: &str, argument: u64, has_failed: bool) -> Round {
        Round { calls: vec![(name.to_owned(), json!({"n": argument}))], has_failed }
    }

    fn code(rounds: &[Round]) -> Option<&'static str> {
        met(&stops(), rounds, None).map(|met| met.code)
    }

    #[test]
    fn the_same_calls_are_the_same_by_name_and_arguments() {
        assert_eq!(code(&[round("a", 1, false), round("a", 1, false)]), None);
        assert_eq!(code(&[round("a", 1, false), round("a", 1, false), round("a", 1, false)]), Some("loop_detected"));
        assert_eq!(code(&[round("a", 1, false), round("a", 2, false), round("a", 3, false)]), None);
        assert_eq!(code(&[round("a", 1, false), round("b", 1, false), round("a", 1, false)]), None);
    }

    #[test]
    fn errors_count_only_in_a_row_and_only_when_everything_failed() {
        assert_eq!(code(&[round("a", 1, true)]), None);
        assert_eq!(code(&[round("a", 1, true), round("a", 2, false), round("a", 3, true)]), None);
        assert_eq!(code(&[round("a", 1, true), round("a", 2, true)]), Some("consecutive_errors_exceeded"));
    }

    #[test]
    fn a_named_tool_and_a_named_text_end_a_run_well() {
        let ended = met(&stops(), &[round("done", 1, false)], None).unwrap();
        assert_eq!((ended.code, ended.is_trouble), ("tool_called", false));
        let ended = met(&stops(), &[round("a", 1, false)], Some("and so, THE END.")).unwrap();
        assert_eq!((ended.code, ended.is_trouble), ("content_matched", false));
    }

    #[test]
    fn nothing_stops_a_run_when_nothing_is_configured() {
        let circles: Vec<Round> = (0..50).map(|_| round("a", 1, true)).collect();
        assert_eq!(met(&Stops::default(), &circles, Some("THE END")), None);
    }
}
