//! Fits a twin to what was recorded on a path: the structure of the link, and its parameters.

use cc_sim::seed;
use serde::Serialize;

use super::agreement::{Agreement, Tolerance, residuals};
use super::error::CalibrateError;
use super::estimate::Estimates;
use super::recorded::{RecordedControl, RecordedPath};
use super::search::{Budget, Evaluation, minimise};
use super::simulate::Simulator;
use super::twin::{Feature, Space, Twin};

/// Score per control, in squared tolerances, at which a search ends.
const ENOUGH: f64 = 0.15;
/// What a feature has to lower the score per control by to be worth having.
const PENALTY: f64 = 0.1;
/// Largest part of the tolerance that a figure may differ by for no further feature to be tried.
const SETTLED: f64 = 0.6;
/// Most features that a twin has.
const MOST_FEATURES: usize = 3;
/// Number of the best points of a search that are run again with other seeds.
const AGAIN: usize = 5;
/// Repetitions of each recorded flow in that, and in the final comparison.
const REPEATS: [u32; 2] = [3, 6];

/// How a twin is looked for.
#[derive(Clone, Debug, PartialEq)]
pub struct FitSettings {
    /// Number of evaluations at most for each structure that is tried.
    pub evaluations: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// How far figures may differ.
    pub tolerance: Tolerance,
    /// Names of controls that are compared and not fitted to.
    pub hold_out: Vec<String>,
}

impl Default for FitSettings {
    fn default() -> Self {
        Self {
            evaluations: 48,
            seed: 1,
            tolerance: Tolerance::default(),
            hold_out: Vec::new(),
        }
    }
}

/// A twin of a recorded path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fitted {
    /// Name of the path.
    pub path: String,
    /// The twin.
    pub twin: Twin,
    /// For each parameter the smallest and the largest value of a twin that was met in the search
    /// and whose figures were all within the tolerance: what the recording does not tell apart.
    pub ranges: Vec<ParameterRange>,
    /// The controls, recorded and on the twin, with seeds that the search has not seen.
    pub controls: Vec<Agreement>,
    /// Number of evaluations, over all structures.
    pub evaluations: usize,
    /// Acknowledged bytes of the path's recording.
    pub bytes: u64,
    /// What was not compared, each with the reason, and other remarks.
    pub notes: Vec<String>,
}

impl Fitted {
    /// Whether every control that was fitted to agrees.
    pub fn agrees(&self) -> bool {
        let mut fitted = self.controls.iter().filter(|control| !control.held_out);
        fitted.all(Agreement::agrees)
    }

    /// Whether every control that was held out agrees; `None` when there is none.
    pub fn held_out_agree(&self) -> Option<bool> {
        let mut held_out = self
            .controls
            .iter()
            .filter(|control| control.held_out)
            .peekable();
        held_out.peek()?;
        Some(held_out.all(Agreement::agrees))
    }
}

/// A parameter's range over the twins that agree.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ParameterRange {
    /// Name of the parameter, with its unit.
    pub name: &'static str,
    /// Its value in the twin.
    pub value: f64,
    /// Smallest and largest value of a twin that agrees.
    pub range: [f64; 2],
}

/// What is known of one structure after its search.
struct Structure {
    space: Space,
    evaluations: Vec<Evaluation>,
}

impl Structure {
    fn best(&self) -> &Evaluation {
        let order = |a: &&Evaluation, b: &&Evaluation| a.score().total_cmp(&b.score());
        let best = self.evaluations.iter().min_by(order);
        best.expect("a search has evaluations")
    }

    /// The score with the price of its features.
    fn priced(&self, controls: usize) -> f64 {
        let price = PENALTY * self.space.features.len() as f64;
        self.best().score() + price * controls as f64
    }
}

