//! From a declared command and a call's arguments to a program and its arguments.
//!
//! One pass: what is inserted is never expanded again, and never split.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use serde_json::Value;

/// A declared command, parsed.
#[derive(Debug)]
pub(super) struct Argv {
    program: String,
    arguments: Vec<Vec<Part>>,
}

/// A part of one argument.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Input { name: String, is_optional: bool },
}

impl Argv {
    /// Parses a command. A placeholder that the schema does not have is an error here, not when it is called.
    pub(super) fn new(words: &[String], schema: &Value) -> Result<Self, String> {
        let Some((program, arguments)) = words.split_first().filter(|(program, _)| !program.is_empty()) else {
            return Err("it names no program".to_owned());
        };
        if words.iter().any(|word| word.contains('\0')) {
            return Err("it has a NUL in it".to_owned());
        }
        if parts(program).iter().any(|part| matches!(part, Part::Input { .. })) {
            return Err("the program itself can't come from a model".to_owned());
        }
        let arguments: Vec<_> = arguments.iter().map(|word| parts(word)).collect();
        for part in arguments.iter().flatten() {
            if let Part::Input { name, .. } = part
                && schema["properties"].get(name).is_none()
            {
                return Err(format!("`{{input:{name}}}` is no property of `input_schema`"));
            }
        }
        Ok(Self { program: program.clone(), arguments })
    }

    /// The program and its arguments for one call.
    pub(super) fn fill(&self, input: &Value) -> Result<(String, Vec<String>), String> {
        let mut filled = Vec::new();
        for parts in &self.arguments {
            filled.extend(fill(parts, input)?);
        }
        Ok((self.program.clone(), filled))
    }
}

/// One argument; none if it has an optional placeholder without a value.
fn fill(parts: &[Part], input: &Value) -> Result<Option<String>, String> {
    let mut text = String::new();
    for part in parts {
        match part {
            Part::Text(part) => text.push_str(part),
            Part::Input { name, is_optional } => match input.get(name) {
                None | Some(Value::Null) if *is_optional => return Ok(None),
                None | Some(Value::Null) => return Err(format!("the argument `{name}` is missing")),
                Some(Value::String(value)) if value.contains('\0') => {
                    return Err(format!("the argument `{name}` has a NUL in it"));
                }
                Some(Value::String(value)) => text.push_str(value),
                Some(value) => text.push_str(&value.to_string()),
            },
        }
    }
    Ok(Some(text))
}

/// Splits one word at its `{input:…}` placeholders.
fn parts(word: &str) -> Vec<Part> {
    const OPEN: &str = "{input:";
    let mut parts = Vec::new();
    let mut rest = word;
    while let Some(open) = rest.find(OPEN) {
        let after = &rest[open + OPEN.len()..];
        let Some(close) = after.find('}') else { break };
        if open > 0 {
            parts.push(Part::Text(rest[..open].to_owned()));
        }
        let name = &after[..close];
        let (name, is_optional) = name.strip_suffix('?').map_or((name, false), |name| (name, true));
        parts.push(Part::Input { name: name.to_owned(), is_optional });
        rest = &after[close + 1..];
    }
    if !rest.is_empty() || parts.is_empty() {
        parts.push(Part::Text(rest.to_owned()));
    }
    parts
}

/// Finds a program: a path as it is, relative to the working folder; a name in `PATH`.
pub(crate) fn find(program: &str, path: &str, folder: &Path) -> Result<PathBuf, String> {
    let can_run = |file: &PathBuf| file.is_file() && access(file, Access::EXEC_OK).is_ok();
    if program.contains('/') {
        let file = folder.join(program);
        return if can_run(&file) { Ok(file) } else { Err(format!("there is no program `{program}`")) };
    }
    let folders = path.split(':').filter(|folder| folder.starts_with('/'));
    let found = folders.map(|folder| Path::new(folder).join(program)).find(can_run);
    found.ok_or_else(|| format!("there is no program `{program}` in the folders of `PATH`"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filled(words: &[&str], input: Value) -> Result<Vec<String>, String> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let schema = json!({"properties": {"a": {}, "b": {}}});
        Argv::new(&words, &schema)?.fill(&input).map(|(_, arguments)| arguments)
    }

    #[test]
    fn an_inserted_value_stays_one_argument_and_is_not_expanded_again() {
        let words = ["p", "x={input:a};{input:b}", "{input:c", "{input:b?}", ""];
        let input = json!({"a": "{input:b} $(id) `x` '\"", "b": [1, "two"]});
        let expected = ["x={input:b} $(id) `x` '\";[1,\"two\"]", "{input:c", "[1,\"two\"]", ""];
        assert_eq!(filled(&words, input).unwrap(), expected);
    }

    #[test]
    fn an_optional_argument_is_left_out_and_a_missing_one_refused() {
        assert_eq!(filled(&["p", "--to={input:a?}", "x"], json!({})).unwrap(), ["x"]);
        assert!(filled(&["p", "{input:a}"], json!({})).unwrap_err().contains("`a` is missing"));
        assert!(filled(&["p", "{input:a}"], json!({"a": "x\0y"})).unwrap_err().contains("NUL"));
    }

    #[test]
    fn a_bad_command_is_refused() {
        assert!(filled(&[], json!({})).unwrap_err().contains("no program"));
        assert!(filled(&["{input:a}"], json!({})).unwrap_err().contains("from a model"));
        assert!(filled(&["p", "{input:z}"], json!({})).unwrap_err().contains("no property"));
        assert!(filled(&["p", "x\0"], json!({})).unwrap_err().contains("NUL"));
    }
}
