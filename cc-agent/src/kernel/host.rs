//! Whether this host can run the agent: `cc-agent check`.

mod facts;

pub use facts::{Facts, KernelTypes};

use std::{fmt, io};

use serde::Serialize;

use super::{btf, observer::Way, privileges::Capabilities};

/// The oldest kernel whose TCP the datapath knows.
const OLDEST_KERNEL: (u32, u32) = (6, 1);

/// What the host has of what the agent needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    supported: bool,
    /// Each need, in the order in which they are best met.
    pub needs: Vec<Need>,
}

/// Something that the agent needs of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Need {
    /// The need, in a few words for people.
    pub name: String,
    /// Whether it is there; `None` where that could not be told.
    pub ok: Option<bool>,
    /// The agent runs without it, if not at its best.
    pub optional: bool,
    /// The finding on this host, or the reason why there is none.
    pub found: String,
    /// What to do where it is not there.
    pub remedy: String,
}

/// Looks at this host. Nothing is changed, and nothing is left behind.
pub fn check() -> Report {
    judge(&Facts::gather())
}

/// Whether a host with these facts can run the agent.
pub fn judge(facts: &Facts) -> Report {
    let needs = vec![
        kernel_version(facts),
        kernel_types(facts),
        struct_ops(facts),
        struct_ops_links(facts),
        members(facts),
        object(facts),
        privileges(facts),
        default_privilege(facts),
        adopting_privilege(facts),
        bpf(facts),
        jit(facts),
        name(facts),
        cgroups(facts),
        pacing(facts),
        observing(facts),
    ];
    Report {
        supported: needs
            .iter()
            .all(|need| need.optional || need.ok != Some(false)),
        needs,
    }
}

impl Report {
    /// Whether nothing is known to be missing that the agent cannot do without.
    pub fn supported(&self) -> bool {
        self.supported
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self
            .needs
            .iter()
            .map(|need| need.name.len())
            .max()
            .unwrap_or(0);
        for need in &self.needs {
            let mark = match need.ok {
                Some(true) => "yes",
                Some(false) => "no",
                None => "-",
            };
            let optional = match (need.ok, need.optional) {
                (Some(true), _) | (_, false) => "",
                _ => " (optional)",
            };
            writeln!(
                f,
                "{mark:3}  {:width$}  {}{optional}",
                need.name, need.found
            )?;
            if need.ok == Some(false) {
                writeln!(f, "     {:width$}  remedy: {}", "", need.remedy)?;
            }
        }
        let missing = self
            .needs
            .iter()
            .filter(|need| !need.optional && need.ok == Some(false));
        match missing.count() {
            0 => write!(f, "\nThis host supports cc-agent."),
            1 => write!(
                f,
                "\nThis host does not support cc-agent yet: one need is not met."
            ),
            count => write!(
                f,
                "\nThis host does not support cc-agent yet: {count} needs are not met."
            ),
        }
    }
}

fn kernel_version(facts: &Facts) -> Need {
    let version = facts.release.as_deref().and_then(parse_version);
    let (major, minor) = OLDEST_KERNEL;
    Need {
        name: format!("Linux {major}.{minor} or newer"),
        ok: version.map(|version| version >= OLDEST_KERNEL),
        optional: false,
        found: facts
            .release
            .clone()
            .unwrap_or_else(|| "no readable version".into()),
        remedy: "boot a newer kernel; of Debian, release 12 and later have one".into(),
    }
}

fn kernel_types(facts: &Facts) -> Need {
    Need {
        name: "the kernel's types (BTF)".into(),
        ok: Some(facts.types.is_ok()),
        optional: false,
        found: match &facts.types {
            Ok(_) => btf::VMLINUX.into(),
            Err(error) => error.clone(),
        },
        remedy: "use a kernel with CONFIG_DEBUG_INFO_BTF=y, as distributions build it, and mount \
            sysfs on /sys"
            .into(),
    }
}

fn struct_ops(facts: &Facts) -> Need {
    let ops = of_types(facts, |types| types.congestion_ops.clone());
    Need {
        name: "struct_ops for TCP".into(),
        ok: ops.as_ref().map(Result::is_ok),
        optional: false,
        found: found(ops, "tcp_congestion_ops can be BPF programs"),
        remedy: "use a kernel with CONFIG_BPF_SYSCALL=y, CONFIG_BPF_JIT=y and CONFIG_INET=y".into(),
    }
}

