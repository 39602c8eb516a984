//! The public conformance suite: what every store must do, as tests that any backend runs in a few lines.
//!
//! ```text
//! struct MyHarness { /* the data, and the key that signs it */ }
//!
//! impl selvedge_store::conformance::Harness for MyHarness { /* open, trust */ }
//!
//! fn fresh() -> MyHarness { /* an empty store */ }
//!
//! selvedge_store::conformance_suite!(fresh());
//! ```
//!
//! - Each case is a plain function over a [`Harness`] on an empty store and shares nothing with the others; a backend may call one by
//!   itself.
//! - Cases test only what the contracts require. Where a contract leaves a choice, the case says so and accepts either.
//! - Every wait is bounded: a backend that blocks fails, it does not hang.
//!
//! In reading order: [`support`], then how threads are created and grow ([`birth`], [`appending`], [`batches`], [`conflicts`], [`keys`]),
//! their content ([`messages`], [`state`], [`scopes`]), how they are read ([`reading`], [`fidelity`]), what they spend ([`ledger`],
//! [`accounts`], [`spending`]), who may write to them ([`leases`], [`waiting`], [`inbox`]), how they are followed ([`feed`]) and found
//! ([`listing`], [`resolving`], [`runs`], [`statuses`], [`chains`]), their blobs and deletion ([`blobs`], [`deletion`]), and everything at
//! once ([`storm`]). [`mod@same_answers`] drives two stores with the same random operations. A store with snapshots runs those of [`snapshots`] too, with [`snapshot_suite!`](crate::snapshot_suite), and one that
//! commands work on those of [`backend`](mod@backend), with [`backend_suite!`](crate::backend_suite).

pub mod accounts;
pub mod appending;
pub mod backend;
pub mod batches;
pub mod birth;
pub mod blobs;
pub mod chains;
pub mod conflicts;
pub mod deletion;
pub mod feed;
pub mod fidelity;
pub mod inbox;
pub mod keys;
pub mod leases;
pub mod ledger;
pub mod listing;
pub mod messages;
pub mod reading;
pub mod resolving;
pub mod runs;
pub mod same_answers;
pub mod scopes;
pub mod snapshots;
pub mod spending;
pub mod state;
pub mod statuses;
pub mod storm;
pub mod support;
pub mod waiting;

use selvedge_log::Trust;

use crate::contract::Store;

/// A store under test, empty when the harness is created.
pub trait Harness {
    /// The store.
    type Store: Store;

    /// Another handle on the same data, as another process would have it; dropping a handle is the death of its owner.
    fn open(&self) -> Self::Store;

    /// The trusted keys.
    fn trust(&self) -> Trust;
}

