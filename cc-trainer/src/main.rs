//! The trainer's binary.

mod cli;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cli::run(cli::Cli::parse()) {
        Ok(status) => status,
        Err(error) => {
            // By hand, as a backtrace (RUST_BACKTRACE) tells the user of a command nothing.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
