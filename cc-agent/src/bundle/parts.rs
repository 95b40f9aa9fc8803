//! What a report is made of, as it is found on this host.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    process::Command,
};

use aya::{
    maps::{MapType, loaded_maps},
    programs::{loaded_links, loaded_programs},
};
use sha2::{Digest, Sha256};

use super::Part;
use crate::kernel::{self, host};
use cc_client::fetch;
use cc_core::status::Snapshot;

/// Settings of the kernel that bear on what a congestion control can do, below /proc/sys.
const SYSCTLS: [&str; 16] = [
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_available_congestion_control",
    "net/ipv4/tcp_allowed_congestion_control",
    "net/core/default_qdisc",
    "net/ipv4/tcp_ecn",
    "net/ipv4/tcp_slow_start_after_idle",
    "net/ipv4/tcp_no_metrics_save",
    "net/ipv4/tcp_notsent_lowat",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
    "net/ipv4/tcp_sack",
    "net/ipv4/tcp_timestamps",
    "net/ipv4/tcp_window_scaling",
    "net/core/bpf_jit_enable",
    "net/core/bpf_jit_harden",
    "kernel/unprivileged_bpf_disabled",
];

/// Files of an installation, whose hashes say which they are.
const FILES: [&str; 5] = [
    "/usr/bin/cc-agent",
    "/etc/cc-agent.toml",
    "/lib/systemd/system/cc-agent.service",
    "/etc/systemd/system/cc-agent.service",
    "/sys/kernel/btf/vmlinux",
];

/// Collects all parts, about this host and the agent of `name` at `socket`.
pub(super) fn collect(name: &str, socket: &Path, journal: u32) -> Vec<Part> {
    let status = fetch(socket).map_err(|error| error.to_string());
    let part = |name, what, text| Part { name, what, text };
    let of_status = |text: fn(&Snapshot) -> Result<String, String>| {
        let absent = |_| "as status.json is".to_owned();
        status.as_ref().map_err(absent).and_then(text)
    };
    vec![
        part("version.txt", "versions and builds", Ok(versions())),
        part(
            "host.txt",
            "the kernel, and `cc-agent check`",
            Ok(this_host()),
        ),
        part("sysctl.txt", "the kernel's settings", Ok(sysctls())),
        part("bpf.txt", "struct_ops, their links and programs", bpf(name)),
        part(
            "status.json",
            "the agent's state",
            status.as_ref().map_err(Clone::clone).and_then(json),
        ),
        part(
            "status.txt",
            "the same for people",
            of_status(|it| Ok(it.to_string())),
        ),
        part(
            "incidents.txt",
            "what has happened to it",
            of_status(incidents),
        ),
        part(
            "files.txt",
            "SHA-256 of files",
            Ok(files(status.as_ref().ok())),
        ),
        part(
            "journal.txt",
            "the journal's last lines",
            journal_lines(journal),
        ),
    ]
}

fn json(status: &Snapshot) -> Result<String, String> {
    serde_json::to_string_pretty(status).map_err(|error| error.to_string())
}

fn incidents(status: &Snapshot) -> Result<String, String> {
    let lines = status.incidents.iter().map(|it| format!("{it}\n"));
    Ok(lines.collect())
}

fn versions() -> String {
    format!(
        "cc-agent {} for {}, {}\nBPF object {}\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        if cfg!(debug_assertions) {
            "a debug build"
        } else {
            "a release build"
        },
        kernel::object_sha256().unwrap_or_else(|| "absent from this build".into()),
    )
}

fn this_host() -> String {
    let read = |path: &str| match fs::read_to_string(path) {
        Ok(text) => text.trim().to_owned(),
        Err(error) => format!("{path}: {error}"),
    };
    let distribution = read("/etc/os-release");
    let pretty = distribution
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    format!(
        "Linux {} {}\n{}\n{} processors\n\n{}\n",
        read("/proc/sys/kernel/osrelease"),
        read("/proc/sys/kernel/version"),
        pretty
            .unwrap_or("an unknown distribution")
            .trim_matches('"'),
        std::thread::available_parallelism().map_or(0, usize::from),
        host::check(),
    )
}

