//! `cargo xtask bench`: the benchmarks, and their figures in one file.

use std::{
    env::{self, JoinPathsError},
    ffi::{OsStr, OsString},
    fs,
    path::{self, Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::builder::PossibleValuesParser;
use serde_json::Value;

use crate::{object, prebuilt, process, process::say, setup, workspace};

/// A benchmark: a bench target that prints a table of its own and writes its figures to the file
/// that `BENCH_JSON` names.
struct Bench {
    /// The name of the bench target, and of the benchmark on the command line.
    name: &'static str,
    /// The package that has the bench target.
    package: &'static str,
    /// Whether the benchmark measures the live kernel.
    kernel: bool,
    /// Whether it runs the agent's program, which its package does not build.
    agent: bool,
    /// Whether it runs only when it is named, since it takes long.
    named: bool,
}

/// The variable that names policies for the benchmark `policy`: files, separated by colons.
const POLICIES: &str = "BENCH_POLICIES";

const BENCHES: [Bench; 11] = [
    Bench::new("datapath", "cc-agent").on_the_kernel(),
    Bench::new("delay", "cc-agent").on_the_kernel(),
    Bench::new("flows", "cc-agent").on_the_kernel(),
    Bench::new("learner", "cc-trainer"),
    Bench::new("link", "cc-testbed").on_the_kernel(),
    Bench::new("policy", "cc-agent"),
    Bench::new("recording", "cc-agent").on_the_kernel(),
    Bench::new("remote", "cc-trainer")
        .on_the_kernel()
        .beside_the_agent(),
    Bench::new("sim", "cc-trainer"),
    Bench::new("soak", "cc-agent").on_the_kernel().when_named(),
    Bench::new("timeline", "cc-trainer"),
];

/// Run the benchmarks, or the one named.
///
/// datapath: throughput beside cubic on an unshaped veth pair, and nanoseconds per ACK in BPF
/// (needs root).
///
/// delay: bytes and nanoseconds per ACK while every inference takes 0 to 200 ms longer, and the
/// decision delay of 1,000 flows with and without the policy's process (needs root).
///
/// flows: the time until 1,000 flows are answered, and the share of flows without a slot (needs
/// root).
///
/// learner: frames per second through forward pass, backward pass and optimiser, for a large and a
/// small network, and on a GPU where there is one.
///
/// link: the rate, punctuality and processor time of the emulated link, beside a veth pair (needs
/// root).
///
/// policy: decisions per second on one core, by size of the policy and of the batch.
///
/// recording: processor time and decision delay of an agent that records beside one that does not,
/// and bytes per decision (needs root).
///
/// remote: 1,000 flows whose policy is on a server, behind the shim's networks: the share of
/// windows that are answered in time, what the flows do without the server, and its decisions per
/// second and core (needs root; REMOTE_FLOWS=100 for fewer flows).
///
/// sim: simulated packets and decisions per second on one core, and the memory of a flow.
///
/// soak: 500 flows that come and go over links that change, for half an hour, while the agent is
/// killed every minute, beside the same without kills: goodput, memory, descriptors, slots, and
/// the flows as agent and `ss` count them. Fails where these are not as they should be (needs root;
/// SOAK_SECONDS, SOAK_KILL_SECONDS, SOAK_FLOWS and SOAK_POLICY for other runs).
///
/// timeline: rows per second from recordings to the timeline on two cores, and peak memory, for a
/// quarter of a million rows and a million (TIMELINE_ROWS=10000000 for ten, which need some 30 GB
/// in TMPDIR).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The benchmark to run; all but soak when left out.
    #[arg(value_parser = PossibleValuesParser::new(BENCHES.map(|bench| bench.name)))]
    name: Option<String>,

    /// Also write the figures to FILE: {"bench":NAME,"figures":{KEY:number}} of the named
    /// benchmark, or an array of these when all are run.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn command(args: &Args) -> Result<()> {
    let chosen: Vec<_> = BENCHES
        .iter()
        .filter(|bench| match &args.name {
            Some(name) => name == bench.name,
            None => !bench.named,
        })
        .collect();
    let object = object::provide()?;
    if chosen.iter().any(|bench| bench.kernel) {
        setup::kernel_tools();
    }

    let mut results = Vec::new();
    for bench in chosen {
        results.push(bench.run(&object)?);
    }
    let Some(file) = &args.json else {
        return Ok(());
    };
    let text = serde_json::to_string_pretty(&merge(results, args.name.is_some()))?;
    fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))?;
    say(format_args!("wrote {}", file.display()));
    Ok(())
}

impl Bench {
    /// A benchmark that needs neither root nor the kernel's features.
    const fn new(name: &'static str, package: &'static str) -> Self {
        Self {
            name,
            package,
            kernel: false,
            agent: false,
            named: false,
        }
    }

    /// The same benchmark, marked as one that measures the live kernel.
    const fn on_the_kernel(mut self) -> Self {
        self.kernel = true;
        self
    }

    /// The same benchmark, marked as one that runs the agent's program.
    const fn beside_the_agent(mut self) -> Self {
        self.agent = true;
        self
    }

