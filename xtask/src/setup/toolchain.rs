//! The compilers and linkers that this host has, and the choice of a pair that builds the BPF
//! object.
//!
//! The BPF target has no prebuilt `core`, so the compiler must come with its library's source
//! (`rust-src`). The compiler emits LLVM bitcode, so `bpf-linker` must understand the bitcode of
//! that compiler's LLVM.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{process, workspace};

/// The oldest compiler that builds the workspace, as (major, minor).
const OLDEST_RUSTC: Release = match parse_release(env!("CARGO_PKG_RUST_VERSION")) {
    Some(release) => release,
    None => panic!("rust-version in Cargo.toml is MAJOR.MINOR"),
};

/// A compiler's version, as (major, minor).
pub(super) type Release = (u32, u32);

/// A compiler and a linker that fit each other.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Toolchain {
    pub(crate) compiler: Compiler,
    pub(crate) linker: Linker,
}

impl Toolchain {
    /// The exact versions of compiler and linker and of the LLVM in each, which determine the bytes
    /// of what they build.
    pub(crate) fn versions(&self) -> String {
        let about = |program: &Path, argument| {
            process::capture(Command::new(program).arg(argument)).unwrap_or_default()
        };
        let (compiler, linker) = (self.compiler.rustc(), &self.linker.path);
        let compiler = about(&compiler, "-vV");
        let linkers_llvm = Linker::about_llvm(linker).unwrap_or_default();
        format!(
            "{} with LLVM {}, {} with LLVM {}",
            compiler.lines().next().unwrap_or_default(),
            llvm_version(&compiler).unwrap_or_default(),
            about(linker, "--version").trim(),
            llvm_version(&linkers_llvm).unwrap_or_default()
        )
    }
}

impl std::fmt::Display for Toolchain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { compiler, linker } = self;
        let (major, minor) = compiler.release;
        write!(
            f,
            "rustc {major}.{minor} with rust-src (LLVM {}, {}) and bpf-linker (LLVM {}, {})",
            compiler.llvm,
            compiler.rustc().display(),
            linker.llvm,
            linker.path.display()
        )
    }
}

/// A rustc that has its library's source beside it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Compiler {
    pub(super) sysroot: PathBuf,
    pub(super) release: Release,
    pub(super) llvm: u32,
}

impl Compiler {
    /// The compiler's own program, not a proxy that chooses one.
    pub(crate) fn rustc(&self) -> PathBuf {
        self.sysroot.join("bin/rustc")
    }

    /// The cargo to call: that of the same toolchain where there is one (`/usr/bin/cargo` need not
    /// belong to `/usr/bin/rustc`), as the source of the library may need a cargo as new as itself.
    pub(crate) fn cargo(&self) -> PathBuf {
        let own = self.sysroot.join("bin/cargo");
        if self.sysroot != Path::new("/usr") && own.is_file() {
            own
        } else {
            workspace::cargo_path()
        }
    }
}

/// An installed bpf-linker, with the major version of its LLVM.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Linker {
    pub(crate) path: PathBuf,
    pub(super) llvm: u32,
}

impl Linker {
    /// Asks the bpf-linker at `path` for the version of its LLVM; `None` when it does not run.
    pub(super) fn probe(path: PathBuf) -> Option<Self> {
        let llvm = parse_llvm(&Self::about_llvm(&path)?)?;
        Some(Self { path, llvm })
    }

    /// What the LLVM of the bpf-linker at `path` says of itself; `None` when it does not run.
    fn about_llvm(path: &Path) -> Option<String> {
        // Its own --version does not name the LLVM, but LLVM's does. An output and an input are
        // mandatory; neither is read or written.
        let arguments = [
            "--llvm-args=--version",
            "--output",
            "/dev/null",
            "/dev/null",
        ];
        process::capture(Command::new(path).args(arguments))
    }

    /// Whether the linker reads the compiler's bitcode: LLVM reads that of every older LLVM, but
    /// not always that of a newer one.
    pub(super) fn fits(&self, compiler: &Compiler) -> bool {
        self.llvm >= compiler.llvm
    }
}

/// Chooses the first compiler that any linker fits, with the first such linker.
pub(super) fn choose(compilers: &[Compiler], linkers: &[Linker]) -> Option<Toolchain> {
    compilers.iter().find_map(|compiler| {
        let linker = linkers.iter().find(|linker| linker.fits(compiler))?;
        Some(Toolchain {
            compiler: compiler.clone(),
            linker: linker.clone(),
        })
    })
}

