//! Graphs: both written forms, and what the check finds.

use selvedge_items::Graph;
use selvedge_items::graph::{NodeKind, OnError, Retry, schema, state_path};
use serde_json::{Value, json};

fn findings(text: &str) -> Vec<String> {
    let graph = Graph::parse(text).unwrap_or_else(|flaw| panic!("{flaw}"));
    let level = |is_error| if is_error { "error" } else { "warning" };
    graph.findings.iter().map(|found| format!("{} {}", level(found.is_error), found.flaw)).collect()
}

const PLAIN: &str = "\
# selvedge:signed:1:graph:2026-11-15T00:00:00Z:00:00:00
inputs: { type: object, properties: { city: { type: string }, n: { type: integer, default: 3 } }, required: [city] }
permissions: [tool.look]
on_error: continue
start: look
state: { got: null }
nodes:
  look:
    action: { item_type: tool, item_id: look, params: { at: \"${inputs.city}\" } }
    assign: { got: \"${result}\" }
    retry: { attempts: 4, wait_seconds: 2, wait_max_seconds: 5 }
    next:
      - { to: end, when: { path: state.got, op: exists } }
      - { to: each }
  each:
    type: foreach
    over: [1, 2]
    parallel: true
    action: { item_type: directive, item_id: one, params: { n: \"${item}\" } }
    next: end
  end: { type: return, output: \"${state.got}\" }
";

#[test]
fn a_graph_is_read_with_its_nodes_in_the_order_of_its_lines() {
    let graph = Graph::parse(PLAIN).unwrap();
    assert_eq!(graph.findings, []);
    let names: Vec<(&str, Option<u64>)> = graph.nodes.iter().map(|node| (node.name.as_str(), node.line)).collect();
    assert_eq!(names, [("look", Some(8)), ("each", Some(15)), ("end", Some(21))]);
    assert_eq!((graph.on_error, graph.max_steps, graph.inputs.len()), (OnError::Continue, 100, 2));
    let look = graph.node("look").unwrap();
    assert_eq!(look.retry, Retry { attempts: 4, wait_seconds: 2, wait_max_seconds: 5 });
    assert_eq!([1, 2, 3, 60].map(|attempt| look.retry.wait_after(attempt)), [2, 4, 5, 5]);
    assert_eq!((look.next[0].line, look.next[1].line), (Some(13), Some(14)));
    assert!(matches!(&graph.node("each").unwrap().kind, NodeKind::Foreach { parallel: 8, item, .. } if item == "item"));
    // Its digest does not depend on its signature.
    let unsigned = PLAIN.split_once('\n').unwrap().1;
    assert_eq!(Graph::parse(unsigned).unwrap().digest, graph.digest);
}

#[test]
fn the_tool_form_of_older_documents_is_the_same_graph() {
    let body: String = PLAIN.lines().skip(1).map(|line| format!("{line}\n")).collect();
    let walk: String = body.lines().skip(3).map(|line| format!("  {line}\n")).collect();
    let older = format!(
        "version: \"1.0.0\"\ntool_type: graph\nexecutor_id: rye/core/runtimes/state-graph/runtime\ncategory: x\n\
         permissions: [rye.execute.tool.look]\nconfig_schema: {{ type: object, properties: {{ city: {{ type: string }}, n: {{ type: integer, \
         default: 3 }} }}, required: [city] }}\nconfig:\n  on_error: continue\n{walk}"
    );
    let walked = Graph::parse(&older).unwrap();
    let graph = Graph::parse(PLAIN).unwrap();
    assert_eq!(walked.findings, []);
    let shown = |graph: &Graph| {
        let mut value = serde_json::to_value(graph).unwrap();
        value.as_object_mut().unwrap().remove("version");
        value
    };
    assert_eq!(shown(&walked), shown(&graph));
    assert!(Graph::parse("tool_type: function\nconfig: { start: a }\n").unwrap_err().why.contains("not `graph`"));
}

#[test]
fn every_mistake_is_named_with_its_line() {
    let cases: [(&str, &str); 9] = [
        (
            "start: a\nnodes:\n  a: { type: gate, next: b }\n",
            "error line 3: node `a` leads to `b`, and there is no such node",
        ),
        ("start: b\nnodes:\n  a: { type: return }\n", "error line 1: `start` names `b`, and there is no such node"),
        (
            "start: a\nnodes:\n  a: { type: gate }\n",
            "error line 3: node `a` is a dead end: it leads nowhere and does not return",
        ),
        (
            "start: a\nnodes:\n  a: { type: return, output: \"${state.x}\" }\n",
            "error line 3: `state.x` is read, but neither declared in `state` nor assigned",
        ),
        (
            "start: a\nnodes:\n  a: { type: return, output: \"${result.x}\" }\n",
            "error line 3: `result` is known only in `assign` and in the conditions of edges",
        ),
        (
            "start: a\nnodes:\n  a: { type: gate, next: a }\n  b: { type: return }\n",
            "warning line 3: no path from node `a` leads to a node that returns",
        ),
        (
            "start: a\nnodes:\n  a: { type: return }\n  b: { type: return }\n",
            "warning line 4: node `b` is unreachable: no edge from `a` leads to it",
        ),
        (
            "start: a\nnodes:\n  a: { action: { item_type: tool, item_id: x }, next: b }\n  b: { type: return }\n",
            "error line 2: `permissions` is missing: its actions may call nothing",
        ),
        (
            "start: a\nnodes:\n  a: { type: gate, assign: { x: 1 }, next: b }\n  b: { type: return }\n",
            "warning line 3: `state.x` is assigned, but not declared in `state`",
        ),
    ];
    for (text, wanted) in cases {
        let found = findings(text);
        assert!(found.iter().any(|one| one == wanted), "{wanted}: {found:#?}");
    }
}

#[test]
fn what_can_not_be_read_is_refused_at_its_line() {
    let cases = [
        ("start: a\nnodes:\n  a:\n    type: retrun\n", "`retrun` is not a type of node"),
        ("start: a\nnodes:\n  a:\n    type: gate\n    over: x\n", "`over` of node `a` has no meaning in a gate node"),
        (
            "start: a\nnodes:\n  a: { type: foreach, over: [], action: { item_type: tool, item_id: x }, parallel: 65 }\n",
            "between 1 and 64",
        ),
        ("start: a\nnodes:\n  a: { type: wait, next: a }\n", "needs one of `until`, `seconds` and `threads`"),
        (
            "start: a\nnodes:\n  a: { type: action, action: { item_type: tol, item_id: x } }\n",
            "`tol` is no item of an action",
        ),
        ("nodes: {}\n", "`start` is missing"),
        ("start: a\nmax_steps: 0\nnodes: { a: { type: return } }\n", "`max_steps` must be at least 1"),
    ];
    for (text, wanted) in cases {
        let flaw = Graph::parse(text).unwrap_err();
        assert!(flaw.why.contains(wanted) && flaw.line.is_some(), "{wanted}: {flaw}");
    }
}

#[test]
fn a_key_of_the_state_is_a_path_and_never_one_of_the_engine() {
    assert_eq!(state_path("a.b_c").unwrap().to_string(), selvedge_model::path::Path::keys(["a", "b_c"]).to_string());
    for bad in ["", "a..b", "__tool_call_scope", "a.__x", "a b"] {
        assert!(state_path(bad).is_err(), "{bad}");
    }
}

/// Every key that a graph may have is in the schema, and no other.
#[test]
fn the_schema_for_editors_knows_what_the_reader_knows() {
    let schema = schema();
    for key in schema["$defs"]["node"]["properties"].as_object().unwrap().keys() {
        let node = json!({"type": "gate", key.as_str(): null});
        let text = format!("start: a\nnodes: {{ a: {node} }}\n");
        let refused = Graph::parse(&text).err().map(|flaw| flaw.why).unwrap_or_default();
        assert!(!refused.contains("not a known key"), "{key}: {refused}");
    }
    assert_eq!(schema["additionalProperties"], Value::Bool(false));
}
