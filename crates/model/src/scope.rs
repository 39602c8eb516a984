//! Lifetimes of the values in a thread's state.
//!
//! Defines which path has which scope, where the values of a tool call are kept, and the cleanup patches. The engine decides when
//! those patches are committed: a run's with its preparation, a call's with its result.
//!
//! - Scopes are declared by path. The declaration with the longest matching path counts, and an undeclared path is
//!   [`Scope::Thread`].
//! - Cleanup looks at the folded state, never at a snapshot alone, so values of a run that was killed are deleted too.
//! - The values of a call are under `__tool_call_scope` and the call's id, which is one key even if it contains dots or slashes.
//! - Paths that cleanup would break can't be declared: the root, an element of an array (the elements after it would move),
//!   a path inside `__tool_call_scope`, or a Thread-scoped path inside a Run-scoped one.
//!
//! ```text
//! declared                                 kept at
//! notes        Thread (or undeclared)      /notes
//! __run        Run                         /__run                          until the next run is prepared
//! scratch      ToolCall                    /__tool_call_scope/CALL/scratch until the call's result is committed
//! ```

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Classify, Kind};
use crate::id::CallId;
use crate::op::Op;
use crate::patch::Patch;
use crate::path::{Path, Segment};

/// The key that holds the values of tool calls.
pub const TOOL_CALL_KEY: &str = "__tool_call_scope";

/// The source of the patch that cleans up before a run.
pub const RUN_CLEANUP_SOURCE: &str = "prepare_run:scope_cleanup";

/// The source of the patch that cleans up after a call.
pub const CALL_CLEANUP_SOURCE: &str = "framework:scope_cleanup";

/// How long a value lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// As long as the thread.
    #[default]
    Thread,
    /// Until the next run is prepared.
    Run,
    /// Until the result of its tool call is committed.
    ToolCall,
}

/// The scope of a path and everything below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declaration {
    /// The path, made of keys only.
    pub path: Path,
    /// The lifetime of the values there.
    pub scope: Scope,
}

/// The declared scopes. Written as a list of `{path, scope}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Declaration>", into = "Vec<Declaration>")]
pub struct Scopes(Vec<Declaration>);

/// Why a scope can't be declared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// The root can't be cleaned up.
    #[error("the whole state can't be {scope:?}-scoped: declare paths inside it")]
    Root {
        /// The requested scope.
        scope: Scope,
    },
    /// A path into an array can't be declared.
    #[error("`{path}` can't be declared: its path has an index, and elements of an array move when one is deleted")]
    Indexed {
        /// The path.
        path: Path,
    },
    /// The scope of everything inside `__tool_call_scope` is fixed.
    #[error("`{path}` can't be declared: everything inside `{TOOL_CALL_KEY}` belongs to its tool call")]
    Reserved {
        /// The path.
        path: Path,
    },
    /// The path already has another scope.
    #[error("`{path}` is already declared with another scope")]
    Redeclared {
        /// The path.
        path: Path,
    },
    /// Cleanup of the outer path would delete the inner one, which should be kept.
    #[error("`{inner}` can't outlive the run inside `{outer}`, which is deleted with it")]
    Outlives {
        /// The Thread-scoped path.
        inner: Path,
        /// The Run-scoped path around it.
        outer: Path,
    },
}

impl Classify for ScopeError {
    fn kind(&self) -> Kind {
        Kind::Invalid
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Root { .. } => "scope_root",
            Self::Indexed { .. } => "scope_indexed",
            Self::Reserved { .. } => "scope_reserved",
            Self::Redeclared { .. } => "scope_redeclared",
            Self::Outlives { .. } => "scope_outlives",
        }
    }
}

impl Scopes {
    /// No declarations: everything is Thread-scoped.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// The built-in declarations: `__run` and `__kernel.stop_policy_runtime` are Run-scoped.
    pub fn builtin() -> Self {
        let run = |path| Declaration { path, scope: Scope::Run };
        Self(vec![run(Path::keys(["__run"])), run(Path::keys(["__kernel", "stop_policy_runtime"]))])
    }

    /// Declares the scope of a path and everything below it; declaring the same again has no effect.
    pub fn declare(&mut self, path: Path, scope: Scope) -> Result<(), ScopeError> {
        if path.is_root() && scope != Scope::Thread {
            return Err(ScopeError::Root { scope });
        }
        if path.segments().iter().any(|segment| matches!(segment, Segment::Index(_))) {
            return Err(ScopeError::Indexed { path });
        }
        if path.starts_with(&tool_calls()) {
            return Err(ScopeError::Reserved { path });
        }
        for known in &self.0 {
            if known.path == path {
                return if known.scope == scope { Ok(()) } else { Err(ScopeError::Redeclared { path }) };
            }
            let pair = |outer: &Path, inner: &Path| ScopeError::Outlives { inner: inner.clone(), outer: outer.clone() };
            match (known.scope, scope) {
                (Scope::Run, Scope::Thread) if path.starts_with(&known.path) => return Err(pair(&known.path, &path)),
                (Scope::Thread, Scope::Run) if known.path.starts_with(&path) => return Err(pair(&path, &known.path)),
                _ => {}
            }
        }
        self.0.push(Declaration { path, scope });
        Ok(())
    }

