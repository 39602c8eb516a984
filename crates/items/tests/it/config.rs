//! The configuration as an embedding program sees it: files in, types, origins and errors with their lines out.

use std::fs;
use std::path::Path;

use selvedge_items::Layer;
use selvedge_items::config::{Action, Config, ConfigError, Folders, ResumeMode, Unsigned, page, schema, schemas};
use selvedge_model::digest::Digest;
use selvedge_model::error::Classify;
use selvedge_model::event::EffectClass;
use selvedge_model::tool::{Risk, ToolSpec};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A user and a project, each with files below `config`.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new(files: &[(&str, &str)]) -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        for (path, text) in files {
            let path = place.folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        place
    }

    fn folders(&self) -> Folders {
        let at = |name: &str| Some(self.folder.path().join(name));
        Folders { user: at("user"), project: at("project") }
    }

    fn load(&self) -> Config {
        Config::load(&self.folders()).unwrap()
    }

    fn error(&self) -> ConfigError {
        Config::load(&self.folders()).unwrap_err()
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

fn load(files: &[(&str, &str)]) -> Config {
    Place::new(files).load()
}

/// The error message, without the folder, and the hint.
fn wrong(files: &[(&str, &str)]) -> (String, String) {
    let place = Place::new(files);
    let error = place.error();
    let message = error.to_string().replace(&format!("{}/", place.path().display()), "");
    (message, error.hint().unwrap_or_default())
}

fn tool(name: &str, capability: &str, risk: Risk) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        description: String::new(),
        input_schema: Value::Null,
        class: EffectClass::Pure,
        capability: capability.to_owned(),
        risk,
        hash: Digest([0; 32]),
    }
}

const LIMITS: &str = "project/config/agent/limits.yaml";
const RUN: &str = "project/config/agent/run.yaml";
const APPROVALS: &str = "project/config/agent/approvals.yaml";
const USER_APPROVALS: &str = "user/config/agent/approvals.yaml";

#[test]
fn the_built_in_configuration_is_valid_and_has_the_documented_defaults() {
    let config = Config::built_in();
    let limits = serde_json::to_value(&config.limits).unwrap();
    let documented =
        json!({"turns": 25, "tokens": 200000, "spend": 1.0, "spawns": 50, "depth": 10, "duration_seconds": 1800});
    assert_eq!(limits, documented);
    assert_eq!(config.coordination.continuation.trigger_threshold, 0.9);
    assert_eq!(config.coordination.continuation.resume_ceiling_tokens, 16000);
    assert_eq!(config.coordination.wait_threads.default_timeout, 600.0);
    assert_eq!(config.get("coordination.transcript_integrity").unwrap(), "strict");
    assert_eq!((config.stops.consecutive_errors, config.stops.repeated_calls), (0, 0));
    assert_eq!(config.notices(), [] as [&str; 0]);
    assert!(config.list().iter().all(|setting| setting.origin.layer == Layer::BuiltIn));
}

#[test]
fn the_project_overrides_the_user_and_both_override_the_defaults() {
    let place = Place::new(&[
        ("user/config/agent/limits.yaml", "turns: 7\ntokens: 1000\n"),
        (LIMITS, "# ours\n\nturns: 9\nspend: 0.50\n"),
    ]);
    let config = place.load();
    assert_eq!((config.limits.turns, config.limits.tokens, config.limits.spawns), (Some(9), Some(1000), Some(50)));
    assert_eq!(config.limits.spend.unwrap().to_string(), "0.50");

    let explained = config.explain("limits.turns").unwrap();
    let said: Vec<_> =
        explained.values.iter().map(|said| (said.value.clone(), said.origin.layer, said.origin.line)).collect();
    let expected = [(json!(25), Layer::BuiltIn, 2), (json!(7), Layer::User, 1), (json!(9), Layer::Project, 3)];
    assert_eq!(said, expected);
    assert_eq!(explained.value, Some(json!(9)));
    assert_eq!(&*explained.values[2].origin.file, place.path().join(LIMITS).to_str().unwrap());

    let origins = config.list();
    let origin = |key: &str| origins.iter().find(|setting| setting.key == key).unwrap().origin.layer;
    assert_eq!(
        ["limits.turns", "limits.tokens", "limits.depth"].map(origin),
        [Layer::Project, Layer::User, Layer::BuiltIn]
    );
}