/// Registration by a link ends with the process that made it, whatever ends that.
fn struct_ops_links(facts: &Facts) -> Need {
    let links = of_types(facts, |types| {
        let missing = || "this kernel registers struct_ops without links".to_owned();
        types.links.then_some(()).ok_or_else(missing)
    });
    Need {
        name: "struct_ops links".into(),
        ok: links.as_ref().map(Result::is_ok),
        optional: true,
        found: found(links, "registration ends with the agent"),
        remedy:
            "Linux 6.4 or newer; until then the name of a killed agent stays until the next starts"
                .into(),
    }
}

fn members(facts: &Facts) -> Need {
    let members = of_types(facts, |types| match types.missing.as_slice() {
        [] => Ok(()),
        missing => Err(format!("lacks {}", missing.join(", "))),
    });
    Need {
        name: "what the datapath reads".into(),
        ok: members.as_ref().map(Result::is_ok),
        optional: false,
        found: found(members, "every structure member is there"),
        remedy: "boot a kernel that this version of cc-agent knows, or report the kernel's \
            version and this list"
            .into(),
    }
}

fn object(facts: &Facts) -> Need {
    Need {
        name: "the BPF object".into(),
        ok: Some(facts.has_object),
        optional: false,
        found: match facts.has_object {
            true => "this cc-agent carries it",
            false => "this cc-agent was built without it",
        }
        .into(),
        remedy: "build with `cargo xtask build`, or set CC_EBPF_OBJECT to a prebuilt object when \
            building"
            .into(),
    }
}

fn privileges(facts: &Facts) -> Need {
    let missing = facts.capabilities.map(missing_capabilities);
    Need {
        name: "privileges".into(),
        ok: missing.as_ref().map(Vec::is_empty),
        optional: false,
        found: match missing.as_deref() {
            None => "/proc does not show the capabilities".into(),
            Some([]) => "CAP_BPF and CAP_PERFMON".into(),
            Some(missing) => format!("lacks {}", missing.join(" and ")),
        },
        remedy: "run as root, or give the process CAP_BPF and CAP_PERFMON".into(),
    }
}

/// CAP_NET_ADMIN loads programs of cgroups and sets sysctls of the network.
fn default_privilege(facts: &Facts) -> Need {
    let holds = |held: Capabilities| held.has_any_of(Capabilities::NET_ADMIN);
    optional_privilege(
        "CAP_NET_ADMIN, for --default and --cgroup",
        facts.capabilities.map(holds),
    )
}

/// Only CAP_SYS_ADMIN may walk the loaded programs (`bpf_obj_get_next_id`, kernel/bpf/syscall.c).
fn adopting_privilege(facts: &Facts) -> Need {
    let holds = |held: Capabilities| held.has_any_of(Capabilities::SYS_ADMIN);
    optional_privilege(
        "CAP_SYS_ADMIN, to adopt flows at start",
        facts.capabilities.map(holds),
    )
}

fn optional_privilege(name: &str, held: Option<bool>) -> Need {
    Need {
        name: name.into(),
        ok: held,
        optional: true,
        found: match held {
            Some(true) => "is there",
            Some(false) => "is not there",
            None => "/proc does not show the capabilities",
        }
        .into(),
        remedy: "run as root, or give the process this capability too".into(),
    }
}

fn bpf(facts: &Facts) -> Need {
    let may = facts
        .capabilities
        .is_none_or(|held| missing_capabilities(held).is_empty());
    let (ok, found) = match facts.ring_buffer {
        Ok(true) => (Some(true), "a ring buffer could be made".to_owned()),
        Ok(false) => (Some(false), "the kernel has no ring buffers".into()),
        // Without privileges this is no news, and says nothing about the kernel.
        Err(libc::EPERM) if !may => (None, "cannot be tried without privileges".into()),
        Err(errno) => (
            Some(false),
            format!("bpf(2): {}", io::Error::from_raw_os_error(errno)),
        ),
    };
    let remedy = match facts.ring_buffer {
        Err(libc::EPERM) => {
            "something forbids BPF to this process: look for a seccomp filter, a container or \
             user namespace, or kernel lockdown"
        }
        _ => "use a kernel with CONFIG_BPF_SYSCALL=y",
    };
    Need {
        name: "bpf(2) and ring buffers".into(),
        ok,
        optional: false,
        found,
        remedy: remedy.into(),
    }
}

fn jit(facts: &Facts) -> Need {
    Need {
        name: "BPF JIT".into(),
        ok: facts.jit.map(|level| level > 0),
        optional: true,
        found: match facts.jit {
            Some(0) => "off: each ACK costs more".into(),
            Some(_) => "on".into(),
            None => "net.core.bpf_jit_enable cannot be read".into(),
        },
        remedy: "sysctl net.core.bpf_jit_enable=1".into(),
    }
}

