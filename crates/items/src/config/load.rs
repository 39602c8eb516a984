//! Reads the files: the built-in ones, then the user's, then the project's, each above the file that it extends.
//!
//! ```text
//! extends: ./shared/limits.yaml                          relative to the extending file, and never outside of `config`
//! extends: team/limits.yaml                              below `config` of the same folder, or else of a lower layer
//! extends: rye/agent/threads/config/state_schema.yaml    if there is no such file: `selvedge/…`, which is built in
//! ```
//!
//! The built-in files are below every other file already, so that extending them adds nothing. A user's file never extends one of a
//! project. No link is followed below the given folders.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::ConfigError;
use super::node::{Node, NodeContent};
use super::section::{SECTIONS, Section};
use super::shape::Shape;
use crate::error::{Flaw, ItemError};
use crate::library::Layer;
use crate::nearest::nearest;
use crate::read::{self, list_below, read_below};
use crate::yaml;

const CONFIG: &str = "config";
/// The extensions of files that look like configuration; only the first one is read.
const ENDINGS: [&str; 3] = [".yaml", ".yml", ".json"];
/// The most files that extend each other.
const EXTENDS_MAX: usize = 16;
const OLDER_PREFIX: &str = "rye/";
const PREFIX: &str = "selvedge/";
/// Names of files in other programs, and their names here.
const OTHER_NAMES: [(&str, &str); 2] = [("resilience", "limits"), ("error_classification", "errors")];

/// The folders that have a `config` folder; nothing else is read.
#[derive(Clone, Debug, Default)]
pub struct Folders {
    /// The user's own folder.
    pub user: Option<PathBuf>,
    /// The project's `.ai`.
    pub project: Option<PathBuf>,
}

/// The content of one file of a section.
#[derive(Clone, Debug)]
pub(super) struct ParsedFile {
    pub(super) layer: Layer,
    pub(super) root: Node,
}

/// Reads files and collects their errors.
pub(super) struct Loader<'a> {
    pub(super) folders: &'a Folders,
    pub(super) errors: Vec<ConfigError>,
    pub(super) notices: Vec<String>,
    /// The files that were read.
    pub(super) seen: Vec<String>,
}

/// A file: its layer, and its path below `config`.
#[derive(Clone, Debug, PartialEq)]
struct File {
    layer: Layer,
    place: String,
}