#[test]
fn null_removes_a_limit_and_an_empty_file_sets_nothing() {
    let config = load(&[(LIMITS, "spend: null\n"), ("user/config/agent/limits.yaml", "# nothing yet\n")]);
    assert_eq!((config.limits.spend, config.limits.turns), (None, Some(25)));
}

#[test]
fn an_unknown_key_is_reported_with_its_file_its_line_and_the_nearest_one() {
    let (message, hint) = wrong(&[(LIMITS, "tokens: 5\nturn: 3\n")]);
    assert_eq!(message, "`project/config/agent/limits.yaml` can't be used: line 2: `turn` is not a key of `limits`");
    assert_eq!(hint, "did you mean `turns`?");
    let coordination = "coordination:\n  continuation:\n    triger_threshold: 0.5\n";
    let (message, hint) = wrong(&[("project/config/agent/coordination.yaml", coordination)]);
    assert!(message.contains("line 3: `triger_threshold` is not a key of `coordination.continuation`"), "{message}");
    assert_eq!(hint, "did you mean `trigger_threshold`?");
}

#[test]
fn an_invalid_value_is_reported_with_its_line_and_what_is_valid() {
    for (file, text, line, why) in [
        (LIMITS, "\nturns: many\n", 2, "whole number"),
        (LIMITS, "turns: 0\n", 1, "at least 1"),
        (LIMITS, "turns: -1\n", 1, "at least 1"),
        (LIMITS, "turns: 1.5\n", 1, "whole number"),
        (LIMITS, "turns: 99999999999999999999\n", 1, "it is too large: at most 18446744073709551615"),
        (LIMITS, "turns: \"5\"\n", 1, "`limits.turns` can't be the text `5`: it must be a whole number"),
        (LIMITS, "turns: [1]\n", 1, "whole number"),
        (LIMITS, "spend: lots\n", 1, "dollars"),
        (RUN, "unsigned: perhaps\n", 1, "one of `allow`, `refuse`"),
        (RUN, "environment: HOME\n", 1, "list"),
        (APPROVALS, "rules:\n  - id: a\n    action: ask\n    capability: files.*\n", 4, "must begin with"),
        (APPROVALS, "rules:\n  - id: a\n    tool: x\n", 2, "has no `action`"),
        (
            APPROVALS,
            "rules:\n  - {id: a, tool: x, action: ask}\n  - {id: a, tool: y, action: ask}\n",
            3,
            "occurs twice",
        ),
        (APPROVALS, "rules:\n  - {id: a, action: ask}\n", 2, "names neither `tool`"),
        ("project/config/agent/errors.yaml", "classes:\n\n  - {id: a, class: permanent}\n", 3, "names neither `codes`"),
        ("project/config/agent/coordination.yaml", "continuation: {trigger_threshold: 1.5}", 1, "from 0.1 to 1"),
        (
            "project/config/agent/scopes.yaml",
            "declared:\n  - {id: a, path: [__tool_call_scope, x], scope: run}\n",
            2,
            "can't be declared",
        ),
    ] {
        let (message, hint) = wrong(&[(file, text)]);
        let named = format!("`{file}` can't be used: line {line}");
        assert!(message.starts_with(&named) && format!("{message} {hint}").contains(why), "{text}: {message} ({hint})");
    }
}