fn name(facts: &Facts) -> Need {
    Need {
        name: format!("the name {}", facts::NAME),
        ok: Some(!facts.name_taken),
        optional: true,
        found: match facts.name_taken {
            true => "is registered: an agent is running",
            false => "is free",
        }
        .into(),
        remedy: "stop the agent that serves it, or choose another with --name".into(),
    }
}

fn cgroups(facts: &Facts) -> Need {
    Need {
        name: "cgroup v2, for --cgroup".into(),
        ok: Some(facts.cgroups.is_some()),
        optional: true,
        found: facts
            .cgroups
            .clone()
            .unwrap_or_else(|| "not mounted".into()),
        remedy: "mount -t cgroup2 none /sys/fs/cgroup".into(),
    }
}

/// TCP paces by itself where the queueing discipline does not (tcp_pacing_check,
/// net/ipv4/tcp_output.c); fq does it with fewer timers.
fn pacing(facts: &Facts) -> Need {
    Need {
        name: "fq, for many paced flows".into(),
        ok: facts.qdisc.as_deref().map(|qdisc| qdisc == "fq"),
        optional: true,
        found: match facts.qdisc.as_deref() {
            Some("fq") => "the default queueing discipline".into(),
            Some(other) => format!("the default is {other}: TCP paces by itself"),
            None => "net.core.default_qdisc cannot be read".into(),
        },
        remedy: "sysctl net.core.default_qdisc=fq, for interfaces that come up later".into(),
    }
}

fn observing(facts: &Facts) -> Need {
    let source = of_types(facts, |types| match &types.observable {
        Ok(Way::Fentry) => Ok(()),
        Ok(way) => Err(format!("by {way} alone: features are not always exact")),
        Err(missing) => Err(missing.clone()),
    });
    Need {
        name: "tracing of TCP, for observe".into(),
        ok: source.as_ref().map(Result::is_ok),
        optional: true,
        found: found(
            source,
            "tcp_rate_gen or tcp_cong_control can be traced, if the host permits it",
        ),
        remedy: "use a kernel with CONFIG_FUNCTION_TRACER=y and \
                 CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y (x86-64, or \
                 arm64 since Linux 6.4)"
            .into(),
    }
}

/// What the kernel's types say, or nothing where they cannot be read.
fn of_types(
    facts: &Facts,
    ask: impl FnOnce(&KernelTypes) -> Result<(), String>,
) -> Option<Result<(), String>> {
    facts.types.as_ref().ok().map(ask)
}

fn found(answer: Option<Result<(), String>>, good: &str) -> String {
    match answer {
        Some(Ok(())) => good.into(),
        Some(Err(error)) => error,
        None => "cannot be told without BTF".into(),
    }
}

