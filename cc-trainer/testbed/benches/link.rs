//! Capacity, punctuality and cost of the emulated link (needs root).
//!
//! A CUBIC flow crosses links of constant rates. The benchmark reports its goodput as a share of
//! the ideal (1448 of every 1500 bytes), the 99.9th percentile of the lateness, and the processor
//! time of emulator, sender and receiver together. It then compares an unlimited link with a plain
//! veth pair, in turns, and finally measures the path model alone, without a kernel.

use std::{
    hint::black_box,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd},
    process::{self, Command},
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use cc_lab::{Report, median};
use cc_sim::{
    path::{OneWayPath, Packet},
    scenario::{self, MTU, Scenario},
    sim::agent::AgentDelay,
};
use cc_testbed::{
    evaluate::{self, Agents, Control, FlowSetup, Scheme, Setup},
    link::Namespace,
    summary::{Platform, Run},
};
use socket2::SockRef;

/// Rates of the links, Mbit/s.
const RATES: [u32; 4] = [12, 100, 500, 1000];
const ROUNDS: usize = 3;
const SECONDS: Duration = Duration::from_secs(5);
/// Index of the first second after slow start.
const SETTLED: usize = 2;
/// Share of the payload in a full packet, without 20 bytes of IP, 20 of TCP and 12 of its
/// timestamps.
const PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;

fn main() -> anyhow::Result<()> {
    if let Some(reason) = cc_lab::harness::unmet_requirement() {
        bail!("the emulated link cannot be measured here: {reason}");
    }
    let _exclusive = cc_lab::harness::Exclusive::take();
    let mut report = Report::new("link");
    report.show("model_ns_per_packet", model_ns_per_packet()?);
    for rate in RATES {
        let scenario = constant(&rate.to_string())?;
        let rounds = (0..ROUNDS)
            .map(|_| Round::of(&scenario))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let of = |value: fn(&Round) -> f64| median(&rounds.iter().map(value).collect::<Vec<_>>());
        let ideal = f64::from(rate) * PAYLOAD_SHARE;
        report.show(
            format!("goodput_share_{rate}"),
            of(|round| round.mbps) / ideal,
        );
        report.show(
            format!("lateness_p999_us_{rate}"),
            of(|round| round.lateness_us),
        );
        report.show(format!("cores_{rate}"), of(|round| round.cores));
    }

    let unlimited = constant("inf")?;
    let (mut emulated, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let round = Round::of(&unlimited)?;
        emulated.push(round.mbps);
        ratios.push(round.mbps / veth_mbps()?);
    }
    report.show("ceiling_mbps", median(&emulated));
    report.show("ceiling_ratio_vs_veth", median(&ratios));
    report.write()
}

fn constant(rate: &str) -> anyhow::Result<Scenario> {
    let queue = if rate == "inf" {
        ""
    } else {
        "queue = { bdp = 1 }"
    };
    let text =
        format!("[[scenario]]\nname = \"constant\"\nrate_mbps = {rate}\ndelay_ms = 10\n{queue}\n");
    let mut scenarios = scenario::parse(&text, "(bench)".as_ref())?;
    scenarios.pop().context("one was written")
}

/// Measurements of one flow over a link.
struct Round {
    /// Goodput without the first seconds, Mbit/s.
    mbps: f64,
    lateness_us: f64,
    cores: f64,
}

impl Round {
    fn of(scenario: &Scenario) -> anyhow::Result<Self> {
        let cubic = Scheme {
            name: "cubic".into(),
            control: Control::Named,
        };
        let setup = Setup {
            scenario,
            flows: vec![FlowSetup {
                scheme: &cubic,
                start: Duration::ZERO,
                stop: SECONDS,
            }],
            seconds: SECONDS,
            seed: 1,
            slot: 0,
            delay: AgentDelay::MEASURED,
        };
        let before = processor_time()?;
        let (agents, never) = (Agents::default(), AtomicBool::new(false));
        let result = evaluate::run(Platform::Kernel, &setup, &agents, &never, |_| {})?;
        let (Run { validity, .. }, series, _) = result.context("it was not cancelled")?;
        let settled = (SETTLED as f64 / series.bin_s) as usize;
        let bins = &series.flows[0].throughput_mbps[settled..];
        Ok(Self {
            mbps: bins.iter().sum::<f64>() / bins.len() as f64 * PAYLOAD_SHARE,
            lateness_us: validity.lateness_p999_ms * 1e3,
            cores: (processor_time()? - before).as_secs_f64() / SECONDS.as_secs_f64(),
        })
    }
}

/// User and system time of this process so far.
fn processor_time() -> anyhow::Result<Duration> {
    use nix::sys::resource::{UsageWho, getrusage};
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let times = [usage.user_time(), usage.system_time()];
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(Duration::from_secs_f64(times.map(seconds).iter().sum()))
}

/// Goodput of a CUBIC flow over a veth pair with packets of the same size, Mbit/s.
fn veth_mbps() -> anyhow::Result<f64> {
    let (near, far) = (Namespace::new()?, Namespace::new()?);
    let far_path = format!("/proc/{}/fd/{}", process::id(), far.as_fd().as_raw_fd());
    near.within(|| {
        ip(&format!(
            "link add wire type veth peer name wire netns {far_path}"
        ))
    })??;
    for (end, address) in [(&near, NEAR), (&far, FAR)] {
        end.within(|| {
            ip(&format!("address add {address}/24 dev wire"))?;
            // The emulated link carries no IPv6 packets either.
            ip(&format!(
                "link set wire up mtu {MTU} gso_max_segs 1 gso_max_size {MTU}"
            ))
        })??;
    }
    let listener = far.within(|| TcpListener::bind((FAR, 0)))??;
    let to = listener.local_addr()?;
    let mut sender = near.within(|| TcpStream::connect(to))??;
    SockRef::from(&sender).set_tcp_congestion(b"cubic")?;
    let (mut receiver, _) = listener.accept()?;
    thread::scope(|scope| {
        scope.spawn(move || {
            let block = vec![0; 1 << 18];
            // Ends when the receiver closes the connection.
            while sender.write_all(&block).is_ok() {}
        });
        let mut block = vec![0; 1 << 18];
        let (start, mut bytes) = (Instant::now(), 0);
        while start.elapsed() < SECONDS {
            bytes += receiver.read(&mut block)?;
        }
        let mbps = bytes as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e6;
        drop(receiver);
        Ok(mbps)
    })
}

const NEAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

fn ip(arguments: &str) -> anyhow::Result<()> {
    let status = Command::new("ip")
        .args(arguments.split_whitespace())
        .status()
        .context("cannot start ip (iproute2)")?;
    if !status.success() {
        bail!("ip {arguments}: {status}");
    }
    Ok(())
}

/// Time to offer and poll one packet of a backlogged 100 Mbit/s link without a kernel, ns.
fn model_ns_per_packet() -> anyhow::Result<f64> {
    const PACKETS: u64 = 1_000_000;
    let scenario = constant("100")?;
    let rounds = (0..ROUNDS).map(|_| {
        let mut path = OneWayPath::new(&scenario.forward, &[], 1);
        let start = Instant::now();
        for packet in 0..PACKETS {
            // Packets arrive a tenth faster than the link sends.
            let now = packet * 108_000;
            path.offer(
                now,
                Packet {
                    bytes: MTU,
                    flow: 0,
                    body: (),
                },
            );
            while black_box(path.poll(now)).is_some() {}
        }
        start.elapsed().as_nanos() as f64 / PACKETS as f64
    });
    Ok(median(&rounds.collect::<Vec<_>>()))
}
