//! Finds the line of a key in a YAML file, by its indentation.
//!
//! Only block style has a line for each key; a key in flow style has the line of the nearest one above it.

use std::collections::HashMap;

/// The lines of the keys of a file, by their path.
pub(super) struct Lines {
    of: HashMap<String, Vec<u64>>,
}

impl Lines {
    /// Scans a file whose first line has this number.
    pub(super) fn of(text: &str, first_line: u64) -> Self {
        let mut of: HashMap<String, Vec<u64>> = HashMap::new();
        let mut open: Vec<(usize, String)> = Vec::new();
        for (number, line) in (first_line..).zip(text.lines()) {
            let mut rest = line.trim_start_matches(' ');
            let mut indent = line.len() - rest.len();
            while let Some(item) = rest.strip_prefix("- ") {
                let inner = item.trim_start_matches(' ');
                indent += rest.len() - inner.len();
                // The first key of an entry in flow style.
                rest = inner.strip_prefix('{').map_or(inner, str::trim_start);
            }
            let Some(key) = key_of(rest) else { continue };
            open.retain(|(before, _)| *before < indent);
            open.push((indent, key.to_owned()));
            let path: Vec<&str> = open.iter().map(|(_, key)| key.as_str()).collect();
            of.entry(path.join("\n")).or_default().push(number);
        }
        Self { of }
    }

    /// The line of a key; of several with the same path, as in a list, the one with this number.
    pub(super) fn nth(&self, path: &[&str], nth: usize) -> Option<u64> {
        (1..=path.len()).rev().find_map(|length| {
            let lines = self.of.get(&path[..length].join("\n"))?;
            if length == path.len() { lines.get(nth).or(lines.first()).copied() } else { lines.first().copied() }
        })
    }

    /// The line of a key.
    pub(super) fn line(&self, path: &[&str]) -> Option<u64> {
        self.nth(path, 0)
    }
}

/// The key that a line begins with.
fn key_of(line: &str) -> Option<&str> {
    if line.starts_with(['#', '{', '[']) {
        return None;
    }
    let end = line.find(": ").or_else(|| line.trim_end().strip_suffix(':').map(str::len))?;
    let key = line[..end].trim();
    let key = key.strip_prefix('"').and_then(|key| key.strip_suffix('"')).unwrap_or(key);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    (!key.is_empty() && key.bytes().all(is_plain)).then_some(key)
}
