//! Links that a calibration does not know: drawn, recorded in the simulator, and looked for from
//! the recordings alone.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use cc_core::{interface::Interface, policy::PolicySpec};
use cc_sim::seed;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng, seq::SliceRandom};
use serde::Serialize;

use super::agreement::Agreement;
use super::error::CalibrateError;
use super::fit::{FitSettings, Fitted, compare, fit};
use super::output::describe;
use super::recorded::{PathBy, Subject, read};
use super::simulate::Simulator;
use super::twin::{Feature, Steps, TokenBucket, Twin};
use crate::simulated_recording::{SimulatedRun, write};

/// Range of the hidden links' rates, Mbit/s.
const RATES: [f64; 2] = [1.0, 100.0];
/// Propagation delays of both directions together, ms.
const RTTS: [f64; 2] = [5.0, 200.0];
/// Buffers over the product of rate and propagation delay.
const BUFFERS: [f64; 2] = [0.3, 4.0];
/// Probabilities of random loss, on links that have it.
const LOSSES: [f64; 2] = [2e-4, 0.02];
/// The name of the embedded policy among controls.
pub const RLCC: &str = "rlcc";

/// The feature of every link of a draw, in turn, beside the loss that some others have too.
const KINDS: [Option<Feature>; 10] = [
    None,
    Some(Feature::Loss),
    None,
    Some(Feature::Aggregation),
    Some(Feature::Loss),
    Some(Feature::Jitter),
    None,
    Some(Feature::Steps),
    Some(Feature::Loss),
    Some(Feature::Policer),
];

/// What is drawn and recorded.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Number of hidden links that are drawn.
    pub links: usize,
    /// Seed of the draw and of the recorded runs.
    pub seed: u64,
    /// Length of a recorded flow.
    pub length: Duration,
    /// Number of recorded flows of each control.
    pub flows: u32,
    /// The controls that are fitted to: names of the simulator's, or [`RLCC`].
    pub fitted: Vec<String>,
    /// The controls that are held out.
    pub held_out: Vec<String>,
}

/// A hidden link, and what was found.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Name of the hidden link and its recordings.
    pub name: String,
    /// The parameters of the hidden link, which the calibration does not see.
    pub truth: Twin,
    /// What the calibration made of its recording.
    pub found: Fitted,
    /// The controls as they were recorded, and on the hidden link itself with the seeds of the
    /// comparison: what of a difference is chance.
    pub itself: Vec<Agreement>,
}

impl Outcome {
    /// Whether all controls, held out or not, have the recorded figures when they are run on the
    /// hidden link itself again.
    fn itself_agrees(&self, held_out: bool) -> bool {
        let mut controls = self
            .itself
            .iter()
            .filter(|control| control.held_out == held_out);
        controls.all(Agreement::agrees)
    }

    /// A parameter of the twin over that of the link; `None` where one of the two lacks it.
    fn ratio(&self, of: fn(&Twin) -> Option<f64>) -> Option<f64> {
        Some(of(&self.found.twin)? / of(&self.truth)?)
    }
}

/// Draws links: rate, RTT and buffer are a Latin hypercube on logarithmic scales, and features
/// follow in turn. The seed determines them.
pub fn draw(links: usize, seed: u64) -> Vec<Twin> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut strata = [(); 3].map(|()| {
        let mut order: Vec<usize> = (0..links).collect();
        order.shuffle(&mut random);
        order.into_iter()
    });
    let mut all = Vec::new();
    for number in 0..links {
        let mut at = strata.iter_mut().map(|order| {
            let stratum = order.next().unwrap_or_default() as f64;
            (stratum + random.random::<f64>()) / links as f64
        });
        let mut next = |range| logarithmic(range, at.next().unwrap_or_default());
        let (rate_mbps, rtt_ms, bdp) = (next(RATES), next(RTTS), next(BUFFERS));
        let mut within = |range| logarithmic(range, random.random());
        let mut twin = Twin::plain(rate_mbps, rtt_ms, bdp * rtt_ms);
        // All are drawn for each link, so that links do not depend on others' features.
        let loss = within(LOSSES);
        let aggregation_ms = within([3.0, 25.0]);
        let jitter_ms = within([0.5, 6.0]);
        let ratio = within([0.3, 0.8]);
        let period_s = within([5.0, 20.0]);
        let policed = within([0.3, 0.8]);
        let burst_kb = within([15.0, 120.0]);
        match KINDS[number % KINDS.len()] {
            Some(Feature::Aggregation) => twin.aggregation_ms = Some(aggregation_ms),
            Some(Feature::Jitter) => twin.jitter_ms = Some(jitter_ms.min(rtt_ms / 8.0)),
            Some(Feature::Steps) => twin.steps = Some(Steps { ratio, period_s }),
            Some(Feature::Policer) => {
                twin.policer = Some(TokenBucket {
                    rate_mbps: rate_mbps * policed,
                    burst_kb,
                });
            }
            Some(Feature::Loss) => twin.loss = Some(loss),
            _ => {}
        }
        // A quarter of the others lose packets at random as well.
        if random.random::<f64>() < 0.25 {
            twin.loss.get_or_insert(loss);
        }
        all.push(twin);
    }
    all
}