    /// The declarations, in order.
    pub fn declarations(&self) -> &[Declaration] {
        &self.0
    }

    /// The scope of a path.
    pub fn scope_of(&self, path: &Path) -> Scope {
        if path.starts_with(&tool_calls()) {
            return Scope::ToolCall;
        }
        let around = self.0.iter().filter(|known| path.starts_with(&known.path));
        let deepest = around.max_by_key(|known| known.path.segments().len());
        deepest.map(|known| known.scope).unwrap_or_default()
    }

    /// The path that a write to `path` uses: a ToolCall-scoped path of `call` is moved below the call, every other one is unchanged.
    /// Without a call there is nowhere to move it to, so it is unchanged too.
    pub fn route(&self, path: &Path, call: Option<&CallId>) -> Path {
        match call {
            Some(call) if !path.starts_with(&tool_calls()) && self.scope_of(path) == Scope::ToolCall => {
                tool_call_path(call, path)
            }
            _ => path.clone(),
        }
    }

    /// The patch that deletes every Run-scoped path that exists in the folded `state`; `None` if there is none.
    pub fn run_cleanup(&self, state: &Value) -> Option<Patch> {
        let run_scoped = || self.0.iter().filter(|known| known.scope == Scope::Run).map(|known| &known.path);
        let inside_another = |path: &Path| run_scoped().any(|outer| outer != path && path.starts_with(outer));
        let present = run_scoped().filter(|path| path.get(state).is_some() && !inside_another(path));
        cleanup(present.cloned().collect(), RUN_CLEANUP_SOURCE)
    }
}

/// The path at which `call` keeps what it writes to `path`.
pub fn tool_call_path(call: &CallId, path: &Path) -> Path {
    tool_calls().key(call.as_str()).join(path)
}

/// The patch that deletes everything that `call` keeps in the folded `state`; `None` if there is nothing.
pub fn call_cleanup(state: &Value, call: &CallId) -> Option<Patch> {
    let kept = tool_call_path(call, &Path::root());
    kept.get(state)?;
    cleanup(vec![kept], CALL_CLEANUP_SOURCE)
}

fn cleanup(paths: Vec<Path>, source: &str) -> Option<Patch> {
    let ops: Vec<_> = paths.into_iter().map(|path| Op::Delete { path }).collect();
    (!ops.is_empty()).then(|| Patch::new(ops).from_source(source))
}

fn tool_calls() -> Path {
    Path::keys([TOOL_CALL_KEY])
}

impl TryFrom<Vec<Declaration>> for Scopes {
    type Error = ScopeError;

    fn try_from(declarations: Vec<Declaration>) -> Result<Self, ScopeError> {
        let mut scopes = Self::none();
        for declaration in declarations {
            scopes.declare(declaration.path, declaration.scope)?;
        }
        Ok(scopes)
    }
}

