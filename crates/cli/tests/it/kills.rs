//! Processes that are killed at random moments, again and again, until their work is done.

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use crate::support::{Ran, Sandbox};

/// Chance that comes from a seed.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A seed that is said, so that it can be given again: by `SELVEDGE_TEST_SEED`.
    #[expect(clippy::print_stdout, reason = "a test that fails shows what it printed")]
    pub(crate) fn any() -> Self {
        let said = std::env::var("SELVEDGE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let seed = said.unwrap_or(now.subsec_nanos().into());
        println!("SELVEDGE_TEST_SEED={seed}");
        Self(seed)
    }

    /// A number below this one.
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// How far something has come.
pub(crate) enum Stand<T> {
    /// It does not exist yet.
    Unborn,
    /// It has begun and continues when it is resumed: a process of it may only end by being killed.
    Going,
    /// It is done.
    Done(T),
}

/// Starts the command that `next` gives and kills it after a while, again and again, until `look` finds that it is done; gives what it
/// found, and how many processes were killed.
#[track_caller]
pub(crate) fn killed_until_done<T>(
    sandbox: &Sandbox,
    chance: &mut Chance,
    next: impl Fn() -> Vec<String>,
    look: impl Fn() -> Stand<T>,
) -> (T, u32) {
    let mut most_ms = 60;
    let mut kills = 0;
    for _ in 0..60 {
        let args = next();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut child = sandbox.command(&args).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        thread::sleep(Duration::from_millis(chance.below(most_ms)));
        // The longer it takes, the more it may do: it comes to an end on any machine.
        most_ms += most_ms / 6;
        let has_ended = child.try_wait().unwrap().is_some();
        child.kill().unwrap();
        let ran = Ran::of(child);
        kills += u32::from(!has_ended);
        match look() {
            Stand::Done(found) => return (found, kills),
            Stand::Going => assert!(!has_ended, "it stopped by itself: {ran:?}"),
            Stand::Unborn => {}
        }
    }
    panic!("it never came to an end");
}
