//! The project's own commands, `cargo xtask COMMAND`: set-up, build, run, demo, test, bench and
//! package.

mod apt;
mod bench;
mod build;
mod committed;
mod demo;
mod kernels;
mod object;
mod package;
mod prebuilt;
mod process;
mod run;
mod setup;
mod sources;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Set up, build, run, show, test and measure the congestion control, each by one command.
///
/// Every command first sets up what it needs and is missing (see `cargo xtask setup --help`), and
/// reports it. When nothing is missing that takes no noticeable time and no network.
///
/// The BPF object is the one in cc-ebpf/prebuilt while that is of the present sources; otherwise it
/// is built. Set CC_EBPF_OBJECT=/path/to/object to use one that was built elsewhere.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Setup(setup::Args),
    Build(build::Args),
    Run(run::Args),
    Demo(demo::Args),
    Test(test::Args),
    Bench(bench::Args),
    Kernels(kernels::Args),
    Package(package::Args),
    Prebuilt(object::Args),
    #[command(name = test::supervise::NAME, hide = true)]
    Supervise(test::supervise::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Setup(args) => setup::command(&args),
        Command::Build(args) => build::command(&args),
        Command::Run(args) => run::command(&args),
        Command::Demo(args) => demo::command(&args),
        Command::Test(args) => test::command(&args),
        Command::Bench(args) => bench::command(&args),
        Command::Kernels(args) => kernels::command(&args),
        Command::Package(args) => package::command(&args),
        Command::Prebuilt(args) => object::command(&args),
        Command::Supervise(args) => test::supervise::command(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // On one line: a backtrace (RUST_BACKTRACE) does not help the user of a command.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
