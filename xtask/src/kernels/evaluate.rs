//! `cargo xtask kernels evaluate` and `league`: congestion controls on emulated links, under
//! another kernel.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{self, Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use super::{
    Series,
    archive::{self, Archive},
    image::Contents,
    show,
};
use crate::{
    object, prebuilt,
    process::{self, say},
    workspace,
};

/// The job of the machine.
const JOB: &str = include_str!("evaluate.sh");
/// The programs that evaluate, by their names and in one directory.
const PROGRAMS: [&str; 2] = ["cc-trainer", "cc-agent"];
/// The agent's program in the machine, which makes the budget for a batch of decisions larger: each
/// instruction takes 2 ns there, however much a real processor does in it.
const AGENT: &str = "/evaluate/agent";
const BATCH_BUDGET_MS: u32 = 1_000;
/// The directory of the results in the machine.
const RESULTS: &str = "/tmp/results";

/// What is evaluated in the machine, and where.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The series of the kernel, such as 6.12.
    #[arg(long, value_name = "SERIES", default_value = "6.18")]
    only: Series,

    /// The directory for the results; those of an earlier evaluation there are replaced.
    #[arg(long, value_name = "DIR", default_value = "evaluation")]
    out: PathBuf,

    /// The directory of the programs cc-trainer and cc-agent [default: they are built].
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,

    /// Files that the machine needs beside those that the arguments name, such as traces.
    #[arg(long, value_name = "FILES", value_delimiter = ',')]
    with: Vec<PathBuf>,

    /// Seconds without a line of the machine's report after which it is stopped.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    deadline_s: u64,

    /// Arguments of cc-trainer, without --on and --out. Files among them are copied.
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

/// Boots the kernel, runs `cc-trainer SUBCOMMAND` in it and unpacks the results.
///
/// # Errors
///
/// Returns an error when the kernel or the programs cannot be provided, when the machine does not
/// come to its end, and when the evaluation fails; its results are unpacked all the same.
pub(super) fn command(subcommand: &str, args: &Args) -> Result<()> {
    for reserved in ["--on", "--out", "--agent"] {
        if given(&args.arguments, reserved) {
            bail!("{reserved} is not for the machine; give --out before the `--`");
        }
    }
    archive::install_tools()?;
    let kernel = Archive::open()?.fetch(args.only)?;
    let programs = match &args.programs {
        Some(directory) => path::absolute(directory)?,
        None => build()?,
    };
    let contents = contents(subcommand, &programs, &args.arguments, &args.with)?;
    // Of this process alone, so that several machines may run at a time.
    let directory = format!("evaluate-{}", std::process::id());
    let directory = archive::directory().join("runs").join(directory);
    let deadline = Duration::from_secs(args.deadline_s);
    let (report, logs) = super::boot(&kernel, &contents, &directory, deadline, |line, after| {
        if !line.is_empty() {
            println!("{after:5.0} s  {line}");
        }
    })?;
    let mut failures = report.failures();
    match unpack(&logs.output, &args.out) {
        Ok(()) => say(format_args!(
            "{:.0} s of real time; results in {}",
            report.wall.as_secs_f64(),
            args.out.display()
        )),
        Err(error) => failures.push(format!("{error:#}")),
    }
    if !failures.is_empty() {
        show(&report, &logs);
        bail!("{}", failures.join("; "));
    }
    Ok(())
}

/// Whether the arguments have an option, as `OPTION` or `OPTION=VALUE`.
fn given(arguments: &[String], option: &str) -> bool {
    let mut arguments = arguments.iter();
    arguments.any(|word| {
        let rest = word.strip_prefix(option);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })
}

/// Builds the programs as for use, and returns their directory.
fn build() -> Result<PathBuf> {
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--release"]);
    cargo.args(workspace::SELECTION);
    for program in PROGRAMS {
        cargo.args(["--bin", program]);
    }
    cargo.env(prebuilt::VARIABLE, object::provide()?);
    process::run(&mut cargo).context("cannot build the programs that evaluate")?;
    Ok(workspace::target_dir().join("release"))
}

