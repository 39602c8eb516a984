//! A layered layout of a graph: every node and every label has a place of its own.
//!
//! ```text
//! rank 0    boxes of nodes                 each rank is a row; what is in it stands side by side, with a gap
//! rank 1    labels, and bends of edges     an edge has one cell in every rank that it passes
//! rank 2    boxes of nodes …               so no box or label overlaps another, and no edge crosses one
//! ```
//!
//! The rank of a node is the longest path to it, without the edges that lead back. Cells of a rank are ordered by where their neighbours
//! stand, a few times up and down.

use std::collections::{BTreeMap, BTreeSet};

use selvedge_items::Graph;

/// The width of a character, in units of the drawing.
const CHARACTER: f64 = 8.0;
/// The space inside a box beside its text.
const PADDING: f64 = 14.0;
/// The height of a box.
const BOX_HEIGHT: f64 = 40.0;
/// The height of a label.
const LABEL_HEIGHT: f64 = 18.0;
/// The space between two cells of a rank, and between two ranks.
const GAP: f64 = 22.0;
/// How often the order of the ranks is improved.
const SWEEPS: usize = 8;
/// The most characters of a label.
const LABEL_CHARS_MAX: usize = 32;

/// A rectangle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rect {
    /// Its left side.
    pub x: f64,
    /// Its upper side.
    pub y: f64,
    /// Its width.
    pub width: f64,
    /// Its height.
    pub height: f64,
}

impl Rect {
    /// Whether two rectangles have a point in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.x < other.x + other.width
            && other.x < self.x + self.width
            && self.y < other.y + other.height
            && other.y < self.y + self.height
    }

    fn middle(&self) -> f64 {
        self.x + self.width / 2.0
    }
}

/// The box of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedNode {
    /// The node.
    pub name: String,
    /// Its box.
    pub rect: Rect,
}

/// An edge.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedEdge {
    /// Where it begins.
    pub from: String,
    /// Where it ends.
    pub to: String,
    /// Whether it is followed after a failure.
    pub is_error: bool,
    /// Its points, from its beginning to its end.
    pub points: Vec<(f64, f64)>,
    /// Its label and the label's place.
    pub label: Option<(String, Rect)>,
}

/// A graph whose boxes are placed.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The nodes.
    pub nodes: Vec<PlacedNode>,
    /// The edges.
    pub edges: Vec<PlacedEdge>,
    /// The width of the whole.
    pub width: f64,
    /// The height of the whole.
    pub height: f64,
}

/// A cell of a rank: a node, or a bend of an edge.
struct Cell {
    rank: usize,
    width: f64,
    height: f64,
    neighbours: Vec<usize>,
    x: f64,
}

struct Route {
    from: usize,
    to: usize,
    is_error: bool,
    label: String,
    /// Whether its cells were laid from its end to its beginning.
    is_back: bool,
    bends: Vec<usize>,
}

/// Places the nodes and edges of a graph; `caption` is the text in a node's box.
pub fn layout(graph: &Graph, caption: &dyn Fn(&str) -> String) -> Layout {
    let places: BTreeMap<&str, usize> =
        graph.nodes.iter().enumerate().map(|(place, node)| (node.name.as_str(), place)).collect();
    let mut routes = routes(graph, &places);
    let ranks = ranks(graph.nodes.len(), places.get(graph.start.as_str()).copied(), &mut routes);
    let mut cells: Vec<Cell> = Vec::new();
    for (node, rank) in graph.nodes.iter().zip(&ranks) {
        let width = caption(&node.name).chars().count() as f64 * CHARACTER + 2.0 * PADDING;
        cells.push(Cell { rank: *rank, width, height: BOX_HEIGHT, neighbours: Vec::new(), x: 0.0 });
    }
    for route in &mut routes {
        let (upper, lower) = if route.is_back { (route.to, route.from) } else { (route.from, route.to) };
        let (first, last) = (ranks[upper] + 1, ranks[lower]);
        let mut before = upper;
        for rank in first..last {
            let is_labelled = rank == if route.is_back { last - 1 } else { first };
            let label = if is_labelled { route.label.chars().count() as f64 * CHARACTER } else { 0.0 };
            let bend = cells.len();
            cells.push(Cell { rank, width: label.max(6.0), height: LABEL_HEIGHT, neighbours: vec![before], x: 0.0 });
            cells[before].neighbours.push(bend);
            route.bends.push(bend);
            before = bend;
        }
        cells[before].neighbours.push(lower);
        cells[lower].neighbours.push(before);
    }
    let rows = ordered(&mut cells);
    placed(graph, &cells, &rows, &routes)
}

