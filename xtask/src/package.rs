//! `cargo xtask package`: the agent as a Debian package and as an archive.

mod contents;
mod maintain;

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};

use crate::{
    build, object,
    process::{self, say},
    workspace,
};
use contents::Tree;

/// Package the agent: a .deb, and a .tar.gz of the same files for other systems.
///
/// Both hold the program with the BPF object inside, systemd units, manual pages, completions for
/// bash, zsh and fish, alert rules, a dashboard and the documents. The trainer is not among them:
/// hosts that serve do not train. The same sources and compilers make the same bytes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build a program that needs no library of the host, not even its libc, for hosts that are
    /// older than this one or have another libc.
    #[arg(long = "static", conflicts_with = "program")]
    is_static: bool,
    /// Also make a container image with this name of the static program, by podman or buildah.
    #[arg(long, value_name = "NAME", requires = "is_static")]
    image: Option<String>,
    /// Package this cc-agent rather than building one.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// The BPF object that is inside that program.
    #[arg(long, value_name = "FILE", requires = "program")]
    object: Option<PathBuf>,
    /// Directory for the packages [default: target/package].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The name of the package and of its program.
const NAME: &str = "cc-agent";

/// The mode of programs and of scripts.
const PROGRAM: u32 = 0o755;
/// The mode of files that are read.
const DATA: u32 = 0o644;

pub(crate) fn command(args: &Args) -> Result<()> {
    let out = match &args.out {
        Some(out) => out.clone(),
        None => workspace::target_dir().join("package"),
    };
    let program = match &args.program {
        Some(program) => program.clone(),
        None if args.is_static => build::static_agent()?,
        None => build::agent()?,
    };
    let object = match (&args.object, &args.program) {
        (Some(object), _) => Some(object.clone()),
        // What is inside a program that somebody else has built is not known.
        (None, Some(_)) => None,
        (None, None) => Some(object::provide()?),
    };
    let suffix = if args.is_static { "_static" } else { "" };
    let [deb, archive] = package(&program, object.as_deref(), &out, suffix)?;
    for path in [&deb, &archive] {
        say(format_args!("packaged {}", path.display()));
    }
    match &args.image {
        Some(name) => image(name, &archive),
        None => Ok(()),
    }
}

/// Makes a container image of the archive of a static program.
///
/// # Errors
///
/// Returns an error when there is neither podman nor buildah, or the one that is there fails.
fn image(name: &str, archive: &Path) -> Result<()> {
    let builder = ["podman", "buildah"]
        .into_iter()
        .find_map(process::find_program);
    let builder = builder.context(
        "container images are made by podman or buildah, and neither is here (`apt install \
         buildah`)",
    )?;
    let file = workspace::root().join("examples/kubernetes/agent.Containerfile");
    let (Some(directory), Some(archive)) = (archive.parent(), archive.file_name()) else {
        bail!("{} is no file", archive.display());
    };
    let mut argument = OsString::from("ARCHIVE=");
    argument.push(archive);
    let mut build = Command::new(builder);
    build
        .args(["build", "--tag", name, "--build-arg"])
        .arg(argument)
        .arg("--file")
        .arg(file)
        .arg(directory);
    process::run(&mut build)?;
    say(format_args!("made the image {name}"));
    Ok(())
}

/// Packages a program, and returns the paths of the .deb and the archive in `out`, whose names end
/// with the suffix.
///
/// # Errors
///
/// Returns an error when the program does not run here, when a file of the workspace cannot be
/// read, when `out` cannot be written to, and when dpkg-deb, gzip or tar is missing or fails.
fn package(
    program: &Path,
    object: Option<&Path>,
    out: &Path,
    suffix: &str,
) -> Result<[PathBuf; 2]> {
    let version = version_of(program)?;
    let architecture = process::capture(Command::new("dpkg").arg("--print-architecture"))
        .context("cannot start dpkg, of which packages for Debian are made (`apt install dpkg`)")?;
    let architecture = architecture.trim();
    let stem = format!("{NAME}_{version}_{architecture}{suffix}");
    let root = out.join(&stem);
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("cannot empty {}", root.display()))?;
    }
    let tree = Tree::create(root)?;
    contents::fill(&tree, program, object)?;
    maintain::write(&tree, &version, architecture, program)?;
    let epoch = epoch();
    stamp(tree.root(), UNIX_EPOCH + Duration::from_secs(epoch))?;

    let archive = out.join(&stem).with_added_extension("tar.gz");
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0"])
        .args(["--numeric-owner", "--use-compress-program=gzip -n"])
        .arg("--file")
        .arg(&archive)
        .arg("--directory")
        .arg(tree.root())
        .args(["etc", "lib", "usr"]);
    process::run(&mut tar)?;

    let deb = out.join(&stem).with_added_extension("deb");
    let mut build = Command::new("dpkg-deb");
    build
        .args(["--root-owner-group", "--build"])
        .arg(tree.root())
        .arg(&deb)
        .stdout(std::process::Stdio::null())
        // The time that the archive's own header has.
        .env("SOURCE_DATE_EPOCH", epoch.to_string());
    process::run(&mut build)?;
    fs::remove_dir_all(tree.root())?;
    Ok([deb, archive])
}

/// The version that a program says it has, which also shows that it runs here.
fn version_of(program: &Path) -> Result<String> {
    let said = process::capture(Command::new(program).arg("--version"))
        .with_context(|| format!("{} does not run here", program.display()))?;
    match said.trim().split_once(' ') {
        Some((NAME, version)) => Ok(version.to_owned()),
        _ => bail!(
            "{} is no {NAME}: its version is {said:?}",
            program.display()
        ),
    }
}

/// Gives everything below a directory, and itself, the same time, whatever the clock of the machine
/// says: packages do not differ by when they were made.
fn stamp(path: &Path, time: SystemTime) -> Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            stamp(&entry?.path(), time)?;
        }
    }
    fs::File::open(path)
        .and_then(|file| file.set_modified(time))
        .with_context(|| format!("cannot set the time of {}", path.display()))
}

/// The time of the last commit in s since 1970, or what `SOURCE_DATE_EPOCH` says; 0 where neither
/// is known.
fn epoch() -> u64 {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok();
    let known = given.or_else(|| {
        let mut git = Command::new("git");
        git.current_dir(workspace::root());
        process::capture(git.args(["log", "-1", "--format=%ct"]))
    });
    known
        .and_then(|epoch| epoch.trim().parse().ok())
        .unwrap_or_default()
}
