//! Finds items: the project's first, then the user's, then the built-in ones.
//!
//! ```text
//! PROJECT/.ai/directives/reports/weekly.md   →  directive `reports/weekly`
//! USER/.ai/agents/scribe.yaml                →  agent `scribe`
//! PROJECT/.ai/knowledge/tasks/7.md           →  knowledge `tasks/7`, the text of the task `7`
//! built in                                   →  `selvedge/agent/continuation`; a missing `rye/…` is read as `selvedge/…`
//! ```
//!
//! Invariants:
//!
//! - A name is checked before it becomes part of a path, and no link is followed below the given folders.
//! - The first folder that has a file with that name counts, even if the file is invalid: a broken item of the project is never
//!   replaced by one of the user.
//! - A result includes the verdict on every signature it depends on, including those of its ancestors. [`Library::directive`]
//!   and the similar methods refuse items that may not run; [`Library::inspect`] does not.

use std::path::{Path, PathBuf};

use selvedge_log::document::{Comment, DocumentKind};
use selvedge_log::hash::sha256;
use selvedge_log::trust::Trust;
use selvedge_model::digest::Digest;
use selvedge_model::id::{AgentId, DirectiveId};
use selvedge_model::tool::CommandSpec;
use serde::Serialize;

use crate::agent::Agent;
use crate::directive::{self, Directive};
use crate::error::{Flaw, ItemError};
use crate::graph::Graph;
use crate::nearest::nearest;
use crate::read::{self, ListedFile, list_below, read_below};
use crate::signature::{Policy, SignatureVerdict, judge};
use crate::{tool, yaml};

/// The most directives that extend each other.
const EXTENDS_MAX: usize = 16;
const OLDER_PREFIX: &str = "rye/";
const PREFIX: &str = "selvedge/";

/// The built-in directives.
const BUILT_IN: [(&str, &str); 2] = [
    ("selvedge/agent/continuation", include_str!("builtin/continuation.md")),
    ("selvedge/agent/threads/thread_summary", include_str!("builtin/thread_summary.md")),
];

/// Where an item was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// In the project.
    Project,
    /// In the user's own folder.
    User,
    /// Built into the program.
    BuiltIn,
}

/// A kind of item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directive: the task of an agent.
    Directive,
    /// An agent.
    Agent,
    /// A tool that a model may call.
    Tool,
    /// Knowledge that is added to prompts.
    Knowledge,
    /// A graph: a state machine of actions.
    Graph,
}

impl Kind {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        self.document().as_str()
    }

    fn document(self) -> DocumentKind {
        match self {
            Self::Directive => DocumentKind::new("directive"),
            Self::Agent => DocumentKind::new("agent"),
            Self::Tool => DocumentKind::new("tool"),
            Self::Knowledge => DocumentKind::new("knowledge"),
            Self::Graph => DocumentKind::new("graph"),
        }
    }

    /// Folder, extension, comment syntax, and the most bytes.
    fn place(self) -> (&'static str, &'static str, Comment, usize) {
        match self {
            Self::Directive => ("directives", ".md", Comment::Html, directive::BYTES_MAX),
            Self::Agent => ("agents", ".yaml", Comment::Hash, yaml::BYTES_MAX),
            Self::Tool => ("tools", ".yaml", Comment::Hash, yaml::BYTES_MAX),
            Self::Knowledge => ("knowledge", ".md", Comment::Html, directive::BYTES_MAX),
            Self::Graph => ("graphs", ".yaml", Comment::Hash, yaml::BYTES_MAX),
        }
    }
}

/// The origin of an item, or of one of its ancestors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Source {
    /// The kind of item.
    pub what: &'static str,
    /// Its name.
    pub id: String,
    /// Where it was found.
    pub layer: Layer,
    /// Its file, for display.
    pub file: String,
    /// Its path within the project or the user's folder, which is what a signature names.
    pub place: String,
    /// The verdict on its signature.
    #[serde(flatten)]
    pub verdict: SignatureVerdict,
    /// SHA-256 of its bytes.
    pub hash: Digest,
}

/// An item and its sources.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Resolved<T> {
    /// The item, including what it inherited.
    pub item: T,
    /// Its own file, then those of its ancestors, the nearest first.
    pub sources: Vec<Source>,
}

impl<T> Resolved<T> {
    /// The name by which it was found.
    pub fn id(&self) -> &str {
        &self.sources[0].id
    }

    /// Refuses it if it, or an ancestor, may not run.
    pub fn permitted(self, policy: Policy) -> Result<Self, ItemError> {
        for source in &self.sources {
            let Source { file, what, place, .. } = source;
            let refused = |why| ItemError::NotTrusted { file: file.clone(), what, place: place.clone(), why };
            policy.permits(&source.verdict).map_err(refused)?;
        }
        Ok(self)
    }
}

