//! Reads the form with a block of XML before the body.

use selvedge_model::id::DirectiveId;
use selvedge_model::limits::{Limits, whole};
use selvedge_model::money::Money;
use serde_json::{Map, Value};

use super::front_matter::{ModelChoice, first};
use super::xml::{Element, with_root};
use super::{Context, Directive};
use crate::capability::{Acknowledgement, Capabilities, Capability, Permissions};
use crate::condition::{Comparison, Condition};
use crate::error::Flaw;
use crate::hook::{self, Hook, Position, WrittenAction};
use crate::input;
use crate::nearest::nearest;

const SECTIONS: [&str; 6] = ["metadata", "inputs", "outputs", "template", "example", "raw"];
const METADATA: [&str; 9] = [
    "description",
    "category",
    "author",
    "model",
    "limits",
    "permissions",
    "hooks",
    "context",
    "continuation_directive",
];
const LIMITS: [&str; 10] = [
    "turns",
    "tokens",
    "spend",
    "spawns",
    "depth",
    "duration_seconds",
    "duration",
    "spend_currency",
    "max_turns",
    "max_tokens",
];
const VERBS: [&str; 5] = ["execute", "fetch", "sign", "search", "load"];
const ITEM_TYPES: [&str; 4] = ["tool", "directive", "knowledge", "graph"];

pub(super) fn read(text: &str, line: u64) -> Result<Directive, Flaw> {
    with_root(text, line, |root| {
        if root.name() != "directive" {
            return Err(root.unknown(&["directive"]));
        }
        root.only(&["name", "version", "extends"])?;
        let version = root.attribute("version").map_or_else(first, str::to_owned);
        let mut directive = Directive { name: root.required("name")?.to_owned(), version, ..Directive::default() };
        directive.extends = root.attribute("extends").map(|id| directive_id(&root, id)).transpose()?;
        for section in root.children()? {
            match section.name() {
                "metadata" => metadata(&mut directive, section)?,
                "inputs" => directive.inputs = fields(section, "input")?,
                "outputs" => directive.outputs = fields(section, "output")?,
                name if SECTIONS.contains(&name) => drop(directive.extra.insert(name.to_owned(), section.text()?)),
                _ => return Err(section.unknown(&SECTIONS)),
            }
        }
        Ok(directive)
    })
}

fn metadata(directive: &mut Directive, metadata: Element<'_, '_>) -> Result<(), Flaw> {
    metadata.only(&[])?;
    for element in metadata.children()? {
        match element.name() {
            "description" => directive.description = element.text()?,
            "category" => directive.category = Some(element.text()?),
            "author" => directive.author = Some(element.text()?),
            "model" => directive.model = Some(model(element)?),
            "limits" => directive.limits = limits(element)?,
            "permissions" => directive.permissions = Some(permissions(element)?),
            "hooks" => directive.hooks = hooks(element)?,
            "context" => directive.context = context(element)?,
            "continuation_directive" => {
                directive.continuation_directive = Some(directive_id(&element, &element.text()?)?);
            }
            // Other plain texts are kept; a name that is close to a known one is a typing error.
            name if element.is_plain() && nearest(name, METADATA).is_none() => {
                directive.extra.insert(name.to_owned(), element.text()?);
            }
            _ => return Err(element.unknown(&METADATA)),
        }
    }
    Ok(())
}

fn directive_id(element: &Element<'_, '_>, text: &str) -> Result<DirectiveId, Flaw> {
    DirectiveId::new(text).map_err(|error| element.flaw(error.to_string()))
}

fn model(element: Element<'_, '_>) -> Result<ModelChoice, Flaw> {
    element.only(&["id", "tier", "provider", "fallback", "parallel"])?;
    element.empty()?;
    let text = |name| element.attribute(name).map(str::to_owned);
    let choice =
        ModelChoice { id: text("id"), tier: text("tier"), provider: text("provider"), fallback: text("fallback") };
    choice.check().map_err(|why| element.flaw(why))
}

