//! The cwnd curves of every congestion control on a few small links, compared with those in
//! `snapshots/` to the segment.
//!
//! A snapshot has a row per 100 ms and, for each curve, the cwnd and the slow-start threshold in
//! segments and the pacing rate in kbit/s. Where a curve changes on purpose, renew the snapshots
//! and judge the difference in review:
//!
//! ```console
//! $ UPDATE_SNAPSHOTS=1 cargo test -p cc-sim --test cwnd_curves
//! $ CWND_CURVES=/tmp/curves cargo test -p cc-sim --test cwnd_curves   # draws an SVG per control
//! ```

use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use cc_core::{
    interface::Interface,
    policy::{Choice, State},
};
use cc_ebpf::Startup;
use cc_sim::{
    path::Nanos,
    scenario::{self, Scenario},
    sim::{
        Control, FlowTotals, Simulation,
        agent::{AgentDelay, SenderMode, SimulatedAgent},
        control::learned::Learned,
    },
};

/// Time between two rows, ns.
const STEP: Nanos = 100_000_000;
/// Number of rows of a curve, one per 100 ms.
const STEPS: u64 = 100;
/// Seed of losses and of the controls' own randomness.
const SEED: u64 = 1;

/// The links: a name, and the scenario that a name completes.
const LINKS: [(&str, &str); 5] = [
    (
        "steady",
        "rate_mbps = 12\ndelay_ms = 30\nqueue = { bdp = 1.0 }",
    ),
    (
        "lossy",
        "rate_mbps = 20\ndelay_ms = 15\nloss = 0.01\nqueue = { packets = 40 }",
    ),
    (
        "outage",
        "schedule = [{ at_s = 0, rate_mbps = 10 }, { at_s = 3, rate_mbps = 0 }, \
         { at_s = 4, rate_mbps = 10 }]\ndelay_ms = 20\nqueue = { packets = 20 }",
    ),
    (
        "longer",
        "rate_mbps = 10\ndelay_ms = 20\n\
         delay_changes = [{ at_s = 4, delay_ms = 300 }]\nqueue = { packets = 60 }",
    ),
    (
        "shared",
        "rate_mbps = 10\ndelay_ms = 10\nqueue = { bdp = 2.0 }\n\
         [[scenario.flow]]\n[[scenario.flow]]\nstart_s = 3",
    ),
];

/// A flow on a link over time.
struct Curve {
    name: String,
    samples: Vec<FlowTotals>,
}

macro_rules! curves {
    ($($test:ident: $control:literal),* $(,)?) => {
        $(
            #[test]
            fn $test() {
                compare($control);
            }
        )*

        /// Every name that [`Control::named`] knows has its curves.
        #[test]
        fn every_control_has_its_curves() {
            let here = [$($control),*];
            for name in Control::NAMES {
                assert!(here.contains(&name), "no curves of {name}");
            }
        }
    };
}

curves! {
    reno: "reno",
    cubic: "cubic",
    cubic_with_hystart_plus_plus: "cubic-hystartpp",
    bbr: "bbr",
    bbr_version_3: "bbr3",
    copa: "copa",
    copa_that_competes: "copa-compete",
    vegas: "vegas",
    westwood: "westwood",
    htcp: "htcp",
    bic: "bic",
    illinois: "illinois",
    yeah: "yeah",
    vivace: "vivace",
    aurora: "aurora",
    learned_without_decisions: "learned-undecided",
    learned_with_fixed_decisions: "learned-decided",
    learned_and_paced: "learned-paced",
}

/// Compares the curves of a control with its snapshot, or writes what was asked for.
fn compare(control: &str) {
    let curves: Vec<Curve> = (LINKS.iter())
        .flat_map(|&(name, text)| run(control, name, &link(name, text)))
        .collect();
    if let Some(folder) = env::var_os("CWND_CURVES") {
        let folder = PathBuf::from(folder);
        fs::create_dir_all(&folder).expect("the folder of the drawings can be made");
        let file = folder.join(format!("{control}.svg"));
        fs::write(file, draw(control, &curves)).expect("the drawing can be written");
    }
    let found = table(control, &curves);
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/snapshots")
        .join(format!("{control}.txt"));
    if env::var_os("UPDATE_SNAPSHOTS").is_some() {
        return fs::write(file, found).expect("the snapshot can be written");
    }
    let expected = fs::read_to_string(&file).unwrap_or_default();
    let rows = found.lines().zip(expected.lines());
    if let Some((found, expected)) = rows.into_iter().find(|(found, expected)| found != expected) {
        panic!("{control} left its snapshot\nexpected {expected}\nfound    {found}");
    }
    let (found, expected) = (found.lines().count(), expected.lines().count());
    assert_eq!(found, expected, "rows of {}", file.display());
}

fn link(name: &str, text: &str) -> Scenario {
    let text = format!("[[scenario]]\nname = \"{name}\"\n{text}\n");
    let mut scenarios = scenario::parse(&text, Path::new(".")).expect("a valid scenario");
    scenarios.remove(0)
}