/// Runs the whole suite: one test for each case, each on a harness from the given expression.
#[macro_export]
macro_rules! conformance_suite {
    ($harness:expr) => {
        $crate::conformance_suite! { $harness =>
            birth {
                a_created_thread_is_at_version_zero
                a_manifest_has_the_fields_its_creator_gave
                a_second_birth_is_refused
                a_second_birth_is_refused_as_such_while_the_thread_is_leased
                a_birth_that_expects_a_version_is_refused
                a_birth_into_a_thread_that_lives_is_refused
                an_append_to_a_missing_thread_is_refused
                of_two_births_at_once_one_wins
                a_birth_may_bring_messages_and_state
                ids_at_their_limits_are_kept_apart
            }
            appending {
                each_append_adds_one_version_even_when_empty
                an_append_at_its_expected_version_is_committed
                a_changeset_is_read_back_as_it_was_handed_in
                handles_take_turns_on_one_thread
                a_thread_outlives_its_writer
                an_event_too_long_for_a_line_is_refused
                a_changeset_that_contradicts_itself_is_refused
                threads_grow_in_parallel
            }
            batches {
                a_conflict_in_one_part_leaves_nothing_of_the_other
                any_refused_part_leaves_nothing_of_the_others
                each_checkpoint_names_its_mates
                a_birth_and_an_append_are_one
                an_empty_batch_and_a_thread_twice_are_refused
                no_reader_sees_half_a_batch
                crossing_batches_are_all_committed
                a_batch_may_mix_reasons
            }
            conflicts {
                a_conflict_names_both_versions
                nothing_of_the_loser_is_visible
                racing_writers_win_each_version_once
                one_version_has_one_winner
                appends_at_any_version_are_all_committed
                patches_of_racing_writers_are_all_counted
            }
            keys {
                the_same_request_gets_the_first_answer
                another_request_under_the_key_is_refused
                a_retry_may_expect_another_version
                an_outcome_is_found_by_its_key
                checkpoints_have_key_and_request
                a_refused_commit_leaves_its_key_free
                a_retried_birth_is_the_first_one
                retries_at_once_are_committed_once
                a_retry_repeats_no_side_effect
                a_retried_batch_is_answered_as_a_whole
            }
            messages {
                a_resubmitted_message_is_stored_once
                a_changed_message_is_refused
                run_and_step_do_not_make_another_message
                a_message_without_an_id_always_appends
                the_same_id_in_two_threads_is_two_messages
                the_same_id_twice_in_one_changeset_is_one_message
                new_messages_among_known_ones_keep_their_order
                a_message_belongs_to_the_run_that_brought_it
                a_message_sent_by_two_at_once_is_stored_once
                ids_of_a_long_thread_are_all_known
            }
            state {
                a_snapshot_comes_before_its_patches
                patches_apply_in_order
                every_op_is_applied
                a_patch_that_does_not_apply_refuses_its_changeset
                a_patch_is_applied_to_the_state_before_it
                state_actions_are_recorded_and_never_replayed
                a_state_may_be_any_value
                a_handle_never_continues_from_an_old_state
            }
            scopes {
                leftovers_of_a_killed_run_are_cleaned
                values_of_a_call_are_deleted_with_its_result
                a_call_id_with_a_dot_is_one_key
                cleanup_uses_the_newest_state
            }
            reading {
                every_signature_of_the_committed_bytes_is_valid
                a_log_with_an_untrusted_signer_is_not_loaded
                lines_are_read_page_by_page
                loading_equals_folding_in_pieces
                a_thread_loads_as_it_was_at_each_version
                the_registry_agrees_with_the_log
                an_open_transcript_ends_at_its_head
                readers_see_whole_changesets_while_a_writer_writes
                a_missing_thread_is_absent_for_every_reader
                a_half_read_transcript_blocks_nothing
            }
            fidelity {
                numbers_come_back_exactly
                texts_come_back_exactly
                odd_names_come_back_exactly
                every_kind_of_content_comes_back
                an_output_of_null_is_the_same_in_registry_and_log
                the_deepest_state_is_read_back
                what_could_not_be_read_back_is_refused
                a_detail_under_the_name_of_a_field_is_refused
            }
            ledger {
                an_account_goes_through_its_life
                the_log_replays_to_the_account
                a_child_account_is_settled_from_the_childs_log
                a_tree_of_accounts_is_parents_first
                postings_of_one_batch_build_on_each_other
                an_account_without_a_maximum_has_no_remainder
                a_posting_against_the_rules_is_refused
                a_caller_cannot_append_the_record_of_a_posting
            }
            accounts {
                a_child_account_closes_together_with_its_reservation
                an_account_that_ends_before_its_children_is_closing
                a_closed_account_is_reopened_with_an_amount_of_its_parent
                a_raise_a_stop_and_a_correction_are_kept
                sixty_four_reserve_at_once_and_none_beyond_the_ceiling
                a_missing_record_is_reported
            }
            spending {
                the_budget_refuses_the_next_reservation
                a_refused_posting_leaves_nothing_of_its_batch
                a_conflict_discards_its_postings
                the_last_of_an_account_is_reserved_once
                the_ceiling_holds_under_a_crowd
                an_overcharge_is_recorded_and_stops_the_account
                an_unknown_outcome_is_settled_at_its_bound
                a_reservation_outlives_its_maker
                postings_are_committed_with_what_they_pay_for
            }
            leases {
                a_lease_is_acquired_renewed_and_released
                a_heartbeat_is_seen_by_other_processes
                a_commit_under_a_lease_carries_its_epoch
                a_stale_epoch_cannot_write
                a_released_lease_cannot_write
                an_unassigned_epoch_cannot_write
                a_brief_commit_is_refused_while_the_thread_is_leased
                a_dead_holder_blocks_no_writer
                epochs_rise_with_takeovers_and_deaths
                leases_of_dead_holders_are_listed
                a_live_lease_holder_is_named
                a_batch_needs_every_right
                releasing_a_stale_lease_releases_nothing
                release_and_takeover_at_once_leave_the_new_holder
                a_missing_thread_has_no_lease
            }
            waiting {
                waiting_is_bounded_and_names_the_holder
                a_caller_that_does_not_wait_is_answered_at_once
                a_released_lease_goes_to_a_waiter
                a_dead_holders_lease_goes_to_a_waiter
                waiters_of_one_process_are_served_in_order
                a_waiter_that_gives_up_blocks_no_other
                different_threads_are_leased_in_parallel
                taking_over_does_not_wait
                a_holder_that_hangs_does_not_block_its_process
                a_waiter_behind_a_hung_holder_is_served
                one_worker_has_the_lease_at_a_time
                waiting_may_be_for_ever
                a_waiter_that_gives_up_learns_the_holder
                the_end_of_a_lease_wakes_waiters
            }
            inbox {
                a_posted_request_waits
                a_request_posted_twice_is_one
                another_request_under_a_known_id_is_refused
                a_batch_cannot_post_two_requests_under_one_id
                the_same_id_to_two_threads_is_two_requests
                requests_wait_in_the_order_of_posting
                a_request_is_not_consumed_without_a_verdict
                a_consumed_request_is_not_delivered_again
                requests_move_with_their_chain
                a_posted_request_wakes_followers
                a_thread_can_be_created_under_a_lease
                a_commit_returns_what_it_wrote
                a_request_is_consumed_once
                of_two_answers_at_once_one_wins
                requests_are_consumed_and_posted_with_their_batch
                a_request_to_a_missing_thread_is_refused
                a_lease_stays_while_a_message_waits
                no_message_is_lost_between_two_lease_holders
            }
            feed {
                positions_strictly_rise
                the_feed_comes_page_by_page
                a_commit_names_its_lines
                the_feed_has_only_commits
                positions_are_never_reused
                a_commit_before_the_wait_ends_it_at_once
                waiting_in_vain_ends_in_time
                a_commit_wakes_a_waiter
                a_follower_misses_nothing_of_its_own_process
                a_follower_misses_nothing_of_another_process
                a_follower_of_many_writers_sees_no_gap
            }
            listing {
                the_newest_comes_first
                a_thread_names_its_live_holder
                pages_follow_each_other
                a_cursor_stays_where_it_is
                filters_select_threads
                a_text_is_searched_literally
                a_filtered_list_pages_too
                threads_are_found_across_agents
            }
            resolving {
                a_unique_prefix_names_its_thread
                an_ambiguous_prefix_lists_the_candidates
                a_thread_that_matches_twice_is_one
                a_whole_id_wins
                an_unknown_prefix_names_no_thread
                threads_are_named_by_their_age
                a_deleted_thread_makes_no_prefix_ambiguous
            }
            runs {
                the_first_changeset_makes_a_run_and_the_last_completes_it
                what_a_run_uses_is_counted_turn_by_turn_and_once
                where_a_run_came_from_is_written_once
                a_done_run_stays_done
                a_waiting_run_continues
                a_second_run_is_refused_while_one_is_active
                a_changeset_in_the_middle_touches_its_run
                a_run_may_be_recorded_only_at_its_end
                runs_come_oldest_first
                runs_of_two_threads_are_distinct
                what_runs_used_is_added_up_once
            }
            statuses {
                a_status_follows_the_runs
                only_listed_status_transitions_are_accepted
                a_run_cannot_bypass_the_transition_table
                a_continued_thread_accepts_nothing
                a_checkpoint_records_whether_the_thread_is_settled
                a_manifest_changes_only_in_what_is_named
            }
            chains {
                a_handoff_is_one_batch
                a_refused_handoff_leaves_both
                a_chain_is_the_same_from_each_member
                a_cycle_of_links_ends
                a_missing_link_ends_the_chain
                children_come_oldest_first
            }
            deletion {
                a_deleted_thread_leaves_a_tombstone
                a_deleted_thread_is_listed_no_more
                a_running_thread_is_not_deleted
                a_leased_thread_is_not_deleted
                a_thread_with_a_reservation_is_not_deleted
                an_id_is_never_used_again
                a_late_writer_does_not_bring_a_deleted_thread_back
                a_chain_passes_through_deleted_threads
                what_was_spent_outlives_the_thread
                a_missing_thread_cannot_be_deleted
                of_two_deletions_at_once_one_wins
                a_deletion_and_an_append_at_once_agree
            }
            blobs {
                a_blob_is_read_back
                an_unknown_blob_is_refused
                a_blob_may_come_before_its_thread
                a_blob_is_not_read_from_another_thread
                the_same_bytes_have_two_names
                a_blob_makes_no_version
                an_erased_blob_is_removed_and_the_log_records_it
                blobs_put_at_once_are_all_kept
            }
            storm {
                a_storm_of_batches_matches_its_model
            }
        }
    };
    ($harness:expr => $($topic:ident { $($case:ident)* })*) => {
        $(mod $topic {
            #[allow(unused_imports, reason = "the expression may use no imports")]
            use super::*;

            $(#[test]
            fn $case() {
                $crate::conformance::$topic::$case(&$harness);
            })*
        })*
    };
}

/// Runs the suite for stores with snapshots: one test for each case, as [`conformance_suite!`] does.
#[macro_export]
macro_rules! snapshot_suite {
    ($harness:expr) => {
        $crate::conformance_suite! { $harness =>
            snapshots {
                the_newest_comes_first_and_those_before_it_are_kept
                a_snapshot_has_the_hash_that_saving_returned
                disposed_snapshots_are_deleted_or_archived
                reading_the_log_after_a_snapshot_needs_its_seal
                snapshots_belong_to_one_thread_and_are_deleted_with_it
            }
        }
    };
}

/// Runs the suite for stores that commands work on: one test for each case, as [`conformance_suite!`] does.
#[macro_export]
macro_rules! backend_suite {
    ($harness:expr) => {
        $crate::conformance_suite! { $harness =>
            backend {
                a_committed_thread_verifies_as_sound
                a_deleted_thread_is_not_verified
                unnamed_and_erased_blobs_are_reported
                an_archive_is_verified_with_the_file_alone
                an_existing_thread_is_not_imported_again
                capabilities_are_written_once
                a_manifest_that_agrees_with_its_log_is_accepted
                a_list_of_heads_stays_valid_while_logs_grow
                shutting_down_releases_leases
            }
        }
    };
}
