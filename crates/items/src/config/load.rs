//! Reading the files: what comes with the program, then the user's, then the project's, each above what it extends.
//!
//! ```text
//! extends: ./shared/limits.yaml                          relative to the file that says so, and never outside of `config`
//! extends: team/limits.yaml                              below `config` of the same folder, else of a lower layer
//! extends: rye/agent/threads/config/state_schema.yaml    what nobody has is looked for as `selvedge/…`, which comes with the program
//! ```
//!
//! What comes with the program lies below every file already, so that extending it adds nothing. A file of the user never extends one of a
//! project. No link is followed below the folders that were handed over.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::ConfigError;
use super::node::{Content, Node};
use super::section::{SECTIONS, Section};
use super::shape::Shape;
use crate::error::{Flaw, ItemError};
use crate::library::Layer;
use crate::nearest::nearest;
use crate::read::{list_below, read_below};
use crate::yaml;

const CONFIG: &str = "config";
/// How files end that look like configuration; only the first are read.
const ENDINGS: [&str; 3] = [".yaml", ".yml", ".json"];
/// The most files that extend each other.
const EXTENDS_MAX: usize = 16;
const OLDER_PREFIX: &str = "rye/";
const PREFIX: &str = "selvedge/";
/// What files were called elsewhere, and what they are called here.
const OTHER_NAMES: [(&str, &str); 2] = [("resilience", "limits"), ("error_classification", "errors")];

/// The folders that have a `config` folder: what the caller hands over, nothing else is looked at.
#[derive(Clone, Debug, Default)]
pub struct Folders {
    /// The user's own folder.
    pub user: Option<PathBuf>,
    /// The project's `.ai`.
    pub project: Option<PathBuf>,
}

/// What one file says about a section.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) layer: Layer,
    pub(super) root: Node,
}

/// Reads files and gathers what is wrong with them.
pub(super) struct Loader<'a> {
    pub(super) folders: &'a Folders,
    pub(super) wrong: Vec<ConfigError>,
    pub(super) told: Vec<String>,
    /// The files that were read.
    pub(super) seen: Vec<String>,
}

/// A file: whose it is, and its path below `config`.
#[derive(Clone, Debug, PartialEq)]
struct File {
    layer: Layer,
    place: String,
}

