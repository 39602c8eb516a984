//! Agents.

use selvedge_items::Agent;

#[test]
fn an_agent_is_read() {
    let agent = Agent::parse("# selvedge:signed:1:agent:x\nname: Scribe\nidentity: You are Scribe.\ninstructions: |\n  Write.\ncapabilities: [tool.files.*]\nmodel: small\n").unwrap();
    assert_eq!(agent.name.as_deref(), Some("Scribe"));
    assert_eq!(agent.instructions, "Write.\n");
    assert_eq!(agent.capabilities.unwrap().allow.to_strings(), ["selvedge.execute.tool.files.*"]);
    assert_eq!(agent.model.unwrap().id.as_deref(), Some("small"));
    assert_eq!(Agent::parse("{}").unwrap(), Agent::default());
}

#[test]
fn an_unknown_key_of_an_agent_is_an_error_that_names_the_nearest() {
    let flaw = Agent::parse("name: Scribe\ninstruction: Write.\n").unwrap_err();
    assert_eq!((flaw.line, flaw.hint.as_deref()), (Some(2), Some("did you mean `instructions`?")));
}