#[test]
fn errors_of_yaml_itself_are_reported_too() {
    let (message, _) = wrong(&[(LIMITS, "turns: 1\nturns: 2\n")]);
    assert!(message.contains("line 2") && message.contains("`turns` occurs twice"), "{message}");
    let (message, _) = wrong(&[(LIMITS, "turns: &x 1\n")]);
    assert!(message.contains(LIMITS), "{message}");
    let (message, _) = wrong(&[(LIMITS, "- turns\n")]);
    assert!(message.contains("expected keys with values"), "{message}");
}

#[test]
fn all_errors_are_reported_at_once() {
    let place = Place::new(&[(LIMITS, "turn: 1\ntokens: x\n"), (RUN, "unsignd: refuse\n")]);
    let wrong = Config::check(&place.folders()).unwrap_err();
    assert_eq!(wrong.len(), 3, "{wrong:?}");
}

#[test]
fn entries_are_merged_by_id() {
    let classes = "classes:\n  - {id: mine, class: transient, texts: [Flaky]}\n  - {id: rate_limited, class: permanent, codes: [429]}\n";
    let config = load(&[("project/config/agent/errors.yaml", classes)]);
    let ids: Vec<_> = config.errors.classes.iter().map(|class| class.id.as_str()).collect();
    assert_eq!(ids, ["quota_exhausted", "rate_limited", "not_allowed", "not_valid", "server_failed", "mine"]);
    let class = |code, text| config.errors.classify(code, text).map(|class| class.class.is_retryable());
    assert_eq!(class(Some(429), "slow down"), Some(false), "the entry with the same id was replaced in its position");
    assert_eq!(class(None, "a flaky line"), Some(true));
    assert_eq!(class(Some(503), ""), Some(true));
    assert_eq!(class(Some(500), "insufficient_quota"), Some(false), "the first match counts");
    assert_eq!(class(Some(418), "tea"), None, "if none matches, the provider's classification counts");
    let origin = config.explain("errors.classes.rate_limited").unwrap().values;
    assert_eq!(origin.last().unwrap().origin.line, 3);
}

#[test]
fn a_file_extends_one_beside_it_and_one_of_the_user() {
    let place = Place::new(&[
        ("user/config/team/limits.yaml", "turns: 3\ntokens: 30\nspawns: 1\n"),
        ("project/config/agent/base.yaml", "extends: team/limits.yaml\nturns: 4\ntokens: 40\n"),
        (LIMITS, "extends: ./base.yaml\nturns: 5\n"),
    ]);
    let config = place.load();
    assert_eq!((config.limits.turns, config.limits.tokens, config.limits.spawns), (Some(5), Some(40), Some(1)));
    let said: Vec<_> = config.explain("limits.turns").unwrap().values.into_iter().map(|said| said.value).collect();
    assert_eq!(said, [json!(25), json!(3), json!(4), json!(5)]);
    assert_eq!(config.notices(), [""; 0], "`base.yaml` is read because it is extended");
}

#[test]
fn one_round_repeats_nothing_so_the_minimum_is_two() {
    let (message, _) = wrong(&[("project/config/agent/stops.yaml", "repeated_calls: 1\n")]);
    assert!(
        message.contains("`stops.repeated_calls` can't be `1`: it must be 0 or a whole number of at least 2"),
        "{message}"
    );
    for most in [0, 2, 3] {
        let config = load(&[("project/config/agent/stops.yaml", &format!("repeated_calls: {most}\n"))]);
        assert_eq!(config.stops.repeated_calls, most);
    }
}

#[test]
fn an_unknown_version_of_the_snapshot_format_is_refused() {
    let file = "project/config/state_persistence.yaml";
    for version in ["9.9.9", "1.2.0", "1.1", "1.1.x"] {
        let (message, _) = wrong(&[(file, &format!("schema_version: \"{version}\"\n"))]);
        assert!(message.contains("use 1.0.x or 1.1.x"), "{message}");
    }
    assert_eq!(load(&[(file, "schema_version: \"1.0.0\"\n")]).state_persistence.schema_version, "1.0.0");
}

