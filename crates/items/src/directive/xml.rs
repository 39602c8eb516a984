//! A small layer over the XML library: strict about attributes and elements, with positions for errors.

use std::borrow::Cow;

use roxmltree::{Document, Node, ParsingOptions};

use crate::error::Flaw;
use crate::nearest::advice;

/// The most bytes of XML that are parsed.
const BYTES_MAX: usize = 256 * 1024;
const NODES_MAX: u32 = 10_000;
const DEPTH_MAX: usize = 16;
/// The content of these elements is plain text.
const VERBATIM: [&str; 3] = ["template", "example", "raw"];

/// Parses a text and passes its root element to `read`; `first_line` is the line of its file where the text starts.
pub(super) fn with_root<T>(
    text: &str,
    first_line: u64,
    read: impl FnOnce(Element<'_, '_>) -> Result<T, Flaw>,
) -> Result<T, Flaw> {
    if text.len() > BYTES_MAX {
        return Err(Flaw::new("its metadata is larger than 256 KiB").on_line(first_line));
    }
    let text = mask(text);
    let options = ParsingOptions { allow_dtd: false, nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    let document = Document::parse_with_options(&text, options).map_err(|error| flaw(&error, first_line))?;
    let root = Element { node: document.root_element(), first_line };
    for node in document.descendants() {
        // The ancestors include the root of the document and the node itself.
        if node.ancestors().take(DEPTH_MAX + 3).count() > DEPTH_MAX + 2 {
            return Err(root.of(node).flaw("its metadata is nested too deeply"));
        }
    }
    read(root)
}

fn flaw(error: &roxmltree::Error, first_line: u64) -> Flaw {
    let place = error.pos();
    let line = first_line + u64::from(place.row).saturating_sub(1);
    let text = error.to_string();
    let why = text.rfind(" at ").map_or(text.as_str(), |end| &text[..end]);
    let hint = match error {
        roxmltree::Error::DtdDetected => "document types and custom entities are not supported; remove them",
        roxmltree::Error::NodesLimitReached => "it has too many elements; shorten it",
        _ => "write `&lt;` and `&amp;` for `<` and `&`, and close every element",
    };
    Flaw::new(format!("its metadata is not valid XML: {why}")).at(line, u64::from(place.col)).hint(hint)
}

/// The text with the content of verbatim elements escaped. Line numbers don't change.
fn mask(text: &str) -> Cow<'_, str> {
    let mut names = VERBATIM.to_vec();
    let mut masked = String::new();
    let mut copied = 0;
    let mut look = 0;
    while let Some(found) = text[look..].find('<') {
        let at = look + found;
        look = at + 1;
        let opens = |name: &&&str| text[look..].strip_prefix(**name).is_some_and(|rest| rest.starts_with('>'));
        let Some(name) = names.iter().find(opens).copied() else { continue };
        let start = look + name.len() + 1;
        let Some(length) = text[start..].find(&format!("</{name}>")) else {
            // Not closed after this one, so not after a later one either.
            names.retain(|other| *other != name);
            continue;
        };
        let end = start + length;
        masked.push_str(&text[copied..start]);
        masked.push_str(&text[start..end].replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"));
        copied = end;
        look = end + 1;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    masked.push_str(&text[copied..]);
    Cow::Owned(masked)
}

/// An element.
#[derive(Clone, Copy)]
pub(super) struct Element<'a, 'input> {
    node: Node<'a, 'input>,
    first_line: u64,
}

impl<'a, 'input> Element<'a, 'input> {
    fn of(self, node: Node<'a, 'input>) -> Self {
        Self { node, ..self }
    }

    pub(super) fn name(&self) -> &'a str {
        self.node.tag_name().name()
    }

    /// An error at this element.
    pub(super) fn flaw(&self, why: impl Into<String>) -> Flaw {
        let place = self.node.document().text_pos_at(self.node.range().start);
        Flaw::new(why).at(self.first_line + u64::from(place.row) - 1, u64::from(place.col))
    }

    /// The error for an unknown element.
    pub(super) fn unknown(&self, known: &[&str]) -> Flaw {
        self.flaw(format!("`<{}>` is unknown here", self.name())).hint(advice(self.name(), known))
    }

    pub(super) fn attribute(&self, name: &str) -> Option<&'a str> {
        self.node.attribute(name)
    }

    /// The attribute, or an error if it is missing.
    pub(super) fn required(&self, name: &str) -> Result<&'a str, Flaw> {
        self.attribute(name).ok_or_else(|| {
            self.flaw(format!("`<{}>` has no `{name}`", self.name())).hint(format!("add `{name}=\"…\"`"))
        })
    }

    /// `true` or `false`; `otherwise` if it is absent.
    pub(super) fn truth(&self, name: &str, otherwise: bool) -> Result<bool, Flaw> {
        match self.attribute(name) {
            None => Ok(otherwise),
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(_) => Err(self.flaw(format!("`{name}` must be `true` or `false`"))),
        }
    }

    /// Refuses unknown attributes.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), Flaw> {
        match self.node.attributes().find(|attribute| !known.contains(&attribute.name())) {
            None => Ok(()),
            Some(attribute) if known.is_empty() => {
                Err(self.flaw(format!("`<{}>` has no attribute `{}`", self.name(), attribute.name())))
            }
            Some(attribute) => Err(self
                .flaw(format!("`{}` is not an attribute of `<{}>`", attribute.name(), self.name()))
                .hint(advice(attribute.name(), known))),
        }
    }

    /// The elements inside; text between them is refused.
    pub(super) fn children(&self) -> Result<Vec<Self>, Flaw> {
        if self.node.children().any(|node| node.is_text() && !node.text().unwrap_or_default().trim().is_empty()) {
            return Err(self.flaw(format!("there is text between the elements of `<{}>`", self.name())));
        }
        Ok(self.elements())
    }

    /// Refuses any content: the element has attributes only.
    pub(super) fn empty(&self) -> Result<(), Flaw> {
        let inside = match self.elements().first() {
            Some(child) => child.flaw(format!("`<{}>` is unknown in `<{}>`", child.name(), self.name())),
            None if self.text()?.is_empty() => return Ok(()),
            None => self.flaw(format!("there is text in `<{}>`", self.name())),
        };
        Err(inside.hint(format!("`<{}>` has attributes only; use `<!-- … -->` for remarks", self.name())))
    }

    /// Whether there are no elements inside.
    pub(super) fn is_plain(&self) -> bool {
        self.elements().is_empty()
    }

    fn elements(&self) -> Vec<Self> {
        self.node.children().filter(Node::is_element).map(|node| self.of(node)).collect()
    }

    /// The text inside, without white space around it; elements inside are refused.
    pub(super) fn text(&self) -> Result<String, Flaw> {
        if !self.is_plain() {
            return Err(self.flaw(format!("`<{}>` must contain only text", self.name())));
        }
        let texts = self.node.children().filter(Node::is_text).filter_map(|node| node.text());
        Ok(texts.collect::<String>().trim().to_owned())
    }
}
