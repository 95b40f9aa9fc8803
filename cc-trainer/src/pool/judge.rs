//! A policy beside the teachers that it was learned from, link by link.

use std::{collections::BTreeMap, fmt::Write as _};

use cc_testbed::summary::{
    Summary,
    aggregate::{P95_DELAY, THROUGHPUT, groups},
};
use serde::Serialize;

/// A scheme beside its teachers on the links of an evaluation.
///
/// Power is throughput over the 95th percentile of the one-way delay, Mbit/s per s, both means over
/// the valid runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The scheme's name in the evaluation.
    pub scheme: String,
    /// The links on which the scheme and every teacher have a power, in the evaluation's order.
    pub links: Vec<LinkVerdict>,
    /// Geometric mean over the links of the ratio to the link's best teacher.
    pub against_best: f64,
    /// The teacher with the highest geometric mean.
    pub best_single: String,
    /// Geometric mean of the scheme's power, as a ratio to that teacher's.
    pub against_best_single: f64,
}

/// A scheme beside its teachers on one link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkVerdict {
    /// Name of the link's scenario in the evaluation.
    pub scenario: String,
    /// Power of the scheme on this link, Mbit/s per s.
    pub power: f64,
    /// Name of the teacher with the highest power on this link.
    pub best: String,
    /// Power of that teacher, Mbit/s per s.
    pub best_power: f64,
}

/// Why a scheme cannot be judged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JudgeError {
    /// The evaluation has no valid run of a scheme.
    #[error(
        "the evaluation has no scheme `{name}` with a valid run; it has {}",
        known.join(", ")
    )]
    Scheme {
        /// Name that was asked for.
        name: String,
        /// The schemes of the evaluation.
        known: Vec<String>,
    },
    /// There is no link on which all have valid runs.
    #[error("there is no link on which the scheme and all of its teachers have a valid run")]
    NoLink,
}

impl LinkVerdict {
    /// Power of the scheme as a ratio to the link's best teacher's.
    pub fn ratio(&self) -> f64 {
        self.power / self.best_power
    }
}

/// Compares a scheme with its teachers on the links of an evaluation.
///
/// # Errors
///
/// Returns an error when a scheme has no valid run, or there is no link on which all have one.
pub fn judge(summary: &Summary, scheme: &str, teachers: &[String]) -> Result<Verdict, JudgeError> {
    let mut powers: BTreeMap<&str, BTreeMap<&str, f64>> = BTreeMap::new();
    let mut order: Vec<&str> = Vec::new();
    let groups = groups(summary);
    for group in &groups {
        if !order.contains(&group.scenario) {
            order.push(group.scenario);
        }
        let estimates = group.estimate(&THROUGHPUT).zip(group.estimate(&P95_DELAY));
        let power = estimates.map(|(throughput, delay)| throughput.mean / (delay.mean / 1e3));
        if let Some(power) = power.filter(|power| power.is_finite() && *power > 0.0) {
            powers
                .entry(group.scheme)
                .or_default()
                .insert(group.scenario, power);
        }
    }
    let of = |name: &str| {
        powers.get(name).ok_or_else(|| JudgeError::Scheme {
            name: name.to_owned(),
            known: powers.keys().map(|&known| known.to_owned()).collect(),
        })
    };
    let own = of(scheme)?;
    let teachers: Vec<_> = teachers
        .iter()
        .map(|name| Ok((name.as_str(), of(name)?)))
        .collect::<Result<_, _>>()?;
    let mut links = Vec::new();
    let mut logarithms = vec![0.0; teachers.len()];
    let mut own_logarithm = 0.0;
    for scenario in order {
        let theirs: Option<Vec<f64>> = (teachers.iter())
            .map(|(_, powers)| powers.get(scenario).copied())
            .collect();
        let (Some(theirs), Some(&power)) = (theirs, own.get(scenario)) else {
            continue;
        };
        let Some(best) = (0..theirs.len()).max_by(|&a, &b| theirs[a].total_cmp(&theirs[b])) else {
            continue;
        };
        for (sum, power) in logarithms.iter_mut().zip(&theirs) {
            *sum += power.ln();
        }
        own_logarithm += power.ln();
        links.push(LinkVerdict {
            scenario: scenario.to_owned(),
            power,
            best: teachers[best].0.to_owned(),
            best_power: theirs[best],
        });
    }
    let count = links.len() as f64;
    let single = (0..teachers.len()).max_by(|&a, &b| logarithms[a].total_cmp(&logarithms[b]));
    let Some(single) = single.filter(|_| !links.is_empty()) else {
        return Err(JudgeError::NoLink);
    };
    let ratios = links.iter().map(|link| link.ratio().ln());
    Ok(Verdict {
        scheme: scheme.to_owned(),
        against_best: (ratios.sum::<f64>() / count).exp(),
        best_single: teachers[single].0.to_owned(),
        against_best_single: ((own_logarithm - logarithms[single]) / count).exp(),
        links,
    })
}