impl Loader<'_> {
    /// What all files say about a section, the lowest first.
    pub(super) fn section(&mut self, section: &'static Section) -> Vec<Written> {
        let mut stack = vec![built_in(section)];
        for layer in [Layer::User, Layer::Project] {
            for place in section.older_place.into_iter().chain([section.place]) {
                let file = File { layer, place: place.to_owned() };
                match self.stack(section, &file, layer, &mut Vec::new()) {
                    Ok(found) if !found.is_empty() && Some(place) == section.older_place => {
                        let (old, new) = (self.name(&file), section.place);
                        self.told
                            .push(format!("`{old}` is read, but its place is `{CONFIG}/{new}`, which counts more"));
                        stack.extend(found);
                    }
                    Ok(found) => stack.extend(found),
                    Err(error) => self.wrong.push(error),
                }
            }
        }
        stack
    }

    /// A file and what it extends, the lowest first; nothing if there is no such file.
    fn stack(
        &mut self,
        section: &'static Section,
        file: &File,
        layer: Layer,
        chain: &mut Vec<String>,
    ) -> Result<Vec<Written>, ConfigError> {
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
        self.wrong.extend(flaws.into_iter().map(|(line, flaw)| invalid(flaw.on_line(line))));
        let mut stack = match extends {
            Some(extends) => self.extended(section, file, &extends, layer, chain)?,
            None => Vec::new(),
        };
        stack.push(Written { layer, root });
        Ok(stack)
    }

    fn extended(
        &mut self,
        section: &'static Section,
        file: &File,
        extends: &Node,
        layer: Layer,
        chain: &mut Vec<String>,
    ) -> Result<Vec<Written>, ConfigError> {
        let invalid = |flaw: Flaw| {
            let flaw = flaw.on_line(extends.at.line);
            ConfigError::Invalid { file: extends.at.file.to_string(), flaw }
        };
        let Some(id) = extends.text() else {
            return Err(invalid(Flaw::new("`extends` names one file, as text")));
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
                Err(invalid(Flaw::new(format!("`{id}` is about `{}`, not about `{}`", found.name, section.name))))
            }
            None => Err(invalid(Flaw::new(format!("`{}` is not there to be extended", id.escape_debug())).hint(format!(
                "name a file below `{CONFIG}`, one beside it by `./NAME.yaml`, or `{}`, which comes with the program",
                section.built_in.0
            )))),
        }
    }

    /// Files that nobody reads are told, so that a wrong name or place is noticed. What lies deeper is there to be extended.
    pub(super) fn tell_strangers(&mut self) {
        for layer in [Layer::User, Layer::Project] {
            let Some(folder) = self.folder(layer).map(|folder| folder.join(CONFIG)) else { continue };
            for below in ["agent/", ""] {
                for ending in ENDINGS {
                    let names = list_below(&folder.join(below), ending).unwrap_or_default();
                    for name in names.iter().filter(|name| !name.contains('/')) {
                        self.tell_stranger(File { layer, place: format!("{below}{name}{ending}") }, name);
                    }
                }
            }
        }
    }

    fn tell_stranger(&mut self, file: File, name: &str) {
        let path = self.name(&file);
        let is_known = |section: &Section| section.place == file.place || section.older_place == Some(&file.place);
        let is_extended = self.seen.contains(&path);
        if is_extended || SECTIONS.iter().any(is_known) {
            return;
        }
        let ours = OTHER_NAMES.iter().find(|(other, _)| *other == name).map_or(name, |(_, ours)| *ours);
        if let Some(section) = SECTIONS.iter().find(|section| section.name == ours) {
            let place = section.place;
            self.told.push(format!("`{path}` is not read; its place is `{CONFIG}/{place}`"));
        } else if file.place.starts_with("agent/") {
            // What lies beside that folder may be somebody else's.
            let near = nearest(name, SECTIONS.iter().map(|section| section.name));
            let advice = near.map(|near| format!("; did you mean `{near}.yaml`?")).unwrap_or_default();
            self.told.push(format!("`{path}` is not read{advice}"));
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
        let flaw = || Flaw::new("it is not UTF-8").hint("save it as UTF-8");
        let text = String::from_utf8(bytes).map_err(|_| ItemError::Invalid { file: self.name(file), flaw: flaw() })?;
        Ok(Some(text))
    }
}

/// What comes with the program says about a section.
fn built_in(section: &'static Section) -> Written {
    let (name, text) = section.built_in;
    let root = Node::parse(text, Layer::BuiltIn, &Arc::from(name)).and_then(|root| unwrapped(section, root));
    let (root, _) = root.expect("what comes with the program is valid");
    Written { layer: Layer::BuiltIn, root }
}

/// What a file says, and what it extends. It may say everything under the section's own name.
fn unwrapped(section: &Section, mut root: Node) -> Result<(Node, Option<Node>), Flaw> {
    if !matches!(root.content, Content::Fields(_)) {
        return Err(Flaw::new("keys with values are wanted here").on_line(root.at.line));
    }
    let extends = root.take("extends");
    let Some(inside) = root.take(section.name) else { return Ok((root, extends)) };
    match (root.fields().first(), &inside.content) {
        (Some((name, beside)), _) => Err(Flaw::new(format!("`{name}` stands beside `{}`", section.name))
            .on_line(beside.at.line)
            .hint(format!("put it under `{}`", section.name))),
        (None, Content::Scalar(value)) if value.is_null() => Ok((root, extends)),
        (None, Content::Fields(_)) => Ok((inside, extends)),
        (None, _) => {
            Err(Flaw::new(format!("keys with values are wanted in `{}`", section.name)).on_line(inside.at.line))
        }
    }
}

/// The files that an `extends` may mean, the likeliest first. A lower layer never sees a higher one.
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
            ".." if is_relative => drop(steps.pop().ok_or_else(|| refused("it lies outside of `config`"))?),
            "" | "." | ".." => return Err(refused("it is no path below `config`")),
            step if step.contains(char::is_control) || step.len() > 255 => return Err(refused("it is no path")),
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
