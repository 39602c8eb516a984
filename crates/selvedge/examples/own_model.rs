//! An own model: it repeats its input in upper case, as drafts, and reports its usage.
//!
//! `cargo run --example own_model`. Offline, in a temporary folder.
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use selvedge::{
    Answer, Block, BoxFuture, Cancel, Draft, Drafts, End, Limit, Model, ModelError, Price, Prompt, Selvedge, Usage,
};

/// A real model sends the prompt to a server here, and turns the response into drafts and one answer.
struct Shouting;

impl Model for Shouting {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        draft: &'a mut Drafts<'a>,
        cancel: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            // Transient: the engine retries as the configuration says.
            let Some(last) = prompt.messages.last() else {
                return Err(ModelError::Transient { why: "there is nothing to shout".to_owned() });
            };
            let mut said = String::new();
            let usage = |said: &str| Usage {
                input_tokens: last.plain_text().len() as u64,
                output_tokens: said.len() as u64,
                ..Usage::default()
            };
            for word in last.plain_text().to_uppercase().split_inclusive(' ') {
                // Ends soon after a cancel, with the partial answer.
                if cancel.said().is_some() {
                    return Err(ModelError::Stopped { partial: vec![Block::text(&said)], usage: Some(usage(&said)) });
                }
                draft(Draft::Text { text: word.to_owned() });
                said.push_str(word);
            }
            let used = usage(&said);
            Ok(Answer::new(vec![Block::text(said)], End::Finished).using(used))
        })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        Some(8_000)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    // Dollars for a million tokens. No call is made that the limit of money does not cover.
    let price = Price { input: "1".parse()?, output: "4".parse()?, ..Price::default() };
    let selvedge = Selvedge::builder()
        .project(folder.path())
        .priced_model("shouting", Shouting, price)
        .limit(Limit::Spend("0.10".parse()?))
        .open()?;
    let outcome = selvedge.run("hold the line").join()?;
    println!("{}", outcome.result.unwrap_or_default());
    println!("{} tokens for ${}", outcome.cost.output_tokens, outcome.cost.spend);
    Ok(())
}