/// Fits a twin to a path's recording. `watch` is called before each structure with its features.
///
/// # Errors
///
/// Returns an error when none of the path's controls can be simulated, when all are held out, or
/// when a simulation fails.
pub fn fit(
    path: &RecordedPath,
    simulator: &Simulator,
    settings: &FitSettings,
    mut watch: impl FnMut(&[Feature]),
) -> Result<Fitted, CalibrateError> {
    let mut notes = path.left_out.clone();
    let labels = || {
        path.controls
            .iter()
            .map(|c| c.subject.label())
            .collect::<Vec<_>>()
    };
    let (known, unknown): (Vec<_>, Vec<_>) =
        (path.controls.iter()).partition(|control| simulator.knows(&control.subject));
    if known.is_empty() {
        return Err(CalibrateError::NotSimulated {
            path: path.name.clone(),
            found: labels(),
        });
    }
    notes.extend(unknown.iter().map(|control| {
        let label = control.subject.label();
        format!("{label}: cannot be simulated, and is not compared (a policy needs --policy)")
    }));
    if path.overlapping {
        notes.push(
            "flows were under way at the same time: the twin is what one of them got of a link \
             that they shared"
                .to_owned(),
        );
    }
    let held_out =
        |control: &&RecordedControl| settings.hold_out.contains(&control.subject.label());
    let (held, used): (Vec<&RecordedControl>, Vec<_>) = known.into_iter().partition(held_out);
    if used.is_empty() {
        return Err(CalibrateError::AllHeldOut {
            path: path.name.clone(),
            found: labels(),
        });
    }
    let search = Search {
        estimates: Estimates::of(&used),
        controls: used,
        simulator,
        settings,
    };
    let (structure, evaluations) = search.structure(&mut watch)?;
    let twin = search.confirmed(&structure)?;
    let fitted = search.controls.iter().map(|control| (*control, false));
    let compared = fitted.chain(held.into_iter().map(|control| (control, true)));
    let controls = compared.map(|(control, held_out)| {
        let seed = seed::fold(settings.seed, 0xf1a1);
        let found = simulator.statistics(&twin, control, REPEATS[1], seed)?;
        let recorded = control.statistics;
        let label = control.subject.label();
        Ok(Agreement::new(
            label,
            held_out,
            recorded,
            found,
            settings.tolerance,
        ))
    });
    Ok(Fitted {
        path: path.name.clone(),
        ranges: ranges(&structure, &twin, settings.tolerance),
        twin,
        controls: controls.collect::<Result<_, CalibrateError>>()?,
        evaluations,
        bytes: path.bytes,
        notes,
    })
}

/// What a search for a twin needs.
struct Search<'a> {
    estimates: Estimates,
    controls: Vec<&'a RecordedControl>,
    simulator: &'a Simulator,
    settings: &'a FitSettings,
}