/// The limits, as attributes or as elements with a text.
fn limits(element: Element<'_, '_>) -> Result<Limits, Flaw> {
    element.only(&LIMITS)?;
    let attribute = |name: &&'static str| element.attribute(name).map(|text| (element, *name, text.to_owned()));
    let mut written: Vec<_> = LIMITS.iter().filter_map(attribute).collect();
    for child in element.children()? {
        let name = LIMITS.iter().find(|name| **name == child.name()).ok_or_else(|| child.unknown(&LIMITS))?;
        child.only(&[])?;
        if written.iter().any(|(_, other, _)| other == name) {
            return Err(child.flaw(format!("`{name}` occurs twice")));
        }
        written.push((child, name, child.text()?));
    }
    let mut limits = Limits::default();
    for (place, name, text) in &written {
        limit(&mut limits, place, name, text.trim())?;
    }
    Ok(limits)
}

fn limit(limits: &mut Limits, place: &Element<'_, '_>, name: &str, text: &str) -> Result<(), Flaw> {
    let number = || whole(text).map_err(|why| place.flaw(format!("`{name}`: {why}")));
    match name {
        "turns" => limits.turns = Some(number()?),
        "max_turns" => limits.turns = limits.turns.or(Some(number()?)),
        "tokens" => limits.tokens = Some(number()?),
        "max_tokens" => limits.tokens = limits.tokens.or(Some(number()?)),
        "spend" => limits.spend = Some(text.parse::<Money>().map_err(|error| place.flaw(error.to_string()))?),
        "spawns" => limits.spawns = Some(number()?),
        "depth" => limits.depth = Some(number()?),
        "duration_seconds" => limits.duration_seconds = Some(number()?),
        "duration" => limits.duration_seconds = limits.duration_seconds.or(Some(number()?)),
        _ if text == "USD" => {}
        _ => return Err(place.flaw("`spend` is in dollars").hint("remove `spend_currency`, or write `USD`")),
    }
    Ok(())
}

/// `*` for everything; otherwise verbs, and in them `*` or item types with a name or a pattern.
fn permissions(element: Element<'_, '_>) -> Result<Permissions, Flaw> {
    let mut tokens = Vec::new();
    let mut acknowledge = Vec::new();
    if element.is_plain() {
        tokens.extend(all_below(&element, "selvedge")?);
        return Ok(Permissions { allow: Capabilities::new(tokens), acknowledge });
    }
    for verb in element.children()? {
        match verb.name() {
            "acknowledge" => {
                verb.only(&["risk"])?;
                let one = Acknowledgement::new(verb.required("risk")?, &verb.text()?);
                acknowledge.push(one.map_err(|why| verb.flaw(why))?);
            }
            name if VERBS.contains(&name) && verb.is_plain() => {
                tokens.extend(all_below(&verb, &format!("selvedge.{name}"))?);
            }
            name if VERBS.contains(&name) => {
                for item in verb.children()? {
                    if !ITEM_TYPES.contains(&item.name()) {
                        return Err(item.unknown(&ITEM_TYPES));
                    }
                    let named = item.text()?.replace('/', ".");
                    tokens.push(token(&item, &format!("selvedge.{name}.{}.{named}", item.name()))?);
                }
            }
            _ => return Err(verb.unknown(&["execute", "fetch", "sign", "acknowledge"])),
        }
    }
    Ok(Permissions { allow: Capabilities::new(tokens), acknowledge })
}

/// A `*` allows everything below; an empty element allows nothing.
fn all_below(element: &Element<'_, '_>, root: &str) -> Result<Option<Capability>, Flaw> {
    match element.text()?.as_str() {
        "" => Ok(None),
        "*" => token(element, &format!("{root}.*")).map(Some),
        _ => Err(element.flaw(format!("`<{}>` must contain `*` or elements", element.name()))),
    }
}

fn token(element: &Element<'_, '_>, text: &str) -> Result<Capability, Flaw> {
    text.parse::<Capability>().map_err(|error| element.flaw(error.to_string()))
}

/// Inputs or outputs.
fn fields<T: TryFrom<input::Fields, Error = String>>(section: Element<'_, '_>, name: &str) -> Result<Vec<T>, Flaw> {
    section.only(&[])?;
    let mut all = Vec::new();
    for element in section.children()? {
        match element.name() {
            found if found == name => {}
            // An older form of outputs, which describes no values.
            "success" | "failure" if name == "output" => continue,
            _ => return Err(element.unknown(&[name])),
        }
        element.only(&["name", "type", "required", "default", "values"])?;
        let values = element.attribute("values").unwrap_or_default();
        let fields = input::Fields {
            name: element.required("name")?.to_owned(),
            of: element.attribute("type").map(str::to_owned),
            required: element.truth("required", false)?,
            default: element.attribute("default").map(|text| Value::String(text.to_owned())),
            values: values.split(',').map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned).collect(),
            description: element.text()?,
        };
        all.push(T::try_from(fields).map_err(|why| element.flaw(why))?);
    }
    Ok(all)
}

