//! What is in the package, and where.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{DATA, PROGRAM};
use crate::{
    committed::Origin,
    process::{self, say},
    workspace,
};

/// The files of the package, as they are to lie below `/`.
pub(super) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(super) fn create(root: PathBuf) -> Result<Self> {
        let tree = Self { root };
        tree.directory("")?;
        Ok(tree)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Creates a directory, whatever the umask is, and returns its path.
    fn directory(&self, at: &str) -> Result<PathBuf> {
        let mut path = self.root.clone();
        for part in Path::new(at).components().map(Some).chain([None]) {
            let failed = || format!("cannot create {}", path.display());
            fs::create_dir_all(&path).with_context(failed)?;
            fs::set_permissions(&path, Permissions::from_mode(0o755)).with_context(failed)?;
            if let Some(part) = part {
                path.push(part);
            }
        }
        Ok(path)
    }

    /// Writes a file, and the directories above it.
    pub(super) fn write(&self, at: &str, mode: u32, bytes: &[u8]) -> Result<PathBuf> {
        let directory = Path::new(at).parent().and_then(Path::to_str);
        self.directory(directory.unwrap_or_default())?;
        let path = self.root.join(at);
        let failed = || format!("cannot write {}", path.display());
        fs::write(&path, bytes).with_context(failed)?;
        fs::set_permissions(&path, Permissions::from_mode(mode)).with_context(failed)?;
        Ok(path)
    }

    /// Copies a file from outside of the tree.
    fn copy(&self, from: &Path, at: &str, mode: u32) -> Result<()> {
        let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        self.write(at, mode, &bytes).map(|_| ())
    }
}

/// The systemd units, by their files' names.
const UNITS: [&str; 5] = [
    "cc-agent",
    "cc-agent-follow",
    "cc-agent-metrics",
    "cc-agent-observe",
    "cc-agent-policy-server",
];

/// Copies and generates everything that the package holds.
pub(super) fn fill(tree: &Tree, program: &Path, object: Option<&Path>) -> Result<()> {
    let root = workspace::root();
    tree.copy(program, "usr/bin/cc-agent", PROGRAM)?;
    for unit in UNITS {
        let from = root.join("cc-agent/systemd").join(unit);
        let at = format!("lib/systemd/system/{unit}.service");
        tree.copy(&from.with_added_extension("service"), &at, DATA)?;
    }
    for (from, at) in [
        (
            "cc-agent/systemd/cc-agent.sysusers",
            "usr/lib/sysusers.d/cc-agent.conf",
        ),
        ("cc-agent/systemd/cc-agent.toml", "etc/cc-agent.toml"),
        (
            "examples/prometheus/rlcc.rules.yml",
            "usr/share/cc-agent/prometheus/rlcc.rules.yml",
        ),
        (
            "examples/prometheus/prometheus.yml",
            "usr/share/cc-agent/prometheus/prometheus.yml",
        ),
        (
            "examples/grafana/rlcc.json",
            "usr/share/cc-agent/grafana/rlcc.json",
        ),
        ("README.md", "usr/share/doc/cc-agent/README.md"),
        ("CHANGELOG.md", "usr/share/doc/cc-agent/CHANGELOG.md"),
        ("SECURITY.md", "usr/share/doc/cc-agent/SECURITY.md"),
    ] {
        tree.copy(&root.join(from), at, DATA)?;
    }
    copyright(tree)?;
    documents(tree)?;
    completions(tree, program)?;
    manual(tree, program)?;
    origin(tree, object)
}

/// The licences, all in the file in which Debian looks for them.
fn copyright(tree: &Tree) -> Result<()> {
    let mut text = Vec::new();
    for name in ["LICENSE", "LICENSE-MIT", "LICENSE-APACHE"] {
        let path = workspace::root().join(name);
        text.extend(fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
        text.extend(b"\n\n");
    }
    tree.write("usr/share/doc/cc-agent/copyright", DATA, &text)?;
    Ok(())
}

fn documents(tree: &Tree) -> Result<()> {
    let directory = workspace::root().join("docs");
    for entry in fs::read_dir(&directory)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if let Some(name) = name.filter(|name| name.ends_with(".md")) {
            let at = format!("usr/share/doc/cc-agent/docs/{name}");
            tree.copy(&path, &at, DATA)?;
        }
    }
    Ok(())
}

fn completions(tree: &Tree, program: &Path) -> Result<()> {
    for (shell, at) in [
        ("bash", "usr/share/bash-completion/completions/cc-agent"),
        ("zsh", "usr/share/zsh/vendor-completions/_cc-agent"),
        ("fish", "usr/share/fish/vendor_completions.d/cc-agent.fish"),
    ] {
        let mut command = Command::new(program);
        let script = process::capture(command.args(["completions", shell]))
            .with_context(|| format!("{} printed no script for {shell}", program.display()))?;
        tree.write(at, DATA, script.as_bytes())?;
    }
    Ok(())
}

/// Manual pages, compressed as Debian has them.
fn manual(tree: &Tree, program: &Path) -> Result<()> {
    let directory = tree.directory("usr/share/man/man1")?;
    process::run(Command::new(program).arg("man").arg(&directory))?;
    let mut pages: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(&directory)? {
        let page = entry?.path();
        fs::set_permissions(&page, Permissions::from_mode(0o644))?;
        pages.push(page);
    }
    if pages.is_empty() {
        bail!("{} wrote no manual pages", program.display());
    }
    // Without names and times, so that the same page is always the same file.
    process::run(Command::new("gzip").args(["-9n"]).args(&pages))
}

/// Adds the BPF object and the hashes of it and of its sources.
fn origin(tree: &Tree, object: Option<&Path>) -> Result<()> {
    let Some(object) = object else {
        say(
            "the BPF object inside the program is not known (--object), and not packaged beside it",
        );
        return Ok(());
    };
    let bytes = fs::read(object).with_context(|| format!("cannot read {}", object.display()))?;
    let origin = Origin::of(&bytes)?.json()?;
    tree.write("usr/share/cc-agent/bpf/cc-ebpf.o", DATA, &bytes)?;
    tree.write("usr/share/cc-agent/bpf/origin.json", DATA, &origin)?;
    Ok(())
}
