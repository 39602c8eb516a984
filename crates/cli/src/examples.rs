//! The examples at the end of every command's help.
//!
//! All of them use the same project: the agent `scribe`; the directives `report`, `payday` and `count`; a thread of each, and the
//! thread `minutes`. The tests build that project and run every example in a copy of it (`tests/it/examples.rs`).

use clap::Command;

/// The commands, by the words that call them, with their examples.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("demo", &["selvedge demo --dir demo"]),
    ("init", &["selvedge init"]),
    ("thread", &["selvedge thread list"]),
    ("thread new", &["selvedge thread new --agent scribe --title \"Minutes of Monday\""]),
    ("thread list", &["selvedge thread list --agent scribe --status suspended"]),
    ("thread show", &["selvedge thread show minutes"]),
    ("thread find", &["selvedge thread find monday"]),
    ("thread rename", &["selvedge thread rename minutes \"Minutes of Tuesday\""]),
    ("thread delete", &["selvedge thread delete minutes --yes"]),
    ("run", &["selvedge run report --input city=Bern --limit turns=5"]),
    (
        "chat",
        &["echo \"What is in this project?\" | selvedge chat scribe --model scripted:report.yaml", "selvedge chat"],
    ),
    (
        "send",
        &["selvedge send report \"And tomorrow?\"", "echo \"And tomorrow?\" | selvedge send report --key monday-1"],
    ),
    ("serve", &["selvedge serve --listen 127.0.0.1:0"]),
    ("token", &["selvedge token list"]),
    ("token new", &["selvedge token new --scope read --expires 30d --name dashboard"]),
    ("token list", &["selvedge token list"]),
    ("token revoke", &["selvedge token revoke 3f2a9c0d11e7"]),
    ("resume", &["selvedge resume count --raise turns=50"]),
    ("cancel", &["selvedge cancel payday"]),
    ("kill", &["selvedge kill payday"]),
    ("settle", &["selvedge settle call_9 --done \"sent by hand\""]),
    ("approve", &["selvedge approve call_1"]),
    ("deny", &["selvedge deny call_1 --reason \"too much\""]),
    ("inbox", &["selvedge inbox"]),
    ("wait", &["selvedge wait report --timeout 60"]),
    ("chain", &["selvedge chain report"]),
    ("chain search", &["selvedge chain search report 'rain|snow' --regex"]),
    ("search", &["selvedge search \"rain AND (Bern OR Basel)\" --since 30d"]),
    ("tree", &["selvedge tree report"]),
    ("budget", &["selvedge budget report --verify"]),
    ("usage", &["selvedge usage --by model --since 30d", "selvedge usage --by day --csv > usage.csv"]),
    ("agent", &["selvedge agent list"]),
    ("agent new", &["selvedge agent new clerk"]),
    ("agent list", &["selvedge agent list"]),
    ("directive", &["selvedge directive list"]),
    ("directive new", &["selvedge directive new reports/weekly"]),
    ("directive list", &["selvedge directive list"]),
    ("directive check", &["selvedge directive check report"]),
    ("graph", &["selvedge graph list"]),
    ("graph new", &["selvedge graph new nightly"]),
    ("graph list", &["selvedge graph list"]),
    ("graph check", &["selvedge graph check review"]),
    ("graph show", &["selvedge graph show review"]),
    ("graph run", &["selvedge graph run review --input city=Bern"]),
    ("tool", &["selvedge tool list"]),
    ("tool new", &["selvedge tool new fetch"]),
    ("tool list", &["selvedge tool list --why"]),
    ("mcp", &["selvedge mcp list"]),
    ("mcp add", &["selvedge mcp add files --env PATH -- npx -y @modelcontextprotocol/server-everything"]),
    ("mcp list", &["selvedge mcp list"]),
    ("mcp check", &["selvedge mcp check hello"]),
    ("mcp approve", &["selvedge mcp approve hello"]),
    ("sandbox", &["selvedge sandbox check"]),
    ("sandbox check", &["selvedge sandbox check"]),
    ("hooks", &["selvedge hooks list"]),
    ("hooks list", &["selvedge hooks list --event limit --directive report"]),
    ("hooks test", &["selvedge hooks test report --event error"]),
    ("knowledge", &["selvedge knowledge new docs/api", "selvedge knowledge check docs/api"]),
    ("knowledge search", &["selvedge knowledge search \"house OR rules\""]),
    ("knowledge show", &["selvedge knowledge show house/rules"]),
    ("knowledge new", &["selvedge knowledge new docs/api"]),
    ("knowledge sign", &["selvedge knowledge sign house/rules"]),
    ("knowledge check", &["selvedge knowledge check"]),
    ("model", &["selvedge model list"]),
    ("model list", &["selvedge model list --usable"]),
    ("model show", &["selvedge model show anthropic:claude-sonnet-5-5"]),
    ("model check", &["selvedge model check"]),
    ("config", &["selvedge config list --origin"]),
    ("config list", &["selvedge config list --origin"]),
    ("config get", &["selvedge config get limits.turns"]),
    ("config explain", &["selvedge config explain limits.turns"]),
    ("config check", &["selvedge config check"]),
    (
        "append",
        &["echo '{\"reason\":\"UserMessage\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}' |\n    \
           selvedge append minutes --expect 1"],
    ),
    ("transcript", &["selvedge transcript @", "selvedge transcript report -o report.md"]),
    ("log", &["selvedge log report"]),
    ("blob", &["selvedge blob report 9f86d081"]),
    ("state", &["selvedge state minutes --at 0"]),
    ("snapshots", &["selvedge snapshots payday"]),
    ("verify", &["selvedge verify --all", "selvedge verify report.tar --public-key me.pem"]),
    ("replay", &["selvedge replay report"]),
    ("doctor", &["selvedge doctor"]),
    ("backup", &["selvedge backup ~/backups/tuesday"]),
    ("restore", &["selvedge restore ~/backups/monday"]),
    ("store", &["selvedge store status"]),
    ("store copy", &["selvedge store copy --from . --to ../copy"]),
    ("store status", &["selvedge store status"]),
    ("heads", &["selvedge heads export ~/heads.json"]),
    ("heads export", &["selvedge heads export ~/heads.json"]),
    ("heads verify", &["selvedge heads verify ~/heads.json"]),
    ("erase", &["selvedge erase report 9f86d081 --reason \"names a patient\""]),
    ("prune", &["selvedge prune --older-than 30d --dry-run"]),
    ("sign", &["selvedge sign .ai/directives/report.md"]),
    ("keys", &["selvedge keys list"]),
    ("keys list", &["selvedge keys list"]),
    ("keys rotate", &["selvedge keys rotate"]),
    ("keys trust", &["selvedge keys trust ben.pem --owner ben"]),
    ("keys revoke", &["selvedge keys revoke 5c1e07aa"]),
    ("keys export", &["selvedge keys export > me.pem"]),
    ("export", &["selvedge export minutes -o minutes.tar"]),
    ("import", &["selvedge import report.tar"]),
    ("reindex", &["selvedge reindex"]),
    ("repair", &["selvedge repair minutes --dry-run"]),
    ("help", &["selvedge help thread new", "selvedge help version_conflict"]),
    ("completions", &["selvedge completions bash"]),
    ("man", &["selvedge man verify", "selvedge man --out ~/.local/share/man/man1"]),
];