impl Search<'_> {
    /// The structure with the least price, and the number of evaluations that it took: features are
    /// added one at a time, as long as figures differ.
    fn structure(
        &self,
        watch: &mut impl FnMut(&[Feature]),
    ) -> Result<(Structure, usize), CalibrateError> {
        let mut run = |features: &[Feature], from: Option<&Twin>| {
            watch(features);
            self.run(features, from)
        };
        let controls = self.controls.len();
        let mut best = run(&[], None)?;
        let mut evaluations = best.evaluations.len();
        while !self.settled(&best) && best.space.features.len() < MOST_FEATURES {
            let base = best.space.twin(&best.best().point);
            let of_base = best.space.features.clone();
            let mut improved = false;
            for feature in Feature::ALL {
                if of_base
                    .iter()
                    .any(|other| *other == feature || !feature.goes_with(*other))
                {
                    continue;
                }
                let mut features = of_base.clone();
                features.push(feature);
                features.sort_unstable();
                let next = run(&features, Some(&base))?;
                evaluations += next.evaluations.len();
                if next.priced(controls) < best.priced(controls) {
                    best = next;
                    improved = true;
                    // Loss is tried first, and is what most paths lack.
                    if self.settled(&best) {
                        break;
                    }
                }
            }
            if !improved {
                break;
            }
        }
        Ok((best, evaluations))
    }

    /// Whether all figures of the structure's best twin are well within the tolerance.
    fn settled(&self, structure: &Structure) -> bool {
        let tolerance = self.settings.tolerance;
        tolerance.largest_compared(&structure.best().residuals) <= SETTLED
    }

    /// Searches the box of a structure, beginning where the recording suggests, and at a twin of a
    /// simpler structure.
    fn run(&self, features: &[Feature], from: Option<&Twin>) -> Result<Structure, CalibrateError> {
        let space = Space::new(features, &self.estimates);
        let mut starts = vec![space.point(&self.estimates.start(features))];
        if let Some(from) = from {
            let mut point = space.point(from);
            // A feature at its least noticeable says nothing: begin where it is suggested.
            let suggested = &starts[0];
            for ((at, suggested), dimension) in
                point.iter_mut().zip(suggested).zip(&space.dimensions)
            {
                if dimension.parameter.value(from).is_none() {
                    *at = *suggested;
                }
            }
            starts.push(space.point(from));
            starts.push(point);
        }
        let dimensions = space.dimensions.len();
        let budget = Budget {
            initial: (2 * dimensions + 3).min(self.settings.evaluations),
            most: self.settings.evaluations,
            enough: ENOUGH * self.controls.len() as f64,
        };
        let evaluate = |point: &[f64]| {
            let twin = space.twin(point);
            self.residuals(&twin, 1, seed::fold(self.settings.seed, 1))
        };
        let evaluations = minimise(&starts, dimensions, budget, self.settings.seed, evaluate)?;
        Ok(Structure { space, evaluations })
    }

    /// The weighted residuals of all controls that are fitted to.
    fn residuals(&self, twin: &Twin, repeats: u32, seed: u64) -> Result<Vec<f64>, CalibrateError> {
        let mut all = Vec::new();
        for control in &self.controls {
            let found = self.simulator.statistics(twin, control, repeats, seed)?;
            let recorded = &control.statistics;
            all.extend(residuals(recorded, &found, self.settings.tolerance));
        }
        Ok(all)
    }

    /// The best twin of a structure with seeds that the search has not seen.
    fn confirmed(&self, structure: &Structure) -> Result<Twin, CalibrateError> {
        let mut order: Vec<&Evaluation> = structure.evaluations.iter().collect();
        order.sort_by(|a, b| a.score().total_cmp(&b.score()));
        order.dedup_by(|a, b| a.point == b.point);
        let seed = seed::fold(self.settings.seed, 2);
        let mut best: Option<(f64, Twin)> = None;
        for evaluation in order.into_iter().take(AGAIN) {
            let twin = structure.space.twin(&evaluation.point);
            let residuals = self.residuals(&twin, REPEATS[0], seed)?;
            let score = residuals.iter().map(|r| r * r).sum();
            if best.is_none_or(|(least, _)| score < least) {
                best = Some((score, twin));
            }
        }
        let (_, twin) = best.expect("a search has evaluations");
        Ok(twin)
    }
}

/// The ranges of the parameters over the evaluations that agree, and the twin itself.
fn ranges(structure: &Structure, twin: &Twin, tolerance: Tolerance) -> Vec<ParameterRange> {
    let agreeing: Vec<Twin> = (structure.evaluations.iter())
        .filter(|evaluation| tolerance.largest_compared(&evaluation.residuals) <= 1.0)
        .map(|evaluation| structure.space.twin(&evaluation.point))
        .collect();
    let dimensions = structure.space.dimensions.iter();
    dimensions
        .filter_map(|dimension| {
            let parameter = dimension.parameter;
            let value = parameter.value(twin)?;
            let values = agreeing.iter().filter_map(|twin| parameter.value(twin));
            let range = values.fold([value; 2], |[low, high], v| [low.min(v), high.max(v)]);
            Some(ParameterRange {
                name: parameter.name(),
                value,
                range,
            })
        })
        .collect()
}