/// The edges; those with the same ends and kind are drawn once.
fn routes(graph: &Graph, places: &BTreeMap<&str, usize>) -> Vec<Route> {
    let mut routes: Vec<Route> = Vec::new();
    for (from, node) in graph.nodes.iter().enumerate() {
        let edges = node.next.iter().map(|edge| (edge.to.as_str(), false, super::condition(edge)));
        let errors = node.on_error.as_deref().map(|to| (to, true, "error".to_owned()));
        for (to, is_error, label) in edges.chain(errors) {
            let Some(to) = places.get(to).copied().filter(|to| *to != from) else { continue };
            let label: String = label.chars().take(LABEL_CHARS_MAX).collect();
            routes.push(Route { from, to, is_error, label, is_back: false, bends: Vec::new() });
        }
    }
    routes
}

/// The rank of each node: even, and higher than those of all nodes that lead to it, but for edges that lead back.
fn ranks(count: usize, start: Option<usize>, routes: &mut [Route]) -> Vec<usize> {
    let mut leaving: Vec<Vec<usize>> = vec![Vec::new(); count];
    for (index, route) in routes.iter().enumerate() {
        leaving[route.from].push(index);
    }
    // Depth first: an edge to a node that is still open leads back.
    let mut state = vec![0_u8; count];
    let mut order = Vec::new();
    for first in start.into_iter().chain(0..count) {
        if state[first] != 0 {
            continue;
        }
        let mut open = vec![(first, 0)];
        state[first] = 1;
        while let Some((node, next)) = open.pop() {
            match leaving[node].get(next) {
                None => {
                    state[node] = 2;
                    order.push(node);
                }
                Some(&route) => {
                    open.push((node, next + 1));
                    let to = routes[route].to;
                    match state[to] {
                        0 => {
                            state[to] = 1;
                            open.push((to, 0));
                        }
                        1 => routes[route].is_back = true,
                        _ => {}
                    }
                }
            }
        }
    }
    let mut ranks = vec![0; count];
    for node in order.into_iter().rev() {
        for &route in &leaving[node] {
            if !routes[route].is_back {
                let to = routes[route].to;
                ranks[to] = ranks[to].max(ranks[node] + 2);
            }
        }
    }
    ranks
}

/// Orders the cells of each rank by where their neighbours stand, and gives each its place.
fn ordered(cells: &mut [Cell]) -> Vec<Vec<usize>> {
    let count = cells.iter().map(|cell| cell.rank + 1).max().unwrap_or(0);
    let mut rows: Vec<Vec<usize>> = vec![Vec::new(); count];
    for (index, cell) in cells.iter().enumerate() {
        rows[cell.rank].push(index);
    }
    for row in &rows {
        pack(cells, row);
    }
    for sweep in 0..SWEEPS {
        let ranks: Vec<usize> = if sweep % 2 == 0 { (0..count).collect() } else { (0..count).rev().collect() };
        for rank in ranks {
            let mut row = std::mem::take(&mut rows[rank]);
            let wanted = |cell: &usize| {
                let near = cells[*cell].neighbours.iter();
                let near: Vec<f64> = near.map(|other| cells[*other].x + cells[*other].width / 2.0).collect();
                let own = cells[*cell].x + cells[*cell].width / 2.0;
                if near.is_empty() { own } else { near.iter().sum::<f64>() / near.len() as f64 }
            };
            let mut placed: Vec<(f64, usize)> = row.iter().map(|cell| (wanted(cell), *cell)).collect();
            placed.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
            // Each stands where it wants to, but right of the one before it.
            let mut left = f64::NEG_INFINITY;
            row.clear();
            for (middle, cell) in placed {
                let x = (middle - cells[cell].width / 2.0).max(left);
                cells[cell].x = x;
                left = x + cells[cell].width + GAP;
                row.push(cell);
            }
            rows[rank] = row;
        }
    }
    rows
}

fn pack(cells: &mut [Cell], row: &[usize]) {
    let mut left = 0.0;
    for &cell in row {
        cells[cell].x = left;
        left += cells[cell].width + GAP;
    }
}

fn placed(graph: &Graph, cells: &[Cell], rows: &[Vec<usize>], routes: &[Route]) -> Layout {
    let least = cells.iter().map(|cell| cell.x).fold(f64::INFINITY, f64::min);
    let least = if least.is_finite() { least - GAP } else { 0.0 };
    let mut tops = Vec::new();
    let mut bottoms = Vec::new();
    let mut top = GAP;
    for row in rows {
        tops.push(top);
        let height = row.iter().map(|cell| cells[*cell].height).fold(0.0, f64::max);
        bottoms.push(top + height);
        top += height + GAP;
    }
    let rect = |cell: usize| {
        let Cell { rank, width, height, x, .. } = cells[cell];
        Rect { x: x - least, y: tops[rank], width, height }
    };
    let nodes =
        graph.nodes.iter().enumerate().map(|(place, node)| PlacedNode { name: node.name.clone(), rect: rect(place) });
    let edge = |route: &Route| {
        let mut bends = route.bends.clone();
        if route.is_back {
            bends.reverse();
        }
        let (from, to) = (rect(route.from), rect(route.to));
        let below = |rect: &Rect| (rect.middle(), rect.y + rect.height);
        let above = |rect: &Rect| (rect.middle(), rect.y);
        let mut points = vec![if route.is_back { above(&from) } else { below(&from) }];
        for bend in &bends {
            // Straight through the whole row, however low its own cell is: beside it are boxes.
            let first = above(&rect(*bend));
            let second = (first.0, bottoms[cells[*bend].rank]);
            points.extend(if route.is_back { [second, first] } else { [first, second] });
        }
        points.push(if route.is_back { below(&to) } else { above(&to) });
        let label = bends.first().filter(|_| !route.label.is_empty()).map(|bend| (route.label.clone(), rect(*bend)));
        let name = |place: usize| graph.nodes[place].name.clone();
        PlacedEdge { from: name(route.from), to: name(route.to), is_error: route.is_error, points, label }
    };
    let right = (0..cells.len()).map(|cell| rect(cell).x + rect(cell).width).fold(0.0, f64::max);
    Layout { nodes: nodes.collect(), edges: routes.iter().map(edge).collect(), width: right + GAP, height: top }
}