#[test]
fn a_cycle_of_extends_is_reported_file_by_file() {
    let files = [
        (LIMITS, "extends: ../shared/a.yaml\n"),
        ("project/config/shared/a.yaml", "extends: ./b.yaml\n"),
        ("project/config/shared/b.yaml", "extends: agent/limits.yaml\n"),
    ];
    let (message, hint) = wrong(&files);
    let chain = "project/config/agent/limits.yaml → project/config/shared/a.yaml → project/config/shared/b.yaml → project/config/agent/limits.yaml";
    assert!(message.ends_with(chain), "{message}");
    assert_eq!(hint, "remove `extends` from one of them");
}

#[test]
fn extends_never_leaves_the_folder_and_a_user_never_extends_a_project() {
    for id in ["../../secret.yaml", "/etc/passwd", "a/../../b.yaml", "", "nowhere.yaml", "a//b.yaml"] {
        let (message, _) =
            wrong(&[(LIMITS, &format!("turns: 1\nextends: '{id}'\n")), ("project/secret.yaml", "turns: 2")]);
        assert!(message.contains("line 2"), "{id}: {message}");
    }
    let files = [("user/config/agent/limits.yaml", "extends: p/x.yaml\n"), ("project/config/p/x.yaml", "turns: 2\n")];
    assert!(wrong(&files).0.contains("does not exist and can't be extended"));
    let (message, _) = wrong(&[(LIMITS, "extends: selvedge/agent/threads/config/run.yaml\n")]);
    assert!(message.contains("has the section `run`, not `limits`"), "{message}");
}

#[test]
fn a_link_is_not_followed() {
    let place = Place::new(&[("elsewhere.yaml", "turns: 1\n"), ("project/config/agent/x/y.yaml", "")]);
    std::os::unix::fs::symlink(place.path().join("elsewhere.yaml"), place.path().join(LIMITS)).unwrap();
    assert_eq!(place.error().code(), "item_unsafe");
}

#[test]
fn a_project_is_stricter_and_never_more_lenient_than_its_user() {
    let config = load(&[("user/config/agent/run.yaml", "environment: [LANG]\n"), (RUN, "unsigned: refuse\n")]);
    assert_eq!((config.run.unsigned, config.run.environment.len()), (Unsigned::Refuse, 1));
    let config = load(&[
        ("user/config/agent/run.yaml", "unsigned: refuse\nenvironment: [LANG]\n"),
        (RUN, "unsigned: allow\nenvironment: [HOME]\n"),
        ("project/config/agent/coordination.yaml", "transcript_integrity: lenient\n"),
        ("project/config/agent/redaction.yaml", "patterns: [{id: aws, prefix: NOTHING}, {id: ours, prefix: own_}]\n"),
    ]);
    assert_eq!((config.run.unsigned, &*config.run.environment), (Unsigned::Refuse, &*vec!["LANG".to_owned()]));
    assert_eq!(config.get("coordination.transcript_integrity").unwrap(), "strict");
    let prefixes: Vec<_> = config.redaction.patterns.iter().map(|pattern| pattern.prefix.as_str()).collect();
    assert!(prefixes.contains(&"AKIA") && prefixes.contains(&"own_") && !prefixes.contains(&"NOTHING"));
    assert_eq!(config.notices().len(), 4, "{:?}", config.notices());
    // An empty list removes nothing either, and `extends` does not help.
    let config = load(&[
        ("project/config/agent/redaction.yaml", "extends: x/r.yaml\n"),
        ("project/config/x/r.yaml", "patterns: []\n"),
    ]);
    assert_eq!(config.redaction.patterns.len(), 5);
}

