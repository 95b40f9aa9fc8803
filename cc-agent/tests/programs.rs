//! What this kernel makes of the BPF programs: whether its verifier has room for them, and which
//! ways there are to register and to observe.

use std::{collections::BTreeMap, process::ExitCode, thread, time::Duration};

use btf_rs::{Btf, Type};
use cc_agent::kernel::{Datapath, Error, Observer, btf::VMLINUX, host, observer::Way};
use cc_ebpf::{Counter, Verdict};
use cc_lab::{
    Bottleneck, Cgroup, Footprint, Network, Tap, datapath_options, eventually, figure,
    links_register, observer_options, unique_name,
};

fn main() -> ExitCode {
    cc_lab::run(cc_lab::trials![
        this_kernel_is_supported,
        the_verifier_has_room_for_the_datapath,
        the_verifier_has_room_for_each_observer,
        transmission_after_idle_time_restarts_the_cwnd,
    ])
}

/// The instructions that the verifier processes before it refuses a program
/// (`BPF_COMPLEXITY_LIMIT_INSNS`, include/linux/bpf.h, Linux 6.18).
const LIMIT: u32 = 1_000_000;

fn this_kernel_is_supported() {
    let report = host::check();
    for need in &report.needs {
        assert!(need.optional || need.ok != Some(false), "{report}");
    }
    figure(
        "struct_ops links",
        if links_register() { "yes" } else { "no" },
    );
    figure("arguments of cong_control", cong_control_arguments());
}

/// The number of parameters of the callback: 4 since Linux 6.10, 2 before.
fn cong_control_arguments() -> usize {
    let bytes = std::fs::read(VMLINUX).expect("the kernel shows its types");
    let btf = Btf::from_bytes(&bytes).expect("the kernel's types are well-formed");
    let found = btf.resolve_types_by_name("tcp_congestion_ops");
    let types = found.expect("a kernel with TCP has them");
    let ops = types.into_iter().find_map(|found| match found {
        Type::Struct(ops) => Some(ops),
        _ => None,
    });
    let ops = ops.expect("it is a structure");
    let named = |member: &&btf_rs::Member| {
        btf.resolve_name(*member)
            .is_ok_and(|name| name == "cong_control")
    };
    let member = ops.members.iter().find(named).expect("since Linux 4.9");
    let Ok(Type::Ptr(pointer)) = btf.resolve_chained_type(member) else {
        panic!("cong_control is no pointer");
    };
    match btf.resolve_chained_type(&pointer) {
        Ok(Type::FuncProto(function)) => function.parameters.len(),
        other => panic!("cong_control points to {other:?}"),
    }
}

fn the_verifier_has_room_for_the_datapath() {
    let name = unique_name();
    let mut options = datapath_options(&name);
    let cgroup = Cgroup::new().inspect_err(|reason| eprintln!("SKIPPED: cc_choose: {reason}"));
    options.cgroups = (cgroup.iter())
        .map(|cgroup| cgroup.directory().into())
        .collect();
    // Otherwise the verifier drops the look-ups.
    options.scope.networks = vec![("10.0.0.0/8".parse().expect("a network"), Verdict::Leave)];
    options.scope.devices = vec![("lo".parse().expect("a name"), Verdict::Leave)];
    options.scope.other = "reno".into();
    let datapath = Datapath::attach(&options).unwrap_or_else(|error| panic!("{error}"));
    let counts = assert_room(&Footprint::of(&name));
    // 6.1 has followed more than nine times as much of this program as 6.18, and refused it.
    let ack = counts["cc_cong_control"];
    let most = if links_register() { 10 } else { 2 };
    assert!(ack < LIMIT / most, "cc_cong_control: {ack} of {LIMIT}");
    drop(datapath);
}

/// Every way to observe that this kernel has and the host permits.
fn the_verifier_has_room_for_each_observer() {
    let name = format!("observe{}", std::process::id());
    for way in Way::ALL {
        let mut options = observer_options(1);
        options.by = Some(way);
        let observer = match Observer::attach(&options) {
            Ok(observer) => observer,
            Err(Error::Verifier { program, log, .. }) => panic!("{program}: {log}"),
            Err(error) => {
                eprintln!("{error}");
                figure(&format!("observing by {way}"), "no");
                continue;
            }
        };
        let programs = assert_room(&Footprint::of(&name));
        let how = programs.keys().find_map(|program| match program.as_str() {
            "cc_observe_ack" => Some("exit of tcp_rate_gen"),
            "cc_observe_cc" => Some("tcp_cong_control"),
            "cc_observe_seg" => Some("tcp_probe"),
            "cc_probe_seg" => Some("tcp_rcv_established"),
            _ => None,
        });
        let how = how.unwrap_or_else(|| panic!("none sees ACKs: {programs:?}"));
        figure(&format!("observing by {way}"), how);
        drop(observer);
    }
}

/// Asserts that the verifier needed less than half of its limit for each program, so that another
/// kernel's verifier, which may follow more paths, accepts them too. Returns what it processed.
fn assert_room(footprint: &Footprint) -> BTreeMap<String, u32> {
    let counts = footprint.verified_instructions();
    for (program, count) in &counts {
        figure(&format!("verified {program}"), count);
        assert!(*count < LIMIT / 2, "{program}: {count} of {LIMIT}");
    }
    counts
}

/// The kernel calls `cwnd_event` for it before Linux 7.1, and a callback of its own since.
fn transmission_after_idle_time_restarts_the_cwnd() {
    /// Several retransmission timeouts (`TCP_RTO_MIN`, include/net/tcp.h, is 200 ms).
    const IDLE: Duration = Duration::from_millis(1_500);
    let network = Network::through(Bottleneck {
        rate_mbit: 20,
        queue_bytes: 1_000_000,
    });
    let name = unique_name();
    let agent = Tap::serve(&datapath_options(&name));
    agent.decide(100);
    let flow = network.connect(&name);
    flow.send(2_000_000);
    let used = eventually("all was acknowledged", || {
        let info = flow.info();
        (info.unacked == 0 && info.notsent_bytes == 0).then_some(info.snd_cwnd)
    });
    assert!(used > 20, "the flow used little of its cwnd: {used}");
    let before = agent.counter(Counter::IdleRestarts);
    thread::sleep(IDLE);
    flow.send(1);
    eventually("the cwnd was restarted", || {
        (agent.counter(Counter::IdleRestarts) > before).then_some(())
    });
    let restarted = flow.info().snd_cwnd;
    assert!(restarted < used, "{restarted} after {used}");
}