/// The value at `u` in [0, 1) of the way on a logarithmic scale.
fn logarithmic([low, high]: [f64; 2], u: f64) -> f64 {
    low * (high / low).powf(u)
}

/// Draws links, records controls on each in the simulator, writes the recordings under
/// `directory`, and calibrates to them blindly. `watch` is called after each link.
///
/// # Errors
///
/// Returns an error when a control is unknown, or when a file cannot be written or read.
pub fn run(
    trial: &Trial,
    settings: &FitSettings,
    directory: &Path,
    mut watch: impl FnMut(&Outcome),
) -> Result<Vec<Outcome>, CalibrateError> {
    let policy = PolicySpec::Default;
    let loaded = policy.load(&Interface::default(), None, 1);
    let loaded = loaded.map_err(|source| CalibrateError::Policy {
        policy: policy.to_string(),
        source,
    })?;
    // The windows of all recordings are the policy's.
    let mut simulator = Simulator::new(loaded.interface().clone());
    let policy = simulator.add_policy(policy, None)?;
    let subject = |name: &String| match name.as_str() {
        RLCC => Subject::Policy(policy.clone()),
        name => Subject::Control(name.to_owned()),
    };
    let controls: Vec<Subject> = (trial.fitted.iter().chain(&trial.held_out))
        .map(subject)
        .collect();
    let held_out: Vec<String> = (trial.held_out.iter())
        .map(|name| subject(name).label())
        .collect();
    let settings = FitSettings {
        hold_out: held_out,
        ..settings.clone()
    };
    let mut outcomes = Vec::new();
    for (number, truth) in draw(trial.links, trial.seed).into_iter().enumerate() {
        let name = format!("hidden-{:02}", number + 1);
        let place = directory.join("recordings").join(&name);
        let seed = seed::fold(seed::fold(trial.seed, 0x5ec), number as u64);
        let recording = Recording {
            trial,
            simulator: &simulator,
            place: &place,
            seed,
        };
        recording.make(&truth, &controls)?;
        let recorded = read(&[place], PathBy::Directory, |_| {})?;
        let path = &recorded.paths[0];
        let mut found = fit(path, &simulator, &settings, |_| {})?;
        let mut itself = compare(&truth, path, &simulator, &settings)?;
        for control in found.controls.iter_mut().chain(&mut itself) {
            if policy.starts_with(&control.control) {
                control.control = RLCC.to_owned();
            }
        }
        let outcome = Outcome {
            name,
            truth,
            found,
            itself,
        };
        watch(&outcome);
        outcomes.push(outcome);
        let text = serde_json::to_string_pretty(&outcomes).expect("figures are JSON");
        put(&directory.join("trial.json"), &(text + "\n"))?;
        put(&directory.join("table.md"), &table(&outcomes))?;
    }
    Ok(outcomes)
}

/// The recording of one link.
struct Recording<'a> {
    trial: &'a Trial,
    simulator: &'a Simulator,
    place: &'a Path,
    seed: u64,
}

impl Recording<'_> {
    /// Records all flows of all controls, one after the other.
    fn make(&self, truth: &Twin, controls: &[Subject]) -> Result<(), CalibrateError> {
        let failed = |source| CalibrateError::Write {
            path: self.place.to_owned(),
            source,
        };
        if self.place.exists() {
            fs::remove_dir_all(self.place).map_err(failed)?;
        }
        fs::create_dir_all(self.place).map_err(failed)?;
        let mut number = 0;
        for subject in controls {
            for flow in 0..self.trial.flows {
                number += 1;
                let seed = seed::fold(self.seed, number);
                let scenario = truth.scenario("hidden", seed)?;
                let hours = number as i64 * 3_600_000_000_000;
                let run = SimulatedRun {
                    started_ns: hours,
                    ..SimulatedRun::new(self.trial.length, seed)
                };
                let rows = self.simulator.rows(&scenario, subject, &run)?;
                write(self.place, &format!("{}-{flow}", subject.label()), &rows)?;
            }
        }
        Ok(())
    }
}

