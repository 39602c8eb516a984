//! Signatures decide whether an item may run.

use std::fs;
use std::path::Path;

use selvedge_items::signature::judge;
use selvedge_items::{ItemError, Layer, Library, Policy, SignatureVerdict};
use selvedge_log::document::{Comment, DocumentKind, sign_text};
use selvedge_log::keys::PublicKey;
use selvedge_log::{Signer, Trust};
use selvedge_model::clock_and_ids::Ids;
use selvedge_model::error::Classify;
use selvedge_model::{DirectiveId, Timestamp};

struct Fill(u8);

impl Ids for Fill {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(self.0);
    }
}

const TEXT: &str = "---\nname: pay\n---\nPay the bill.\n";

fn signed(text: &str, key: u8, place: &str) -> String {
    let at: Timestamp = "2026-11-15T03:28:58Z".parse().unwrap();
    sign_text(DocumentKind::new("directive"), place, Comment::Html, text, &Signer::generate(&Fill(key)), at)
}

fn library(root: &Path, policy: Policy) -> Library {
    let trust = Trust::of(&[Signer::generate(&Fill(1)).public()]);
    Library { project: Some(root.to_owned()), user: None, trust, policy }
}

fn put(root: &Path, name: &str, text: &str) {
    let path = root.join("directives").join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn verdict_and_runs(text: &str) -> (SignatureVerdict, [bool; 3]) {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "pay.md", text);
    let id = DirectiveId::new("pay").unwrap();
    let runs = [Policy::AllowUntrusted, Policy::AllowUnsigned, Policy::RequireTrusted].map(|policy| {
        match library(root.path(), policy).directive(&id) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.code(), "item_not_trusted", "{error}");
                false
            }
        }
    });
    let looked_at = library(root.path(), Policy::RequireTrusted).inspect(&id).unwrap();
    assert_eq!(looked_at.sources[0].layer, Layer::Project);
    (looked_at.sources[0].verdict.clone(), runs)
}

#[test]
fn an_item_signed_by_a_trusted_key_runs_under_every_policy() {
    let (verdict, runs) = verdict_and_runs(&signed(TEXT, 1, ".ai/directives/pay.md"));
    assert_eq!(verdict, SignatureVerdict::Trusted { signer: Signer::generate(&Fill(1)).fingerprint() });
    assert_eq!(runs, [true, true, true]);
}

#[test]
fn an_unsigned_item_runs_unless_signatures_are_required() {
    assert_eq!(verdict_and_runs(TEXT), (SignatureVerdict::Unsigned { older: false }, [true, true, false]));
}

#[test]
fn an_item_signed_by_an_unknown_key_runs_only_if_allowed() {
    let (verdict, runs) = verdict_and_runs(&signed(TEXT, 2, ".ai/directives/pay.md"));
    assert!(matches!(verdict, SignatureVerdict::Untrusted { .. }));
    assert_eq!(runs, [true, false, false]);
}

/// In the older form the body could be changed freely.
#[test]
fn an_item_with_a_changed_body_or_another_path_never_runs() {
    let good = signed(TEXT, 1, ".ai/directives/pay.md");
    let kind = signed(TEXT, 1, ".ai/directives/pay.md").replace(":directive:", ":knowledge:");
    for bad in [
        good.replace("Pay the bill.", "Pay me."),
        good.replace("name: pay", "name:  pay"),
        format!("{good}\nMore.\n"),
        signed(TEXT, 1, ".ai/directives/other.md"),
        signed(TEXT, 2, ".ai/directives/pay.md").replace("Pay the bill.", "Pay me."),
        kind,
    ] {
        let (verdict, runs) = verdict_and_runs(&bad);
        let is_refused = matches!(verdict, SignatureVerdict::Broken { .. }) && runs == [false; 3];
        // The signature of an unknown key can't be verified, so a change can't be detected either.
        let is_unknown = matches!(verdict, SignatureVerdict::Untrusted { .. }) && !runs[1] && !runs[2];
        assert!(is_refused || is_unknown, "{bad}: {verdict:?} {runs:?}");
    }
}

#[test]
fn a_directive_does_not_run_if_an_ancestor_may_not() {
    let root = tempfile::Builder::new().prefix("it's; here").tempdir().unwrap();
    put(root.path(), "pay.md", &signed("---\nname: pay\nextends: base\n---\nPay.\n", 1, ".ai/directives/pay.md"));
    put(root.path(), "base.md", "---\nname: base\npermissions: ['*']\n---\n");
    let id = DirectiveId::new("pay").unwrap();
    let error = library(root.path(), Policy::RequireTrusted).directive(&id).unwrap_err();
    assert!(matches!(&error, ItemError::NotTrusted { file, .. } if file.ends_with("base.md")), "{error}");
    let hint = error.hint().unwrap();
    assert!(hint.contains("base.md' --kind directive --id .ai/directives/base.md"), "{hint}");
    assert!(hint.contains(r"it'\''s; here"), "the file is one word for a shell: {hint}");
    let resolved = library(root.path(), Policy::AllowUnsigned).directive(&id).unwrap();
    let files: Vec<_> = resolved.sources.iter().map(|source| source.id.as_str()).collect();
    assert_eq!(files, ["pay", "base"]);
}

/// The older form covers neither the kind nor the path of an item.
#[test]
fn the_older_form_counts_as_unsigned_and_a_changed_one_never_runs() {
    let text = include_str!("../../../legacy/tests/golden/rye-document.md");
    let key = PublicKey::from_pem(include_str!("../../../legacy/tests/golden/rye-public-key.pem")).unwrap();
    let judged = |text: &str, trust: &Trust| {
        judge(DocumentKind::new("directive"), ".ai/directives/a.md", Comment::Html, text.as_bytes(), trust)
    };
    let trust = Trust::of(&[key]);
    assert_eq!(judged(text, &trust), SignatureVerdict::Unsigned { older: true });
    assert!(Policy::RequireTrusted.permits(&judged(text, &trust)).is_err());
    assert!(matches!(judged(text, &Trust::of(&[])), SignatureVerdict::Untrusted { .. }));
    assert!(matches!(judged(&format!("{text}more"), &trust), SignatureVerdict::Broken { .. }));
}
