//! The agent's binary; see [`cc_agent::cli`].

use std::{
    io::{self, Write},
    process::ExitCode,
};

use cc_core::error_chain;
use clap::Parser;

fn main() -> ExitCode {
    match cc_agent::cli::Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            // Standard error may be closed.
            let _ = writeln!(io::stderr(), "error: {}", error_chain(&*error));
            ExitCode::FAILURE
        }
    }
}
