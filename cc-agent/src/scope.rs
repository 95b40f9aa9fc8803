//! Which sockets an agent serves: as options have it, and checked against each other.
//!
//! A socket comes under the congestion control by its own choice, by a route, by its cgroup or as
//! the host's default. Lists of networks and devices say which connections are then left to another
//! one all the same.

use std::{
    fmt::{self, Display, Write},
    marker::PhantomData,
    path::PathBuf,
    str::FromStr,
};

use cc_ebpf::Verdict;
use clap::Args;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, SeqAccess, Visitor},
};

use crate::{
    device::Device,
    kernel,
    network::Network,
    settings_error::{SettingsError, out_of_range},
};

/// Options that select sockets and connections.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ScopeOptions {
    /// Use the congestion control for all sockets of these cgroup v2 directories, and of those
    /// below them.
    #[arg(long, value_name = "PATHS", value_delimiter = ',')]
    #[serde(deserialize_with = "list")]
    pub cgroup: Option<Vec<PathBuf>>,

    /// Let commands (`cc-agent cgroup`, `cc-agent pods`) name cgroups that are served as those of
    /// --cgroup are, while the agent runs.
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub cgroups_by_command: Option<bool>,

    /// Make it the host's default congestion control, and restore the former default on exit.
    /// Connections over loopback and to link-local addresses keep the former default.
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub default: Option<bool>,

    /// With --default: serve connections over loopback and to link-local addresses too.
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub default_local: Option<bool>,

    /// Serve only connections to these networks, for example `10.0.0.0/8,2001:db8::/32`. Where
    /// networks lie within each other, the smallest that has an address decides, of this list and
    /// of --never-to.
    #[arg(long, value_name = "NETWORKS", value_delimiter = ',')]
    #[serde(deserialize_with = "list")]
    pub only_to: Option<Vec<Network>>,

    /// Leave connections to these networks to the host's other congestion control, also those of
    /// sockets that have chosen this one.
    #[arg(long, value_name = "NETWORKS", value_delimiter = ',')]
    #[serde(deserialize_with = "list")]
    pub never_to: Option<Vec<Network>>,

    /// Serve only connections that are routed over these network devices, for example `eth0`.
    #[arg(long, value_name = "DEVICES", value_delimiter = ',')]
    #[serde(deserialize_with = "list")]
    pub only_via: Option<Vec<Device>>,

    /// Leave connections that are routed over these network devices to the host's other congestion
    /// control.
    #[arg(long, value_name = "DEVICES", value_delimiter = ',')]
    #[serde(deserialize_with = "list")]
    pub never_via: Option<Vec<Device>>,

    /// Let only processes with CAP_NET_ADMIN choose the congestion control for a socket; others get
    /// EPERM.
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub restricted: Option<bool>,
}

/// Which sockets an agent serves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Served {
    /// Directories of cgroup v2 whose sockets it serves.
    pub cgroups: Vec<PathBuf>,
    /// Whether commands may name further ones.
    pub cgroups_by_command: bool,
    /// Whether it is the host's default.
    pub default: bool,
    /// Which connections it leaves to another congestion control, whose name is still to be filled
    /// in.
    pub scope: kernel::Scope,
    /// Whether only privileged processes may choose it.
    pub restricted: bool,
    /// All of this in a line, for people.
    pub text: String,
}

/// Loopback and link-local networks (RFC 1122, 3927 and 4291).
const LOCAL: [&str; 4] = ["127.0.0.0/8", "::1", "169.254.0.0/16", "fe80::/10"];

impl ScopeOptions {
    /// Checks the options against each other.
    ///
    /// # Errors
    ///
    /// Returns the first option that contradicts another one, and how to mend that.
    pub fn resolve(&self) -> Result<Served, SettingsError> {
        let default = self.default.unwrap_or(false);
        let default_local = self.default_local.unwrap_or(false);
        let restricted = self.restricted.unwrap_or(false);
        if default_local && !default {
            return Err(out_of_range("--default-local", true, "also --default"));
        }
        if restricted && default {
            // `tcp_set_default_congestion_control`, net/ipv4/tcp_cong.c.
            let expected = "no --default: the kernel lets every process choose the host's default";
            return Err(out_of_range("--restricted", true, expected));
        }
        let leaves_local = default && !default_local;
        let mut scope = kernel::Scope::default();
        self.networks(leaves_local, &mut scope)?;
        self.devices(leaves_local, &mut scope)?;
        Ok(Served {
            cgroups: self.cgroup.clone().unwrap_or_default(),
            cgroups_by_command: self.cgroups_by_command.unwrap_or(false),
            default,
            scope,
            restricted,
            text: self.text(leaves_local),
        })
    }