impl From<Scopes> for Vec<Declaration> {
    fn from(scopes: Scopes) -> Self {
        scopes.0
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(id: &str) -> CallId {
        CallId::new(id).unwrap()
    }

    #[test]
    fn scopes_are_a_list_of_paths() {
        let written = json!([
            {"path": ["__run"], "scope": "run"},
            {"path": ["__kernel", "stop_policy_runtime"], "scope": "run"},
        ]);
        assert_eq!(serde_json::to_value(Scopes::builtin()).unwrap(), written);
        assert_eq!(serde_json::from_value::<Scopes>(written).unwrap(), Scopes::builtin());
    }

    #[test]
    fn the_longest_declared_path_counts_and_the_rest_is_thread_scoped() {
        let mut scopes = Scopes::builtin();
        scopes.declare(Path::keys(["__kernel"]), Scope::Thread).unwrap();
        scopes.declare(Path::keys(["scratch"]), Scope::ToolCall).unwrap();
        for (path, scope) in [
            (Path::keys(["__run", "id"]), Scope::Run),
            (Path::keys(["__run2"]), Scope::Thread),
            (Path::keys(["__kernel", "other"]), Scope::Thread),
            (Path::keys(["__kernel", "stop_policy_runtime", "x"]), Scope::Run),
            (Path::keys(["scratch"]).index(0), Scope::ToolCall),
            (Path::keys([TOOL_CALL_KEY, "call", "anything"]), Scope::ToolCall),
            (Path::root(), Scope::Thread),
        ] {
            assert_eq!(scopes.scope_of(&path), scope, "{path}");
        }
    }

    /// A killed run left its values in patches, and the next run found them.
    #[test]
    fn run_cleanup_deletes_values_that_only_patches_wrote() {
        let base = json!({"notes": 1});
        let set = |path, value| Op::Set { path, value };
        let of_killed_run = Patch::new(vec![
            set(Path::keys(["__run", "id"]), json!("r1")),
            set(Path::keys(["__kernel", "stop_policy_runtime"]), Value::Null),
            set(Path::keys(["__kernel", "kept"]), json!(1)),
        ]);
        let folded = of_killed_run.apply(&base).unwrap();
        let cleanup = Scopes::builtin().run_cleanup(&folded).unwrap();
        assert_eq!(cleanup.source.as_deref(), Some("prepare_run:scope_cleanup"));
        assert_eq!(cleanup.ops.len(), 2);
        let clean = cleanup.apply(&folded).unwrap();
        assert_eq!(clean, json!({"notes": 1, "__kernel": {"kept": 1}}));
        assert_eq!(Scopes::builtin().run_cleanup(&clean), None);
    }

    #[test]
    fn a_run_scoped_path_inside_another_is_deleted_once() {
        let mut scopes = Scopes::none();
        scopes.declare(Path::keys(["a", "b"]), Scope::Run).unwrap();
        scopes.declare(Path::keys(["a"]), Scope::Run).unwrap();
        let cleanup = scopes.run_cleanup(&json!({"a": {"b": 1}})).unwrap();
        assert_eq!(cleanup.ops, [Op::Delete { path: Path::keys(["a"]) }]);
    }

    /// A call id with a dot became nested keys, and the cleanup of the call missed them.
    #[test]
    fn a_call_id_with_dots_is_one_key_and_is_cleaned_up_with_its_call() {
        let mut scopes = Scopes::none();
        scopes.declare(Path::keys(["scratch"]), Scope::ToolCall).unwrap();
        let one = call("call.1/x");
        let two = call("call");
        let path = scopes.route(&Path::keys(["scratch", "n"]), Some(&one));
        assert_eq!(path, Path::keys([TOOL_CALL_KEY, "call.1/x", "scratch", "n"]));
        assert_eq!(scopes.route(&path, Some(&two)), path);
        assert_eq!(scopes.route(&Path::keys(["scratch"]), None), Path::keys(["scratch"]));
        assert_eq!(scopes.route(&Path::keys(["notes"]), Some(&one)), Path::keys(["notes"]));

        let mut state = json!({"notes": 1, TOOL_CALL_KEY: {"call": {"scratch": 2}}});
        Op::Set { path, value: json!(1) }.apply(&mut state).unwrap();
        let cleanup = call_cleanup(&state, &one).unwrap();
        assert_eq!(cleanup.source.as_deref(), Some("framework:scope_cleanup"));
        cleanup.apply_to(&mut state).unwrap();
        assert_eq!(state, json!({"notes": 1, TOOL_CALL_KEY: {"call": {"scratch": 2}}}));
        assert_eq!(call_cleanup(&state, &one), None);
    }

    #[test]
    fn declarations_that_cleanup_would_break_are_refused() {
        for (list, code) in [
            (json!([{"path": [], "scope": "run"}]), "can't be Run-scoped"),
            (json!([{"path": ["a", 0], "scope": "run"}]), "has an index"),
            (json!([{"path": [TOOL_CALL_KEY, "x"], "scope": "thread"}]), "belongs to its tool call"),
            (json!([{"path": ["a"], "scope": "run"}, {"path": ["a"], "scope": "thread"}]), "another scope"),
            (json!([{"path": ["a"], "scope": "run"}, {"path": ["a", "b"], "scope": "thread"}]), "can't outlive"),
            (json!([{"path": ["a", "b"], "scope": "thread"}, {"path": ["a"], "scope": "run"}]), "can't outlive"),
            (json!([{"path": ["a"], "scope": "for_ever"}]), "unknown variant"),
        ] {
            let error = serde_json::from_value::<Scopes>(list).unwrap_err().to_string();
            assert!(error.contains(code), "{error}");
        }
        let twice = json!([{"path": ["a"], "scope": "run"}, {"path": ["a"], "scope": "run"}]);
        assert_eq!(serde_json::from_value::<Scopes>(twice).unwrap().declarations().len(), 1);
    }
}