/// One line of a list of items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Its name; loading it fails if the name is invalid.
    pub id: String,
    /// Where it is.
    pub layer: Layer,
    /// Whether an item with the same name in an earlier layer hides it.
    pub hidden: bool,
    /// The link in place of its file, which is not read. The name of a link to a folder ends in `/`.
    #[serde(skip)]
    pub link: Option<PathBuf>,
}

impl Entry {
    /// Refuses a link.
    pub fn readable(&self) -> Result<(), ItemError> {
        match &self.link {
            Some(link) => Err(ItemError::Unsafe { file: link.display().to_string(), why: "it is a link" }),
            None => Ok(()),
        }
    }
}

/// The text of an item, and its source.
pub(crate) struct FoundItem {
    pub(crate) text: String,
    pub(crate) source: Source,
}

/// The folders of items, and the policy on signatures.
#[derive(Clone, Debug)]
pub struct Library {
    /// The project's folder of items, `.ai`.
    pub project: Option<PathBuf>,
    /// The user's.
    pub user: Option<PathBuf>,
    /// The trusted keys.
    pub trust: Trust,
    /// Which items may run.
    pub policy: Policy,
}

impl Library {
    /// A directive that may run, including what it inherits.
    pub fn directive(&self, id: &DirectiveId) -> Result<Resolved<Directive>, ItemError> {
        self.inspect(id)?.permitted(self.policy)
    }

    /// A directive for inspection, regardless of its signature.
    pub fn inspect(&self, id: &DirectiveId) -> Result<Resolved<Directive>, ItemError> {
        let mut line: Vec<Directive> = Vec::new();
        let mut sources: Vec<Source> = Vec::new();
        let mut next = Some(id.clone());
        while let Some(id) = next {
            let found = self.find(Kind::Directive, id.as_str())?;
            let mut chain: Vec<String> = sources.iter().map(|source| source.id.clone()).collect();
            chain.push(found.source.id.clone());
            if chain[..chain.len() - 1].contains(&found.source.id) {
                return Err(ItemError::Cycle { chain });
            }
            let directive = parse_directive(&found)?;
            if chain.len() > EXTENDS_MAX {
                let flaw = Flaw::new(format!("more than {EXTENDS_MAX} directives extend each other"));
                return Err(ItemError::Invalid { file: sources[0].file.clone(), flaw });
            }
            next = directive.extends.clone();
            line.push(directive);
            sources.push(found.source);
        }
        let root_first = line.into_iter().rev();
        let item = root_first.reduce(|parent, child| child.inherit(&parent)).unwrap_or_default();
        Ok(Resolved { item, sources })
    }

    /// An agent that may run.
    pub fn agent(&self, id: &AgentId) -> Result<Resolved<Agent>, ItemError> {
        let found = self.find(Kind::Agent, id.as_str())?;
        let item = Agent::parse(&found.text).map_err(|flaw| invalid(&found.source, flaw))?;
        Resolved { item, sources: vec![found.source] }.permitted(self.policy)
    }

    /// The declaration of a tool that may run. Its name follows the rule for directives.
    pub fn tool(&self, id: &DirectiveId) -> Result<Resolved<CommandSpec>, ItemError> {
        let found = self.find(Kind::Tool, id.as_str())?;
        let parsed = tool::parse(&found.source.id, &found.text);
        let item = parsed.map_err(|flaw| invalid(&found.source, flaw))?;
        Resolved { item, sources: vec![found.source] }.permitted(self.policy)
    }

    /// A graph that may run. Its digest is that of its file without the signature.
    pub fn graph(&self, id: &DirectiveId) -> Result<Resolved<Graph>, ItemError> {
        let found = self.inspect_graph(id)?;
        let file = found.sources[0].file.clone();
        if let Some(flaw) = found.item.flaws().next() {
            return Err(ItemError::Invalid { file, flaw: flaw.clone() });
        }
        found.permitted(self.policy)
    }

    /// A graph for inspection, regardless of its signature and of what is wrong with it.
    pub fn inspect_graph(&self, id: &DirectiveId) -> Result<Resolved<Graph>, ItemError> {
        let found = self.find(Kind::Graph, id.as_str())?;
        let item = Graph::parse(&found.text).map_err(|flaw| invalid(&found.source, flaw))?;
        Ok(Resolved { item, sources: vec![found.source] })
    }

    /// All items of a kind, by name, including hidden ones, and links, which are refused when they are read.
    pub fn list(&self, kind: Kind) -> Result<Vec<Entry>, ItemError> {
        let (folder, ending, ..) = kind.place();
        let mut entries: Vec<Entry> = Vec::new();
        for (layer, root) in self.folders() {
            let ids = list_below(&root.join(folder), ending)?;
            entries.extend(ids.into_iter().map(|ListedFile { id, link }| Entry { id, layer, hidden: false, link }));
        }
        let built_in = BUILT_IN.iter().filter(|_| kind == Kind::Directive);
        let built_in = built_in.map(|(id, _)| (*id).to_owned());
        entries.extend(built_in.map(|id| Entry { id, layer: Layer::BuiltIn, hidden: false, link: None }));
        entries.sort_by(|one, next| (&one.id, one.layer).cmp(&(&next.id, next.layer)));
        for index in 1..entries.len() {
            entries[index].hidden = entries[index].id == entries[index - 1].id;
        }
        Ok(entries)
    }