    /// Adds the verdicts on networks to the scope.
    fn networks(&self, leaves_local: bool, scope: &mut kernel::Scope) -> Result<(), SettingsError> {
        let (only, never) = (entries(&self.only_to), entries(&self.never_to));
        distinct("--never-to", never, "--only-to", only)?;
        let local = || LOCAL.map(|text| text.parse().expect("it is a network"));
        if leaves_local
            && let Some(asked) =
                (only.iter()).find(|n| local().iter().any(|l: &Network| l.includes(n)))
        {
            return Err(local_too("--only-to", asked));
        }
        if only.is_empty() && never.is_empty() && !leaves_local {
            return Ok(());
        }
        let others = others(only);
        // Two, as what is said about IPv6 is not to hold for the addresses of IPv4 within it.
        for all in [Network::IPV6, Network::IPV4] {
            if !only.contains(&all) && !never.contains(&all) {
                scope.networks.push((all, others));
            }
        }
        let listed = (only.iter().map(|&n| (n, Verdict::Serve)))
            .chain(never.iter().map(|&n| (n, Verdict::Leave)));
        for (network, verdict) in listed {
            if !scope.networks.contains(&(network, verdict)) {
                scope.networks.push((network, verdict));
            }
        }
        if leaves_local {
            for network in local() {
                let around = (scope.networks.iter())
                    .filter(|(listed, _)| listed.includes(&network))
                    .max_by_key(|(listed, _)| listed.length());
                match around {
                    // It was listed itself.
                    Some((listed, _)) if *listed == network => {}
                    around => {
                        let verdict = around.map_or(others, |&(_, verdict)| verdict);
                        let verdict = verdict.max(Verdict::ServeChosen);
                        scope.networks.push((network, verdict));
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds the verdicts on devices to the scope.
    fn devices(&self, leaves_local: bool, scope: &mut kernel::Scope) -> Result<(), SettingsError> {
        let (only, never) = (entries(&self.only_via), entries(&self.never_via));
        distinct("--never-via", never, "--only-via", only)?;
        if leaves_local && only.contains(&Device::LOOPBACK) {
            return Err(local_too("--only-via", &Device::LOOPBACK));
        }
        scope.other_devices = others(only);
        let listed = (only.iter().map(|&d| (d, Verdict::Serve)))
            .chain(never.iter().map(|&d| (d, Verdict::Leave)));
        scope.devices = listed.collect();
        if leaves_local && !never.contains(&Device::LOOPBACK) {
            let verdict = scope.other_devices.max(Verdict::ServeChosen);
            scope.devices.push((Device::LOOPBACK, verdict));
        }
        Ok(())
    }

    /// What is served, in a line.
    fn text(&self, leaves_local: bool) -> String {
        let mut text = String::from(match self.restricted {
            Some(true) => "sockets that a privileged process or a route chooses it for",
            _ => "sockets that choose it",
        });
        let cgroups = entries(&self.cgroup);
        let cgroups: Vec<_> = cgroups.iter().map(|path| path.display()).collect();
        append(&mut text, ", those of the cgroups ", &cgroups);
        if self.cgroups_by_command == Some(true) {
            text.push_str(", those of cgroups that commands name");
        }
        if self.default == Some(true) {
            text.push_str(", and those that choose none");
        }
        if leaves_local {
            text.push_str(", but for these not over loopback or to link-local addresses");
        }
        append(&mut text, "; only to ", entries(&self.only_to));
        append(&mut text, "; never to ", entries(&self.never_to));
        append(&mut text, "; only via ", entries(&self.only_via));
        append(&mut text, "; never via ", entries(&self.never_via));
        text
    }
}

/// The entries of a list that may not be given.
fn entries<T>(list: &Option<Vec<T>>) -> &[T] {
    list.as_deref().unwrap_or_default()
}

/// The verdict on what is not listed, by the list of what alone is served.
fn others<T>(only: &[T]) -> Verdict {
    match only {
        [] => Verdict::Serve,
        _ => Verdict::Leave,
    }
}

/// Refuses an entry that both lists have.
fn distinct<T: PartialEq + Display>(
    option: &'static str,
    list: &[T],
    other: &str,
    others: &[T],
) -> Result<(), SettingsError> {
    match list.iter().find(|entry| others.contains(entry)) {
        None => Ok(()),
        Some(both) => {
            let expected = format!("nothing that {other} lists too: leave it out of one of them");
            Err(out_of_range(option, both, expected))
        }
    }
}

/// The refusal to serve what --default leaves out.
fn local_too(option: &'static str, asked: &impl Display) -> SettingsError {
    let expected =
        "also --default-local, as --default leaves loopback and link-local addresses out";
    out_of_range(option, asked, expected)
}

/// Appends a list to a text, unless it is empty.
fn append<T: Display>(text: &mut String, head: &str, list: &[T]) {
    for (index, entry) in list.iter().enumerate() {
        let head = if index == 0 { head } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(text, "{head}{entry}");
    }
}

/// Deserializes a list that the file writes as the command line does, or as an array of texts.
fn list<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: Display,
{
    deserializer.deserialize_any(Texts(PhantomData)).map(Some)
}

/// Reads a text, or an array of texts.
struct Texts<T>(PhantomData<T>);

impl<'de, T> Visitor<'de> for Texts<T>
where
    T: FromStr,
    T::Err: Display,
{
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text with commas between the entries, or an array of texts")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<T>, E> {
        text.split(',')
            .map(|entry| entry.trim().parse().map_err(E::custom))
            .collect()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<T>, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = sequence.next_element::<String>()? {
            entries.push(entry.parse().map_err(A::Error::custom)?);
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn options(toml: &str) -> Result<ScopeOptions, String> {
        toml::from_str(toml).map_err(|error| error.to_string())
    }

    fn served(toml: &str) -> Served {
        let options = options(toml).expect("valid");
        options.resolve().expect("no contradiction")
    }

    /// The verdict on an address: the longest network decides, as the kernel's trie has it.
    fn verdict(served: &Served, address: &str) -> Verdict {
        let address: IpAddr = address.parse().expect("an address");
        let networks = served.scope.networks.iter();
        networks
            .filter(|(network, _)| network.contains(address))
            .max_by_key(|(network, _)| network.length())
            .map_or(Verdict::Serve, |&(_, verdict)| verdict)
    }

    #[test]
    fn without_lists_nothing_is_left() {
        let plain = served("");
        assert_eq!(plain.scope, kernel::Scope::default());
        assert_eq!(plain.text, "sockets that choose it");
        assert!(
            !served("default = true\ndefault_local = true")
                .scope
                .leaves()
        );
        assert!(!served("cgroup = ['/a', '/b']").scope.leaves());
    }

    #[test]
    fn the_smallest_network_decides() {
        use Verdict::{Leave, Serve, ServeChosen};
        let only = "only_to = '10.0.0.0/8, 2001:db8::/32'\nnever_to = ['10.9.0.0/16']";
        let never = "never_to = '10.0.0.0/8,fe80::/10'\nonly_to = '10.9.0.0/16'";
        for (toml, address, expected) in [
            (only, "10.1.2.3", Serve),
            (only, "10.9.2.3", Leave),
            (only, "11.1.2.3", Leave),
            (only, "2001:db8::1", Serve),
            (only, "2001:db9::1", Leave),
            (only, "127.0.0.1", Leave),
            (never, "10.9.2.3", Serve),
            (never, "10.1.2.3", Leave),
            ("never_to = '10.0.0.0/8'", "11.1.2.3", Serve),
            ("never_to = '10.0.0.0/8'", "fd00::1", Serve),
            ("never_to = '10.0.0.0/8'", "::1", Serve),
            // What is said about IPv6 does not hold for the addresses of IPv4 within it.
            ("never_to = '::/0'", "10.1.2.3", Serve),
            ("never_to = '::/0'", "2001:db8::1", Leave),
            ("only_to = '::/0'", "10.1.2.3", Leave),
            ("only_to = '0.0.0.0/0'", "10.1.2.3", Serve),
            ("only_to = '0.0.0.0/0'", "2001:db8::1", Leave),
            ("default = true", "10.1.2.3", Serve),
            ("default = true", "127.0.0.1", ServeChosen),
            ("default = true", "::1", ServeChosen),
            ("default = true", "::2", Serve),
            ("default = true", "169.254.7.7", ServeChosen),
            ("default = true", "fe80::1", ServeChosen),
            ("default = true\nonly_to = '10.0.0.0/8'", "127.0.0.1", Leave),
            (
                "default = true\nonly_to = '0.0.0.0/0'",
                "127.0.0.1",
                ServeChosen,
            ),
            (
                "default = true\nnever_to = '127.0.0.0/8'",
                "127.0.0.1",
                Leave,
            ),
            (
                "default = true\nnever_to = '127.0.0.0/8'",
                "::1",
                ServeChosen,
            ),
            ("default = true\nnever_to = '::/0'", "fe80::1", Leave),
            (
                "default = true\nnever_to = '::/0'",
                "169.254.7.7",
                ServeChosen,
            ),
            ("default = true\nnever_to = '127.0.0.9'", "127.0.0.9", Leave),
            (
                "default = true\nnever_to = '127.0.0.9'",
                "127.0.0.1",
                ServeChosen,
            ),
            ("default = true\ndefault_local = true", "127.0.0.1", Serve),
        ] {
            assert_eq!(
                verdict(&served(toml), address),
                expected,
                "{toml} {address}"
            );
        }
    }

    #[test]
    fn devices_are_listed_by_their_names() {
        let device = |name: &str| name.parse::<Device>().expect("a name");
        let only = served("only_via = 'eth0,wg0'").scope;
        assert_eq!(only.other_devices, Verdict::Leave);
        let expected = [
            (device("eth0"), Verdict::Serve),
            (device("wg0"), Verdict::Serve),
        ];
        assert_eq!(only.devices, expected);

        let never = served("default = true\nnever_via = ['docker0']").scope;
        assert_eq!(never.other_devices, Verdict::Serve);
        let expected = [
            (device("docker0"), Verdict::Leave),
            (device("lo"), Verdict::ServeChosen),
        ];
        assert_eq!(never.devices, expected);
        let never = served("default = true\nnever_via = 'lo'").scope;
        assert_eq!(never.devices, [(device("lo"), Verdict::Leave)]);
        let both = served("default = true\nonly_via = 'eth0'").scope;
        assert_eq!(both.devices[1], (device("lo"), Verdict::Leave));
    }

    #[test]
    fn what_is_served_is_said_in_a_line() {
        assert_eq!(
            served("cgroup = ['/a', '/b']\nrestricted = true\nonly_via = 'eth0'").text,
            "sockets that a privileged process or a route chooses it for, those of the cgroups \
             /a, /b; only via eth0"
        );
        assert_eq!(
            served("cgroups_by_command = true\nnever_to = '::1'").text,
            "sockets that choose it, those of cgroups that commands name; never to ::1/128"
        );
        assert_eq!(
            served("default = true\nnever_to = '10.0.0.0/8,::1'\nnever_via = 'wg0'").text,
            "sockets that choose it, and those that choose none, but for these not over loopback \
             or to link-local addresses; never to 10.0.0.0/8, ::1/128; never via wg0"
        );
    }

    #[test]
    fn contradictions_are_refused_with_a_remedy() {
        for (toml, expected) in [
            (
                "only_to = '10.0.0.0/8'\nnever_to = '10.0.0.0/8'",
                "--never-to 10.0.0.0/8: expected nothing that --only-to lists too",
            ),
            (
                "only_via = 'eth0'\nnever_via = 'eth1,eth0'",
                "--never-via eth0: expected nothing that --only-via lists too",
            ),
            (
                "default = true\nonly_to = '127.0.0.0/16'",
                "--only-to 127.0.0.0/16: expected also --default-local",
            ),
            (
                "default = true\nonly_via = 'lo'",
                "--only-via lo: expected also --default-local",
            ),
            (
                "default_local = true",
                "--default-local true: expected also --default",
            ),
            (
                "default = true\nrestricted = true",
                "--restricted true: expected no --default",
            ),
        ] {
            let options = options(toml).expect("each is valid");
            let error = options.resolve().expect_err(toml).to_string();
            assert!(error.contains(expected), "{error}");
        }
        for (toml, parts) in [
            (
                "only_to = '10.0.0.1/8'",
                ["line 1", "`10.0.0.1/8`: the address has bits"],
            ),
            (
                "slots = 1\nnever_to = ['::/0', 'x']",
                ["line 2", "`x`: expected an address"],
            ),
            (
                "never_to = 7",
                ["line 1", "a text with commas between the entries"],
            ),
            (
                "only_via = 'a/b'",
                ["line 1", "the name of a network device"],
            ),
        ] {
            let error = options(toml).expect_err(toml);
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
