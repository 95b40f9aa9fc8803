//! Kernels of Debian's archive: listed, downloaded and unpacked.
//!
//! apt does the work, with sources, package lists and cache of its own below target/kernels/apt, so
//! that this host's apt stays as it is. The mirror is the one that this host's apt uses.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use super::Series;
use crate::{
    apt,
    process::{self, say},
    workspace,
};

/// The suites whose kernels are offered: stable releases with BTF and struct_ops, and their
/// backports, which have the newest kernel.
const SUITES: [&str; 4] = [
    "bookworm",
    "bookworm-backports",
    "trixie",
    "trixie-backports",
];

/// The series that are tested unless told otherwise, beside the newest one: the oldest that is
/// supported, and the long-term series after it.
const DEFAULTS: [Series; 3] = [Series(6, 1), Series(6, 12), Series(6, 18)];

/// The age from which package lists are refreshed.
const STALE: Duration = Duration::from_secs(24 * 3600);

/// Where Debian's packages keep the keys of its archive, by release of Debian.
const KEYRINGS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
];

/// A kernel on this host.
#[derive(Clone, Debug)]
pub(super) struct Kernel {
    pub(super) series: Series,
    /// As `uname -r` has it, such as `6.1.0-50-cloud-amd64`.
    pub(super) release: String,
    /// The kernel's image (`bzImage`), which qemu boots.
    pub(super) image: PathBuf,
    /// The directory that `/lib/modules/RELEASE` would be.
    pub(super) modules: PathBuf,
}

impl Kernel {
    /// Returns a kernel of the user's. Its release is the name of the directory of its modules.
    ///
    /// # Errors
    ///
    /// Returns an error when one of the two is missing, or the directory is not named by a release.
    pub(super) fn given(image: &Path, modules: &Path) -> Result<Self> {
        if !image.is_file() {
            bail!("--kernel {}: there is no such file", image.display());
        }
        let remedy = || {
            format!(
                "--modules {}: expected a directory such as /lib/modules/6.1.0-50-cloud-amd64",
                modules.display()
            )
        };
        if !modules.join("kernel").is_dir() {
            bail!(remedy());
        }
        let modules = fs::canonicalize(modules)?;
        let release = modules.file_name().and_then(|name| name.to_str());
        let release = release.with_context(remedy)?;
        Ok(Self {
            series: Series::of_release(release).with_context(remedy)?,
            release: release.to_owned(),
            image: fs::canonicalize(image)?,
            modules,
        })
    }

    /// Returns the kernel in the unpacked packages below `root`; `None` when it is not whole.
    fn unpacked(release: &str, root: &Path) -> Option<Self> {
        // In older packages the image is in /boot and /usr is not yet merged.
        let modules = ["lib/modules", "usr/lib/modules"]
            .map(|dir| root.join(dir).join(release))
            .into_iter()
            .find(|dir| dir.join("kernel").is_dir())?;
        let image = [
            root.join(format!("boot/vmlinuz-{release}")),
            modules.join("vmlinuz"),
        ]
        .into_iter()
        .find(|image| image.is_file())?;
        Some(Self {
            series: Series::of_release(release)?,
            release: release.to_owned(),
            image,
            modules,
        })
    }
}

/// The directory of everything that is downloaded and made for kernels.
pub(super) fn directory() -> PathBuf {
    workspace::target_dir().join("kernels")
}

/// The newest kernel of each series in Debian's archive. One at a time has the [`directory`]: apt
/// refuses a second user of its lists, and two downloads would unpack to one place.
pub(super) struct Archive {
    /// Locked until this is dropped.
    _lock: fs::File,
    apt: Apt,
    /// The releases, such as `6.1.0-50-cloud-amd64`.
    newest: BTreeMap<Series, String>,
}