impl Loader<'_> {
    /// The content of all files of a section, the lowest layer first.
    pub(super) fn section(&mut self, section: &'static Section) -> Vec<ParsedFile> {
        let mut stack = vec![built_in(section)];
        for layer in [Layer::User, Layer::Project] {
            for place in section.older_place.into_iter().chain([section.place]) {
                let file = File { layer, place: place.to_owned() };
                match self.stack(section, &file, layer, &mut Vec::new()) {
                    Ok(found) if !found.is_empty() && Some(place) == section.older_place => {
                        let old = self.name(&file);
                        let new = section.place;
                        self.notices.push(format!(
                            "`{old}` is read, but `{CONFIG}/{new}` is its new path and takes precedence"
                        ));
                        stack.extend(found);
                    }
                    Ok(found) => stack.extend(found),
                    Err(error) => self.errors.push(error),
                }
            }
        }
        stack
    }

    /// A file and those that it extends, the lowest first; empty if there is no such file.
    fn stack(
        &mut self,
        section: &'static Section,
        file: &File,
        layer: Layer,
        chain: &mut Vec<String>,
    ) -> Result<Vec<ParsedFile>, ConfigError> {
        let name = self.name(file);
        let Some(text) = self.read(file)? else { return Ok(Vec::new()) };
        let invalid = |flaw| ConfigError::Invalid { file: name.clone(), flaw };
        if chain.contains(&name) {
            chain.push(name);
            return Err(ConfigError::Cycle { chain: chain.clone() });
        }
        chain.push(name.clone());
        self.seen.push(name.clone());
        let root = Node::parse(&text, layer, &Arc::from(name.as_str())).map_err(invalid)?;
        let (root, extends) = unwrapped(section, root).map_err(invalid)?;
        let mut flaws = Vec::new();
        Shape::Fields(section.keys).check(section.name, &root, &mut flaws);
        self.errors.extend(flaws.into_iter().map(|(line, flaw)| invalid(flaw.on_line(line))));
        let mut stack = match extends {
            Some(extends) => self.extended(section, file, &extends, layer, chain)?,
            None => Vec::new(),
        };
        stack.push(ParsedFile { layer, root });
        Ok(stack)
    }

    fn extended(
        &mut self,
        section: &'static Section,
        file: &File,
        extends: &Node,
        layer: Layer,
        chain: &mut Vec<String>,
    ) -> Result<Vec<ParsedFile>, ConfigError> {
        let invalid = |flaw: Flaw| {
            let flaw = flaw.on_line(extends.at.line);
            ConfigError::Invalid { file: extends.at.file.to_string(), flaw }
        };
        let Some(id) = extends.text() else {
            return Err(invalid(Flaw::new("`extends` must name one file, as text")));
        };
        if chain.len() >= EXTENDS_MAX {
            return Err(invalid(Flaw::new(format!("more than {EXTENDS_MAX} files extend each other"))));
        }
        for candidate in candidates(file, id).map_err(invalid)? {
            let found = self.stack(section, &candidate, layer, chain)?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        let newer = id.strip_prefix(OLDER_PREFIX).map(|rest| format!("{PREFIX}{rest}"));
        let built_in = |section: &&Section| section.built_in.0 == id || Some(section.built_in.0) == newer.as_deref();
        match SECTIONS.iter().find(built_in) {
            Some(found) if found.name == section.name => Ok(Vec::new()),
            Some(found) => {
                Err(invalid(Flaw::new(format!("`{id}` has the section `{}`, not `{}`", found.name, section.name))))
            }
            None => Err(invalid(
                Flaw::new(format!("`{}` does not exist and can't be extended", id.escape_debug())).hint(format!(
                    "name a file below `{CONFIG}`, one beside it by `./NAME.yaml`, or `{}`, which is built in",
                    section.built_in.0
                )),
            )),
        }
    }

    /// Adds notices for files that are not read, so that a errors name or path is noticed. Deeper files exist to be extended.
    pub(super) fn report_unread_files(&mut self) {
        for layer in [Layer::User, Layer::Project] {
            let Some(folder) = self.folder(layer).map(|folder| folder.join(CONFIG)) else { continue };
            for below in ["agent/", ""] {
                for ending in ENDINGS {
                    let names = list_below(&folder.join(below), ending).unwrap_or_default();
                    let names = names.into_iter().map(|found| found.id);
                    for name in names.filter(|name| !name.contains('/')) {
                        self.report_unread_file(File { layer, place: format!("{below}{name}{ending}") }, &name);
                    }
                }
            }
        }
    }

    fn report_unread_file(&mut self, file: File, name: &str) {
        let path = self.name(&file);
        let is_known = |section: &Section| section.place == file.place || section.older_place == Some(&file.place);
        let is_extended = self.seen.contains(&path);
        // Hooks and MCP servers are executed, so they are read and judged like items.
        if is_extended
            || ["agent/hooks.yaml", "agent/mcp.yaml"].contains(&file.place.as_str())
            || SECTIONS.iter().any(is_known)
        {
            return;
        }
        let ours = OTHER_NAMES.iter().find(|(other, _)| *other == name).map_or(name, |(_, ours)| *ours);
        if let Some(section) = SECTIONS.iter().find(|section| section.name == ours) {
            let place = section.place;
            self.notices.push(format!("`{path}` is not read; its path is `{CONFIG}/{place}`"));
        } else if file.place.starts_with("agent/") {
            // Files beside that folder may belong to another program.
            let near = nearest(name, SECTIONS.iter().map(|section| section.name));
            let advice = near.map(|near| format!("; did you mean `{near}.yaml`?")).unwrap_or_default();
            self.notices.push(format!("`{path}` is not read{advice}"));
        }
    }

    fn folder(&self, layer: Layer) -> Option<&Path> {
        match layer {
            Layer::Project => self.folders.project.as_deref(),
            Layer::User => self.folders.user.as_deref(),
            Layer::BuiltIn => None,
        }
    }

    fn name(&self, file: &File) -> String {
        let folder = self.folder(file.layer).unwrap_or(Path::new(""));
        folder.join(CONFIG).join(&file.place).display().to_string()
    }

    fn read(&self, file: &File) -> Result<Option<String>, ConfigError> {
        let Some(folder) = self.folder(file.layer) else { return Ok(None) };
        let steps: Vec<&str> = [CONFIG].into_iter().chain(file.place.split('/')).collect();
        let Some(bytes) = read_below(folder, &steps, yaml::BYTES_MAX)? else { return Ok(None) };
        let text = read::text(bytes).map_err(|flaw| ItemError::Invalid { file: self.name(file), flaw })?;
        Ok(Some(text))
    }
}