#[test]
fn a_user_may_be_more_lenient_than_the_defaults() {
    let config = load(&[
        ("user/config/agent/coordination.yaml", "coordination: {transcript_integrity: lenient}\n"),
        ("user/config/agent/redaction.yaml", "patterns: []\n"),
    ]);
    assert_eq!(config.get("coordination.transcript_integrity").unwrap(), "lenient");
    assert_eq!((config.redaction.patterns.len(), config.notices().len()), (0, 0));
}

#[test]
fn the_first_matching_rule_decides() {
    let rules = "default: ask\nwait: each\nrules:\n  \
        - {id: reads, capability: 'tool.files.read', action: allow}\n  \
        - {id: pay, tool: pay, action: ask, reason: it is money, expires_after_seconds: 60, resume_mode: pass_decision_to_tool}\n  \
        - {id: harm, risk: external, action: deny}\n";
    let config = load(&[(USER_APPROVALS, rules)]);
    let decide = |name, capability, risk| config.approvals.decide(&tool(name, capability, risk));
    assert_eq!(decide("read", "tool.files.read", Risk::Dangerous).action, Action::Allow, "the first counts");
    let pay = decide("pay", "tool.pay", Risk::Dangerous);
    assert_eq!(
        (pay.action, pay.rule.as_deref(), pay.reason.as_deref()),
        (Action::Ask, Some("pay"), Some("it is money"))
    );
    assert_eq!((pay.expires_after_seconds, pay.resume_mode), (Some(60), ResumeMode::PassDecisionToTool));
    assert_eq!(decide("x", "tool.x", Risk::External).action, Action::Deny);
    assert_eq!(decide("x", "tool.x", Risk::Dangerous).action, Action::Deny, "a risk and all above it");
    let other = decide("x", "tool.x", Risk::Write);
    assert_eq!((other.action, other.rule), (Action::Ask, None));
}

#[test]
fn a_project_never_turns_ask_or_deny_into_allow() {
    let user = "default: ask\nrules: [{id: no, tool: rm, action: deny}, {id: reads, tool: read, action: allow}]\n";
    let allow_all =
        "default: allow\nrules: [{id: all, capability: '*', action: allow}, {id: no, tool: rm, action: allow}]\n";
    let config = load(&[(USER_APPROVALS, user), (APPROVALS, allow_all)]);
    let action =
        |config: &Config, name: &str| config.approvals.decide(&tool(name, &format!("tool.{name}"), Risk::Safe)).action;
    assert_eq!(["rm", "read", "other"].map(|name| action(&config, name)), [Action::Deny, Action::Allow, Action::Ask]);
    let careful = "rules: [{id: mine, tool: read, action: ask}, {id: rest, capability: 'tool.*', action: deny}]\n";
    let config = load(&[(USER_APPROVALS, user), (APPROVALS, careful)]);
    assert_eq!(["rm", "read", "other"].map(|name| action(&config, name)), [Action::Deny, Action::Ask, Action::Deny]);
    let config = load(&[(APPROVALS, "default: ask\n")]);
    assert_eq!(action(&config, "other"), Action::Ask, "a stricter default of the project counts");
}

#[test]
fn models_have_prices_tiers_and_context_windows() {
    let text = "tiers: {fast: small-1.5}\nknown:\n  - {id: small-1.5, input: '0.80', output: 4, cache_read: 0.08, context_tokens: 1000, output_tokens: 300}\n";
    let config = load(&[("user/config/agent/models.yaml", text)]);
    assert_eq!(config.models.tier("fast"), Some("small-1.5"));
    assert_eq!(config.models.tier("slow"), None);
    let price = config.models.price("small-1.5").unwrap();
    assert_eq!((price.input.to_string(), price.output.to_string()), ("0.80".to_owned(), "4.00".to_owned()));
    assert_eq!((price.cache_read.unwrap().to_string(), price.cache_write), ("0.08".to_owned(), None));
    assert_eq!(config.models.context_tokens("small-1.5"), Some(1000));
    assert_eq!((config.models.output_tokens("small-1.5"), config.models.output_tokens("scripted")), (Some(300), None));
    assert!(config.models.price("unheard-of").is_none(), "an unknown model has no price");
    assert!(config.models.price("scripted:demo.yaml").unwrap().input.is_zero());
    assert!(config.models.price("scripted").is_some() && config.models.price("scriptedly").is_none());
    // A name may contain dots.
    assert_eq!(config.get("models.known.small-1.5.context_tokens").unwrap(), 1000);
    assert!(config.explain("models.known.small-1.5.input").unwrap().meaning.contains("million tokens sent"));
}

