//! The sequence of the loop: what is decided, and that a loop that ends at any stage continues
//! there.

use std::{
    fs,
    path::{Path, PathBuf},
};

use cc_core::policy::{DEFAULT_POLICY, heuristic_file};

use super::{
    config::LoopConfig,
    figures::Figure,
    gate::{CanaryEnd, Decision, Entropies},
    *,
};
use crate::ope::{
    Interval,
    recorded::TERM_NAMES,
    verdict::{Conclusion, TermFinding, TermVerdict, Verdict},
};

/// Work that takes no time. It notes each stage that it carried out, by the directory.
struct Rehearsal {
    done: Vec<String>,
    /// Number of the stage, from 0, in which it fails; it has left a file behind.
    fails_at: Option<usize>,
    /// What the estimates say, and how the canaries end, turn by turn.
    conclusions: Vec<Conclusion>,
    ends: Vec<CanaryEnd>,
}

impl Rehearsal {
    fn new(conclusions: &[Conclusion], ends: &[CanaryEnd]) -> Self {
        Self {
            done: Vec::new(),
            fails_at: None,
            conclusions: conclusions.to_vec(),
            ends: ends.to_vec(),
        }
    }

    fn stage(&mut self, task: &Task<'_>) -> Result<(), LoopError> {
        let parts: Vec<_> = task.dir.iter().rev().take(2).collect();
        let name = format!("{}/{}", parts[1].display(), parts[0].display());
        let left = task.dir.join("left");
        let is_training = name.ends_with("train");
        assert!(is_training || !left.exists(), "{name}: it was emptied");
        fs::write(&left, "").expect("there is space");
        if self.fails_at == Some(self.done.len()) {
            self.fails_at = None;
            return Err(LoopError::Interrupted);
        }
        self.done.push(name);
        Ok(())
    }

    /// The number of the turn or trial that a stage belongs to, from 0.
    fn turn(&self) -> usize {
        let collected = self.done.iter().filter(|name| name.ends_with("collect"));
        collected.count() - 1
    }
}

impl Work for Rehearsal {
    fn collect(&mut self, task: &Task<'_>, _: &Path, _: bool) -> Result<Collected, LoopError> {
        self.stage(task)?;
        Ok(Collected {
            rows: 100,
            held_out: 50,
            entropy: 1.0,
        })
    }

    fn train(
        &mut self,
        task: &Task<'_>,
        init: &Path,
        from: &[PathBuf],
    ) -> Result<(Trained, PathBuf), LoopError> {
        self.stage(task)?;
        assert!(init.exists() && !from.is_empty());
        let file = task.dir.join("policy.onnx");
        fs::write(&file, heuristic_file()).expect("there is space");
        Ok((Trained::default(), file))
    }

    fn estimate(
        &mut self,
        task: &Task<'_>,
        _: &Path,
        candidate: &Path,
        first_entropy: f64,
    ) -> Result<Estimated, LoopError> {
        self.stage(task)?;
        assert!(candidate.exists());
        let conclusion = self.conclusions[self.turn()];
        let finding = match conclusion {
            Conclusion::Better => TermFinding::Better,
            Conclusion::Worse => TermFinding::Worse,
            Conclusion::None => TermFinding::Open,
        };
        let nothing = Interval {
            value: 0.0,
            low: 0.0,
            high: 0.0,
        };
        let term = |name: &&str| TermVerdict {
            name: (*name).to_owned(),
            recorded: 1.0,
            difference: nothing,
            tolerated: 0.0,
            effective: 40.0,
            finding: finding.clone(),
        };
        Ok(Estimated {
            verdict: Verdict {
                conclusion,
                terms: TERM_NAMES.iter().map(term).collect(),
            },
            effective: 40.0,
            clusters: 60,
            cluster: "flow".to_owned(),
            entropies: Entropies {
                candidate: 0.9,
                first: first_entropy,
            },
        })
    }

    fn canary(&mut self, task: &Task<'_>, _: &Path, _: &Path) -> Result<Tried, LoopError> {
        self.stage(task)?;
        Ok(Tried {
            end: self.ends[self.turn()].clone(),
            phases: Vec::new(),
        })
    }

