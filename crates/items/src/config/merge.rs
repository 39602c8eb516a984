//! Merges two layers: mappings key by key, entries with an `id` by their id, everything else as a whole.

use super::node::{Node, NodeContent};

/// `above` merged over `below`.
///
/// An entry of `above` replaces the entry with the same id in its position, and a new one is appended. An empty list replaces.
pub(super) fn merge(below: Node, above: Node) -> Node {
    let at = above.at;
    let content = match (below.content, above.content) {
        (NodeContent::Fields(mut fields), NodeContent::Fields(more)) => {
            for (name, field) in more {
                match fields.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, known)) => *known = merge(std::mem::replace(known, Node::nothing()), field),
                    None => fields.push((name, field)),
                }
            }
            NodeContent::Fields(fields)
        }
        (NodeContent::List(mut items), NodeContent::List(more)) if has_ids(&items) && has_ids(&more) => {
            for item in more {
                match items.iter_mut().find(|known| known.id() == item.id()) {
                    Some(known) => *known = item,
                    None => items.push(item),
                }
            }
            NodeContent::List(items)
        }
        (_, above) => above,
    };
    Node { at, content }
}

fn has_ids(items: &[Node]) -> bool {
    !items.is_empty() && items.iter().all(|item| item.id().is_some())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::library::Layer;

    fn node(text: &str) -> Node {
        Node::parse(text, Layer::User, &Arc::from("x.yaml")).unwrap()
    }

    fn merged(below: &str, above: &str) -> Value {
        merge(node(below), node(above)).to_value()
    }

    #[test]
    fn mappings_are_merged_key_by_key_and_the_rest_is_replaced() {
        let now = merged("a: {b: 1, c: [1, 2]}\nd: text", "a: {c: [3], e: null}\nd: {f: 1}");
        assert_eq!(now, json!({"a": {"b": 1, "c": [3], "e": null}, "d": {"f": 1}}));
    }

    #[test]
    fn entries_are_merged_by_id_as_a_whole_and_in_order() {
        let now = merged("l: [{id: a, x: 1, y: 1}, {id: b, x: 2}]", "l: [{id: c, x: 3}, {id: a, x: 9}]");
        assert_eq!(now, json!({"l": [{"id": "a", "x": 9}, {"id": "b", "x": 2}, {"id": "c", "x": 3}]}));
        assert_eq!(merged("l: [{id: a}]", "l: []"), json!({"l": []}), "an empty list replaces");
        assert_eq!(merged("l: [{id: a}]", "l: [{x: 1}]"), json!({"l": [{"x": 1}]}), "without ids a list replaces");
    }

    #[test]
    fn every_value_keeps_the_line_it_was_set_on() {
        let now = merge(node("a:\n  b: 1\n  c: 2\nl:\n  - id: x\n    v: 1\n"), node("\n\na:\n\n  c: 3\n"));
        let line = |path: &str| now.look_up(path).unwrap().1.at.line;
        assert_eq!([line("a.b"), line("a.c"), line("l"), line("l.x"), line("l.x.v")], [2, 5, 4, 5, 6]);
    }
}