fn context(element: Element<'_, '_>) -> Result<Context, Flaw> {
    element.only(&[])?;
    let mut context = Context::default();
    for one in element.children()? {
        let list = match one.name() {
            "system" => &mut context.system,
            "before" => &mut context.before,
            "after" => &mut context.after,
            "suppress" => &mut context.suppress,
            _ => return Err(one.unknown(&["system", "before", "after", "suppress"])),
        };
        list.push(one.text()?);
    }
    Ok(context)
}

fn hooks(element: Element<'_, '_>) -> Result<Vec<Hook>, Flaw> {
    element.only(&[])?;
    element.children()?.into_iter().map(hook).collect()
}

fn hook(element: Element<'_, '_>) -> Result<Hook, Flaw> {
    if element.name() != "hook" {
        return Err(element.unknown(&["hook"]));
    }
    element.only(&["id", "event", "position", "wrap", "layer", "required", "timeout_seconds"])?;
    let mut conditions = Vec::new();
    let timeout = element.attribute("timeout_seconds").map(str::parse).transpose();
    let mut fields = hook::Fields {
        id: Some(element.required("id")?.to_owned()),
        event: element.required("event")?.to_owned(),
        condition: Condition::Always,
        action: None,
        actions: Vec::new(),
        position: match element.attribute("position") {
            None | Some("before") => Position::Before,
            Some("after") => Position::After,
            Some(_) => return Err(element.flaw("`position` must be `before` or `after`")),
        },
        wrap: element.truth("wrap", true)?,
        directive: None,
        inputs: Map::new(),
        layer: element.attribute("layer").map(str::to_owned),
        required: element.truth("required", false)?,
        timeout_seconds: timeout.map_err(|_| element.flaw("`timeout_seconds` must be a whole number"))?,
        description: String::new(),
    };
    for one in element.children()? {
        match one.name() {
            "condition" => conditions.push(condition(one)?),
            "action" => fields.actions.push(action(one)?),
            "description" => fields.description = one.text()?,
            _ => return Err(one.unknown(&["condition", "action", "description"])),
        }
    }
    fields.condition = match conditions.len() {
        0 => Condition::Always,
        1 => conditions.remove(0),
        _ => Condition::All(conditions),
    };
    Hook::try_from(fields).map_err(|why| element.flaw(why))
}

fn condition(element: Element<'_, '_>) -> Result<Condition, Flaw> {
    element.only(&["path", "op", "value"])?;
    element.empty()?;
    let path = element.required("path")?.split('.').map(str::to_owned).collect();
    let op = element.attribute("op").unwrap_or("eq");
    let comparison = Comparison::new(path, op, element.attribute("value").map_or(Value::Null, |text| value(op, text)));
    comparison.map(Condition::Compare).map_err(|why| element.flaw(why))
}

/// The value of an attribute: a boolean or a number if it looks like one. A pattern is always text, and `in` takes several values.
fn value(op: &str, text: &str) -> Value {
    let scalar = |text: &str| match serde_json::from_str(text) {
        Ok(value @ (Value::Bool(_) | Value::Number(_))) => value,
        _ => Value::String(text.to_owned()),
    };
    match op {
        "regex" => Value::String(text.to_owned()),
        "in" => Value::Array(text.split(',').map(|one| scalar(one.trim())).collect()),
        _ => scalar(text),
    }
}

fn action(element: Element<'_, '_>) -> Result<WrittenAction, Flaw> {
    element.only(&["primary", "item_type", "item_id", "set_extends"])?;
    let text = |name| element.attribute(name).map(str::to_owned);
    let mut params = Map::new();
    for param in element.children()? {
        if param.name() != "param" {
            return Err(param.unknown(&["param"]));
        }
        param.only(&["name"])?;
        params.insert(param.required("name")?.to_owned(), Value::String(param.text()?));
    }
    Ok(WrittenAction {
        primary: text("primary"),
        item_type: text("item_type"),
        item_id: text("item_id"),
        params,
        set_extends: text("set_extends").map(Value::String),
    })
}
