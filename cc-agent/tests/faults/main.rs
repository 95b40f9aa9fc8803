//! What the agent's binary does when it is killed, or refused what it needs, on the running kernel.
//!
//! docs/faults.md has the results as a table.

mod clocks;
mod overload;
mod places;
mod shortage;
mod stage;
mod steps;
mod takeover;

use std::process::ExitCode;

use clocks::*;
use overload::*;
use places::*;
use shortage::*;
use steps::*;
use takeover::*;

const BINARY: &str = env!("CARGO_BIN_EXE_cc-agent");

fn main() -> ExitCode {
    cc_lab::run(cc_lab::trials![
        an_agent_is_killed_at_each_step_of_its_start,
        an_agent_is_killed_at_each_step_of_its_end,
        each_step_of_a_start_may_be_refused,
        each_step_of_an_end_may_be_refused,
        a_full_disk_costs_no_flow_and_no_setting,
        without_descriptors_flows_are_served_on,
        a_log_that_nobody_reads_stops_nothing,
        the_ring_is_full_for_a_minute,
        flows_are_adopted_from_another_time,
        a_clock_that_is_set_changes_nothing,
        a_directory_in_which_others_set_traps,
        a_recording_directory_that_its_owner_plays_with,
        a_policy_that_is_no_file_is_refused,
        of_agents_that_start_at_once_one_serves_a_name,
        two_agents_take_turns_as_the_default,
        flows_and_name_go_on_while_agents_take_over,
        a_successor_is_killed_at_each_step,
        a_successor_that_does_not_serve_changes_nothing,
        a_successor_with_another_layout_is_refused,
        who_may_not_command_may_not_take_over,
        a_successor_needs_no_more_than_an_agent,
        without_a_running_agent_it_just_starts,
        what_a_successor_does_not_ask_for_is_undone,
        a_recording_goes_on_in_files_of_the_successor,
    ])
}
