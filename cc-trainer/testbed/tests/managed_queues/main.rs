//! The simulator's managed queues beside the kernel's: flows of the kernel through its own `codel`,
//! `fq_codel` and `pie` behind a token bucket, and simulated flows over the same link.
//!
//! On a host's own kernel one short run of each kind shows that the comparison works. Where the
//! kernel is the test's alone, in a machine with virtual time (`cargo xtask kernels --tests
//! managed_queues`), all links are compared, and the figures are printed.

mod capture;

use std::{
    env, fmt,
    path::Path,
    process::{Command, ExitCode},
    thread,
    time::{Duration, Instant},
};

use cc_lab::{Bottleneck, Flow, Namespace, Network, Outcome, figure, trials};
use cc_sim::{
    path::FlowObservation,
    scenario,
    sim::{Control, Simulation},
};

use capture::Capture;

fn main() -> ExitCode {
    let trials = trials![
        codel_that_drops,
        codel_that_marks,
        fq_codel_that_drops,
        fq_codel_that_marks,
        pie_that_drops,
        pie_that_marks,
        pie_at_the_kernels_ticks,
    ];
    cc_lab::harness::run(trials, cc_lab::harness::unmet_requirement())
}

/// A link: Mbit/s of IP packets, and the RTT without a queue in ms.
struct Link(u32, u32);

/// The links of the comparison.
const LINKS: [Link; 3] = [Link(4, 40), Link(8, 100), Link(12, 20)];
/// Length of a run on each link, in a machine of its own.
const LENGTH: Duration = Duration::from_secs(20);
/// The same on a host's own kernel.
const SHORT: Duration = Duration::from_secs(7);
/// What is measured begins after slow start. Its end differs, probably by the receiver's buffer:
/// each segment takes another amount of that on a router's path than on the emulated link.
const BEGIN: Duration = Duration::from_secs(4);
/// Tokens of the link's bucket, bytes: two packets, since timers are late by some µs.
const BURST: u32 = 3_000;
/// Most packets in the queue; the default of `codel` and `pie`.
const PACKETS: u32 = 1_000;
/// Propagation towards the receiver in the simulator, ms: it must have some. On the kernel all of
/// the delay is on the way back.
const FORWARD_MS: f64 = 0.1;
/// Simulated runs, whose mean is compared.
const SEEDS: u64 = 3;
/// The receiving application's time to wake up.
const REST: Duration = Duration::from_micros(100);

/// A managed queue, and how the kernel and a scenario call it.
struct Queue {
    name: &'static str,
    kind: &'static str,
    /// Further options of `tc`, and keys of a scenario.
    options: &'static str,
    keys: &'static str,
    marks: bool,
}

fn codel_that_drops() -> Outcome {
    compare(&Queue {
        name: "codel",
        kind: "codel",
        options: "limit 1000 noecn",
        keys: "ecn = false",
        marks: false,
    })
}

fn codel_that_marks() -> Outcome {
    compare(&Queue {
        name: "codel, ecn",
        kind: "codel",
        options: "limit 1000 ecn",
        keys: "ecn = true",
        marks: true,
    })
}

fn fq_codel_that_drops() -> Outcome {
    compare(&Queue {
        name: "fq_codel",
        kind: "fq_codel",
        options: "limit 1000 quantum 1500 noecn",
        keys: "ecn = false",
        marks: false,
    })
}

fn fq_codel_that_marks() -> Outcome {
    compare(&Queue {
        name: "fq_codel, ecn",
        kind: "fq_codel",
        options: "limit 1000 quantum 1500 ecn",
        keys: "ecn = true",
        marks: true,
    })
}

fn pie_that_drops() -> Outcome {
    compare(&Queue {
        name: "pie",
        kind: "pie",
        options: "limit 1000 noecn",
        keys: "ecn = false",
        marks: false,
    })
}

fn pie_that_marks() -> Outcome {
    compare(&Queue {
        name: "pie, ecn",
        kind: "pie",
        options: "limit 1000 ecn",
        keys: "ecn = true",
        marks: true,
    })
}

/// The controller's timer has ticks of 4 ms where `CONFIG_HZ` is 250.
fn pie_at_the_kernels_ticks() -> Outcome {
    compare(&Queue {
        name: "pie, 16 ms",
        kind: "pie",
        options: "limit 1000 noecn tupdate 16ms",
        keys: "ecn = false, update_ms = 16",
        marks: false,
    })
}