    /// The same benchmark, marked as one that is left out where all are run.
    const fn when_named(mut self) -> Self {
        self.named = true;
        self
    }

    /// Builds and runs the benchmark, and returns the figures that it wrote.
    fn run(&self, object: &Path) -> Result<Value> {
        let dir = workspace::target_dir().join("bench");
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let file = dir.join(format!("{}.json", self.name));
        // Figures of an earlier run must not be taken for those of this one.
        if file.exists() {
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
        if self.agent {
            let mut cargo = workspace::cargo();
            cargo
                .args(["build", "--release"])
                .args(workspace::SELECTION)
                .args(["--bin", "cc-agent"])
                .env(prebuilt::VARIABLE, object);
            process::run(&mut cargo).context("the agent could not be built")?;
        }
        let mut cargo = workspace::cargo();
        cargo
            .arg("bench")
            .args(workspace::SELECTION)
            .args(["--package", self.package, "--bench", self.name])
            .env(prebuilt::VARIABLE, object)
            .env("BENCH_JSON", &file);
        // A benchmark runs in its package's directory.
        if let Some(files) = env::var_os(POLICIES) {
            let files = absolute(&files).with_context(|| format!("{POLICIES}={files:?}"))?;
            cargo.env(POLICIES, files);
        }
        process::run(&mut cargo).with_context(|| format!("the benchmark {} failed", self.name))?;
        let text = fs::read_to_string(&file).with_context(|| {
            format!(
                "the benchmark {} left no figures in {}",
                self.name,
                file.display()
            )
        })?;
        self.parse(&text).with_context(|| {
            format!(
                "{} does not have the form that a benchmark must write",
                file.display()
            )
        })
    }

    /// Parses a file of figures and checks its form.
    fn parse(&self, text: &str) -> Result<Value> {
        let value: Value = serde_json::from_str(text)?;
        if value["bench"] != self.name {
            bail!("bench: expected {:?}, found {}", self.name, value["bench"]);
        }
        let figures = value["figures"]
            .as_object()
            .context("figures: expected an object")?;
        if figures.is_empty() {
            bail!("figures: the object is empty");
        }
        for (key, figure) in figures {
            if !figure.is_number() {
                bail!("figures: {key}: expected a number, found {figure}");
            }
        }
        Ok(value)
    }
}

/// Returns the object of the benchmark that was named, or an array of all.
fn merge(mut results: Vec<Value>, named: bool) -> Value {
    if named && results.len() == 1 {
        results.remove(0)
    } else {
        Value::Array(results)
    }
}

/// These files, separated by colons, by their absolute paths.
fn absolute(files: &OsStr) -> Result<OsString, JoinPathsError> {
    let files = env::split_paths(files).filter(|file| !file.as_os_str().is_empty());
    env::join_paths(files.map(|file| path::absolute(&file).unwrap_or(file)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn figures_must_be_numbers_of_the_right_benchmark() {
        let bench = &BENCHES[0];
        let good = json!({"bench": bench.name, "figures": {"ns_per_ack_window": 180.5}});
        assert_eq!(bench.parse(&good.to_string()).expect("well-formed"), good);
        for bad in [
            json!({"bench": "another", "figures": {"a": 1}}),
            json!({"bench": bench.name, "figures": {"a": "1"}}),
            json!({"bench": bench.name, "figures": {"a": null}}),
            json!({"bench": bench.name, "figures": {}}),
            json!({"bench": bench.name}),
            json!([]),
        ] {
            assert!(bench.parse(&bad.to_string()).is_err(), "{bad}");
        }
        assert!(bench.parse("").is_err());
    }

    #[test]
    fn policies_are_found_from_where_the_user_is() {
        let here = env::current_dir().expect("there is one").join("a.onnx");
        let expected = env::join_paths([&here, Path::new("/b.onnx")]).expect("no colons");
        let files = absolute(OsStr::new("a.onnx::/b.onnx")).expect("no colons");
        assert_eq!(files, expected);
    }

    #[test]
    fn every_bench_target_is_a_benchmark() {
        let mut metadata = workspace::cargo();
        metadata.args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ]);
        let metadata = process::capture(&mut metadata).expect("cargo metadata");
        let metadata: Value = serde_json::from_str(&metadata).expect("JSON");
        let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let mut targets = Vec::new();
        for package in array(&metadata["packages"]) {
            for target in array(&package["targets"]) {
                if target["kind"] == json!(["bench"]) {
                    targets.push((target["name"].clone(), package["name"].clone()));
                }
            }
        }
        targets.sort_by_key(|(name, _)| name.to_string());
        let listed = BENCHES.map(|bench| (json!(bench.name), json!(bench.package)));
        assert_eq!(
            targets, listed,
            "bench targets of the workspace, and BENCHES"
        );
    }

    #[test]
    fn one_named_benchmark_is_an_object_and_all_are_an_array() {
        let (a, b) = (json!({"bench": "a"}), json!({"bench": "b"}));
        assert_eq!(merge(vec![a.clone()], true), a);
        assert_eq!(merge(vec![a.clone()], false), json!([a]));
        assert_eq!(merge(vec![a.clone(), b.clone()], false), json!([a, b]));
    }
}