impl Verdict {
    /// Number of links on which the scheme has at least this share of the best teacher's power.
    pub fn at_least(&self, ratio: f64) -> usize {
        let links = self.links.iter();
        links.filter(|link| link.ratio() >= ratio).count()
    }

    /// The verdict in a line.
    pub fn line(&self) -> String {
        let ratios = self.links.iter().map(LinkVerdict::ratio);
        format!(
            "{}: {:.3} of the best teacher's power on each of {} links (least {:.3}; at least its \
             power on {}), {:.3} of {}'s, the best single teacher",
            self.scheme,
            self.against_best,
            self.links.len(),
            ratios.fold(f64::INFINITY, f64::min),
            self.at_least(1.0),
            self.against_best_single,
            self.best_single,
        )
    }

    /// The verdict with a line for each link.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for link in &self.links {
            let LinkVerdict {
                scenario,
                power,
                best,
                best_power,
            } = link;
            let ratio = link.ratio();
            let _ = writeln!(
                text,
                "{scenario:<20} {power:>8.1}  {best:<8} {best_power:>8.1}  {ratio:.3}"
            );
        }
        text + &self.line() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use cc_testbed::summary::{Host, Run, Settings};

    use super::*;

    fn summary(figures: &[(&str, &str, f64)]) -> Summary {
        let run = |&(scenario, scheme, power): &(&str, &str, f64)| Run {
            scenario: scenario.into(),
            scheme: scheme.into(),
            throughput_mbps: power,
            p95_owd_ms: Some(1_000.0),
            ..Run::default()
        };
        Summary {
            runs: figures.iter().map(run).collect(),
            applications: Vec::new(),
            host: Host::default(),
            settings: Settings::default(),
        }
    }

    fn teachers() -> Vec<String> {
        ["bbr", "cubic"].map(str::to_owned).to_vec()
    }

    #[test]
    fn the_best_teacher_of_a_link_is_harder_to_reach_than_the_best_single_one() {
        let summary = summary(&[
            ("deep", "bbr", 40.0),
            ("deep", "cubic", 10.0),
            ("deep", "own", 40.0),
            ("shallow", "bbr", 10.0),
            ("shallow", "cubic", 20.0),
            ("shallow", "own", 22.5),
            ("broken", "own", 1.0),
        ]);
        let verdict = judge(&summary, "own", &teachers()).expect("all have run");
        let best: Vec<_> = verdict
            .links
            .iter()
            .map(|link| link.best.as_str())
            .collect();
        assert_eq!(best, ["bbr", "cubic"]);
        // √(1 · 22.5/20) and √(40 · 22.5)/√(40 · 10).
        assert!((verdict.against_best - 1.125_f64.sqrt()).abs() < 1e-12);
        assert_eq!(verdict.best_single, "bbr");
        assert!((verdict.against_best_single - 1.5).abs() < 1e-12);
        assert_eq!((verdict.at_least(1.0), verdict.at_least(1.1)), (2, 1));
        assert!(verdict.text().contains("1.125"), "{}", verdict.text());
    }

    #[test]
    fn a_scheme_without_runs_is_named() {
        let only = summary(&[("deep", "bbr", 40.0), ("shallow", "own", 1.0)]);
        let error = judge(&only, "own", &teachers()).expect_err("no cubic");
        assert!(error.to_string().contains("no scheme `cubic`"), "{error}");
        let bbr = ["bbr".to_owned()];
        assert_eq!(judge(&only, "own", &bbr), Err(JudgeError::NoLink));
    }
}
