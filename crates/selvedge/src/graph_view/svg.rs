//! A graph as SVG, with the status of its nodes if a run is given.

use std::fmt::Write;

use selvedge_items::Graph;

use super::layout::layout;
use super::{GraphRun, NodeStatus};

/// Draws a graph.
pub fn draw(graph: &Graph, run: Option<&GraphRun>) -> String {
    let status = |name: &str| run.map(|run| run.nodes.get(name).map(|node| node.status).unwrap_or_default());
    let caption = |name: &str| match status(name) {
        Some(status) => format!("{}  {name}", status.sign()),
        None => name.to_owned(),
    };
    let placed = layout(graph, &caption);
    let mut svg = String::new();
    _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0} {1:.0}\" width=\"{0:.0}\" height=\"{1:.0}\" \
         font-family=\"monospace\" font-size=\"13\">\n<defs><marker id=\"end\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"8\" \
         markerHeight=\"8\" orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 z\" fill=\"#555\"/></marker></defs>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        placed.width, placed.height
    );
    for edge in &placed.edges {
        let points: Vec<String> = edge.points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let (colour, dash) = if edge.is_error { ("#b33", " stroke-dasharray=\"5 4\"") } else { ("#555", "") };
        _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"{dash} marker-end=\"url(#end)\"/>",
            points.join(" ")
        );
    }
    for (text, rect) in placed.edges.iter().filter_map(|edge| edge.label.as_ref()) {
        _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#fff\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\" fill=\"#555\" textLength=\"{:.1}\" lengthAdjust=\"spacingAndGlyphs\">{}</text>",
            rect.x,
            rect.y,
            rect.width,
            rect.height,
            rect.x + rect.width / 2.0,
            rect.y + 13.0,
            rect.width,
            escaped(text)
        );
    }
    for node in &placed.nodes {
        let rect = node.rect;
        let fill = match status(&node.name) {
            None => "#eef2f7",
            Some(NodeStatus::Pending) => "#f3f3f3",
            Some(NodeStatus::Running) => "#fff3cd",
            Some(NodeStatus::Completed) => "#d9f2df",
            Some(NodeStatus::Error) => "#f8d7da",
        };
        let of = graph.node(&node.name).map_or("", |node| node.type_name());
        _ = writeln!(
            svg,
            "<g><title>{}: {of}</title><rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"6\" fill=\"{fill}\" \
             stroke=\"#555\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text></g>",
            escaped(&node.name),
            rect.x,
            rect.y,
            rect.width,
            rect.height,
            rect.x + rect.width / 2.0,
            rect.y + rect.height / 2.0 + 5.0,
            escaped(&caption(&node.name))
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
