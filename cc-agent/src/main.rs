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
            // Nobody may be reading any more.
            let _ = writeln!(io::stderr(), "error: {}", in_a_line(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes, each said once: most errors already say what their cause was.
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
