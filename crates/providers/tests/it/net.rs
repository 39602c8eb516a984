//! One suite of scenarios, run for every wire format against a fake server that speaks it.
//!
//! A format joins with one line in [`formats`] and an implementation of [`Dialogue`].

mod limits;
mod network;
mod recording;
mod refusals;
mod secrets;
mod streams;

use std::sync::Arc;
use std::time::Duration;

use selvedge_model::message::Block;
use selvedge_model::{Answer, Cancel, Draft, Message, Model, ModelError, Prompt, Role};
use selvedge_providers::fake::{AnthropicDialogue, Dialogue, OpenAiChatDialogue, OpenAiResponsesDialogue, Server};
use selvedge_providers::wire::Dialect;
use selvedge_providers::{Connections, Host, Key, Remote, Timeouts};
use tokio::runtime::{Builder, Runtime};

/// Runs every scenario for every format.
macro_rules! formats {
    ($($module:ident::$scenario:ident),* $(,)?) => {
        mod anthropic {
            use super::AnthropicDialogue;
            $(#[test] fn $scenario() { super::$module::$scenario(&AnthropicDialogue); })*
        }
        mod openai_chat {
            use super::OpenAiChatDialogue;
            $(#[test] fn $scenario() { super::$module::$scenario(&OpenAiChatDialogue); })*
        }
        mod openai_responses {
            use super::OpenAiResponsesDialogue;
            $(#[test] fn $scenario() { super::$module::$scenario(&OpenAiResponsesDialogue); })*
        }
    };
}

formats! {
    limits::a_stream_that_stalls_is_cut_at_the_idle_limit,
    limits::a_host_that_does_not_respond_is_cut_at_the_first_byte_limit,
    limits::limits_without_an_end_are_allowed,
    limits::a_slow_drip_is_read_until_the_total_limit,
    limits::a_cancelled_call_closes_the_connection_and_keeps_its_text,
    limits::a_dropped_call_closes_the_connection,
    limits::a_call_that_is_cancelled_before_it_is_sent_costs_nothing,
    limits::an_answer_of_ten_megabytes_is_read,
    streams::an_answer_is_the_same_however_its_stream_is_cut_into_pieces,
    streams::pings_comments_and_unknown_events_are_ignored,
    streams::two_tool_calls_arrive_whole_and_are_drafted,
    streams::arguments_that_are_not_json_are_kept_as_text,
    streams::a_call_without_arguments_has_an_empty_object,
    streams::a_cut_in_a_tool_call_keeps_what_was_received,
    streams::a_stream_without_its_end_event_is_cut_at_every_place,
    streams::the_answer_is_complete_at_its_end_event,
    streams::garbage_is_cut_and_never_an_answer,
    streams::an_error_event_after_the_head_is_an_overload,
    streams::an_error_event_within_an_answer_cuts_it,
    streams::usage_with_the_cache_is_counted,
    streams::an_answer_at_its_length_limit_says_so,
    refusals::each_status_is_told_with_its_message,
    refusals::waiting_times_are_read_from_the_headers,
    refusals::a_prompt_that_is_too_long_is_its_own_error,
    refusals::a_success_that_is_no_stream_is_never_an_answer,
    refusals::a_redirect_is_an_error_that_names_its_target,
    refusals::a_huge_error_body_is_not_read_whole,
    network::a_host_that_is_not_there_was_not_reached,
    network::a_connection_that_closes_without_a_response_is_cut,
    network::a_connection_is_used_again,
    network::an_unknown_certificate_is_refused_before_anything_is_sent,
    network::a_private_authority_is_trusted_by_its_file,
    network::custom_headers_are_sent_and_replace_others,
    network::requests_go_through_a_proxy,
    network::many_calls_run_at_once,
    network::a_probe_reports_what_answered,
    secrets::a_key_file_must_be_private,
    secrets::a_key_that_was_refused_is_read_again_once,
    secrets::canaries_are_in_no_error_and_no_debug_output,
    recording::a_recorded_call_is_answered_offline,
    recording::a_request_that_differs_is_refused_with_its_place,
    recording::a_recorded_cut_is_a_cut_again,
    recording::canaries_are_in_no_recording,
    recording::calls_that_run_at_once_are_recorded_apart,
}

const MODEL: &str = "model-1";
const KEY: &str = "canary-key-4f1d";

/// A server, and a host on it.
struct Stage {
    server: Server,
    host: Host,
}

impl Stage {
    fn new(dialogue: &dyn Dialogue) -> Self {
        let server = Server::start().unwrap();
        let host = host(dialogue, &server);
        Self { server, host }
    }

    fn ask(&self) -> Result<Answer, ModelError> {
        ask(&self.host)
    }

    /// The message of the error of a call.
    fn error(&self) -> ModelError {
        self.ask().expect_err("the call fails")
    }
}

fn host(dialogue: &dyn Dialogue, server: &Server) -> Host {
    let mut host = Host::new("vendor", dialogue.format(), dialogue.base_url(&server.url()));
    host.key = Some(Key::Value(KEY.into()));
    host.timeouts = Timeouts {
        connect: Duration::from_secs(5),
        first_byte: Duration::from_secs(5),
        idle: Duration::from_secs(5),
        total: Duration::from_secs(20),
    };
    host
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn hello() -> Vec<Arc<Message>> {
    vec![Arc::new(Message::text(Role::User, "hello"))]
}

fn remote(host: &Host) -> Remote {
    Remote::new(&Connections::new(), host.clone(), MODEL, Dialect::default())
}

fn ask(host: &Host) -> Result<Answer, ModelError> {
    ask_drafting(host, &Cancel::new()).0
}

fn ask_drafting(host: &Host, cancel: &Cancel) -> (Result<Answer, ModelError>, Vec<Draft>) {
    let messages = hello();
    let prompt = Prompt::new(MODEL, &messages);
    let mut drafts = Vec::new();
    let model = remote(host);
    let answer = runtime().block_on(model.answer(&prompt, &mut |draft| drafts.push(draft), cancel));
    (answer, drafts)
}

/// The text of content.
fn text(content: &[Block]) -> String {
    let texts = content.iter().filter_map(|block| match block {
        Block::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

/// The text of an answer's drafts.
fn drafted(drafts: &[Draft]) -> String {
    let texts = drafts.iter().filter_map(|draft| match draft {
        Draft::Text { text } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}
