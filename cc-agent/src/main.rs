//! The agent's binary; see [`cc_agent::cli`].

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;

fn main() -> ExitCode {
    match cc_agent::cli::Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            // Standard error may be closed.
            let _ = writeln!(io::stderr(), "error: {}", in_a_line(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes in one line. A cause is left out when the line already contains its
/// text, as most errors quote their cause.
fn in_a_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !line.contains(&cause) {
            let separator = if line.is_empty() { "" } else { ": " };
            line.push_str(separator);
            line.push_str(&cause);
        }
    }
    line
}
