//! `cargo xtask bench`: the benchmarks, and their figures in one file.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::builder::PossibleValuesParser;
use serde_json::Value;

use crate::{object, process, process::say, setup, workspace};

/// A benchmark: a bench target that prints its own table and writes its figures to the file that `BENCH_JSON` names.
struct Bench {
    name: &'static str,
    /// Whether it measures the live kernel.
    kernel: bool,
}

const BENCHES: [Bench; 9] = [
    Bench {
        name: "datapath",
        kernel: true,
    },
    Bench {
        name: "delay",
        kernel: true,
    },
    Bench {
        name: "flows",
        kernel: true,
    },
    Bench {
        name: "learner",
        kernel: false,
    },
    Bench {
        name: "link",
        kernel: true,
    },
    Bench {
        name: "policy",
        kernel: false,
    },
    Bench {
        name: "recording",
        kernel: true,
    },
    Bench {
        name: "sim",
        kernel: false,
    },
    Bench {
        name: "timeline",
        kernel: false,
    },
];

/// Run the benchmarks, or the one named.
///
/// datapath: throughput beside cubic on an unshaped veth pair, and nanoseconds per ACK in BPF (needs root).
///
/// delay: bytes and nanoseconds per ACK while every inference takes 0 to 200 ms longer (needs root).
///
/// flows: how soon 1,000 flows are answered, and what becomes of flows without a slot (needs root).
///
/// learner: frames a second through forward pass, backward pass and optimiser, for a large and a small network, and on a
/// GPU where there is one.
///
/// link: what the emulated link carries, how punctually and at what price, beside a veth pair (needs root).
///
/// policy: decisions a second on one core, by the policy's size and the batch's.
///
/// recording: processor time and decision delay of an agent that records beside one that does not, and bytes a decision
/// (needs root).
///
/// sim: simulated packets and decisions a second on one core, and the memory of a flow.
///
/// timeline: rows a second from recordings to the timeline on two cores, and peak memory, for a quarter of a million rows and
/// a million (TIMELINE_ROWS=10000000 for ten, which need some 30 GB in TMPDIR).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The benchmark to run; all when left out.
    #[arg(value_parser = PossibleValuesParser::new(BENCHES.map(|bench| bench.name)))]
    name: Option<String>,

    /// Also write the figures to FILE: of one benchmark {"bench":NAME,"figures":{KEY:number}}, of all an array of these.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn command(args: &Args) -> Result<()> {
    let chosen: Vec<_> = BENCHES
        .iter()
        .filter(|bench| args.name.as_deref().is_none_or(|name| name == bench.name))
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
    fn run(&self, object: &Path) -> Result<Value> {
        let dir = workspace::target_dir().join("bench");
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let file = dir.join(format!("{}.json", self.name));
        // What an earlier run wrote must not pass for this one's.
        if file.exists() {
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
        let mut cargo = workspace::cargo();
        cargo
            // Always both packages and all their features, so that all benchmarks share their dependencies; CUDA's
            // libraries are looked for only when they are asked for figures.
            .args(["bench", "--package", "cc-agent", "--package", "cc-trainer"])
            .args(["--features", "cc-trainer/cuda", "--bench", self.name])
            .env(object::VARIABLE, object)
            .env("BENCH_JSON", &file);
        process::run(&mut cargo).with_context(|| format!("the benchmark {} failed", self.name))?;
        let text = fs::read_to_string(&file).with_context(|| {
            format!(
                "the benchmark {} left no figures in {}",
                self.name,
                file.display()
            )
        })?;
        self.parse(&text)
            .with_context(|| format!("{} is not as a benchmark must write it", file.display()))
    }

    /// The figures as written, after a check of their form.
    fn parse(&self, text: &str) -> Result<Value> {
        let value: Value = serde_json::from_str(text)?;
        if value["bench"] != self.name {
            bail!("bench: expected {:?}, found {}", self.name, value["bench"]);
        }
        let figures = value["figures"]
            .as_object()
            .context("figures: expected an object")?;
        if figures.is_empty() {
            bail!("figures: there is none");
        }
        for (key, figure) in figures {
            if !figure.is_number() {
                bail!("figures: {key}: expected a number, found {figure}");
            }
        }
        Ok(value)
    }
}

/// One benchmark's object when it was named, an array otherwise.
fn merge(mut results: Vec<Value>, named: bool) -> Value {
    if named && results.len() == 1 {
        results.remove(0)
    } else {
        Value::Array(results)
    }
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
    fn one_named_benchmark_is_an_object_and_all_are_an_array() {
        let (a, b) = (json!({"bench": "a"}), json!({"bench": "b"}));
        assert_eq!(merge(vec![a.clone()], true), a);
        assert_eq!(merge(vec![a.clone()], false), json!([a]));
        assert_eq!(merge(vec![a.clone(), b.clone()], false), json!([a, b]));
    }
}
