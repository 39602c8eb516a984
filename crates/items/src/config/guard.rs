//! A project may ask for more care than its user, never for less. What it says against that counts for nothing, and is told.

use super::node::{Content, Node};
use super::shape::{Key, Say, Shape};

/// What of a project's words counts over what the program and the user said; the second is what is told of the others.
pub(super) fn guarded(keys: &[Key], below: &Node, mut project: Node) -> (Node, Vec<String>) {
    let mut told = Vec::new();
    for key in keys.iter().filter(|key| key.says != Say::Anything) {
        let Some(field) = project.take(key.name) else { continue };
        let known = below.field(key.name);
        let (kept, why) = judge(key, known, field);
        told.extend(why);
        if let (Some(kept), Some(fields)) = (kept, project.fields_mut()) {
            fields.push((key.name.to_owned(), kept));
        }
    }
    (project, told)
}

fn judge(key: &Key, known: Option<&Node>, field: Node) -> (Option<Node>, Option<String>) {
    let tell = |why: &str| format!("{}: `{}` of the project {why}", field.at, key.name);
    match (key.says, &key.shape) {
        (Say::User, _) => (None, Some(tell("counts for nothing: only the user's does"))),
        (Say::MoreCare, Shape::Word(words)) => {
            let care = |node: &Node| words.iter().position(|word| node.text() == Some(word));
            match known.and_then(care) > care(&field) {
                true => (None, Some(tell("counts for nothing: it asks for less care than the user"))),
                false => (Some(field), None),
            }
        }
        (Say::More, _) => {
            let known: Vec<&str> = known.map(ids).unwrap_or_default();
            let taken: Vec<&str> = ids(&field).into_iter().filter(|id| known.contains(id)).collect();
            let is_empty = ids(&field).is_empty() && !known.is_empty();
            let why = match (is_empty, taken.is_empty()) {
                (true, _) => tell("takes nothing away from the user's"),
                (false, false) => tell(&format!("can't replace what the user has: {}", taken.join(", "))),
                (false, true) => return (Some(field), None),
            };
            (without(field.clone(), &known), Some(why))
        }
        _ => (Some(field), None),
    }
}

fn ids(node: &Node) -> Vec<&str> {
    match &node.content {
        Content::List(items) => items.iter().filter_map(Node::id).collect(),
        _ => Vec::new(),
    }
}

/// The list without entries of these ids; nothing if none is left.
fn without(mut node: Node, known: &[&str]) -> Option<Node> {
    if let Content::List(items) = &mut node.content {
        items.retain(|item| item.id().is_some_and(|id| !known.contains(&id)));
        return (!items.is_empty()).then_some(node);
    }
    None
}
