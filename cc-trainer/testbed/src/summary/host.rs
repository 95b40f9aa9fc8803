//! Probing of the host that an evaluation runs on.

use std::{fs, num::NonZero, thread};

use super::Host;

impl Host {
    /// Reads the facts about this host. Facts that cannot be read are left empty.
    pub fn probe() -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let meminfo = read("/proc/meminfo");
        Self {
            kernel: read("/proc/sys/kernel/osrelease"),
            cpu: field(&cpuinfo, "model name").to_owned(),
            cores: thread::available_parallelism()
                .map_or(0, NonZero::get)
                .try_into()
                .unwrap_or(u32::MAX),
            memory_bytes: parse_kib(field(&meminfo, "MemTotal")).unwrap_or(0),
            congestion_controls: read("/proc/sys/net/ipv4/tcp_available_congestion_control")
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// The value of the first line of the form `NAME : VALUE`; empty without such a line.
fn field<'a>(text: &'a str, name: &str) -> &'a str {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map_or("", |(_, value)| value.trim())
}

/// Parses `N kB` to bytes. The unit in /proc/meminfo is KiB.
fn parse_kib(value: &str) -> Option<u64> {
    let count: u64 = value.strip_suffix("kB")?.trim().parse().ok()?;
    count.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_are_read() {
        let text = "processor\t: 0\nmodel name\t: A CPU: fast\nmodel name\t: another\n";
        assert_eq!(field(text, "model name"), "A CPU: fast");
        assert_eq!(field(text, "flags"), "");
        assert_eq!(parse_kib("2048 kB"), Some(2 << 20));
        assert_eq!(parse_kib(""), None);
    }

    #[test]
    fn a_probe_knows_the_kernel_and_itself() {
        let host = Host::probe();
        assert!(!host.kernel.is_empty());
        assert!(host.cores > 0);
        assert_eq!(host.version, env!("CARGO_PKG_VERSION"));
    }
}
