//! The capabilities of a thread as a tree: action, type of item, path.
//!
//! ```text
//! selvedge
//! ├── execute
//! │   └── tool
//! │       ├── * (file_read, file_write)      a wildcard, with the tools that it allows
//! │       └── look
//! └── fetch
//!     └── knowledge
//!         └── docs
//!             └── *
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;

use selvedge_items::capability::Capability;
use selvedge_model::ToolSpec;

#[derive(Default)]
struct Node {
    children: BTreeMap<String, Node>,
    /// The tools that a token which ends here allows, if it is a wildcard.
    tools: Vec<String>,
}

/// The tree of tokens; nothing if there are none. The tools that a wildcard allows stand beside it.
pub(super) fn tree<'t>(tokens: &[String], tools: impl Iterator<Item = &'t ToolSpec>) -> Option<String> {
    let parsed: Vec<Capability> = tokens.iter().filter_map(|token| token.parse().ok()).collect();
    if parsed.is_empty() {
        return None;
    }
    let tools: Vec<(&str, Capability)> =
        tools.filter_map(|spec| Some((spec.name.as_str(), spec.capability.parse().ok()?))).collect();
    let mut root = Node::default();
    for token in parsed {
        let mut node = &mut root;
        for segment in token.to_string().split('.') {
            node = node.children.entry(segment.to_owned()).or_default();
        }
        if !token.is_exact() {
            let allowed = tools.iter().filter(|(_, needed)| token.contains(needed)).map(|(name, _)| (*name).to_owned());
            node.tools = allowed.collect();
            node.tools.sort();
        }
    }
    let mut text = String::new();
    for (name, node) in &root.children {
        line(&mut text, "", name, node);
        below(&mut text, "", node);
    }
    Some(text)
}

fn line(text: &mut String, before: &str, name: &str, node: &Node) {
    let tools = if node.tools.is_empty() { String::new() } else { format!(" ({})", node.tools.join(", ")) };
    _ = writeln!(text, "{before}{name}{tools}");
}

fn below(text: &mut String, before: &str, node: &Node) {
    let last = node.children.len().saturating_sub(1);
    for (index, (name, child)) in node.children.iter().enumerate() {
        let (branch, rest) = if index == last { ("└── ", "    ") } else { ("├── ", "│   ") };
        line(text, &format!("{before}{branch}"), name, child);
        below(text, &format!("{before}{rest}"), child);
    }
}

#[cfg(test)]
mod tests {
    use selvedge_model::event::EffectClass;
    use selvedge_model::tool::Risk;
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_stand_in_one_tree_with_the_tools_of_their_wildcards() {
        let spec = |name: &str| selvedge_tools::built_in(name, "", json!({}), EffectClass::Pure, Risk::Safe);
        let tools = [spec("look"), spec("file_read")];
        let tokens = [
            "tool.*",
            "selvedge.fetch.knowledge.docs.*",
            "tool.look",
            "selvedge.sign.knowledge.notes.own",
            "no token!",
        ];
        let tokens = tokens.map(|token| match token.parse::<Capability>() {
            Ok(token) => token.to_string(),
            Err(_) => token.to_owned(),
        });
        let expected = "selvedge\n\
                        ├── execute\n\
                        │   └── tool\n\
                        │       ├── * (file_read, look)\n\
                        │       └── look\n\
                        ├── fetch\n\
                        │   └── knowledge\n\
                        │       └── docs\n\
                        │           └── *\n\
                        └── sign\n    \
                            └── knowledge\n        \
                                └── notes\n            \
                                    └── own\n";
        assert_eq!(tree(&tokens, tools.iter()).as_deref(), Some(expected), "{tokens:?}");
        assert_eq!(tree(&[], tools.iter()), None);
    }
}