    fn folders(&self) -> impl Iterator<Item = (Layer, &Path)> {
        let project = self.project.as_deref().map(|path| (Layer::Project, path));
        project.into_iter().chain(self.user.as_deref().map(|path| (Layer::User, path)))
    }

    /// The first match in the layers; a missing `rye/…` is looked up as `selvedge/…`.
    pub(crate) fn find(&self, kind: Kind, id: &str) -> Result<FoundItem, ItemError> {
        let newer = id.strip_prefix(OLDER_PREFIX).map(|rest| format!("{PREFIX}{rest}"));
        for id in [Some(id.to_owned()), newer].into_iter().flatten() {
            if let Some(found) = self.look(kind, &id)? {
                return Ok(found);
            }
        }
        let known = self.list(kind).unwrap_or_default();
        let near = nearest(id, known.iter().map(|entry| entry.id.as_str())).map(str::to_owned);
        Err(ItemError::NotFound { what: kind.as_str(), id: id.to_owned(), nearest: near })
    }

    /// An item of one layer, whether or not another layer has it, too.
    pub(crate) fn look_in(&self, kind: Kind, id: &str, layer: Layer) -> Result<Option<FoundItem>, ItemError> {
        let Some((_, root)) = self.folders().find(|(known, _)| *known == layer) else { return Ok(None) };
        let (folder, ending, comment, bytes_max) = kind.place();
        let name = format!("{id}{ending}");
        let steps: Vec<&str> = [folder].into_iter().chain(name.split('/')).collect();
        let Some(bytes) = read_below(root, &steps, bytes_max)? else { return Ok(None) };
        let file = root.join(folder).join(&name).display().to_string();
        let place = format!(".ai/{folder}/{name}");
        let verdict = judge(kind.document(), &place, comment, &bytes, &self.trust);
        let hash = sha256(&bytes);
        let source = Source { what: kind.as_str(), id: id.to_owned(), layer, file, place, verdict, hash };
        let text = read::text(bytes).map_err(|flaw| invalid(&source, flaw))?;
        Ok(Some(FoundItem { text, source }))
    }

    pub(crate) fn look(&self, kind: Kind, id: &str) -> Result<Option<FoundItem>, ItemError> {
        for layer in [Layer::Project, Layer::User] {
            if let Some(found) = self.look_in(kind, id, layer)? {
                return Ok(Some(found));
            }
        }
        let built_in = BUILT_IN.iter().find(|(known, _)| kind == Kind::Directive && *known == id);
        Ok(built_in.map(|(id, text)| FoundItem {
            text: (*text).to_owned(),
            source: Source {
                what: kind.as_str(),
                id: (*id).to_owned(),
                layer: Layer::BuiltIn,
                file: format!("{id} (built in)"),
                place: (*id).to_owned(),
                verdict: SignatureVerdict::BuiltIn,
                hash: sha256(text.as_bytes()),
            },
        }))
    }
}

impl Library {
    /// A file of the configuration that is judged like an item: its text and source.
    pub(crate) fn config_file(&self, layer: Layer, path: &str) -> Result<Option<(String, Source)>, ItemError> {
        let Some((_, root)) = self.folders().find(|(known, _)| *known == layer) else { return Ok(None) };
        let steps: Vec<&str> = path.split('/').collect();
        let Some(bytes) = read_below(root, &steps, yaml::BYTES_MAX)? else { return Ok(None) };
        let kind = DocumentKind::new("config");
        let place = format!(".ai/{path}");
        let verdict = judge(kind, &place, Comment::Hash, &bytes, &self.trust);
        let file = root.join(path).display().to_string();
        let hash = sha256(&bytes);
        let source = Source { what: kind.as_str(), id: path.to_owned(), layer, file, place, verdict, hash };
        let text = read::text(bytes).map_err(|flaw| invalid(&source, flaw))?;
        Ok(Some((text, source)))
    }
}

fn parse_directive(found: &FoundItem) -> Result<Directive, ItemError> {
    let wrong = |flaw| invalid(&found.source, flaw);
    let directive = Directive::parse(&found.text).map_err(wrong)?;
    let id = DirectiveId::new(found.source.id.as_str())?;
    directive.check_place(&id).map_err(wrong)?;
    Ok(directive)
}

fn invalid(source: &Source, flaw: Flaw) -> ItemError {
    ItemError::Invalid { file: source.file.clone(), flaw }
}