/// The built-in content of a section.
fn built_in(section: &'static Section) -> ParsedFile {
    let (name, text) = section.built_in;
    let root = Node::parse(text, Layer::BuiltIn, &Arc::from(name)).and_then(|root| unwrapped(section, root));
    let (root, _) = root.expect("the built-in configuration is valid");
    ParsedFile { layer: Layer::BuiltIn, root }
}

/// The content of a file, and what it extends. The content may be under the section's own name.
fn unwrapped(section: &Section, mut root: Node) -> Result<(Node, Option<Node>), Flaw> {
    if !matches!(root.content, NodeContent::Fields(_)) {
        return Err(Flaw::new("expected keys with values").on_line(root.at.line));
    }
    let extends = root.take("extends");
    let Some(inside) = root.take(section.name) else { return Ok((root, extends)) };
    match (root.fields().first(), &inside.content) {
        (Some((name, beside)), _) => Err(Flaw::new(format!("`{name}` is beside `{}`", section.name))
            .on_line(beside.at.line)
            .hint(format!("put it under `{}`", section.name))),
        (None, NodeContent::Scalar(value)) if value.is_null() => Ok((root, extends)),
        (None, NodeContent::Fields(_)) => Ok((inside, extends)),
        (None, _) => Err(Flaw::new(format!("expected keys with values in `{}`", section.name)).on_line(inside.at.line)),
    }
}

/// The files that an `extends` may refer to, in order of preference. A lower layer never sees a higher one.
fn candidates(file: &File, id: &str) -> Result<Vec<File>, Flaw> {
    let is_relative = id.starts_with("./") || id.starts_with("../");
    let mut steps: Vec<&str> = match file.place.rsplit_once('/') {
        Some((folder, _)) if is_relative => folder.split('/').collect(),
        _ => Vec::new(),
    };
    for step in id.split('/') {
        let refused = |why: &str| Flaw::new(format!("`{}` can't be extended: {why}", id.escape_debug()));
        match step {
            "." if is_relative => {}
            ".." if is_relative => drop(steps.pop().ok_or_else(|| refused("it is outside of `config`"))?),
            "" | "." | ".." => return Err(refused("it is not a path below `config`")),
            step if step.contains(char::is_control) || step.len() > 255 => return Err(refused("it is not a path")),
            step => steps.push(step),
        }
    }
    let place = steps.join("/");
    let layers: &[Layer] = match (is_relative, file.layer) {
        (false, Layer::Project) => &[Layer::Project, Layer::User],
        (_, Layer::Project) => &[Layer::Project],
        _ => &[Layer::User],
    };
    Ok(layers.iter().map(|layer| File { layer: *layer, place: place.clone() }).collect())
}