    fn measure(&mut self, task: &Task<'_>, policy: &Path) -> Result<Measured, LoopError> {
        self.stage(task)?;
        // The heuristic's file is the candidate's, and better.
        let is_first = fs::read(policy).expect("it is there") == DEFAULT_POLICY;
        let power = if is_first { 100.0 } else { 150.0 };
        let figure = |mean| Figure {
            mean,
            interval: None,
        };
        Ok(Measured {
            power: figure(power),
            throughput_mbps: figure(8.0),
            p95_owd_ms: figure(40.0),
            loss: figure(0.0),
            beside_cubic: None,
            entropy: 0.9,
            rounds: vec![power.ln(); 3],
        })
    }
}

fn config(place: &Path) -> LoopConfig {
    let careless = place.join("careless.onnx");
    fs::write(&careless, heuristic_file()).expect("there is space");
    let text = format!(
        "turns = 2\npolicy = \"default\"\nscenarios = \"jitter\"\n\
         [[trial]]\nname = \"careless\"\npolicy = \"{}\"\n",
        careless.display()
    );
    toml::from_str(&text).expect("valid")
}

fn open(place: &Path, config: Option<LoopConfig>) -> Result<Loop, LoopError> {
    Loop::open(&LoopRun {
        config,
        dir: place.join("loop"),
        command: "cc-trainer loop".to_owned(),
    })
}

fn withdrawn() -> CanaryEnd {
    CanaryEnd::Withdrawn {
        reason: "its neighbours have throughput 2 Mbit/s".to_owned(),
    }
}

/// The stages of [`config`]'s loop where the first turn promotes, the estimate refuses the second,
/// and the canary withdraws the trial.
const STAGES: [&str; 13] = [
    "turn-0/measure",
    "turn-1/collect",
    "turn-1/train",
    "turn-1/estimate",
    "turn-1/canary",
    "turn-1/measure",
    "turn-2/collect",
    "turn-2/train",
    "turn-2/estimate",
    "turn-2/measure",
    "trial-careless/collect",
    "trial-careless/estimate",
    "trial-careless/canary",
];

fn rehearsal() -> Rehearsal {
    use Conclusion::{Better, None, Worse};
    let passed = CanaryEnd::Passed;
    Rehearsal::new(
        &[Better, Worse, None],
        &[passed, CanaryEnd::Open { phase: 0 }, withdrawn()],
    )
}

#[test]
fn a_loop_promotes_refuses_and_withdraws() {
    let place = tempfile::tempdir().expect("a scratch directory");
    let mut turning = open(place.path(), Some(config(place.path()))).expect("it begins");
    let mut work = rehearsal();
    let mut lines = Vec::new();
    turning
        .run(&mut work, &mut |event| {
            if let LoopEvent::Ended { line, .. } = event {
                lines.push(line.to_owned());
            }
        })
        .expect("nothing fails");
    assert_eq!(work.done, STAGES);
    let reports = &turning.state().done;
    let words: Vec<_> = reports
        .iter()
        .map(|report| report.decision.as_ref().map(Decision::word))
        .collect();
    assert_eq!(
        words,
        [None, Some("promoted"), Some("refused"), Some("withdrawn")]
    );
    assert_eq!(lines.len(), 4);
    assert!(
        lines[1].contains("1.50 [1.50, 1.50] × turn 0's"),
        "{}",
        lines[1]
    );
    assert!(lines[3].contains("its neighbours have"), "{}", lines[3]);
    // The policy in force is the first turn's candidate to the end.
    let in_force = &turning.state().in_force;
    assert_eq!(in_force.file, Path::new("turn-1/candidate.onnx"));
    assert_eq!(reports[1].candidate.as_ref(), Some(&in_force.sha256));
    assert!(
        reports[1..]
            .iter()
            .all(|report| report.in_force == in_force.sha256)
    );
    assert_ne!(reports[0].in_force, in_force.sha256);
    assert_eq!(reports[2].against_former.map(|ratio| ratio.mean), Some(1.0));
    // The report of each step, and the table of all.
    for report in reports {
        let path = place
            .path()
            .join("loop")
            .join(&report.name)
            .join("report.json");
        let text = fs::read(path).expect("it was written");
        let read: TurnReport = serde_json::from_slice(&text).expect("a report");
        assert_eq!(read, *report);
    }
    let table = fs::read_to_string(turning.table()).expect("it was written");
    assert!(
        table.contains("| turn-1 | promoted | 150.0 | 1.50 ["),
        "{table}"
    );
    assert!(
        table.contains("- **turn-2** refused: estimated to be worse"),
        "{table}"
    );

    // More turns continue a loop that is done.
    let more = LoopConfig {
        turns: 3,
        ..config(place.path())
    };
    let mut turning = open(place.path(), Some(more)).expect("turns may change");
    let mut work = Rehearsal::new(&[Conclusion::Better], &[CanaryEnd::Passed]);
    turning.run(&mut work, &mut |_| {}).expect("nothing fails");
    assert_eq!(work.done[0], "turn-3/collect");
    assert_eq!(work.done.len(), 5);
}