/// What one flow got from the link.
#[derive(Clone, Copy, Default)]
struct Measures {
    /// Payload that left the link, Mbit/s.
    mbps: f64,
    /// Time in queue and link, ms.
    mean_ms: f64,
    p95_ms: f64,
    /// Segments that entered the link and did not leave it.
    missing: f64,
    /// Segments whose ACK echoed a mark (`delivered_ce`).
    echoed: f64,
}

impl Measures {
    /// Adds a share of another one's.
    fn add(&mut self, other: &Self, share: f64) {
        self.mbps += share * other.mbps;
        self.mean_ms += share * other.mean_ms;
        self.p95_ms += share * other.p95_ms;
        self.missing += share * other.missing;
        self.echoed += share * other.echoed;
    }
}

impl fmt::Display for Measures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            mbps,
            mean_ms,
            p95_ms,
            missing,
            echoed,
        } = self;
        write!(
            f,
            "{mbps:.3} Mbit/s {mean_ms:.2} ms {p95_ms:.2} ms {missing:.1} missing {echoed:.1} \
             echoed"
        )
    }
}

/// Runs flows through a queue of the kernel's and through the simulator's.
fn compare(queue: &Queue) -> Outcome {
    if !has_qdiscs(queue.kind) {
        return Outcome::Undecided(format!("this kernel lacks {} or netem", queue.kind));
    }
    let own_kernel = env::var_os("CC_LAB_OWN_KERNEL").is_some();
    let (links, length) = match own_kernel {
        true => (&LINKS[..], LENGTH),
        false => (&LINKS[..1], SHORT),
    };
    // Queues that tell flows apart get two.
    let crowds: &[&[&str]] = match queue.kind {
        "fq_codel" => &[&["cubic", "reno"]],
        _ => &[&["cubic"], &["reno"]],
    };
    let mut worst: f64 = 1.0;
    for link in links {
        for &controls in crowds {
            let kernel = on_kernel(queue, link, controls, length);
            let simulated = simulated(queue, link, controls, length);
            for ((control, kernel), simulated) in controls.iter().zip(kernel).zip(simulated) {
                let name = format!(
                    "{}, {} Mbit/s, {} ms, {control}",
                    queue.name, link.0, link.1
                );
                figure(&format!("{name}, kernel"), kernel);
                figure(&format!("{name}, simulated"), simulated);
                assert!(queue.marks || kernel.echoed == 0.0, "{name}");
                let ratio = simulated.mbps / kernel.mbps;
                worst = worst.max(ratio).max(1.0 / ratio);
            }
        }
    }
    // A busy host disturbs the kernel's flows, but not as much as a queue that is another one.
    let most = if own_kernel { 1.1 } else { 1.5 };
    assert!(worst < most, "throughputs differ by a factor of {worst}");
    Outcome::Passed
}

fn on_kernel(queue: &Queue, link: &Link, controls: &[&str], length: Duration) -> Vec<Measures> {
    let Link(rate_mbit, rtt_ms) = link;
    let network = Network::through(Bottleneck {
        rate_mbit: *rate_mbit,
        queue_bytes: 1_000_000,
    });
    let path = &network.path;
    // Lengths are those of IP packets, as in a scenario.
    path.router().tc("qdisc del dev r1 root");
    path.router().tc(&format!(
        "qdisc add dev r1 root handle 1: stab overhead -14 tbf rate {rate_mbit}mbit burst {BURST} \
         limit 1000000"
    ));
    path.router().tc(&format!(
        "qdisc add dev r1 parent 1:1 handle 10: {} {}",
        queue.kind, queue.options
    ));
    path.router().tc(&format!(
        "qdisc replace dev r0 root netem delay {rtt_ms}ms limit 10000"
    ));
    for host in [&path.sender, &path.receiver] {
        host.set_sysctl("net/ipv4/tcp_rmem", "4096 131072 67108864");
        host.set_sysctl("net/ipv4/tcp_wmem", "4096 16384 67108864");
        host.set_sysctl("net/ipv4/tcp_ecn", if queue.marks { "1" } else { "0" });
    }
    let capture = Capture::start(&path.sender, &path.receiver);
    let start = Instant::now();
    let flows: Vec<Flow> = (controls.iter())
        .map(|control| network.connect(control).sending())
        .collect();
    let echoes = |at: Instant| -> Vec<u32> {
        thread::sleep(at.saturating_duration_since(Instant::now()));
        let echoes = flows.iter().map(|flow| flow.info().delivered_ce);
        echoes.collect()
    };
    let time = start + BEGIN..start + length;
    let former = echoes(time.start);
    let echoes: Vec<u32> = (echoes(time.end).iter().zip(former))
        .map(|(all, former)| all - former)
        .collect();
    let ports: Vec<u16> = flows.iter().map(Flow::port).collect();
    drop(flows);
    let passages = capture.passages(&ports, time);
    (passages.into_iter().zip(echoes))
        .map(|(passage, echoed)| {
            let delays = &passage.delays;
            let ms = |delay: &Duration| delay.as_secs_f64() * 1e3;
            Measures {
                mbps: passage.payload as f64 * 8e-6 / (length - BEGIN).as_secs_f64(),
                mean_ms: delays.iter().map(ms).sum::<f64>() / delays.len() as f64,
                p95_ms: delays.get(delays.len() * 95 / 100).map_or(f64::NAN, ms),
                missing: passage.missing as f64,
                echoed: echoed.into(),
            }
        })
        .collect()
}