fn put(path: &PathBuf, text: &str) -> Result<(), CalibrateError> {
    fs::write(path, text).map_err(|source| CalibrateError::Write {
        path: path.clone(),
        source,
    })
}

/// Of how many links all fitted controls agree, and all held-out ones.
pub fn counts(outcomes: &[Outcome]) -> [usize; 2] {
    let fitted = outcomes.iter().filter(|outcome| outcome.found.agrees());
    let held = outcomes
        .iter()
        .filter(|o| o.found.held_out_agree() == Some(true));
    [fitted.count(), held.count()]
}

/// The same where each hidden link is its own twin.
pub fn counts_itself(outcomes: &[Outcome]) -> [usize; 2] {
    [false, true].map(|held_out| {
        let agreeing = outcomes
            .iter()
            .filter(|outcome| outcome.itself_agrees(held_out));
        agreeing.count()
    })
}

/// The outcomes as a table in Markdown.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut text = "| link | hidden | found | fitted controls agree | held-out controls agree | \
                    rate, RTT, buffer: found over hidden |\n|---|---|---|---|---|---|\n"
        .to_owned();
    for outcome in outcomes {
        let misses = |held_out: bool| {
            let mut words = Vec::new();
            for control in outcome
                .found
                .controls
                .iter()
                .filter(|c| c.held_out == held_out)
            {
                let figures = ["throughput", "p95", "loss"];
                let each = figures.iter().zip(control.differences);
                let far = each.filter(|(_, difference)| difference.abs() > 1.0);
                words.extend(far.map(|(figure, difference)| {
                    format!("{} {figure} {difference:+.1}", control.control)
                }));
            }
            match words.is_empty() {
                true => "yes".to_owned(),
                false => format!("no: {}", words.join(", ")),
            }
        };
        let ratios = [
            outcome.ratio(|twin| Some(twin.rate_mbps)),
            outcome.ratio(|twin| Some(twin.rtt_ms)),
            outcome.ratio(|twin| Some(twin.queue_bytes() as f64)),
        ];
        let ratios = ratios.map(|ratio| ratio.map_or_else(String::new, |r| format!("{r:.2}")));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            outcome.name,
            describe(&outcome.truth),
            describe(&outcome.found.twin),
            misses(false),
            misses(true),
            ratios.join(", ")
        );
    }
    let [fitted, held] = counts(outcomes);
    let all = outcomes.len();
    let _ = writeln!(
        text,
        "\nAll figures of the fitted controls agree on {fitted} of {all} links, those of the \
         held-out ones on {held}."
    );
    let [fitted, held] = counts_itself(outcomes);
    let _ = writeln!(
        text,
        "Run again on the hidden links themselves, with the seeds of the twins, the fitted \
         controls agree with their recordings on {fitted} links, the held-out ones on {held}."
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_has_every_feature_and_covers_its_ranges() {
        let links = draw(20, 3);
        assert_eq!(links, draw(20, 3));
        assert_ne!(links, draw(20, 4));
        for feature in Feature::ALL {
            let having = links
                .iter()
                .filter(|link| link.features().contains(&feature))
                .count();
            match feature {
                Feature::Cellular => assert_eq!(having, 0),
                _ => assert!(having >= 2, "{feature:?}: {having}"),
            }
        }
        let plain = links
            .iter()
            .filter(|link| link.features().is_empty())
            .count();
        assert!(plain >= 3, "{plain}");
        for (of, [low, high]) in [
            ((|l| l.rate_mbps) as fn(&Twin) -> f64, RATES),
            (|l| l.rtt_ms, RTTS),
            (|l| l.queue_ms / l.rtt_ms, BUFFERS),
        ] {
            let mut values: Vec<f64> = links.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            for (number, value) in values.iter().enumerate() {
                let at = (value / low).ln() / (high / low).ln() * 20.0;
                assert!(
                    (number as f64..=number as f64 + 1.0).contains(&at),
                    "{value}"
                );
            }
        }
        for link in links {
            link.scenario("hidden", 1).expect("in range");
        }
    }
}
