//! Estimates beside what was earned, their rank correlation, and how often intervals hold.

use std::{
    collections::BTreeMap,
    fmt::Write,
    path::{Path, PathBuf},
};

use anyhow::Context;
use cc_core::policy::OnnxPolicy;
use cc_trainer::{
    dataset::Recordings,
    ope::{
        self, Method, OpeSettings, Per,
        recorded::{self, Selection, TERM_NAMES},
    },
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use rand_distr::StandardNormal;
use serde::Serialize;
use tempfile::TempDir;

use super::{
    means::{Flow, Mean, difference},
    name,
    take_over::{self, TakenOver},
};

/// One candidate: what was predicted, and what came of it. All are differences of the reward per
/// window from that of the recorded policy.
#[derive(Clone, Debug, Serialize)]
struct Candidate {
    name: String,
    predicted: Mean,
    refusal: Option<String>,
    effective: f64,
    /// From fresh runs in which the candidate decides all along.
    fresh: Mean,
    /// From runs that it takes over from the recorded policy.
    switched: Option<Mean>,
}

/// The comparison of all candidates.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    horizon: usize,
    flows: usize,
    candidates: Vec<Candidate>,
}

/// Estimates the candidates and reads what they earned.
pub(crate) fn compare(
    recorded: &Path,
    fresh: &Path,
    switched: Option<Vec<TakenOver>>,
    candidates: &[PathBuf],
    horizon: usize,
) -> anyhow::Result<Comparison> {
    let own = earned(&fresh.join("recorded"))?;
    let mut found = Comparison {
        horizon,
        flows: 0,
        candidates: Vec::new(),
    };
    for path in candidates {
        let name = name(path);
        let (flows, predicted, refusal, effective) =
            predicted(recorded, path, horizon).with_context(|| name.clone())?;
        found.flows = flows;
        let switched = switched.as_ref().map(|all| take_over::of(all, &name));
        found.candidates.push(Candidate {
            predicted,
            refusal,
            effective,
            fresh: difference(&earned(&fresh.join(&name))?, &own),
            switched: switched.transpose()?.map(|own| own.difference),
            name,
        });
    }
    Ok(found)
}

/// What `ope` says of a candidate's reward: the number of flows, MAGIC's difference, why it is
/// refused, and its effective sample size.
fn predicted(
    from: &Path,
    candidate: &Path,
    horizon: usize,
) -> anyhow::Result<(usize, Mean, Option<String>, f64)> {
    let recordings = Recordings::open(&[from.to_owned()])?;
    let of = recorded::behaviour(recordings.policies(), None)?;
    let windows = 1_000.0 / f64::from(recordings.interface().window_ms);
    let mut policy = OnnxPolicy::from_file(candidate, None, 1)?;
    let scratch = TempDir::new()?;
    let partitions = recordings.partition(scratch.path(), 32 << 20, &|_| {})?;
    let selection = Selection {
        of: Some(of),
        per: Per::Second,
        most: 1_000_000,
    };
    let mut taken = recorded::flows(&partitions, &mut policy, &selection)?;
    let default = OpeSettings::default();
    let settings = OpeSettings {
        horizon,
        per: Per::Second,
        discount: default.discount.powf(windows),
        ..default
    };
    taken.group(None, settings.least_effective as usize, false)?;
    let evaluation = ope::evaluate(&taken.flows, &settings)?;
    let estimates = &evaluation.terms[TERM_NAMES.len() - 1].estimates;
    let magic = estimates.iter().find(|own| own.method == Method::Magic);
    let magic = magic.context("MAGIC is one of the methods")?;
    let predicted = Mean {
        value: magic.difference.value,
        low: magic.difference.low,
        high: magic.difference.high,
    };
    let refusal = magic.refusal.map(|refusal| refusal.to_string());
    Ok((evaluation.flows, predicted, refusal, magic.effective))
}

/// What the flows of a recording earned.
fn earned(recording: &Path) -> anyhow::Result<Vec<Flow>> {
    let recordings = Recordings::open(&[recording.to_owned()])?;
    let scratch = TempDir::new()?;
    let partitions = recordings.partition(scratch.path(), 32 << 20, &|_| {})?;
    let mut flows: BTreeMap<u64, Flow> = BTreeMap::new();
    for index in 0..partitions.len() {
        partitions.visit(index, |trajectory| {
            let own = flows.entry(trajectory.flow).or_default();
            own.id = trajectory.flow;
            for outcome in trajectory.steps.iter().filter_map(|step| step.outcome) {
                own.reward += f64::from(outcome.reward) * outcome.seconds;
                own.seconds += outcome.seconds;
            }
            Ok(())
        })?;
    }
    Ok(flows.into_values().collect())
}

