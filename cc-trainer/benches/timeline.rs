//! Measures the speed and peak memory of making a timeline from recordings, for 250,000 generated
//! rows and for four times as many.
//!
//! 200 flows at a time interleave, as on a host; a flow lasts about a minute. `TIMELINE_ROWS` sets
//! other sizes (`TIMELINE_ROWS=1000000,10000000`) and `TMPDIR` the place; ten million rows need
//! about 30 GB there.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, bail};
use cc_core::{
    interface::Interface,
    policy::{Choice, State},
    reward::Terms,
    rows::{AddressForm, Decided, FileHeader, Row},
};
use cc_ebpf::{Startup, WindowRecord};
use cc_lab::Report;
use cc_recording::FileWriter;
use cc_sim::{
    scenario,
    sim::{
        Control, Simulation,
        agent::{AgentDelay, SenderMode, SimulatedAgent},
        control::learned::Learned,
    },
};
use cc_trainer::{
    dataset::{
        Recordings,
        timeline::{self, TimelineDirectory, TimelineSettings},
    },
    normalise::input_shapes,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Sizes to measure, in rows.
const SIZES: [u64; 2] = [250_000, 1_000_000];
/// Number of flows at a time.
const FLOWS: usize = 200;
/// Number of flows that are simulated; the others are varied copies of them.
const SIMULATED: u64 = 8;
/// Length of a simulated flow, s.
const SECONDS: u64 = 60;
/// Approximate number of rows of a file.
const FILE: usize = 1_000_000;
/// Number of rows of a row group.
const GROUP: usize = 20_000;
/// Size of a partition, bytes, the same as in `cc-trainer dataset`.
const PARTITION: u64 = 32 << 20;
/// Interface variable that marks the process to be measured, and names its input directory.
const MEASURED: &str = "TIMELINE_MEASURED";

fn main() -> anyhow::Result<()> {
    if let Some(directory) = env::var_os(MEASURED) {
        return measured(Path::new(&directory));
    }
    let sizes = match env::var("TIMELINE_ROWS") {
        Ok(rows) => rows
            .split(',')
            .map(|size| {
                size.parse()
                    .context("TIMELINE_ROWS holds no number of rows")
            })
            .collect::<anyhow::Result<_>>()?,
        Err(_) => SIZES.to_vec(),
    };
    let mut report = Report::new("timeline");
    for size in sizes {
        let scratch = tempfile::tempdir()?;
        let (rows, bytes) = generate(scratch.path(), size)?;
        let Measured {
            seconds,
            peak_mib,
            written,
        } = measure(scratch.path())?;
        let name = format!("{}k", size / 1_000);
        report.show(format!("rows_{name}"), rows as f64);
        report.show(format!("rows_per_s_{name}"), rows as f64 / seconds);
        report.show(format!("peak_mib_{name}"), peak_mib);
        report.show(
            format!("recorded_bytes_per_row_{name}"),
            bytes as f64 / rows as f64,
        );
        report.show(
            format!("timeline_bytes_per_row_{name}"),
            written / rows as f64,
        );
    }
    report.write()
}

struct Measured {
    seconds: f64,
    peak_mib: f64,
    written: f64,
}

/// Runs the measurement in a process of its own, so that its peak memory is that of the work alone.
fn measure(directory: &Path) -> anyhow::Result<Measured> {
    let output = Command::new(env::current_exe()?)
        .env(MEASURED, directory)
        .output()?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8(output.stdout)?;
    let numbers: Vec<f64> = text
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .with_context(|| format!("the measured process said {text:?}"))?;
    match numbers[..] {
        [seconds, peak_mib, written] => Ok(Measured {
            seconds,
            peak_mib,
            written,
        }),
        _ => bail!("the measured process said {text:?}"),
    }
}

/// Makes the timeline and its analysis on two threads; prints the seconds, the peak of memory in
/// MiB, and the bytes written.
fn measured(directory: &Path) -> anyhow::Result<()> {
    let begun = Instant::now();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build()?;
    let out = directory.join("timeline");
    pool.install(|| -> anyhow::Result<()> {
        let recordings = Recordings::open(&[directory.join("recordings")])?;
        let output = TimelineDirectory::create(&out)?;
        let partitions = recordings.partition(output.scratch(), PARTITION, &|_| {})?;
        let settings = TimelineSettings::default();
        let (summary, sample) = timeline::write(&partitions, &output, &settings, &|_| {})?;
        let shapes = input_shapes(recordings.interface());
        let analysis = sample.analyse(&shapes, &[]).map_err(anyhow::Error::msg)?;
        output.publish(&summary, &analysis)?;
        Ok(())
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|rest| rest.split_whitespace().next());
    let peak: f64 = peak.context("no VmHWM in /proc/self/status")?.parse()?;
    println!("{seconds} {} {}", peak / 1024.0, size_of_all(&out)?);
    Ok(())
}

/// Writes recordings of at least `size` rows; returns the number of rows and of bytes.
fn generate(directory: &Path, size: u64) -> anyhow::Result<(u64, u64)> {
    let directory = directory.join("recordings");
    fs::create_dir(&directory)?;
    let interface = Interface {
        history: 5,
        ..Interface::default()
    };
    let patterns = (0..SIMULATED)
        .map(|seed| simulated(&interface, seed))
        .collect::<Result<Vec<_>, _>>()?;
    let mut random = StdRng::seed_from_u64(1);
    let (mut rows, mut first) = (0, 0);
    let mut writer: Option<FileWriter> = None;
    let mut files = 0;
    let mut group = Vec::with_capacity(GROUP);
    while rows < size {
        // 200 flows at the same time, from their first window to their last.
        let longest = patterns.iter().map(Vec::len).max().unwrap_or(0);
        for sequence in 0..longest {
            for flow in 0..FLOWS {
                let pattern = &patterns[flow % patterns.len()];
                let Some((window, decision)) = pattern.get(sequence) else {
                    continue;
                };
                let window = varied(window, &mut random);
                let terms = Terms::of(&window, &interface.reward);
                group.push(Row {
                    flow: (first + flow as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
                    sequence: sequence as u32,
                    window,
                    path: None,
                    initial_cwnd_bytes: 14_480,
                    decision: decision.clone(),
                    terms,
                    reward: terms.reward(&interface.reward) as f32,
                    end: sequence + 1 == pattern.len(),
                    local: None,
                    remote: None,
                    cgroup: 1,
                    cookie: 0,
                    netns: 0,
                });
                rows += 1;
                if group.len() == GROUP {
                    flush(&mut writer, &mut group, &interface, &directory, &mut files)?;
                }
            }
        }
        first += FLOWS as u64;
    }
    flush(&mut writer, &mut group, &interface, &directory, &mut files)?;
    if let Some(writer) = writer {
        writer.finish()?;
    }
    Ok((rows, size_of_all(&directory)? as u64))
}

/// Writes a row group, to the next file when the current one is full.
fn flush(
    writer: &mut Option<FileWriter>,
    group: &mut Vec<Row>,
    interface: &Interface,
    directory: &Path,
    files: &mut usize,
) -> anyhow::Result<()> {
    let mut own = match writer.take() {
        Some(full) if full.rows() >= FILE as u64 => {
            full.finish()?;
            create(interface, directory, files)?
        }
        Some(own) => own,
        None => create(interface, directory, files)?,
    };
    own.write(group)?;
    group.clear();
    *writer = Some(own);
    Ok(())
}

fn create(
    interface: &Interface,
    directory: &Path,
    files: &mut usize,
) -> anyhow::Result<FileWriter> {
    let header = FileHeader {
        interface: interface.clone(),
        policy: "random".to_owned(),
        policy_metadata: None,
        server: None,
        agent_version: "0.1.0".to_owned(),
        kernel: "6.12.0".to_owned(),
        host: BTreeMap::new(),
        started_ns: 1_795_000_000_000_000_000,
        utc_offset_ns: 1_795_000_000_000_000_000,
        addresses: AddressForm::Absent,
    };
    let path = directory.join(format!("{files:04}.parquet"));
    *files += 1;
    Ok(FileWriter::create(&path, header)?)
}

/// Returns the windows of a simulated flow under random actions, with its decisions.
fn simulated(
    interface: &Interface,
    seed: u64,
) -> anyhow::Result<Vec<(WindowRecord, Option<Decided>)>> {
    let rate = 2 << seed;
    let link = format!(
        "[[scenario]]\nname = \"link\"\nrate_mbps = {rate}\ndelay_ms = 20\nqueue = {{ bdp = 2 }}\n"
    );
    let scenarios = scenario::parse(&link, Path::new("."))?;
    let link = scenarios.first().context("one scenario")?;
    let settings = Learned::settings(interface, Startup::SlowStart);
    let control = Control::Learned(Box::new(Learned::new(settings)));
    let simulation = Simulation::new(link, vec![control], seed);
    let mut served = SimulatedAgent::new(
        simulation,
        interface.clone(),
        AgentDelay::default(),
        SenderMode::Asynchronous,
        seed,
    );
    let mut random = StdRng::seed_from_u64(seed);
    let actions = interface.actions.len();
    let probability = 1.0 / actions as f32;
    let mut all = Vec::new();
    while let Some(asked) = served.next(SECONDS * 1_000_000_000) {
        let action = random.random_range(0..actions);
        let base_cwnd = asked.query.cwnd;
        let decision = Decided {
            action: Some(action as u8),
            probability: Some(probability),
            probabilities: Some(vec![probability; actions]),
            base_cwnd,
            cwnd: interface.actions.apply(action, base_cwnd, interface.cwnd),
            delay_ns: Some(1_000_000),
        };
        let last = asked.windows.len() - 1;
        let windows = asked.windows.iter().enumerate();
        all.extend(
            windows.map(|(place, window)| (*window, (place == last).then(|| decision.clone()))),
        );
        let choice = Choice::Action {
            index: action,
            probability,
        };
        served.answer(choice, State::default());
    }
    Ok(all)
}

/// Returns a varied copy of a window, so that numbers do not repeat from flow to flow.
fn varied(window: &WindowRecord, random: &mut StdRng) -> WindowRecord {
    let mut window = *window;
    let share = random.random_range(0.9..1.1_f64);
    for i in 0..window.features.sum.len() {
        let scaled = |value: u64| (value as f64 * share) as u64;
        let scaled_small = |value: u32| (f64::from(value) * share) as u32;
        let features = &mut window.features;
        features.sum[i] = scaled(features.sum[i]);
        features.squares[i] = scaled(features.squares[i]);
        features.min[i] = scaled_small(features.min[i]);
        features.max[i] = scaled_small(features.max[i]);
        features.reference[i] = scaled_small(features.reference[i]);
    }
    window
}

/// Returns the number of bytes of the files in a directory.
fn size_of_all(directory: &Path) -> anyhow::Result<f64> {
    let mut bytes = 0.0;
    for entry in fs::read_dir(directory)? {
        let path: PathBuf = entry?.path();
        bytes += fs::metadata(path)?.len() as f64;
    }
    Ok(bytes)
}
