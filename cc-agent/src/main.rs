//! The agent's binary; see [`cc_agent::cli`].

use std::{env, ffi::OsString, process::ExitCode};

use cc_agent::logging;
use cc_core::error_chain;
use clap::Parser;

fn main() -> ExitCode {
    // A policy's process begins here, and shall do nothing before it has confined itself.
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    if let Some((first, arguments)) = arguments.split_first()
        && first == cc_cage::SUBCOMMAND
    {
        return cc_cage::run(arguments);
    }
    match cc_agent::cli::Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            logging::last_line(&format!("error: {}", error_chain(&*error)));
            ExitCode::FAILURE
        }
    }
}
