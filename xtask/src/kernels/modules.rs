//! The kernel's modules that the tests need, in the order in which they are to be loaded.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// The modules that are loaded beside every congestion control, each where the kernel has it: one
/// that is built in, or that the kernel lacks, is passed over. The tests say what they miss.
const WANTED: [&str; 22] = [
    // Devices.
    "veth",
    "tun",
    "dummy",
    "ifb",
    // Links: delay, rate and loss.
    "sch_netem",
    "sch_tbf",
    "sch_htb",
    "sch_ingress",
    "act_mirred",
    "cls_u32",
    // Queues, and how they are managed.
    "sch_prio",
    "sch_fq",
    "sch_sfq",
    "sch_red",
    "sch_codel",
    "sch_fq_codel",
    "sch_pie",
    "sch_fq_pie",
    "sch_cake",
    "sch_dualpi2",
    // What ss asks.
    "inet_diag",
    "tcp_diag",
];

/// Where congestion controls are, below a directory of modules.
const CONGESTION_CONTROLS: &str = "kernel/net/ipv4";

/// A module's name and the bytes of its file.
pub(super) type Module = (String, Vec<u8>);

/// Returns the wanted modules and congestion controls below `root`, and before each one those that
/// it needs.
///
/// # Errors
///
/// Returns an error when a module cannot be read or unpacked.
pub(super) fn load_order(root: &Path) -> Result<Vec<Module>> {
    let files = files(&root.join("kernel"))?;
    let controls = files.iter().filter_map(|(name, path)| {
        let here = path.parent() == Some(&root.join(CONGESTION_CONTROLS));
        (here && name.starts_with("tcp_")).then_some(name.as_str())
    });
    let mut order = Order {
        files: &files,
        placed: BTreeSet::new(),
        modules: Vec::new(),
    };
    for name in WANTED.into_iter().chain(controls) {
        order.place(name)?;
    }
    Ok(order.modules)
}

/// Modules are put into their order here.
struct Order<'a> {
    files: &'a BTreeMap<String, PathBuf>,
    placed: BTreeSet<String>,
    modules: Vec<Module>,
}

impl Order<'_> {
    fn place(&mut self, name: &str) -> Result<()> {
        let Some(path) = self.files.get(name) else {
            return Ok(());
        };
        if !self.placed.insert(name.to_owned()) {
            return Ok(());
        }
        let content = read(path)?;
        for needed in needs(&content) {
            self.place(&needed)?;
        }
        self.modules.push((name.to_owned(), content));
        Ok(())
    }
}

/// Returns the files of all modules by their names, with `_` where a file's name has `-`.
fn files(directory: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = fs::read_dir(&directory)
            .with_context(|| format!("cannot list {}", directory.display()))?;
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                directories.push(path);
            } else if let Some((name, _)) = entry.file_name().to_string_lossy().split_once(".ko") {
                found.insert(name.replace('-', "_"), path);
            }
        }
    }
    Ok(found)
}

/// Reads a module, unpacked.
fn read(path: &Path) -> Result<Vec<u8>> {
    let unpacker = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(path).with_context(|| format!("cannot read {}", path.display())),
    };
    let output = Command::new(unpacker)
        .args(["--decompress", "--stdout"])
        .arg(path)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {unpacker} to unpack {}", path.display()))?;
    if !output.status.success() {
        bail!("{unpacker} cannot unpack {}", path.display());
    }
    Ok(output.stdout)
}

/// Returns the names of the modules that a module needs: the line `depends=A,B` of its
/// information, which is among its strings (scripts/mod/modpost.c).
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = module.windows(KEY.len()).position(|bytes| bytes == KEY) else {
        return Vec::new();
    };
    let rest = &module[start + KEY.len()..];
    let end = rest.iter().position(|&byte| byte == 0).unwrap_or(0);
    String::from_utf8_lossy(&rest[..end])
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_module_needs_comes_before_it() {
        let root = std::env::temp_dir().join(format!("xtask-modules-{}", std::process::id()));
        let write = |path: &str, depends: &str| {
            let path = root.join("kernel").join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("temporary directory");
            let text = format!("\x7fELF\0license=GPL\0depends={depends}\0name=x\0");
            fs::write(path, text).expect("temporary file");
        };
        write("net/sched/sch_fq_pie.ko", "sch-pie");
        write("net/sched/sch_pie.ko", "");
        write("net/ipv4/tcp_vegas.ko", "");
        write("net/ipv4/ip_gre.ko", "gre");
        write("net/tcp_other.ko", "");
        let modules = load_order(&root).expect("three modules are wanted");
        let names: Vec<&str> = modules.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["sch_pie", "sch_fq_pie", "tcp_vegas"]);
        fs::remove_dir_all(&root).expect("clean up");
    }

    #[test]
    fn a_module_may_need_nothing() {
        assert!(needs(b"\0depends=\0").is_empty());
        assert!(needs(b"no information at all").is_empty());
        assert_eq!(needs(b"x\0depends=a,b-c\0y"), ["a", "b_c"]);
    }
}
