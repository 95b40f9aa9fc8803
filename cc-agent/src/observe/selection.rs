//! Which flows are observed, as it is written on the command line.

use std::{fmt, path::PathBuf, str::FromStr};

use bytemuck::Zeroable;
use cc_ebpf::Selection;
use clap::Args;

use crate::{kernel, network::Network};

/// Options that select flows. A flow must fit an entry of each list that is given.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct SelectionOptions {
    /// Flows under these congestion controls only, for example `cubic,bbr`.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub congestion_control: Vec<CongestionControl>,

    /// Flows with these local or remote ports only.
    #[arg(long, value_name = "PORTS", value_delimiter = ',')]
    pub port: Vec<u16>,

    /// Flows from these local networks only, for example `10.0.0.0/8,2001:db8::/32`.
    #[arg(long, value_name = "NETWORKS", value_delimiter = ',')]
    pub local: Vec<Network>,

    /// Flows to these remote networks only.
    #[arg(long, value_name = "NETWORKS", value_delimiter = ',')]
    pub remote: Vec<Network>,

    /// Flows of sockets in these cgroup v2 directories, or below them, only.
    #[arg(long, value_name = "PATHS", value_delimiter = ',')]
    pub cgroup: Vec<PathBuf>,
}

/// Why flows cannot be selected so.
#[derive(Debug, thiserror::Error)]
pub enum SelectionError {
    /// A list is too long.
    #[error(
        "{option}: {found} entries are too many, at most {} can be told apart",
        Selection::MOST
    )]
    TooMany {
        /// Name of the option that was given too often.
        option: &'static str,
        /// Number of times that it was given.
        found: usize,
    },
    /// A cgroup cannot be used.
    #[error("--cgroup: {0}")]
    Cgroup(#[source] kernel::Error),
}

impl SelectionOptions {
    /// As the kernel side has it.
    ///
    /// # Errors
    ///
    /// A list is too long, or a cgroup is none.
    pub fn resolve(&self) -> Result<Selection, SelectionError> {
        let mut selection = Selection::zeroed();
        let Selection {
            congestion_controls_len,
            ports_len,
            local_len,
            remote_len,
            cgroups_len,
            congestion_controls,
            local,
            remote,
            cgroups,
            ports,
            ..
        } = &mut selection;
        let names = self.congestion_control.iter().map(|name| name.0);
        *congestion_controls_len = fill("--congestion-control", congestion_controls, names)?;
        *ports_len = fill("--port", ports, self.port.iter().copied())?;
        let networks = |list: &[Network]| list.iter().map(Network::prefix).collect::<Vec<_>>();
        *local_len = fill("--local", local, networks(&self.local).into_iter())?;
        *remote_len = fill("--remote", remote, networks(&self.remote).into_iter())?;
        let ids = self.cgroup.iter().map(|path| kernel::cgroup_id(path));
        let ids: Vec<u64> = ids
            .collect::<Result<_, _>>()
            .map_err(SelectionError::Cgroup)?;
        *cgroups_len = fill("--cgroup", cgroups, ids.into_iter())?;
        Ok(selection)
    }
}

fn fill<T>(
    option: &'static str,
    list: &mut [T],
    entries: impl ExactSizeIterator<Item = T>,
) -> Result<u32, SelectionError> {
    let found = entries.len();
    if found > list.len() {
        return Err(SelectionError::TooMany { option, found });
    }
    for (place, entry) in list.iter_mut().zip(entries) {
        *place = entry;
    }
    Ok(found as u32)
}

/// Name of a congestion control, as a list of the kernel's side has it. One that is not registered
/// may be, later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionControl([u32; 4]);

impl fmt::Display for CongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = String::from_utf8_lossy(bytemuck::bytes_of(&self.0));
        f.write_str(name.trim_end_matches('\0'))
    }
}

