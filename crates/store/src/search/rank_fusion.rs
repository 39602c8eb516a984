//! Several ranked lists as one: reciprocal rank fusion. Only ranks count, because the scores of different indexes can't be compared.

use std::collections::HashMap;
use std::hash::Hash;

/// Dampens the weight of the first ranks; the value of the paper that introduced the method.
const RANK_OFFSET: f64 = 60.0;

/// The items of all lists, the best first, each with its score. Equal scores keep the order of the first list that has them.
pub fn fused<T: Copy + Eq + Hash>(lists: &[&[T]]) -> Vec<(T, f64)> {
    let mut scores: HashMap<T, f64> = HashMap::new();
    let mut order = Vec::new();
    for list in lists {
        for (rank, item) in list.iter().enumerate() {
            let score = scores.entry(*item).or_insert_with(|| {
                order.push(*item);
                0.0
            });
            *score += 1.0 / (RANK_OFFSET + 1.0 + rank as f64);
        }
    }
    let mut found: Vec<(T, f64)> = order.into_iter().map(|item| (item, scores[&item])).collect();
    found.sort_by(|a, b| b.1.total_cmp(&a.1));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_lists_have_comes_first_and_one_list_keeps_its_order() {
        let order = |lists: &[&[i32]]| fused(lists).into_iter().map(|(item, _)| item).collect::<Vec<_>>();
        assert_eq!(order(&[&[1, 2, 3]]), [1, 2, 3]);
        assert_eq!(order(&[&[1, 2, 3], &[4, 3]]), [3, 1, 4, 2]);
        assert_eq!(order(&[]), [0; 0]);
    }
}
