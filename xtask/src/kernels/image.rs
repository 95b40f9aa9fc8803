//! What a kernel boots: an initial file system in memory with programs, what they call, and the
//! modules that they need.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::BufWriter,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{archive::Kernel, cpio, modules};
use crate::process;

/// The first process. It sets the system up, does the [`Contents`]' job and powers off.
const INIT: &str = include_str!("init.sh");
/// The job of a machine that runs test programs.
const TESTS: &str = include_str!("tests.sh");

/// Programs of this host that the others call, beside busybox, which has less able ones of the last
/// two.
const TOOLS: [&str; 5] = ["ip", "tc", "ss", "setpriv", "unshare"];

/// The programs to run, by name, and the agent's own, if they start it: by its path on this host.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) agent: Option<PathBuf>,
    /// In the order in which they are run.
    pub(super) tests: Vec<TestProgram>,
}

/// A test program to run.
#[derive(Debug)]
pub(super) struct TestProgram {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// Only tests whose names contain this are run; empty for all of them.
    pub(super) filter: String,
}

/// What a machine does, and the files that it needs for that beside those that every machine has.
#[derive(Debug)]
pub(super) struct Contents {
    /// The shell script that the first process runs when the system is up.
    pub(super) job: &'static str,
    /// Programs by their paths in the machine, each with its path on this host. Their shared
    /// libraries are added.
    pub(super) programs: Vec<(PathBuf, PathBuf)>,
    /// Further files by their paths in the machine.
    pub(super) files: Vec<(PathBuf, Vec<u8>)>,
}

impl From<&Programs> for Contents {
    fn from(programs: &Programs) -> Self {
        let tests = programs.tests.iter();
        let order = lines(
            tests
                .clone()
                .map(|test| format!("{} {}", test.name, test.filter)),
        );
        let agent = programs
            .agent
            .iter()
            .map(|path| (path.clone(), path.clone()));
        let tests = tests.map(|test| (Path::new("/tests").join(&test.name), test.path.clone()));
        Self {
            job: TESTS,
            programs: agent.chain(tests).collect(),
            files: vec![("/tests/order".into(), order.into_bytes())],
        }
    }
}

/// Writes the initial file system for a kernel to `file`.
///
/// # Errors
///
/// Returns an error when a program, a library or a module cannot be read, and when the file cannot
/// be written.
pub(super) fn write(contents: &Contents, kernel: &Kernel, file: &Path) -> Result<()> {
    let cannot = || format!("cannot write {}", file.display());
    let out = BufWriter::new(File::create(file).with_context(cannot)?);
    let mut archive = cpio::Archive::new(out);
    let mut add = |path: &Path, content: &[u8]| archive.add(path, content).with_context(cannot);

    add(Path::new("/init"), INIT.as_bytes())?;
    add(Path::new("/job.sh"), contents.job.as_bytes())?;
    add(Path::new("/bin/busybox"), &read(&find("busybox")?)?)?;
    let mut libraries = BTreeSet::new();
    for name in TOOLS {
        let path = find(name)?;
        libraries.extend(shared_libraries(&path)?);
        add(&Path::new("/usr/sbin").join(name), &read(&path)?)?;
    }
    for (place, program) in &contents.programs {
        libraries.extend(shared_libraries(program)?);
        add(place, &stripped(program, file)?)?;
    }
    for library in &libraries {
        add(library, &read(library)?)?;
    }
    for (place, content) in &contents.files {
        add(place, content)?;
    }

    let modules = modules::load_order(&kernel.modules)?;
    for (name, content) in &modules {
        add(&Path::new("/modules").join(format!("{name}.ko")), content)?;
    }
    let order = lines(modules.into_iter().map(|(name, _)| name));
    add(Path::new("/modules/order"), order.as_bytes())?;
    archive.finish().with_context(cannot)?;
    Ok(())
}

fn lines(lines: impl Iterator<Item = String>) -> String {
    lines.map(|line| line + "\n").collect()
}

fn find(program: &str) -> Result<PathBuf> {
    process::find_program(program).with_context(|| format!("this host has no {program}"))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns the bytes of a program without its debugging information, which is most of it and would
/// take the tested kernel's memory. The copy without it is made beside `file`, and removed.
fn stripped(program: &Path, file: &Path) -> Result<Vec<u8>> {
    let Some(strip) = process::find_program("strip") else {
        return read(program);
    };
    let copy = file.with_extension("stripped");
    let mut command = Command::new(strip);
    command
        .arg("--strip-debug")
        .arg("-o")
        .args([&copy, program]);
    process::run(&mut command)?;
    let bytes = read(&copy)?;
    fs::remove_file(&copy).ok();
    Ok(bytes)
}

/// Returns the paths of the shared libraries of a program, its loader among them.
fn shared_libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let text = process::capture(Command::new("ldd").arg(program).env("LC_ALL", "C"))
        .with_context(|| format!("ldd {} failed", program.display()))?;
    let libraries = parse_libraries(&text);
    if libraries.is_empty() {
        bail!("ldd names no library of {}:\n{text}", program.display());
    }
    Ok(libraries)
}

/// The absolute paths in ldd's lines, which are `NAME => PATH (ADDRESS)` or `PATH (ADDRESS)`.
fn parse_libraries(ldd: &str) -> Vec<PathBuf> {
    ldd.lines()
        .filter_map(|line| {
            let line = line.rsplit("=> ").next()?.trim();
            let path = line.split(" (").next()?;
            path.starts_with('/').then(|| PathBuf::from(path))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_by_their_paths() {
        let ldd = "\tlinux-vdso.so.1 (0x00007fb2e558a000)\n\
                   \tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007fb2e5479000)\n\
                   \tlibnone.so => not found\n\
                   \t/lib64/ld-linux-x86-64.so.2 (0x00007fb2e558c000)\n";
        let expected = [
            "/lib/x86_64-linux-gnu/libm.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        assert_eq!(parse_libraries(ldd), expected.map(PathBuf::from));
    }
}