/// The rectangles of a layout that overlap another one: none.
pub fn overlapping(layout: &Layout) -> Vec<(String, String)> {
    let boxes = layout.nodes.iter().map(|node| (node.name.clone(), node.rect));
    let labels = layout.edges.iter().filter_map(|edge| {
        let (text, rect) = edge.label.as_ref()?;
        Some((format!("{} → {}: {text}", edge.from, edge.to), *rect))
    });
    let all: Vec<(String, Rect)> = boxes.chain(labels).collect();
    let mut found = BTreeSet::new();
    for (index, (one, first)) in all.iter().enumerate() {
        for (other, second) in &all[index + 1..] {
            if first.overlaps(second) {
                found.insert((one.clone(), other.clone()));
            }
        }
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A graph of this many nodes with loops, error edges and long conditions, from a seed.
    fn graph(count: usize, mut seed: u64) -> Graph {
        let mut below = |most: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(seed >> 33).unwrap() % most
        };
        let mut text = String::from("start: node_0\nstate: { x: 1 }\nnodes:\n");
        for node in 0..count {
            let (one, other, third) = (below(count), below(count), below(count));
            text.push_str(&format!(
                "  node_{node}:\n    type: gate\n    on_error: node_{third}\n    next:\n      - {{ to: node_{one}, when: {{ path: state.x, op: gte, value: {other} }} }}\n      - {{ to: node_{} }}\n",
                (node + 1) % count
            ));
        }
        Graph::parse(&text).unwrap()
    }

    #[test]
    fn no_box_and_no_label_overlaps_another_and_every_edge_ends_at_its_boxes() {
        for (count, seed) in [(1, 1), (2, 2), (7, 3), (50, 4), (50, 5), (50, 6), (80, 7)] {
            let graph = graph(count, seed);
            let layout = layout(&graph, &|name| format!("✅ {name}"));
            assert_eq!(overlapping(&layout), [], "{count} nodes, seed {seed}");
            assert_eq!(layout.nodes.len(), count);
            let rect = |name: &str| layout.nodes.iter().find(|node| node.name == *name).unwrap().rect;
            for edge in &layout.edges {
                let touches = |name: &str, (x, y): (f64, f64)| {
                    let rect = rect(name);
                    x >= rect.x && x <= rect.x + rect.width && (y == rect.y || y == rect.y + rect.height)
                };
                assert!(touches(&edge.from, edge.points[0]) && touches(&edge.to, *edge.points.last().unwrap()));
                assert!(edge.points.iter().all(|(x, y)| *x >= 0.0 && *x <= layout.width && *y <= layout.height));
            }
            // No line passes through a box: between two ranks it is outside of both, and inside of one it is in a cell of its own.
            let inside = |rect: &Rect, (x, y): (f64, f64)| {
                x > rect.x && x < rect.x + rect.width && y > rect.y && y < rect.y + rect.height
            };
            for edge in &layout.edges {
                for pair in edge.points.windows(2) {
                    for part in 1..20 {
                        let share = f64::from(part) / 20.0;
                        let at = |one: f64, other: f64| one + (other - one) * share;
                        let point = (at(pair[0].0, pair[1].0), at(pair[0].1, pair[1].1));
                        assert!(!layout.nodes.iter().any(|node| inside(&node.rect, point)), "{edge:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn overlapping_rectangles_are_found() {
        let rect = |x| Rect { x, y: 0.0, width: 10.0, height: 10.0 };
        let node = |name: &str, x| PlacedNode { name: name.to_owned(), rect: rect(x) };
        let layout =
            Layout { nodes: vec![node("a", 0.0), node("b", 9.0)], edges: Vec::new(), width: 20.0, height: 10.0 };
        assert_eq!(overlapping(&layout), [("a".to_owned(), "b".to_owned())]);
    }
}