/// Means over the seeds, for each flow.
fn simulated(queue: &Queue, link: &Link, controls: &[&str], length: Duration) -> Vec<Measures> {
    let Link(rate_mbit, rtt_ms) = link;
    let text = format!(
        "[[scenario]]\nname = \"queue\"\nshaper = {{ rate_mbps = {rate_mbit}, burst_bytes = \
         {BURST} }}\ndelay_ms = {FORWARD_MS}\nqueue = {{ packets = {PACKETS}, aqm = \"{}\", {} \
         }}\n[scenario.reverse]\nrate_mbps = inf\ndelay_ms = {rtt_ms}\n{}",
        queue.kind,
        queue.keys,
        "[[scenario.flow]]\n".repeat(controls.len())
    );
    let scenarios = scenario::parse(&text, Path::new(".")).expect("a good scenario");
    let mut means = vec![Measures::default(); controls.len()];
    for seed in 0..SEEDS {
        let known = |name: &&str| Control::named(name, seed).expect("a known control");
        let controls = controls.iter().map(known).collect();
        let mut simulation =
            Simulation::observed(&scenarios[0], controls, seed).with_receiver_rest(REST);
        simulation.run(BEGIN.as_nanos() as u64);
        let former = (0..means.len()).map(|flow| Totals::of(&simulation, flow));
        let former: Vec<_> = former.collect();
        simulation.run(length.as_nanos() as u64);
        for (flow, (mean, former)) in means.iter_mut().zip(former).enumerate() {
            let measures = Totals::of(&simulation, flow).since(former, length - BEGIN);
            mean.add(&measures, 1.0 / SEEDS as f64);
        }
    }
    means
}

/// What a simulated flow has got up to some time.
struct Totals {
    link: FlowObservation,
    echoed: u64,
}

impl Totals {
    fn of(simulation: &Simulation, flow: usize) -> Self {
        let observation = simulation.observation().expect("it was asked for");
        Self {
            link: observation.forward.flows[flow].clone(),
            echoed: simulation.flow(flow).delivered_ce,
        }
    }

    /// What it got since then, in a time of that length.
    fn since(self, former: Self, length: Duration) -> Measures {
        let Self { mut link, echoed } = self;
        let old = former.link;
        link.delay
            .subtract(&old.delay)
            .expect("it has what it had before");
        let arrived = link.data_arrived.packets - old.data_arrived.packets;
        let delivered = link.data_delivered.packets - old.data_delivered.packets;
        let delays = (link.delay_sum_ns - old.delay_sum_ns) as f64 * 1e-6;
        Measures {
            mbps: (link.payload_delivered - old.payload_delivered) as f64 * 8e-6
                / length.as_secs_f64(),
            mean_ms: delays / delivered as f64 - FORWARD_MS,
            p95_ms: link.delay.value_at_quantile(0.95) as f64 * 1e-3 - FORWARD_MS,
            missing: arrived.saturating_sub(delivered) as f64,
            echoed: (echoed - former.echoed) as f64,
        }
    }
}

/// Whether this kernel has a queueing discipline, and what delays. The first use may load modules.
fn has_qdiscs(kind: &str) -> bool {
    let namespace = Namespace::new("q");
    [kind, "netem", "tbf rate 1mbit burst 3000 limit 3000"]
        .iter()
        .all(|words| {
            let mut command = Command::new("tc");
            command.args(["-n", namespace.name(), "qdisc", "replace", "dev", "lo"]);
            command.arg("root").args(words.split(' '));
            command.output().is_ok_and(|output| output.status.success())
        })
}