/// The curves of all flows of the scenario, each under its own instance of the control.
fn run(control: &str, link: &str, scenario: &Scenario) -> Vec<Curve> {
    let interface = Interface {
        pacing_gain: (control == "learned-paced").then_some(1.25),
        ..Interface::default()
    };
    let settings = Learned::settings(&interface, Startup::SlowStart);
    let controls = (0..scenario.flows.len() as u64)
        .map(|flow| {
            Control::named(control, SEED + flow)
                .unwrap_or_else(|| Control::Learned(Box::new(Learned::new(settings))))
        })
        .collect();
    let simulation = Simulation::new(scenario, controls, SEED);
    let mut served = SimulatedAgent::new(
        simulation,
        interface,
        AgentDelay::Fixed { ms: 1.0 },
        SenderMode::Asynchronous,
        SEED,
    );
    let mut curves: Vec<Curve> = (0..scenario.flows.len())
        .map(|flow| Curve {
            name: match scenario.flows.len() {
                1 => link.to_owned(),
                _ => format!("{link}-{}", flow + 1),
            },
            samples: Vec::new(),
        })
        .collect();
    let mut decisions = 0;
    for step in 1..=STEPS {
        while served.next(step * STEP).is_some() {
            decisions += 1;
            let choice = match control {
                "learned-undecided" => Choice::Invalid,
                _ => Choice::Cwnd([20, 40, 60, 30][decisions / 8 % 4]),
            };
            served.answer(choice, State::default());
        }
        for (flow, curve) in curves.iter_mut().enumerate() {
            curve.samples.push(served.simulation().flow(flow));
        }
    }
    curves
}

/// The snapshot's text. A dash stands for a threshold that is not set, and for no pacing.
fn table(control: &str, curves: &[Curve]) -> String {
    let mut text = format!(
        "# {control}: cwnd and ssthresh in segments, pacing rate in kbit/s, every 100 ms\n"
    );
    let mut heads = format!("{:>7}", "");
    let mut columns = format!("{:>7}", "time_ms");
    for curve in curves {
        write!(heads, " | {:<22}", curve.name).expect("a string takes it");
        write!(
            columns,
            " | {:>5} {:>8} {:>7}",
            "cwnd", "ssthresh", "pacing"
        )
        .expect("a string takes it");
    }
    text.extend([heads.trim_end(), "\n", columns.as_str(), "\n"]);
    for row in 0..STEPS as usize {
        let ms = (row as u64 + 1) * STEP / 1_000_000;
        write!(text, "{ms:>7}").expect("a string takes it");
        for curve in curves {
            let sample = &curve.samples[row];
            let ssthresh = match sample.ssthresh {
                0x7fff_ffff.. => "-".to_owned(),
                ssthresh => ssthresh.to_string(),
            };
            let pacing = match sample.pacing_rate {
                Some(rate) => (rate * 8 / 1_000).to_string(),
                None => "-".to_owned(),
            };
            write!(text, " | {:>5} {ssthresh:>8} {pacing:>7}", sample.cwnd)
                .expect("a string takes it");
        }
        text.push('\n');
    }
    text
}

/// A drawing with one panel per curve: cwnd in black, slow-start threshold in grey.
fn draw(control: &str, curves: &[Curve]) -> String {
    const WIDTH: f64 = 800.0;
    const HEIGHT: f64 = 160.0;
    let total = (HEIGHT + 30.0) * curves.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{total}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n"
    );
    for (panel, curve) in curves.iter().enumerate() {
        let top = panel as f64 * (HEIGHT + 30.0) + 20.0;
        let cwnd: Vec<u32> = curve.samples.iter().map(|sample| sample.cwnd).collect();
        let most = cwnd.iter().copied().max().unwrap_or(1).max(1);
        let line = |values: Vec<u32>| -> String {
            let point = |(i, value): (usize, u32)| {
                let x = i as f64 / STEPS as f64 * WIDTH;
                let y = top + HEIGHT * (1.0 - f64::from(value.min(most)) / f64::from(most));
                format!("{x:.1},{y:.1} ")
            };
            values.into_iter().enumerate().map(point).collect()
        };
        let ssthresh = curve.samples.iter().map(|sample| sample.ssthresh).collect();
        let (name, bottom) = (&curve.name, top + HEIGHT);
        writeln!(
            svg,
            "<text x=\"4\" y=\"{:.1}\">{control} on {name}: up to {most} segments in 10 s</text>\n\
             <path d=\"M0 {bottom} H{WIDTH}\" stroke=\"#bbb\"/>\n\
             <polyline points=\"{}\" fill=\"none\" stroke=\"#aaa\"/>\n\
             <polyline points=\"{}\" fill=\"none\" stroke=\"#000\"/>",
            top - 5.0,
            line(ssthresh),
            line(cwnd),
        )
        .expect("a string takes it");
    }
    svg.push_str("</svg>\n");
    svg
}
