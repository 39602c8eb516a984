//! Files to begin with: what `init` puts into a new project, and what `directive new`, `graph new` and `tool new` write. Each is commented and works
//! as it is, offline.

/// The name that stands in the templates for the one that is asked for.
const NAME: &str = "__NAME__";

/// The files of a new project, by their path below `.ai`.
pub(crate) const SAMPLES: [(&str, &str); 4] = [
    ("agents/guide.yaml", include_str!("scaffold/guide.yaml")),
    ("directives/hello.md", include_str!("scaffold/hello.md")),
    ("directives/hello.yaml", include_str!("scaffold/hello.yaml")),
    ("tools/greet.yaml", include_str!("scaffold/greet.yaml")),
];

/// A new directive; `id` is its path below `.ai/directives`, without its extension.
pub(crate) fn directive(id: &str) -> String {
    include_str!("scaffold/directive.md").replace(NAME, last(id))
}

/// A new tool; `id` is its path below `.ai/tools`, without its extension.
pub(crate) fn tool(id: &str) -> String {
    let capability = format!("tool.{}", id.replace('/', "."));
    include_str!("scaffold/tool.yaml").replace("__CAPABILITY__", &capability).replace(NAME, last(id))
}

/// A new graph; `id` is its path below `.ai/graphs`, without its extension.
pub(crate) fn graph(id: &str) -> String {
    include_str!("scaffold/graph.yaml").replace(NAME, last(id))
}

/// A new entry of knowledge; `id` is its path below `.ai/knowledge`, without its extension.
pub(crate) fn knowledge(id: &str) -> String {
    let folder = id.rsplit_once('/').map_or("", |(folder, _)| folder);
    include_str!("scaffold/knowledge.md").replace("__CATEGORY__", folder).replace(NAME, last(id))
}

fn last(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use selvedge::items::knowledge::Metadata;
    use selvedge::items::{Agent, Directive, Graph, Knowledge, tool};

    use super::*;

    #[test]
    fn every_file_to_begin_with_is_one_that_the_program_reads() {
        for (path, text) in SAMPLES {
            let id = path.rsplit('/').next().unwrap().split('.').next().unwrap();
            match path.split('/').next().unwrap() {
                "agents" => assert!(Agent::parse(text).unwrap().capabilities.is_some()),
                "tools" => assert_eq!(tool::parse(id, text).unwrap().name, id),
                _ if path.ends_with(".md") => assert_eq!(Directive::parse(text).unwrap().name, id),
                _ => assert!(selvedge::Script::parse(text).is_ok()),
            }
        }
        let entry = knowledge("docs/api");
        assert!(Metadata::read(&entry).unwrap().misfits("docs/api").is_empty() && Knowledge::parse(&entry).is_ok());
        assert_eq!(Directive::parse(&directive("reports/weekly")).unwrap().name, "weekly");
        assert_eq!(Graph::parse(&graph("ops/nightly")).unwrap().findings, []);
        assert_eq!(
            tool::parse("money/pay", &super::tool("money/pay")).unwrap().capability,
            "selvedge.execute.tool.money.pay"
        );
    }
}