impl Comparison {
    /// Formats the table, the rank correlations, and how often intervals hold.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "reward per window minus the recorded policy's; predicted from {} flows for {} \
             decisions\n\n{:<14}{:>30}{:>11}{:>30}{:>30}\n",
            self.flows, self.horizon, "candidate", "predicted", "effective", "taken over", "fresh"
        );
        let shown = |mean: &Mean| {
            let Mean { value, low, high } = mean;
            format!("{value:.3} [{low:.3}, {high:.3}]")
        };
        for own in &self.candidates {
            let predicted = shown(&own.predicted);
            let star = if own.refusal.is_some() { "*" } else { "" };
            let switched = own.switched.as_ref().map_or("-".to_owned(), shown);
            let _ = writeln!(
                text,
                "{:<14}{predicted:>29}{star:<1}{:>11.1}{switched:>30}{:>30}",
                own.name,
                own.effective,
                shown(&own.fresh)
            );
        }
        for own in &self.candidates {
            if let Some(refusal) = &own.refusal {
                let _ = writeln!(text, "* {}: {refusal}", own.name);
            }
        }
        text.push('\n');
        let concluded = self.candidates.iter().filter(|own| own.refusal.is_none());
        let concluded: Vec<_> = concluded.collect();
        let all: Vec<_> = self.candidates.iter().collect();
        for (who, own) in [("concluded", &concluded), ("all", &all)] {
            let fresh: Vec<_> = own.iter().map(|own| Some(own.fresh)).collect();
            let switched: Vec<_> = own.iter().map(|own| own.switched).collect();
            for (what, found) in [("fresh", fresh), ("taken over", switched)] {
                let Some(found) = found.into_iter().collect::<Option<Vec<_>>>() else {
                    continue;
                };
                text += &agreement(who, what, own, &found);
            }
        }
        text
    }
}

/// A line about how predictions and what came of them agree.
fn agreement(who: &str, what: &str, candidates: &[&Candidate], found: &[Mean]) -> String {
    let predicted: Vec<_> = candidates.iter().map(|own| own.predicted).collect();
    let pairs = || candidates.iter().zip(found);
    let contained = pairs().filter(|(own, found)| own.predicted.contains(found.value));
    let agreed = pairs().filter(|(own, found)| own.predicted.agrees(found));
    let signs = pairs().filter(|(own, found)| own.predicted.value * found.value > 0.0);
    let (contained, agreed, signs) = (contained.count(), agreed.count(), signs.count());
    let correlation = match spearman(&predicted, found) {
        None => "too few for a rank correlation".to_owned(),
        Some((value, low, high)) => {
            format!("rank correlation {value:.2} [{low:.2}, {high:.2}]")
        }
    };
    format!(
        "{who}, {what}: {correlation}; of {} predicted intervals {contained} contain the figure, \
         {agreed} agree with it and its interval; {signs} have its sign\n",
        candidates.len()
    )
}

/// Spearman's rank correlation with its 95 % interval; `None` for fewer than four pairs.
///
/// The interval is that of these candidates: percentiles over draws of both figures of each within
/// their errors. Other candidates would have another correlation.
fn spearman(a: &[Mean], b: &[Mean]) -> Option<(f64, f64, f64)> {
    const DRAWS: usize = 2_000;
    if a.len() < 4 {
        return None;
    }
    let values = |all: &[Mean]| all.iter().map(|own| own.value).collect::<Vec<_>>();
    let mut random = StdRng::seed_from_u64(1);
    let mut drawn = |all: &[Mean]| -> Vec<f64> {
        let own = all.iter();
        own.map(|own| own.value + own.error() * random.sample::<f64, _>(StandardNormal))
            .collect()
    };
    let mut draws: Vec<f64> = (0..DRAWS)
        .map(|_| correlation(&drawn(a), &drawn(b)))
        .collect();
    draws.sort_by(f64::total_cmp);
    let beyond = DRAWS / 40;
    Some((
        correlation(&values(a), &values(b)),
        draws[beyond - 1],
        draws[DRAWS - beyond],
    ))
}

/// The correlation of the ranks of two lists of values.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let (a, b) = (ranks(a), ranks(b));
    let middle = 0.5 * (a.len() as f64 + 1.0);
    let product = |a: &[f64], b: &[f64]| -> f64 {
        let pairs = a.iter().zip(b);
        pairs.map(|(a, b)| (a - middle) * (b - middle)).sum()
    };
    product(&a, &b) / (product(&a, &a) * product(&b, &b)).sqrt()
}

/// The ranks of values, from 1; equal ones share theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count() as f64;
        let same = values.iter().filter(|other| *other == value).count() as f64;
        below + 0.5 * (same + 1.0)
    };
    values.iter().map(rank).collect()
}
