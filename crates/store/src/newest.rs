//! Threads named by their age: `@` or `@1` is the newest, `@2` the one before it.
//!
//! No id begins with `@`, so such a name never hides a thread. The order is that of [`Registry::list`].

use selvedge_model::ThreadId;

use crate::contract::{Filter, Registry};
use crate::error::{Error, Result};

/// The character that such a name begins with.
const MARK: char = '@';
/// The oldest thread that can be named this way.
const PLACE_MAX: usize = 10_000;

/// The thread that a name such as `@2` stands for; nothing if it is a name of another form.
pub fn by_age(registry: &(impl Registry + ?Sized), name: &str) -> Option<Result<ThreadId>> {
    let place = name.strip_prefix(MARK)?;
    Some(find(registry, place).and_then(|found| found.ok_or_else(|| Error::NoThread(name.to_owned()))))
}

fn find(registry: &(impl Registry + ?Sized), place: &str) -> Result<Option<ThreadId>> {
    let is_number = place.bytes().all(|byte| byte.is_ascii_digit());
    let place = if place.is_empty() { Some(1) } else { place.parse().ok().filter(|_| is_number) };
    let Some(place) = place.filter(|place| (1..=PLACE_MAX).contains(place)) else { return Ok(None) };
    let page = registry.list(&Filter::default(), None, place)?;
    Ok(page.items.into_iter().nth(place - 1).map(|found| found.manifest.thread_id))
}