fn sysctls() -> String {
    let line = |name: &&str| {
        let value = match fs::read_to_string(Path::new("/proc/sys").join(name)) {
            Ok(value) => value.trim().replace('\t', " "),
            Err(error) => format!("({error})"),
        };
        format!("{} = {value}\n", name.replace('/', "."))
    };
    SYSCTLS.iter().map(line).collect()
}

/// The kernel's struct_ops maps, its links, and the programs of this project, which the verifier
/// has accepted.
fn bpf(name: &str) -> Result<String, String> {
    let registered = match kernel::datapath::registered(name) {
        true => "is registered",
        false => "is not registered",
    };
    let mut lines = vec![format!("{name} {registered} in this network namespace")];
    let failed = |error: &dyn std::error::Error| cc_core::error_chain(error);
    for map in loaded_maps() {
        let map = map.map_err(|error| failed(&error))?;
        let name = map.name_as_str().unwrap_or_default();
        if map.map_type().is_ok_and(|kind| kind == MapType::StructOps) || name.starts_with("CC_") {
            let kind = map
                .map_type()
                .map_or_else(|error| error.to_string(), |kind| format!("{kind:?}"));
            lines.push(format!("map {} {kind} {name}", map.id()));
        }
    }
    for program in loaded_programs() {
        let program = program.map_err(|error| failed(&error))?;
        let name = program.name_as_str().unwrap_or_default();
        if name.starts_with("cc_") {
            let verified = program.verified_instruction_count().unwrap_or(0);
            let id = program.id();
            lines.push(format!(
                "program {id} {name}: {verified} instructions verified"
            ));
        }
    }
    for link in loaded_links() {
        let link = link.map_err(|error| failed(&error))?;
        let kind = link
            .link_type()
            .map_or_else(|error| error.to_string(), |kind| format!("{kind:?}"));
        lines.push(format!(
            "link {} {kind}, program {}",
            link.id(),
            link.program_id()
        ));
    }
    lines.push(String::new());
    Ok(lines.join("\n"))
}

/// The hashes of the files of an installation, of this program, and of the one that runs.
fn files(status: Option<&Snapshot>) -> String {
    let this = PathBuf::from("/proc/self/exe");
    let running = status.map(|status| PathBuf::from(format!("/proc/{}/exe", status.pid)));
    let line = |path: PathBuf| {
        let target = fs::read_link(&path).unwrap_or_else(|_| path.clone());
        let hash = sha256(&path).unwrap_or_else(|error| format!("({error})"));
        let running = match Some(&path) == running.as_ref() {
            true => " (runs)",
            false => "",
        };
        format!("{hash}  {}{running}\n", target.display())
    };
    let files = FILES.iter().map(PathBuf::from);
    let mut lines: String = [this]
        .into_iter()
        .chain(running.clone())
        .chain(files)
        .map(line)
        .collect();
    if let Some(status) = status {
        let hash = status.policy_sha256.as_deref().unwrap_or("(no file)");
        lines.push_str(&format!("{hash}  policy {}\n", status.policy));
    }
    lines
}

fn sha256(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut file = File::open(path)?;
    let mut chunk = vec![0; 1 << 16];
    loop {
        let length = file.read(&mut chunk)?;
        if length == 0 {
            break;
        }
        hash.update(&chunk[..length]);
    }
    Ok(format!("{:x}", hash.finalize()))
}

/// The newest lines that the agent's services have written, without the host's name.
fn journal_lines(most: u32) -> Result<String, String> {
    let output = Command::new("journalctl")
        .args([
            "--no-pager",
            "--quiet",
            "--no-hostname",
            "--output=short-iso",
        ])
        .args(["--identifier=cc-agent", "--lines"])
        .arg(most.to_string())
        .output()
        .map_err(|error| format!("journalctl: {error}"))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!("journalctl: {}", error.trim()));
    }
    match output.stdout.is_empty() {
        true => Err("the journal has no line of cc-agent".into()),
        false => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
    }
}