/// What the machine holds: the programs, the files that are named, all by their paths on this host,
/// and the command.
fn contents(
    subcommand: &str,
    programs: &Path,
    arguments: &[String],
    with: &[PathBuf],
) -> Result<Contents> {
    let programs = PROGRAMS.map(|name| programs.join(name));
    for program in &programs {
        if !program.is_file() {
            bail!("--programs: there is no {}", program.display());
        }
    }
    let mut files = BTreeMap::new();
    for path in with.iter().cloned().chain(named_files(arguments)) {
        let content = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        files.insert(path::absolute(&path)?, content);
    }
    let here = env::current_dir()?;
    let here = here
        .to_str()
        .context("the current directory's path is no text")?;
    let trainer = programs[0].display().to_string();
    let mut command: Vec<&str> = vec![&trainer, subcommand, "--on", "kernel"];
    command.extend(["--agent", AGENT, "--out", RESULTS]);
    // One processor, on which an idle link takes no time: nothing is gained by several at once.
    if !given(arguments, "--jobs") {
        command.extend(["--jobs", "1"]);
    }
    command.extend(arguments.iter().map(String::as_str));
    if command.iter().any(|word| word.contains(['\n', '\\'])) {
        bail!("an argument has a line break or a backslash, which cannot be handed over");
    }
    let agent = programs[1].display();
    let agent = format!("exec '{agent}' \"$@\" --batch-budget-ms {BATCH_BUDGET_MS}");
    files.insert(AGENT.into(), lines(&["#!/bin/sh", &agent]));
    files.insert("/evaluate/command".into(), lines(&command));
    files.insert("/evaluate/directory".into(), lines(&[here]));
    // The machine's current directory must be there.
    files.insert(Path::new(here).join(".evaluate"), Vec::new());
    Ok(Contents {
        job: JOB,
        programs: programs.map(|path| (path.clone(), path)).into(),
        files: files.into_iter().collect(),
    })
}

fn lines(words: &[&str]) -> Vec<u8> {
    words
        .iter()
        .map(|word| format!("{word}\n"))
        .collect::<String>()
        .into_bytes()
}

/// Returns the files among the arguments: whole ones, parts of lists and values of `NAME=FILE`.
fn named_files(arguments: &[String]) -> impl Iterator<Item = PathBuf> {
    let parts = arguments.iter().flat_map(|word| word.split([',', '=']));
    // A scenario of a file is FILE/NAME.
    let files = parts.flat_map(|part| {
        let above = part.rsplit_once('/').map(|(file, _)| PathBuf::from(file));
        [Some(PathBuf::from(part)), above]
    });
    files.flatten().filter(|path| path.is_file())
}

/// Unpacks the results to the directory, in place of those that it has.
fn unpack(results: &Path, out: &Path) -> Result<()> {
    if fs::metadata(results).map_or(0, |file| file.len()) == 0 {
        bail!("the machine handed nothing over");
    }
    let earlier = ["summary.json", "league.json"].map(|file| out.join(file));
    if earlier.iter().any(|file| file.is_file()) {
        fs::remove_dir_all(out).with_context(|| format!("cannot replace {}", out.display()))?;
    }
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(results).arg("-C").arg(out);
    process::run(&mut tar).context("cannot unpack the results")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn options_are_found_in_either_form() {
        let arguments = words(&["--seconds", "5", "--jobs=2", "--outer"]);
        assert!(given(&arguments, "--jobs") && given(&arguments, "--seconds"));
        assert!(!given(&arguments, "--out") && !given(&arguments, "--on"));
    }

    #[test]
    fn files_are_found_in_lists_and_assignments() {
        let directory = env::temp_dir().join(format!("xtask-evaluate-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("temporary directory");
        let [links, policy] = ["links.toml", "policy.onnx"].map(|name| directory.join(name));
        for file in [&links, &policy] {
            fs::write(file, []).expect("temporary file");
        }
        let links_text = links.display();
        let arguments = words(&[
            "--scenarios",
            &format!("pantheon,{links_text}/slow"),
            &format!("--schemes=cubic,new={}", policy.display()),
        ]);
        let found: Vec<_> = named_files(&arguments).collect();
        assert_eq!(found, [links.clone(), policy.clone()]);
        fs::remove_dir_all(&directory).expect("clean up");
    }

    #[test]
    fn the_machine_runs_one_evaluation_at_a_time_with_its_words_as_they_are() {
        let directory = env::temp_dir().join(format!("xtask-programs-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("temporary directory");
        let missing = contents("evaluate", &directory, &[], &[]).expect_err("no programs there");
        assert!(missing.to_string().contains("cc-trainer"), "{missing}");
        for name in PROGRAMS {
            fs::write(directory.join(name), []).expect("temporary file");
        }
        let contents = contents(
            "league",
            &directory,
            &words(&["--schemes", "cubic, bbr"]),
            &[],
        );
        let contents = contents.expect("the programs are there");
        let mut files = contents.files.into_iter();
        let command = files.find(|(place, _)| place == Path::new("/evaluate/command"));
        let command = command.map(|(_, content)| String::from_utf8(content).expect("text"));
        let expected = format!(
            "{}\nleague\n--on\nkernel\n--agent\n/evaluate/agent\n--out\n/tmp/results\n\
             --jobs\n1\n--schemes\ncubic, bbr\n",
            directory.join("cc-trainer").display()
        );
        assert_eq!(command.as_deref(), Some(expected.as_str()));
        fs::remove_dir_all(&directory).expect("clean up");
    }
}
