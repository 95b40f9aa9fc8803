//! What the agent's binary does when it is killed, or refused what it needs, on the running kernel.
//!
//! docs/faults.md has the results as a table.

mod stage;
mod steps;

use std::process::ExitCode;

use steps::*;

const BINARY: &str = env!("CARGO_BIN_EXE_cc-agent");

fn main() -> ExitCode {
    cc_lab::run(cc_lab::trials![
        an_agent_is_killed_at_each_step_of_its_start,
        an_agent_is_killed_at_each_step_of_its_end,
        each_step_of_a_start_may_be_refused,
        each_step_of_an_end_may_be_refused,
    ])
}
