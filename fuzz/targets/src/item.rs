//! Files that users write: a directive, an agent, a tool, knowledge, or the script of a model.
//!
//! Either it is refused, or it has the same meaning each time; a directive that extends itself keeps its capabilities, and its body is
//! filled in once: the value of an input is not expanded again.

use selvedge_items::agent::Agent;
use selvedge_items::directive::Directive;
use selvedge_items::knowledge::Knowledge;
use selvedge_items::{interpolate, tool};
use selvedge_providers::Script;

const DIRECTIVE: &str = "---\nname: pay\nversion: 1.0.0\ndescription: Pays.\npermissions: [tool.pay]\nlimits: { turns: 5, spend: 0.5 }\ninputs:\n  - { name: who, type: string, required: true }\noutputs:\n  - { name: paid, type: boolean }\n---\nPay {input:who} from {env:HOME}.\n";
const FENCED: &str = "# Pay\n\n```xml\n<directive name=\"pay\" version=\"1.0.0\">\n  <metadata><description>Pays.</description><limits turns=\"3\"/></metadata>\n  <inputs><input name=\"who\" type=\"string\" required=\"true\">Who.</input></inputs>\n</directive>\n```\n\nPay {input:who|nobody}.\n";
const AGENT: &str = "name: clerk\ndescription: Pays.\nidentity: You are a clerk.\ncapabilities: [tool.*]\n";
const TOOL: &str = "name: pay\ndescription: Pays.\nclass: at_most_once\ninput_schema: { type: object, properties: { to: { type: string } } }\ncommand: [sh, -c, 'echo \"$1\"', x, '{to}']\n";
const KNOWLEDGE: &str = "---\ntitle: Tea\n---\nMake tea.\n";
const SCRIPT: &str = "context_tokens_max: 4000\nprice: { input_per_million_tokens: 1, output_per_million_tokens: 2 }\nturns:\n  - { say: One moment., calls: [{ tool: pay, arguments: { to: anna } }], when: { user: { contains: pay } } }\n  - { say: \"Heard: {result}\", repeat: forever }\n";

/// Parses it as every kind of file that a user may write.
pub fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(directive) = Directive::parse(text) {
        assert_eq!(Directive::parse(text).as_ref(), Ok(&directive));
        let child = directive.clone().inherit(&directive);
        assert_eq!((&child.name, &child.permissions), (&directive.name, &directive.permissions));
        for name in interpolate::input_names(&directive.body) {
            assert!(directive.body.contains(&name), "`{name}` is an input and not in the body");
        }
        _ = (directive.warnings(), directive.environment_names());
    }
    if let Ok(agent) = Agent::parse(text) {
        assert_eq!(Agent::parse(text).as_ref(), Ok(&agent));
    }
    if let Ok(spec) = tool::parse("pay", text) {
        assert_eq!((spec.name.as_str(), spec.command.is_empty()), ("pay", false));
    }
    if let Ok(entry) = Knowledge::parse(text) {
        assert!(!entry.body.trim().is_empty() && text.contains(&entry.body));
    }
    if let Ok(script) = Script::parse(text) {
        assert!(!script.turns.is_empty());
    }
}

/// One of each.
pub fn seeds() -> Vec<Vec<u8>> {
    [DIRECTIVE, FENCED, AGENT, TOOL, KNOWLEDGE, SCRIPT].map(|text| text.as_bytes().to_vec()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_is_valid() {
        for text in [DIRECTIVE, FENCED] {
            Directive::parse(text).unwrap();
        }
        Agent::parse(AGENT).unwrap();
        tool::parse("pay", TOOL).unwrap();
        Knowledge::parse(KNOWLEDGE).unwrap();
        Script::parse(SCRIPT).unwrap();
    }
}