/// The command with an example at the end of its own help and of the help of every command below it.
pub(crate) fn with_examples(command: Command) -> Command {
    below(command, &[])
}

fn below(command: Command, words: &[&str]) -> Command {
    let name = words.join(" ");
    let mut command = command.mut_subcommands(|one| {
        let last = one.get_name().to_owned();
        below(one, &[words, &[&last]].concat())
    });
    if let Some((_, lines)) = EXAMPLES.iter().find(|(known, _)| *known == name) {
        let heading = if lines.len() == 1 { "Example:" } else { "Examples:" };
        let before = command.get_after_long_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
        let lines: String = lines.iter().map(|line| format!("\n  {line}")).collect();
        command = command.after_long_help(format!("{before}{heading}{lines}"));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    /// The names of all commands.
    fn all(command: &Command, words: &str) -> Vec<String> {
        let mut found = Vec::new();
        for one in command.get_subcommands() {
            let name = format!("{words} {}", one.get_name()).trim().to_owned();
            found.extend(all(one, &name));
            found.push(name);
        }
        found
    }

    #[test]
    fn every_command_has_an_example_and_every_example_a_command() {
        let commands = all(&args::command(), "");
        let without: Vec<_> = commands.iter().filter(|name| !EXAMPLES.iter().any(|(known, _)| known == name)).collect();
        assert!(without.is_empty(), "no example: {without:?}");
        let strange: Vec<_> = EXAMPLES.iter().filter(|(known, _)| !commands.iter().any(|name| name == known)).collect();
        assert!(strange.is_empty(), "no command: {strange:?}");
    }

    #[test]
    fn an_example_shows_its_own_command() {
        for (name, lines) in EXAMPLES {
            assert!(lines.iter().all(|line| line.contains(&format!("selvedge {name}"))), "{name}");
        }
    }
}
