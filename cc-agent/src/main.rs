//! The agent's binary; see [`cc_agent::cli`].

use std::process::ExitCode;

use cc_agent::logging;
use cc_core::error_chain;
use clap::Parser;

fn main() -> ExitCode {
    match cc_agent::cli::Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            logging::last_line(&format!("error: {}", error_chain(&*error)));
            ExitCode::FAILURE
        }
    }
}
