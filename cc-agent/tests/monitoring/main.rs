//! An agent that is watched by a real Prometheus and Alertmanager, with the rules and the dashboard
//! of the repository, through incidents that are staged on the running kernel.
//!
//! Debian has them as `prometheus` and `prometheus-alertmanager`. Where they are missing the trials
//! are skipped with the reason.

mod incident;
mod panels;
mod watchers;

use std::process::ExitCode;

use incident::*;

fn main() -> ExitCode {
    cc_lab::run(cc_lab::trials![
        a_prometheus_answers_the_queries_of_the_dashboard,
        incidents_are_alerted_and_the_runbook_ends_them,
        the_watchdog_is_not_fed_without_a_policy,
    ])
}