#[test]
fn coordination_at_its_older_path_is_read_with_lower_precedence_and_a_notice() {
    let older = (
        "project/config/coordination.yaml",
        "coordination:\n  continuation:\n    trigger_threshold: 0.5\n    resume_ceiling_tokens: 9\n",
    );
    let config = load(&[older]);
    assert_eq!(config.coordination.continuation.trigger_threshold, 0.5);
    assert!(config.notices()[0].contains("`config/agent/coordination.yaml` is its new path"), "{:?}", config.notices());
    let newer = ("project/config/agent/coordination.yaml", "continuation: {trigger_threshold: 0.6}\n");
    let config = load(&[older, newer]);
    let continuation = config.coordination.continuation;
    assert_eq!((continuation.trigger_threshold, continuation.resume_ceiling_tokens), (0.6, 9));
}

/// The override example of document 001.
const OVERRIDE: &str = r#"
extends: "rye/agent/threads/config/state_schema.yaml"

checkpoint:
  triggers:
    pre_turn:
      enabled: false

    post_llm:
      enabled: true

  performance:
    incremental: true
    compress: true

retention:
  max_checkpoints: 20
  cleanup:
    keep_last_n: 5
"#;

#[test]
fn the_override_of_document_001_overrides_the_user() {
    let user = "retention: {max_checkpoints: 4, cleanup: {delete_older_than_days: 2}}\n";
    let config =
        load(&[("project/config/state_persistence.yaml", OVERRIDE), ("user/config/state_persistence.yaml", user)]);
    let persistence = &config.state_persistence;
    assert!(!persistence.checkpoint.triggers.pre_turn.enabled && persistence.checkpoint.triggers.post_tools.enabled);
    assert!(persistence.checkpoint.performance.incremental && persistence.checkpoint.performance.compress);
    assert_eq!((persistence.retention.max_checkpoints, persistence.retention.cleanup.keep_last_n), (20, 5));
    // Extending a built-in file does not remove the user's values.
    assert_eq!(persistence.retention.cleanup.delete_older_than_days, 2);
    let explained = config.explain("state_persistence.retention.max_checkpoints").unwrap();
    let said: Vec<_> = explained.values.iter().map(|said| said.value.clone()).collect();
    assert_eq!((said, explained.values[2].origin.line), (vec![json!(10), json!(4), json!(20)], 17));
}

#[test]
fn triggers_that_always_save_can_t_be_switched_off() {
    let file = "project/config/state_persistence.yaml";
    for (text, line) in [
        ("checkpoint:\n  triggers:\n    on_error: {enabled: false}\n", 3),
        ("checkpoint:\n  performance:\n    atomic: false\n", 3),
        ("retention:\n  on_completion:\n    archive_path: /tmp/elsewhere\n", 3),
    ] {
        let (message, _) = wrong(&[(file, text)]);
        assert!(message.contains(&format!("line {line}: ")), "{message}");
    }
}

#[test]
fn a_file_that_is_not_read_is_reported_with_the_likely_name() {
    let config = load(&[
        ("project/config/agent/limit.yaml", "turns: 1\n"),
        ("project/config/agent/resilience.yaml", "turns: 1\n"),
    ]);
    let notices = config.notices().join("\n");
    assert!(notices.contains("limit.yaml` is not read; did you mean `limits.yaml`?"), "{notices}");
    assert!(notices.contains("resilience.yaml` is not read; its path is `config/agent/limits.yaml`"), "{notices}");
}

