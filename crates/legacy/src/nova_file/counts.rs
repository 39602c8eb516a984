//! Exact counts of what was found in a file of the older form.

use serde::{Deserialize, Serialize};

use super::event::{Event, EventKind};
use super::replacements::Replacements;

/// How many remarks are kept with their line.
const REMARKS: usize = 10;

/// What was found.
///
/// Every line is one of six: `lines = blank + clean + repaired_joined + repaired_nul + repaired_value + lost`. Skipped content is counted
/// by the piece, and one line may have several: a torn beginning, a run of zeros, something unreadable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Lines of the file, including a last one without its end.
    pub lines: u64,
    /// Lines of white space.
    pub blank: u64,
    /// Lines that were one complete object and nothing else.
    pub clean: u64,
    /// Lines from which complete objects were separated although they had other content too.
    pub repaired_joined: u64,
    /// Lines of one complete object beside zero bytes.
    pub repaired_nul: u64,
    /// Lines of one complete object in which a value had to be replaced.
    #[serde(default)]
    pub repaired_value: u64,
    /// Lines without anything usable.
    pub lost: u64,
    /// Manifests: one, or none.
    pub manifests: u64,
    /// Events: the following five and the typed messages together.
    pub parsed: u64,
    /// Messages with their type.
    pub messages: u64,
    /// Messages without one.
    pub legacy: u64,
    /// Calls of tools.
    pub tool_uses: u64,
    /// Texts of the model beside its calls.
    pub assistant_texts: u64,
    /// Usages of runs.
    pub results: u64,
    /// Events of unknown types, kept unchanged.
    pub opaque: u64,
    /// Objects that begin and never end.
    pub skipped_torn: u64,
    /// Runs of zero bytes.
    pub skipped_nul: u64,
    /// Pieces that are not UTF-8, not JSON, or not an event.
    pub skipped_invalid: u64,
    /// Lines longer than 8 MiB, or with more than 10,000 runs of zero bytes.
    pub skipped_long: u64,
    /// Objects in which half a surrogate pair became U+FFFD.
    #[serde(default)]
    pub replaced_text: u64,
    /// Objects in which a number became the nearest representable one: an integer beyond 64 bits, or too many digits.
    #[serde(default)]
    pub replaced_number: u64,
    /// The first repairs and skipped pieces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<Remark>,
}

/// A repair or a skipped piece, with its line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remark {
    /// The line, from 1.
    pub line: u64,
    /// What was found there.
    pub what: RemarkKind,
}

/// What was repaired or skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemarkKind {
    /// Several objects on one line, separated.
    Joined,
    /// An object that begins and never ends.
    Torn,
    /// Zero bytes.
    Nul,
    /// Not UTF-8, not JSON, or not an event.
    Invalid,
    /// Too long to be stored.
    Long,
    /// Half a surrogate pair, replaced by U+FFFD.
    Surrogate,
    /// A number without an exact representation, replaced by the nearest one.
    Number,
}

impl Counts {
    /// The number of skipped pieces.
    pub fn skipped(&self) -> u64 {
        self.skipped_torn + self.skipped_nul + self.skipped_invalid + self.skipped_long
    }

    /// The number of repaired lines.
    pub fn repaired(&self) -> u64 {
        self.repaired_joined + self.repaired_nul + self.repaired_value
    }

    pub(super) fn replaced(&mut self, line: u64, replaced: Replacements) {
        if replaced.text {
            self.remark(line, RemarkKind::Surrogate);
        }
        if replaced.number {
            self.remark(line, RemarkKind::Number);
        }
    }

    pub(super) fn event(&mut self, event: &Event) {
        self.parsed += 1;
        *match event.kind() {
            EventKind::Message => &mut self.messages,
            EventKind::Legacy => &mut self.legacy,
            EventKind::ToolUse => &mut self.tool_uses,
            EventKind::AssistantText => &mut self.assistant_texts,
            EventKind::Result => &mut self.results,
            EventKind::Opaque => &mut self.opaque,
        } += 1;
    }

    pub(super) fn remark(&mut self, line: u64, what: RemarkKind) {
        match what {
            RemarkKind::Joined => self.repaired_joined += 1,
            RemarkKind::Torn => self.skipped_torn += 1,
            RemarkKind::Nul => self.skipped_nul += 1,
            RemarkKind::Invalid => self.skipped_invalid += 1,
            RemarkKind::Long => self.skipped_long += 1,
            RemarkKind::Surrogate => self.replaced_text += 1,
            RemarkKind::Number => self.replaced_number += 1,
        }
        let remark = Remark { line, what };
        if self.remarks.len() < REMARKS && !self.remarks.contains(&remark) {
            self.remarks.push(remark);
        }
    }
}
