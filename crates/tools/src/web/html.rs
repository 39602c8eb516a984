//! The text of an HTML page, for a model: no markup, no scripts, one line per block.

/// Elements whose content is no text of the page.
const SILENT: [&str; 7] = ["script", "style", "noscript", "template", "svg", "iframe", "object"];
/// Elements that begin a new line.
const BLOCKS: [&str; 32] = [
    "address",
    "article",
    "aside",
    "blockquote",
    "br",
    "dd",
    "div",
    "dl",
    "dt",
    "footer",
    "form",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "header",
    "hr",
    "li",
    "main",
    "nav",
    "ol",
    "p",
    "pre",
    "section",
    "table",
    "title",
    "tr",
    "ul",
    "option",
    "figcaption",
];
/// The most bytes of a name of a character, such as `&nbsp;`.
const ENTITY_BYTES_MAX: usize = 12;

/// The text of a page.
pub(super) fn text(html: &str) -> String {
    let mut out = String::new();
    let mut rest = html;
    // Only there are line breaks of the source those of the text.
    let mut is_pre = false;
    while let Some(open) = rest.find('<') {
        push(&mut out, &rest[..open], is_pre);
        rest = &rest[open..];
        if let Some(comment) = rest.strip_prefix("<!--") {
            rest = comment.find("-->").map_or("", |end| &comment[end + 3..]);
            continue;
        }
        if !rest[1..].starts_with(|one: char| one.is_ascii_alphabetic() || "/!?".contains(one)) {
            // A lone `<` is text.
            out.push('<');
            rest = &rest[1..];
            continue;
        }
        let Some(close) = rest.find('>') else { return finished(&out) };
        let tag = &rest[1..close];
        let (is_end, name) = tag.strip_prefix('/').map_or((false, tag), |name| (true, name));
        let name =
            name.split(|one: char| one.is_whitespace() || one == '/').next().unwrap_or_default().to_ascii_lowercase();
        rest = &rest[close + 1..];
        if name == "pre" {
            is_pre = !is_end;
        }
        if SILENT.contains(&name.as_str()) && !is_end {
            rest = after_end(rest, &name);
        } else if BLOCKS.contains(&name.as_str()) {
            out.push('\n');
        } else if matches!(name.as_str(), "td" | "th") {
            out.push(' ');
        }
    }
    push(&mut out, rest, is_pre);
    finished(&out)
}

/// What follows the end of an element.
fn after_end<'t>(rest: &'t str, name: &str) -> &'t str {
    let mut from = 0;
    while let Some(at) = rest[from..].find("</") {
        let after = from + at + 2;
        let is_it = rest.get(after..after + name.len()).is_some_and(|found| found.eq_ignore_ascii_case(name));
        if is_it {
            return rest[after..].find('>').map_or("", |end| &rest[after + end + 1..]);
        }
        from = after;
    }
    ""
}

fn push(out: &mut String, text: &str, is_pre: bool) {
    let text = if is_pre { text.to_owned() } else { text.replace(['\n', '\r'], " ") };
    let mut rest = text.as_str();
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let end = after.find(';').filter(|end| *end <= ENTITY_BYTES_MAX);
        match end.and_then(|end| Some((character(&after[..end])?, end))) {
            Some((character, end)) => {
                out.push(character);
                rest = &after[end + 1..];
            }
            None => {
                out.push('&');
                rest = after;
            }
        }
    }
    out.push_str(rest);
}

fn character(name: &str) -> Option<char> {
    if let Some(number) = name.strip_prefix('#') {
        let code = match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16).ok()?,
            None => number.parse().ok()?,
        };
        return char::from_u32(code).filter(|one| !one.is_control() || *one == '\n');
    }
    Some(match name {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        "nbsp" => ' ',
        "ndash" => '–',
        "mdash" => '—',
        "hellip" => '…',
        "copy" => '©',
        "laquo" => '«',
        "raquo" => '»',
        "rsquo" => '’',
        "lsquo" => '‘',
        "ldquo" => '“',
        "rdquo" => '”',
        "auml" => 'ä',
        "ouml" => 'ö',
        "uuml" => 'ü',
        "szlig" => 'ß',
        "eacute" => 'é',
        _ => return None,
    })
}

/// One space between words, no empty lines in a row.
fn finished(text: &str) -> String {
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let lines: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_becomes_its_text() {
        let html = "<!doctype html><html><head><title>A &amp; B</title><style>p { x: '<p>' }</style></head><body>\
                    <script>if (a < b) { document.write('</p>') }</script><!-- <p>no</p> -->\
                    <h1>Big\n  news</h1><p>One&nbsp;<b>two</b> &#51; &#x34; &unknown; 5 < 6<p>seven<br>eight<table><tr><td>a<td>b</table>";
        assert_eq!(text(html), "A & B\nBig news\nOne two 3 4 &unknown; 5 < 6\nseven\neight\na b");
    }

    #[test]
    fn anything_is_read_without_a_panic() {
        for odd in [
            "<",
            "<>",
            "</",
            "<!--",
            "<script",
            "<script>",
            "&",
            "&;",
            "<ä>",
            "a<b",
            "<p",
            "&#xffffffff;",
            "<svg></SVG >x",
        ] {
            _ = text(odd);
        }
    }
}