#[test]
fn a_file_at_the_wrong_path_is_reported_with_the_right_one() {
    let config = load(&[
        ("project/config/limits.yaml", "turns: 1\n"),
        ("project/config/agent/limits.yml", "turns: 1\n"),
        ("project/config/agent/limits.json", "{}\n"),
        ("project/config/agent/state_persistence.yaml", "{}\n"),
        // Files that are read, that are deeper, or that may belong to another program are not reported.
        ("project/config/agent/run.yaml", "extends: run.yaml\n"),
        ("project/config/run.yaml", "environment: []\n"),
        ("project/config/team/limits.yaml", "turns: 1\n"),
        ("project/config/editor.json", "{}\n"),
    ]);
    let notices = config.notices().join("\n");
    for (file, place) in [
        ("config/limits.yaml", "agent/limits.yaml"),
        ("config/agent/limits.yml", "agent/limits.yaml"),
        ("config/agent/limits.json", "agent/limits.yaml"),
        ("config/agent/state_persistence.yaml", "state_persistence.yaml"),
    ] {
        let says = format!("{file}` is not read; its path is `config/{place}`");
        assert_eq!(notices.matches(&says).count(), 1, "{says}: {notices}");
    }
    assert_eq!(notices.matches("is not read").count(), 4, "{notices}");
}

#[test]
fn a_key_is_found_explained_and_if_unknown_the_nearest_one_is_suggested() {
    let config = Config::built_in();
    assert_eq!(config.get("limits").unwrap()["depth"], 10);
    assert_eq!(config.get("redaction.patterns.aws.prefix").unwrap(), "AKIA");
    assert!(config.explain("approvals.rules").unwrap().project.unwrap().contains("not replace"));
    assert!(config.explain("coordination.continuation").unwrap().type_name.contains("`trigger_threshold`"));
    let unsaid = config.explain("approvals.rules.mine.risk").unwrap();
    assert!(
        unsaid.value.is_none() && unsaid.meaning.contains("minimum risk"),
        "a key is explained even if it is not set: {unsaid:?}"
    );
    for (key, near) in [
        ("limits.turn", Some("limits.turns")),
        ("limit.turns", Some("limits.turns")),
        ("trigger_threshold", Some("coordination.continuation.trigger_threshold")),
        ("nonsense", None),
        ("approvals.rules.none", Some("approvals.rules")),
        ("", None),
    ] {
        let error = config.get(key).unwrap_err();
        let ConfigError::UnknownKey { nearest, .. } = &error else { panic!("{key}: {error}") };
        assert_eq!(nearest.as_deref(), near, "{key}");
    }
}

#[test]
fn the_digest_depends_on_the_values_and_not_on_the_layers() {
    let digest = |files: &[(&str, &str)]| load(files).digest();
    let same = digest(&[(LIMITS, "# a comment\nturns: 25\n")]);
    assert_eq!(digest(&[]), same);
    assert_ne!(digest(&[(LIMITS, "turns: 24\n")]), same);
    assert_eq!(digest(&[("user/config/agent/limits.yaml", "turns: 24\n")]), digest(&[(LIMITS, "turns: 24\n")]));
}

/// Checks that everything has a description, and that the schema accepts its own defaults.
fn check_schema(path: &str, schema: &Value) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        assert!(name == path || property["description"].is_string(), "{path}.{name} is not described");
        check_schema(&format!("{path}.{name}"), property);
    }
}