#[test]
fn a_loop_that_ends_at_any_stage_continues_there() {
    let whole = {
        let place = tempfile::tempdir().expect("a scratch directory");
        let mut turning = open(place.path(), Some(config(place.path()))).expect("it begins");
        turning
            .run(&mut rehearsal(), &mut |_| {})
            .expect("nothing fails");
        turning.state().done.clone()
    };
    let timeless = |reports: &[TurnReport]| {
        let reports = reports.iter().cloned().map(|mut report| {
            report.seconds.clear();
            report
        });
        reports.collect::<Vec<_>>()
    };
    for fails_at in 0..STAGES.len() {
        let place = tempfile::tempdir().expect("a scratch directory");
        let mut work = rehearsal();
        work.fails_at = Some(fails_at);
        let mut turning = open(place.path(), Some(config(place.path()))).expect("it begins");
        let error = turning.run(&mut work, &mut |_| {}).expect_err("it fails");
        assert!(error.to_string().contains("continues from here"), "{error}");
        assert_eq!(work.done, STAGES[..fails_at]);
        // Another process, which has the directory alone, and is told when a stage is repeated.
        let mut turning = open(place.path(), None).expect("the state has the configuration");
        let mut repeated = Vec::new();
        turning
            .run(&mut work, &mut |event| {
                if let LoopEvent::Stage {
                    step,
                    stage,
                    again: true,
                } = event
                {
                    repeated.push(format!("{step}/{}", stage.name()));
                }
            })
            .expect("nothing fails any more");
        assert_eq!(repeated, [STAGES[fails_at]]);
        assert_eq!(work.done, STAGES, "each stage was carried out once");
        assert_eq!(timeless(&turning.state().done), timeless(&whole));
    }
}

#[test]
fn another_configuration_is_refused_with_the_difference() {
    let place = tempfile::tempdir().expect("a scratch directory");
    let error = open(place.path(), None).expect_err("nothing is there");
    assert!(
        error.to_string().contains("begin one with --config"),
        "{error}"
    );
    let config = config(place.path());
    drop(open(place.path(), Some(config.clone())).expect("it begins"));
    let mut other = config.clone();
    other.estimate.horizon = 5;
    other.turns = 9;
    let error = open(place.path(), Some(other))
        .expect_err("other settings")
        .to_string();
    assert!(error.contains("estimate.horizon: 5, not 10"), "{error}");
    assert!(
        !error.contains("turns:") && error.contains("--out"),
        "{error}"
    );
    // The content of links counts, whatever they are called.
    let links = place.path().join("links.toml");
    let link = |rate| {
        format!(
            "[[scenario]]\nname = \"link\"\nrate_mbps = {rate}\ndelay_ms = 10\n\
             queue = {{ bdp = 1 }}\n"
        )
    };
    let linked = LoopConfig {
        scenarios: links.display().to_string(),
        ..config
    };
    let elsewhere = tempfile::tempdir().expect("a scratch directory");
    fs::write(&links, link(4)).expect("there is space");
    drop(open(elsewhere.path(), Some(linked.clone())).expect("it begins"));
    fs::write(&links, link(5)).expect("there is space");
    let error = open(elsewhere.path(), Some(linked)).expect_err("another link");
    assert!(error.to_string().contains("links.link: "), "{error}");
    // A state that cannot be read is not begun anew.
    fs::write(place.path().join("loop/loop.json"), "{").expect("there is space");
    let error = open(place.path(), None).expect_err("no state").to_string();
    assert!(
        error.contains("loop.json: not the state of a loop"),
        "{error}"
    );
    let missing = LoopConfig {
        policy: place.path().join("none.onnx").display().to_string(),
        ..self::config(place.path())
    };
    let nowhere = tempfile::tempdir().expect("a scratch directory");
    let error = open(nowhere.path(), Some(missing))
        .expect_err("no policy")
        .to_string();
    assert!(error.contains("none.onnx"), "{error}");
}
