//! A project can be stricter than its user, never more lenient. Values of a project that violate this are ignored, with a notice.

use super::node::{Node, NodeContent};
use super::shape::{Key, ProjectRule, Shape};

/// The values of a project that count over those of the program and the user, and a notice for each ignored one.
pub(super) fn restrict(keys: &[Key], below: &Node, mut project: Node) -> (Node, Vec<String>) {
    let mut notices = Vec::new();
    for key in keys.iter().filter(|key| key.project_rule != ProjectRule::Anything) {
        let Some(field) = project.take(key.name) else { continue };
        let known = below.field(key.name);
        let (kept, why) = judge(key, known, field);
        notices.extend(why);
        if let (Some(kept), Some(fields)) = (kept, project.fields_mut()) {
            fields.push((key.name.to_owned(), kept));
        }
    }
    (project, notices)
}

fn judge(key: &Key, known: Option<&Node>, field: Node) -> (Option<Node>, Option<String>) {
    let notice = |why: &str| format!("{}: `{}` of the project {why}", field.at, key.name);
    match (key.project_rule, &key.shape) {
        (ProjectRule::Ignored, _) => (None, Some(notice("is ignored: only the user can set it"))),
        (ProjectRule::Stricter, Shape::Word(words)) => {
            let strictness = |node: &Node| words.iter().position(|word| node.text() == Some(word));
            if known.and_then(strictness) > strictness(&field) {
                (None, Some(notice("is ignored: it is more lenient than the user's")))
            } else {
                (Some(field), None)
            }
        }
        (ProjectRule::AddOnly, _) => {
            let known: Vec<&str> = known.map(ids).unwrap_or_default();
            let taken: Vec<&str> = ids(&field).into_iter().filter(|id| known.contains(id)).collect();
            let is_empty = ids(&field).is_empty() && !known.is_empty();
            let why = if is_empty {
                notice("removes nothing of the user's")
            } else if taken.is_empty() {
                return (Some(field), None);
            } else {
                notice(&format!("can't replace entries of the user: {}", taken.join(", ")))
            };
            (without(field.clone(), &known), Some(why))
        }
        _ => (Some(field), None),
    }
}

fn ids(node: &Node) -> Vec<&str> {
    match &node.content {
        NodeContent::List(items) => items.iter().filter_map(Node::id).collect(),
        _ => Vec::new(),
    }
}

/// The list without entries of these ids; `None` if none is left.
fn without(mut node: Node, known: &[&str]) -> Option<Node> {
    if let NodeContent::List(items) = &mut node.content {
        items.retain(|item| item.id().is_some_and(|id| !known.contains(&id)));
        return (!items.is_empty()).then_some(node);
    }
    None
}
