//! The agent's binary; see [`cc_agent::cli`].

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cc_agent::cli::Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
