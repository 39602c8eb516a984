//! Suggests the known word that was most likely meant.

/// Longer words are not typing errors.
const CHARS_MAX: usize = 64;

/// The word among `known` that is nearest to `word`, if one is near enough.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.chars().take(CHARS_MAX + 1).collect();
    let enough = (word.len() / 3).max(1);
    known
        .into_iter()
        .map(|other| (distance(&word, &other.chars().take(CHARS_MAX + 1).collect::<Vec<_>>()), other))
        .filter(|(distance, _)| *distance <= enough && word.len() <= CHARS_MAX)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, other)| other)
}

/// The hint for an unknown word: the nearest known one, or all.
pub(crate) fn advice(word: &str, known: &[&str]) -> String {
    match nearest(word, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => {
            let all: Vec<_> = known.iter().map(|word| format!("`{word}`")).collect();
            format!("use one of {}", all.join(", "))
        }
    }
}

/// The number of letters that must be changed, added, removed or swapped with their neighbour.
fn distance(one: &[char], other: &[char]) -> usize {
    let mut before = vec![0; other.len() + 1];
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for i in 1..=one.len() {
        let mut now = vec![i; other.len() + 1];
        for j in 1..=other.len() {
            let changed = last[j - 1] + usize::from(one[i - 1] != other[j - 1]);
            now[j] = changed.min(last[j] + 1).min(now[j - 1] + 1);
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                now[j] = now[j].min(before[j - 2] + 1);
            }
        }
        before = last;
        last = now;
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_word_is_suggested_and_a_far_one_is_not() {
        let known = ["limits", "inputs", "outputs", "model"];
        assert_eq!(nearest("limit", known), Some("limits"));
        assert_eq!(nearest("ipnuts", known), Some("inputs"));
        assert_eq!(nearest("modle", known), Some("model"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest(&"l".repeat(10_000), known), None);
        assert_eq!(advice("zzz", &["a_b", "c_d"]), "use one of `a_b`, `c_d`");
    }
}
