//! The number of lines of each commit of a run, packed as consecutive variable-length numbers: seven bits per byte, lowest first; in all
//! but the last byte of a number the highest bit is set.

use std::ops::Range;

/// Set in a byte that is not the last one of its number.
const CONTINUES: u8 = 0x80;

/// The count of one commit that has these lines.
pub(crate) fn packed(lines: &Range<u64>) -> Vec<u8> {
    let mut counts = Vec::with_capacity(1);
    push(&mut counts, lines);
    counts
}

/// Adds the count of a commit that has these lines.
pub(super) fn push(counts: &mut Vec<u8>, lines: &Range<u64>) {
    let mut count = lines.end.saturating_sub(lines.start);
    while count >= u64::from(CONTINUES) {
        counts.push(count.to_le_bytes()[0] | CONTINUES);
        count >>= 7;
    }
    counts.push(count.to_le_bytes()[0]);
}

/// How many counts there are.
pub(super) fn len(counts: &[u8]) -> u64 {
    counts.iter().filter(|byte| **byte < CONTINUES).count() as u64
}

/// The counts, one by one.
pub(super) fn each(counts: &[u8]) -> impl Iterator<Item = u64> {
    counts.split_inclusive(|byte| *byte < CONTINUES).map(|number| {
        let bits = |count: u64, byte: &u8| (count << 7) | u64::from(byte & !CONTINUES);
        number.iter().rev().fold(0, bits)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_any_size_come_back_in_order() {
        let numbers = [1, 2, 127, 128, 129, 300, 16_383, 16_384, 1 << 40];
        let mut counts = Vec::new();
        for number in numbers {
            push(&mut counts, &(7..7 + number));
        }
        assert_eq!(each(&counts).collect::<Vec<_>>(), numbers);
        assert_eq!(len(&counts), numbers.len() as u64);
        assert_eq!((packed(&(3..5)), each(&[]).count()), (vec![2], 0));
    }
}