impl FromStr for CongestionControl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // TCP_CA_NAME_MAX (include/net/tcp.h) has room for a NUL.
        if !(1..16).contains(&text.len()) {
            return Err(format!(
                "`{text}`: names of congestion controls have 1 to 15 characters; \
                 net.ipv4.tcp_available_congestion_control lists them"
            ));
        }
        let mut name = [0; 16];
        name[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self(bytemuck::cast(name)))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use cc_ebpf::Identity;
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        selection: SelectionOptions,
    }

    fn parse(arguments: &[&str]) -> Result<SelectionOptions, String> {
        let line = Line::try_parse_from(["observe"].iter().chain(arguments));
        line.map(|line| line.selection)
            .map_err(|error| error.to_string())
    }

    fn takes(arguments: &[&str], flow: &Identity) -> bool {
        let options = parse(arguments).expect("a valid line");
        options.resolve().expect("a valid selection").takes(flow)
    }

    fn flow(congestion_control: &str, local: &str, remote: &str) -> Identity {
        let words = |address: SocketAddr| match address.ip() {
            IpAddr::V4(ip) => [u32::from_ne_bytes(ip.octets()), 0, 0, 0],
            IpAddr::V6(ip) => bytemuck::cast(ip.octets()),
        };
        let local: SocketAddr = local.parse().expect("an address");
        let remote: SocketAddr = remote.parse().expect("an address");
        Identity {
            family: if local.is_ipv4() { 2 } else { 10 },
            local_port: local.port(),
            remote_port: remote.port(),
            local_addr: words(local),
            remote_addr: words(remote),
            congestion_control: congestion_control
                .parse::<CongestionControl>()
                .expect("a name")
                .0,
            ..Identity::default()
        }
    }

    #[test]
    fn lists_are_what_they_say() {
        let cubic = flow("cubic", "10.1.2.3:40000", "192.0.2.7:443");
        let bbr = flow("bbr", "[fd00::1]:40000", "[2001:db8::7]:80");
        for (arguments, takes_cubic, takes_bbr) in [
            (&[] as &[&str], true, true),
            (&["--congestion-control", "cubic,bbr"], true, true),
            (
                &["--congestion-control", "bbr", "--port", "80,443"],
                false,
                true,
            ),
            (&["--port", "443"], true, false),
            (&["--port", "40000"], true, true),
            (&["--remote", "192.0.2.0/24"], true, false),
            (&["--remote", "192.0.2.7,2001:db8::7"], true, true),
            (&["--remote", "0.0.0.0/0"], true, false),
            (&["--remote", "::/0"], true, true),
            (
                &["--local", "10.0.0.0/8", "--remote", "2001:db8::/32"],
                false,
                false,
            ),
            (
                &["--local", "fd00::/8", "--remote", "2001:db8::/32"],
                false,
                true,
            ),
        ] {
            assert_eq!(takes(arguments, &cubic), takes_cubic, "{arguments:?}");
            assert_eq!(takes(arguments, &bbr), takes_bbr, "{arguments:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (arguments, expected) in [
            (["--remote", "10.0.0.1/8"], "bits beyond the length of 8"),
            (["--remote", "10.0.0.0/33"], "at most 32"),
            (["--remote", "::/129"], "at most 128"),
            (
                ["--remote", "example.org"],
                "`example.org`: expected an address",
            ),
            (["--local", "10.0.0.0/x"], "`10.0.0.0/x`: expected"),
            (
                ["--congestion-control", "a_name_of_sixteen"],
                "1 to 15 characters",
            ),
            (["--port", "70000"], "70000"),
        ] {
            let error = parse(&arguments).expect_err(expected);
            assert!(error.contains(expected), "{arguments:?}: {error}");
        }
        for (arguments, expected) in [
            (
                ["--port", "1,2,3,4,5,6,7,8,9"],
                "--port: 9 entries are too many, at most 8",
            ),
            (
                ["--cgroup", "/proc"],
                "/proc: it is no directory of a cgroup v2",
            ),
        ] {
            let options = parse(&arguments).expect("a valid line");
            let error = options.resolve().expect_err(expected).to_string();
            assert!(error.contains(expected), "{arguments:?}: {error}");
        }
    }
}
