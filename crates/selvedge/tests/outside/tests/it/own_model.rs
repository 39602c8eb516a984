//! An own model.

use selvedge::{
    Answer, Block, BoxFuture, Cancel, Draft, Drafts, End, Limit, Model, ModelError, Money, Price, Prompt, Selvedge,
    Status, Usage,
};

use crate::support::folder;

/// Says the last message backwards.
struct Backwards;

impl Model for Backwards {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        draft: &'a mut Drafts<'a>,
        _: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            let last = prompt.messages.last().map(|message| message.plain_text()).unwrap_or_default();
            let text: String = last.chars().rev().collect();
            draft(Draft::Text { text: text.clone() });
            let usage = Usage { input_tokens: 1_000, output_tokens: 1_000, ..Usage::default() };
            Ok(Answer::new(vec![Block::text(text)], End::Finished).using(usage))
        })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

#[test]
fn a_model_of_the_program_answers_and_costs_nothing() {
    let folder = folder();
    let selvedge = Selvedge::builder().project(folder.path()).model("acme:backwards", Backwards).open().unwrap();
    let outcome = selvedge.run("abc").join().unwrap();
    assert_eq!(outcome.result.as_deref(), Some("cba"));
    assert_eq!((outcome.cost.output_tokens, outcome.cost.spend), (1_000, Money::ZERO));
}

#[test]
fn a_model_with_a_price_is_held_to_the_limit_of_money() {
    let folder = folder();
    let dollar = |text: &str| text.parse::<Money>().unwrap();
    let price = Price { input: dollar("1"), output: dollar("2"), ..Price::default() };
    let selvedge = Selvedge::builder().project(folder.path()).priced_model("acme", Backwards, price).open().unwrap();
    let outcome = selvedge.run("abc").join().unwrap();
    assert_eq!(outcome.cost.spend, dollar("0.003"));
    let poor = selvedge.run(selvedge::Job::say("abc").limit(Limit::Spend(dollar("0.000001")))).join().unwrap();
    assert_eq!(poor.status, Status::Suspended);
}