/// Lists the installed compilers that have rust-src and are new enough: the one in use first, then
/// rustup's, then the distribution's.
pub(super) fn compilers() -> Vec<Compiler> {
    let in_use = process::capture(Command::new("rustc").args(["--print", "sysroot"]));
    let rustup = process::capture(Command::new("rustup").args(["toolchain", "list", "--verbose"]));
    let mut sysroots = Vec::new();
    sysroots.extend(in_use.map(|path| PathBuf::from(path.trim())));
    sysroots.extend(parse_toolchains(&rustup.unwrap_or_default()));
    sysroots.push("/usr".into());
    sysroots.extend(versioned_sysroots());

    let mut compilers: Vec<Compiler> = Vec::new();
    for sysroot in sysroots {
        let known = compilers.iter().any(|compiler| compiler.sysroot == sysroot);
        if !known && has_source(&sysroot) {
            compilers.extend(probe_compiler(sysroot));
        }
    }
    compilers
}

/// Lists the installed linkers, the one that set-up installed first.
pub(super) fn linkers() -> Vec<Linker> {
    [
        Some(installed_linker()),
        process::find_program("bpf-linker"),
    ]
    .into_iter()
    .flatten()
    .filter_map(Linker::probe)
    .collect()
}

/// The path at which set-up installs its own bpf-linker.
pub(super) fn installed_linker() -> PathBuf {
    workspace::tools_dir().join("bin/bpf-linker")
}

/// Whether a compiler with this package version, such as `1.96.0+dfsg1-1`, builds the workspace.
pub(super) fn is_new_enough(version: &str) -> bool {
    parse_release(version).is_some_and(new_enough)
}

fn new_enough(release: Release) -> bool {
    release >= OLDEST_RUSTC
}

fn has_source(sysroot: &Path) -> bool {
    sysroot
        .join("lib/rustlib/src/rust/library/Cargo.toml")
        .is_file()
}

fn probe_compiler(sysroot: PathBuf) -> Option<Compiler> {
    let text = process::capture(Command::new(sysroot.join("bin/rustc")).arg("-vV"))?;
    let (release, llvm) = parse_rustc(&text)?;
    new_enough(release).then_some(Compiler {
        sysroot,
        release,
        llvm,
    })
}

/// Lists the sysroots of Ubuntu's versioned compilers, newest first: `/usr/lib/rust-MAJOR.MINOR`.
fn versioned_sysroots() -> Vec<PathBuf> {
    let mut found: Vec<(Release, PathBuf)> = fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let release = parse_release(entry.file_name().to_str()?.strip_prefix("rust-")?)?;
            Some((release, entry.path()))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, path)| path).collect()
}

/// Parses release and LLVM major version from the output of `rustc -vV`.
fn parse_rustc(verbose: &str) -> Option<(Release, u32)> {
    let field = |name: &str| verbose.lines().find_map(|line| line.strip_prefix(name));
    Some((parse_release(field("release: ")?)?, parse_llvm(verbose)?))
}

/// Finds the first "LLVM version MAJOR.MINOR.PATCH" (rustc writes a colon after "version"), and
/// returns what follows the words, up to the next space.
fn llvm_version(text: &str) -> Option<&str> {
    let (_, version) = text.split_once("LLVM version")?;
    let version = version.trim_start_matches([':', ' ']);
    version.split_whitespace().next()
}

/// Parses the major version of the first "LLVM version MAJOR.MINOR.PATCH".
fn parse_llvm(text: &str) -> Option<u32> {
    let version = llvm_version(text)?;
    let end = version
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(version.len());
    version[..end].parse().ok()
}