#[test]
fn every_key_is_in_the_schema_with_its_meaning_and_default() {
    let config = Config::built_in();
    for (name, schema) in schemas() {
        check_schema(&name, &schema);
        assert_eq!(schema["additionalProperties"], false, "{name}");
        let known = config.get(&name).unwrap();
        for (key, value) in known.as_object().unwrap() {
            let property = &schema["properties"][key];
            assert!(property.is_object(), "{name}.{key}");
            let is_mapping = property["properties"].is_object();
            assert!(is_mapping || property["default"] == *value, "{name}.{key}: {property}");
        }
    }
    let turns = &schema("limits").unwrap()["properties"]["turns"];
    assert_eq!(turns["anyOf"][0], json!({"type": "integer", "minimum": 1}));
    assert!(schema("limit").is_none());
}

#[test]
fn the_schema_and_the_program_accept_the_same_files() {
    let texts = [
        ("limits", "turns: 3\nspend: '0.5'\ntokens: null\n", true),
        ("limits", "limits: {turns: 3}\nextends: x/y.yaml\n", true),
        ("limits", "turn: 3\n", false),
        ("limits", "limits: {turn: 3}\n", false),
        ("limits", "turns: 0\n", false),
        ("limits", "turns: 1.5\n", false),
        ("limits", "turns: '3'\n", false),
        ("limits", "spend: lots\n", false),
        ("limits", "spend: -1\n", false),
        ("run", "unsigned: refuse\nenvironment: [A]\n", true),
        ("run", "unsigned: maybe\n", false),
        ("run", "environment: A\n", false),
        ("run", "environment: ['']\n", false),
        ("approvals", "rules: [{id: a, action: ask, risk: write}]\n", true),
        ("approvals", "rules: [{id: a, risk: write}]\n", false),
        ("approvals", "rules: [{action: ask, risk: write}]\n", false),
        ("models", "tiers: {any: thing}\n", true),
        ("models", "tiers: {any: 5}\n", false),
        ("models", "providers: [{id: local, format: openai, base_url: 'http://127.0.0.1:1/v1'}]\n", true),
        ("models", "providers: [{id: local, format: gemini, base_url: 'http://127.0.0.1:1/v1'}]\n", false),
        ("models", "providers: [{id: local, format: openai}]\n", false),
        (
            "models",
            "known: [{id: 'local:a', input: 0, output: 0, tier: fast, effort: low, thinking_tokens: 9}]\n",
            true,
        ),
        ("coordination", "coordination: {continuation: {trigger_threshold: 0.5}}\n", true),
        ("coordination", "continuation: {trigger_threshold: 1.5}\n", false),
        ("coordination", "continuation: 5\n", false),
        ("state_persistence", "checkpoint: {triggers: {on_error: {priority: 12}}}\n", true),
        ("state_persistence", "checkpoint: {triggers: {on_error: {enabled: false}}}\n", false),
        ("state_persistence", "state: {schema: {anything: [goes]}}\n", true),
    ];
    for (name, text, good) in texts {
        let schema = schema(name).unwrap();
        let said: Value = selvedge_items::yaml::parse_yaml(text, 1).unwrap();
        assert_eq!(jsonschema::validator_for(&schema).unwrap().is_valid(&said), good, "by the schema, {name}: {text}");
        let place = schema["title"].as_str().unwrap();
        let files = [(format!("project/{place}"), text), ("project/config/x/y.yaml".to_owned(), "{}")];
        let files = files.each_ref().map(|(place, text)| (place.as_str(), *text));
        let loaded = Config::load(&Place::new(&files).folders());
        assert_eq!(loaded.is_ok(), good, "by the program, {name}: {text}: {:?}", loaded.err());
    }
}

#[test]
fn the_page_in_the_docs_is_up_to_date() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CONFIG.md");
    let page = page();
    if std::env::var_os("SELVEDGE_WRITE_DOCS").is_some() {
        fs::write(&file, &page).unwrap();
    }
    let written = fs::read_to_string(&file).unwrap_or_default();
    assert!(written == page, "docs/CONFIG.md is not up to date: run this test with SELVEDGE_WRITE_DOCS=1");
}