impl Archive {
    /// Waits for its turn, reads the archive's package lists, and refreshes them when they are
    /// older than a day.
    ///
    /// # Errors
    ///
    /// Returns an error when this host has no apt or its apt knows no mirror of Debian, and when
    /// there are no package lists and none can be downloaded.
    pub(super) fn open() -> Result<Self> {
        let lock = locked(&directory())?;
        let apt = Apt::configured(directory().join("apt"), &SUITES)?;
        apt.refresh()?;
        let names = process::capture(apt.command("apt-cache").args([
            "search",
            "--names-only",
            "^linux-image-[0-9].*-cloud-amd64$",
        ]))
        .context("apt-cache cannot list the kernels")?;
        let newest = newest(
            names
                .lines()
                .filter_map(|line| line.split_whitespace().next())
                .filter_map(|name| name.strip_prefix("linux-image-")),
        );
        if newest.is_empty() {
            bail!(
                "Debian's package lists have no kernel; remove {}",
                apt.root.display()
            );
        }
        Ok(Self {
            _lock: lock,
            apt,
            newest,
        })
    }

    /// Returns each series with its newest release, whether it is tested by default, and whether it
    /// has been downloaded.
    pub(super) fn list(&self) -> impl Iterator<Item = (Series, &str, bool, bool)> {
        let defaults = self.defaults();
        self.newest.iter().map(move |(series, release)| {
            let here = Kernel::unpacked(release, &place(release)).is_some();
            (*series, release.as_str(), defaults.contains(series), here)
        })
    }

    /// Returns the series that are tested unless told otherwise: of [`DEFAULTS`] those that the
    /// archive has, and the newest one.
    pub(super) fn defaults(&self) -> Vec<Series> {
        let mut series: Vec<Series> = DEFAULTS
            .into_iter()
            .chain(self.newest.keys().next_back().copied())
            .filter(|series| self.newest.contains_key(series))
            .collect();
        series.sort_unstable();
        series.dedup();
        series
    }

    /// Returns the newest kernel of a series, and downloads it unless it is here already.
    ///
    /// # Errors
    ///
    /// Returns an error when the archive has no such series, and when downloading or unpacking
    /// fails.
    pub(super) fn fetch(&self, series: Series) -> Result<Kernel> {
        let Some(release) = self.newest.get(&series) else {
            let known: Vec<String> = self.newest.keys().map(ToString::to_string).collect();
            bail!(
                "Debian's archive has no kernel {series}; it has {}",
                known.join(", ")
            );
        };
        let place = place(release);
        if let Some(kernel) = Kernel::unpacked(release, &place) {
            return Ok(kernel);
        }
        self.download(release, &place)
            .with_context(|| format!("cannot download Linux {release}"))?;
        Kernel::unpacked(release, &place).with_context(|| {
            format!("the packages of Linux {release} lack the kernel or its modules")
        })
    }

    /// Downloads the packages of a release and unpacks them to `place`, which is either whole or
    /// not there.
    fn download(&self, release: &str, place: &Path) -> Result<()> {
        say(format_args!(
            "downloading Linux {release} from Debian's archive"
        ));
        let scratch = place.with_extension("new");
        if scratch.exists() {
            fs::remove_dir_all(&scratch)?;
        }
        fs::create_dir_all(&scratch)?;
        let root = scratch.join("root");
        // Since Linux 7, image and modules are packages of their own.
        let parts = ["image", "binary", "modules"].map(|part| format!("linux-{part}-{release}"));
        for package in parts {
            let known = process::capture(self.apt.command("apt-cache").args(["show", &package]));
            if known.is_none_or(|text| text.is_empty()) {
                continue;
            }
            let mut download = self.apt.command("apt-get");
            download
                .args(["download", "--quiet=2", &package])
                .current_dir(&scratch);
            process::run(&mut download)?;
        }
        for entry in fs::read_dir(&scratch)?.flatten() {
            if entry
                .path()
                .extension()
                .is_some_and(|extension| extension == "deb")
            {
                let mut unpack = Command::new("dpkg-deb");
                process::run(unpack.arg("--extract").args([&entry.path(), &root]))?;
            }
        }
        fs::rename(&root, place)?;
        fs::remove_dir_all(&scratch)?;
        Ok(())
    }
}

/// Waits until no other process has the lock of a directory, and returns it: the file `lock`.
fn locked(directory: &Path) -> Result<fs::File> {
    let path = directory.join("lock");
    let lock = fs::create_dir_all(directory).and_then(|()| fs::File::create(&path));
    let lock = lock.with_context(|| format!("cannot create {}", path.display()))?;
    lock.lock()
        .with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(lock)
}