/// Major and minor version of a release such as `6.1.0-13-amd64`.
fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The needed ones that a set of capabilities lacks. CAP_SYS_ADMIN stands for the two that were
/// taken out of it in Linux 5.8.
fn missing_capabilities(held: Capabilities) -> Vec<&'static str> {
    let either = |needed: Capabilities| needed.with(Capabilities::SYS_ADMIN);
    [
        ("CAP_BPF", either(Capabilities::BPF)),
        ("CAP_PERFMON", either(Capabilities::PERFMON)),
    ]
    .into_iter()
    .filter(|&(_, any)| !held.has_any_of(any))
    .map(|(name, _)| name)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Capabilities = Capabilities::from_bits(0x1ff_ffff_ffff);

    #[test]
    fn a_good_host_is_supported() {
        let report = judge(&good());
        assert!(report.supported());
        assert!(
            report.needs.iter().all(|need| need.ok == Some(true)),
            "{report}"
        );
        let text = report.to_string();
        assert!(text.ends_with("This host supports cc-agent."), "{text}");
        assert!(!text.contains("remedy"), "{text}");
    }

    #[test]
    fn each_missing_need_is_named_with_its_remedy() {
        for (spoil, name, remedy) in [
            (
                (|facts| facts.release = Some("5.15.0-91-generic".into())) as fn(&mut Facts),
                "Linux 6.1 or newer",
                "newer kernel",
            ),
            (
                |facts| facts.types = Err("No such file".into()),
                "the kernel's types (BTF)",
                "CONFIG_DEBUG_INFO_BTF",
            ),
            (
                |facts| types(facts).congestion_ops = Err("no such structure".into()),
                "struct_ops for TCP",
                "CONFIG_BPF_JIT",
            ),
            (
                |facts| types(facts).missing = vec!["tcp_sock.snd_cwnd".into()],
                "what the datapath reads",
                "report",
            ),
            (
                |facts| facts.has_object = false,
                "the BPF object",
                "cargo xtask build",
            ),
            (
                |facts| {
                    facts.capabilities = Some(Capabilities::NONE);
                    facts.ring_buffer = Err(libc::EPERM);
                },
                "privileges",
                "run as root",
            ),
            (
                |facts| facts.ring_buffer = Err(libc::EPERM),
                "bpf(2) and ring buffers",
                "seccomp",
            ),
            (
                |facts| facts.ring_buffer = Err(libc::ENOSYS),
                "bpf(2) and ring buffers",
                "CONFIG_BPF_SYSCALL",
            ),
        ] {
            let mut facts = good();
            spoil(&mut facts);
            let report = judge(&facts);
            assert!(!report.supported(), "{report}");
            let is_refused = |need: &&Need| need.ok == Some(false) && !need.optional;
            let refused = report.needs.iter().filter(is_refused);
            let refused: Vec<_> = refused.map(|need| need.name.as_str()).collect();
            assert_eq!(refused, [name]);
            let text = report.to_string();
            assert!(
                text.contains(remedy) && text.contains("one need is not met"),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_optional_stops_nothing() {
        let mut facts = good();
        facts.jit = Some(0);
        facts.qdisc = Some("pfifo_fast".into());
        facts.cgroups = None;
        facts.name_taken = true;
        types(&mut facts).observable = Ok(Way::Tracepoint);
        facts.capabilities = Some(Capabilities::BPF.with(Capabilities::PERFMON));
        let report = judge(&facts);
        assert!(report.supported(), "{report}");
        assert_eq!(
            report.to_string().matches("(optional)").count(),
            7,
            "{report}"
        );
    }

    #[test]
    fn what_cannot_be_told_is_no_refusal() {
        let report = judge(&Facts {
            release: None,
            capabilities: None,
            jit: None,
            qdisc: None,
            ..good()
        });
        assert!(report.supported(), "{report}");
        assert_eq!(
            report.needs.iter().filter(|need| need.ok.is_none()).count(),
            6
        );
        let mut facts = good();
        facts.types = Err("not readable".into());
        let unknown = judge(&facts)
            .needs
            .into_iter()
            .filter(|need| need.ok.is_none());
        assert_eq!(unknown.count(), 4);
    }

    #[test]
    fn every_missing_member_is_listed() {
        let mut facts = good();
        types(&mut facts).missing = vec!["tcp_sock.a".into(), "sock.b".into()];
        let text = judge(&facts).to_string();
        assert!(text.contains("lacks tcp_sock.a, sock.b"), "{text}");
    }

    #[test]
    fn releases_as_kernels_write_them() {
        assert_eq!(parse_version("6.1.0-13-amd64"), Some((6, 1)));
        assert_eq!(parse_version("6.18-rc3"), Some((6, 18)));
        assert_eq!(parse_version("5.4.0"), Some((5, 4)));
        assert_eq!(parse_version("linux"), None);
        assert!((5, 19) < OLDEST_KERNEL && (6, 1) >= OLDEST_KERNEL);
    }

    #[test]
    fn old_and_new_capabilities_count() {
        let [bpf, perfmon] = [Capabilities::BPF, Capabilities::PERFMON];
        assert!(missing_capabilities(ROOT).is_empty());
        assert!(missing_capabilities(Capabilities::SYS_ADMIN).is_empty());
        assert!(missing_capabilities(bpf.with(perfmon)).is_empty());
        assert_eq!(missing_capabilities(bpf), ["CAP_PERFMON"]);
        let none = missing_capabilities(Capabilities::NET_ADMIN);
        assert_eq!(none, ["CAP_BPF", "CAP_PERFMON"]);
    }

    #[test]
    fn the_report_goes_out_as_json() {
        let json = serde_json::to_value(judge(&good())).expect("serialises");
        assert_eq!(json["supported"], true);
        assert_eq!(json["needs"][0]["name"], "Linux 6.1 or newer");
        assert_eq!(json["needs"][0]["ok"], true);
    }

    #[test]
    fn this_host_is_described() {
        let report = check();
        let version = &report.needs[0];
        assert!(
            version.ok.is_some() && version.found.contains('.'),
            "{version:?}"
        );
    }

    fn good() -> Facts {
        Facts {
            release: Some("6.12.9-amd64".into()),
            types: Ok(KernelTypes {
                congestion_ops: Ok(()),
                links: true,
                observable: Ok(Way::Fentry),
                missing: Vec::new(),
            }),
            capabilities: Some(ROOT),
            ring_buffer: Ok(true),
            jit: Some(1),
            cgroups: Some("/sys/fs/cgroup".into()),
            qdisc: Some("fq".into()),
            has_object: true,
            name_taken: false,
        }
    }

    fn types(facts: &mut Facts) -> &mut KernelTypes {
        facts.types.as_mut().expect("a good host's")
    }
}