/// Parses the directories in the output of `rustup toolchain list --verbose`: the last column of
/// each line.
fn parse_toolchains(list: &str) -> Vec<PathBuf> {
    list.lines()
        .filter_map(|line| line.find(['\t', '/']).map(|start| line[start..].trim()))
        .filter(|path| path.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

/// Parses the major and minor number of a version. (By hand, as `str::parse` cannot be evaluated at
/// compile time.)
const fn parse_release(version: &str) -> Option<Release> {
    let bytes = version.as_bytes();
    let mut numbers = [0u32; 2];
    let mut digits = 0;
    let mut field = 0;
    let mut i = 0;
    while i < bytes.len() {
        match bytes[i] {
            digit @ b'0'..=b'9' if digits < 6 => {
                numbers[field] = numbers[field] * 10 + (digit - b'0') as u32;
                digits += 1;
            }
            b'.' if field == 0 && digits > 0 => {
                field = 1;
                digits = 0;
            }
            _ => break,
        }
        i += 1;
    }
    if field == 1 && digits > 0 {
        Some((numbers[0], numbers[1]))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUSTC: &str = "rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)\n\
        binary: rustc\ncommit-date: 2026-05-25\nhost: x86_64-unknown-linux-gnu\nrelease: 1.96.0\n\
        LLVM version: 22.1.8\n";

    fn compiler(sysroot: &str, llvm: u32) -> Compiler {
        Compiler {
            sysroot: sysroot.into(),
            release: (1, 96),
            llvm,
        }
    }

    fn linker(path: &str, llvm: u32) -> Linker {
        Linker {
            path: path.into(),
            llvm,
        }
    }

    #[test]
    fn rustc_prints_release_and_llvm() {
        assert_eq!(parse_rustc(RUSTC), Some(((1, 96), 22)));
        assert_eq!(
            parse_rustc(&RUSTC.replace("1.96.0\nLLVM", "1.101.0-nightly\nLLVM")),
            Some(((1, 101), 22))
        );
        // A compiler with another code generator emits no LLVM bitcode.
        assert_eq!(parse_rustc("release: 1.96.0\n"), None);
        assert_eq!(parse_rustc("LLVM version: 22.1.8\n"), None);
    }

    #[test]
    fn the_linker_prints_its_llvm() {
        assert_eq!(
            parse_llvm("Debian LLVM version 22.1.8\n  Optimized build.\n"),
            Some(22)
        );
        assert_eq!(
            parse_llvm("LLVM (http://llvm.org/):\n  LLVM version 23.1.0-rust-1.99\n"),
            Some(23)
        );
        assert_eq!(parse_llvm("bpf-linker 0.13.0\n"), None);
        assert_eq!(parse_llvm("LLVM version unknown"), None);
    }

    #[test]
    fn releases_are_compared_as_numbers() {
        assert_eq!(parse_release("1.96.0+dfsg1-1~deb12u2"), Some((1, 96)));
        assert_eq!(parse_release("1.95"), Some((1, 95)));
        for wrong in ["", "1", "1.", ".95", "src", "1.x"] {
            assert_eq!(parse_release(wrong), None, "{wrong:?}");
        }
        assert!(is_new_enough("1.100.0"), "not compared as text");
        assert!(!is_new_enough("1.85.0+dfsg3-1~deb12u3"));
        assert!(!is_new_enough("nonsense"));
    }

    #[test]
    fn rustup_lists_directories_in_its_last_column() {
        let list = "stable-x86_64-unknown-linux-gnu (active, default) /home/u/.rustup/stable\n\
            nightly-x86_64-unknown-linux-gnu\t/home/u/my dir/nightly\nno installed toolchains\n";
        let expected: [PathBuf; 2] = [
            "/home/u/.rustup/stable".into(),
            "/home/u/my dir/nightly".into(),
        ];
        assert_eq!(parse_toolchains(list), expected);
        assert!(parse_toolchains("").is_empty());
    }

    #[test]
    fn the_first_compiler_with_a_linker_is_chosen() {
        let compilers = [compiler("/nightly", 23), compiler("/usr", 22)];
        let chosen = choose(&compilers, &[linker("/old", 21), linker("/fits", 22)]);
        assert_eq!(
            chosen,
            Some(Toolchain {
                compiler: compiler("/usr", 22),
                linker: linker("/fits", 22)
            }),
            "an LLVM 22 linker cannot read what the nightly's LLVM 23 writes"
        );
        let chosen = choose(&compilers, &[linker("/newer", 23)]).expect("LLVM 23 fits both");
        assert_eq!(chosen.compiler, compilers[0]);
        assert_eq!(choose(&compilers, &[linker("/old", 21)]), None);
        assert_eq!(choose(&[], &[linker("/fits", 22)]), None);
        assert_eq!(choose(&compilers, &[]), None);
    }
}