/// The directory to which the packages of a release are unpacked.
fn place(release: &str) -> PathBuf {
    directory().join(release)
}

/// Returns the newest release of each series.
fn newest<'a>(releases: impl Iterator<Item = &'a str>) -> BTreeMap<Series, String> {
    let mut newest: BTreeMap<Series, String> = BTreeMap::new();
    for release in releases {
        let Some(series) = Series::of_release(release) else {
            continue;
        };
        let known = newest.entry(series).or_insert_with(|| release.to_owned());
        if numbers(release) > numbers(known) {
            release.clone_into(known);
        }
    }
    newest
}

/// The numbers in a release, by which releases of a series are ordered.
fn numbers(release: &str) -> Vec<u32> {
    release
        .split(|character: char| !character.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

/// apt with sources, package lists and cache of its own.
struct Apt {
    root: PathBuf,
}

impl Apt {
    /// Writes the sources: these suites, from the mirror of Debian that this host's apt uses.
    /// `root` is the directory for everything.
    fn configured(root: PathBuf, suites: &[&str]) -> Result<Self> {
        if process::find_program("apt-get").is_none() {
            bail!(
                "this host has no apt-get to download Debian's kernels with; give a kernel of \
                 yours by --kernel and --modules"
            );
        }
        for dir in ["lists/partial", "archives/partial", "parts"] {
            fs::create_dir_all(root.join(dir))
                .with_context(|| format!("cannot create {}", root.join(dir).display()))?;
        }
        let mirror = mirror()?;
        let key = KEYRINGS.into_iter().find(|key| Path::new(key).exists());
        let options = key.map_or_else(String::new, |key| format!("[signed-by={key}] "));
        let sources: String = suites
            .iter()
            .map(|suite| format!("deb {options}{mirror} {suite} main\n"))
            .collect();
        let file = root.join("sources.list");
        fs::write(&file, sources).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Self { root })
    }

    /// Returns the options by which apt's programs use these sources and directories.
    fn options(&self) -> Vec<String> {
        let root = self.root.display();
        [
            format!("Dir::Etc::SourceList={root}/sources.list"),
            format!("Dir::Etc::SourceParts={root}/parts"),
            format!("Dir::State::Lists={root}/lists"),
            format!("Dir::Cache={root}"),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            // The directories are this user's own: apt need not, and could not, become another one.
            "APT::Sandbox::User=".to_owned(),
        ]
        .into_iter()
        .flat_map(|option| ["--option".to_owned(), option])
        .collect()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(self.options()).env("LC_ALL", "C");
        command
    }

    /// Downloads the package lists when those here are old or there are none.
    fn refresh(&self) -> Result<()> {
        let stamp = self.root.join("refreshed");
        let age = fs::metadata(&stamp).and_then(|meta| meta.modified());
        let known = age.is_ok();
        if age.is_ok_and(|time| time.elapsed().is_ok_and(|age| age < STALE)) {
            return Ok(());
        }
        say("reading the list of Debian's kernels");
        let refreshed = process::run(self.command("apt-get").args(["update", "--quiet=2"]));
        match refreshed {
            Ok(()) => fs::write(&stamp, []).context("cannot note the time of the package lists"),
            Err(error) if known => {
                say(format_args!("continuing with the present lists: {error:#}"));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns the address of the mirror of Debian: `CC_DEBIAN_MIRROR` if set, otherwise the one in
/// this host's sources.
fn mirror() -> Result<String> {
    const VARIABLE: &str = "CC_DEBIAN_MIRROR";
    if let Ok(mirror) = env::var(VARIABLE) {
        return Ok(mirror);
    }
    let targets = process::capture(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(ORIGIN) $(LABEL)\t$(REPO_URI)",
        "Created-By: Packages",
    ]))
    .unwrap_or_default();
    parse_mirror(&targets).map(str::to_owned).with_context(|| {
        format!(
            "apt's sources on this host name no mirror of Debian: set {VARIABLE} to the address \
             of one, or give a kernel of yours by --kernel and --modules"
        )
    })
}

/// Debian's main archive, not that of its security team, which lacks most suites.
fn parse_mirror(targets: &str) -> Option<&str> {
    targets.lines().find_map(|line| {
        let (origin, address) = line.split_once('\t')?;
        (origin == "Debian Debian").then_some(address.trim())
    })
}

/// Installs the programs by which kernels are unpacked and booted, where they are missing.
///
/// # Errors
///
/// Returns an error when one is missing and cannot be installed, and when this host's programs
/// cannot run on the emulated machine.
pub(super) fn install_tools() -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        bail!("the tested kernels are for x86-64, and so must this host's programs be");
    }
    if process::find_program(super::machine::QEMU).is_none() {
        install_qemu()?;
    }
    for (program, package, why) in [
        (
            "busybox",
            "busybox-static",
            "the tested kernels' own programs",
        ),
        ("ip", "iproute2", "the tests' networks"),
        ("xz", "xz-utils", "to unpack modules of kernels"),
    ] {
        if process::find_program(program).is_none() {
            apt::install(&[package], why)?;
        }
    }
    Ok(())
}

/// Installs qemu. Where other packages of qemu here are of the backports, only the one there fits.
fn install_qemu() -> Result<()> {
    const PACKAGE: &str = "qemu-system-x86";
    const WHY: &str = "to boot the kernels in emulation";
    let Err(error) = apt::install(&[PACKAGE], WHY) else {
        return Ok(());
    };
    let codename = fs::read_to_string("/etc/os-release").ok().and_then(|text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
        line.map(str::to_owned)
    });
    let Some(codename) = codename.filter(|name| SUITES.contains(&name.as_str())) else {
        return Err(error);
    };
    let suite = format!("{codename}-backports");
    say(format_args!("trying {suite}, as {error:#}"));
    let apt = Apt::configured(directory().join("apt-tools"), &[&codename, &suite])?;
    apt.refresh()?;
    let mut options = apt.options();
    options.extend(["--target-release".to_owned(), suite]);
    apt::install_with(&options, &[PACKAGE], WHY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_release_of_a_series_is_the_one_with_the_highest_numbers() {
        let releases = [
            "6.1.0-47-cloud-amd64",
            "6.1.0-50-cloud-amd64",
            "6.12.94+deb12-cloud-amd64",
            "6.12.107+deb13-cloud-amd64",
            "6.12.95+deb13-cloud-amd64",
            "cloud-amd64",
        ];
        let newest = newest(releases.into_iter());
        let expected = [
            (Series(6, 1), "6.1.0-50-cloud-amd64"),
            (Series(6, 12), "6.12.107+deb13-cloud-amd64"),
        ];
        let found = newest
            .iter()
            .map(|(series, release)| (*series, release.as_str()));
        assert!(found.eq(expected), "{newest:?}");
    }

    #[test]
    fn one_at_a_time_has_the_lock() {
        let directory = tempfile::tempdir().expect("a directory");
        let lock = locked(directory.path()).expect("the lock");
        let other = fs::File::open(directory.path().join("lock")).expect("its file");
        assert!(other.try_lock().is_err());
        drop(lock);
        assert!(other.try_lock().is_ok());
    }

    #[test]
    fn the_mirror_is_that_of_debian_itself() {
        let targets = "Docker Docker CE\thttp://example.org/docker\n\
                       Debian Debian-Security\thttp://example.org/security/\n\
                       Debian Debian\thttp://example.org/debian/\n";
        assert_eq!(parse_mirror(targets), Some("http://example.org/debian/"));
        assert_eq!(
            parse_mirror("Ubuntu Ubuntu\thttp://example.org/ubuntu/\n"),
            None
        );
    }

    #[test]
    fn a_given_kernel_needs_its_modules() {
        let error = Kernel::given(Path::new("/proc/version"), Path::new("/proc"))
            .expect_err("/proc has no modules");
        assert!(error.to_string().contains("--modules /proc"), "{error}");
        let error = Kernel::given(Path::new("/no/such"), Path::new("/proc"))
            .expect_err("there is no such file");
        assert!(error.to_string().contains("--kernel /no/such"), "{error}");
    }
}
