//! Fits a twin to what was recorded on a path: the structure of the link, and its parameters.

use cc_sim::seed;
use serde::Serialize;

use super::agreement::{Agreement, Tolerance, residuals};
use super::error::CalibrateError;
use super::estimate::Estimates;
use super::recorded::{RecordedControl, RecordedPath};
use super::search::{Budget, Evaluation, minimise};
use super::simulate::Simulator;
use super::space::Space;
use super::twin::{Feature, Twin};

/// Score per control, in squared tolerances, at which a search ends.
const ENOUGH: f64 = 0.15;
/// What a feature has to lower the score per control by to be worth having.
const PENALTY: f64 = 0.03;
/// Largest part of the tolerance that a figure may differ by for no further feature to be tried.
const SETTLED: f64 = 0.6;
/// Most features that a twin has.
const MOST_FEATURES: usize = 2;
/// Part of a structure's evaluations that tells whether it deserves the others.
const SCREENING: f64 = 0.35;
/// Evaluations after which a search that has not got better ends.
const PATIENCE: usize = 12;
/// Flows of each control that are simulated in a search: the longest ones.
const SEARCHED_FLOWS: usize = 2;
/// Number of the best points of a search that are run again with other seeds.
const AGAIN: usize = 5;
/// Repetitions of each flow in that.
const REPEATS: u32 = 3;
/// Flows of each control in the final comparison, at least.
const COMPARED_FLOWS: u32 = 8;

/// How a twin is looked for.
#[derive(Clone, Debug, PartialEq)]
pub struct FitSettings {
    /// Number of evaluations at most for each structure that is tried.
    pub evaluations: usize,
    /// Seed of the simulated runs and of the search.
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
    /// Name of the path, which its scenario bears too.
    pub path: String,
    /// The parameters of the link that was fitted.
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
    let used: Vec<&RecordedControl> = known.into_iter().filter(|c| !held_out(c)).collect();
    if used.is_empty() {
        return Err(CalibrateError::AllHeldOut {
            path: path.name.clone(),
            found: labels(),
        });
    }
    let search = Search {
        estimates: Estimates::of(&used),
        controls: used.into_iter().map(searched).collect(),
        simulator,
        settings,
    };
    let (structure, evaluations) = search.structure(&mut watch)?;
    let twin = search.confirmed(&structure)?;
    Ok(Fitted {
        path: path.name.clone(),
        ranges: ranges(&structure, &twin, settings.tolerance),
        twin,
        controls: compare(&twin, path, simulator, settings)?,
        evaluations,
        bytes: path.bytes,
        notes,
    })
}

/// Compares the controls of a path that can be simulated with a twin, those that are held out last.
/// Seeds are others than those of the search.
///
/// # Errors
///
/// Returns an error when a simulation fails.
pub(super) fn compare(
    twin: &Twin,
    path: &RecordedPath,
    simulator: &Simulator,
    settings: &FitSettings,
) -> Result<Vec<Agreement>, CalibrateError> {
    let mut controls = Vec::new();
    for control in path
        .controls
        .iter()
        .filter(|control| simulator.knows(&control.subject))
    {
        let seed = seed::fold(settings.seed, 0xf1a1);
        let repeats = COMPARED_FLOWS.div_ceil(control.flows.len().max(1) as u32);
        let found = simulator.statistics(twin, control, repeats, seed)?;
        let label = control.subject.label();
        let held_out = settings.hold_out.contains(&label);
        let recorded = control.statistics;
        controls.push(Agreement::new(
            label,
            held_out,
            recorded,
            found,
            settings.tolerance,
        ));
    }
    controls.sort_by_key(|control| control.held_out);
    Ok(controls)
}

/// The control with the flows that a search simulates.
fn searched(control: &RecordedControl) -> RecordedControl {
    let flows = control.flows.iter().take(SEARCHED_FLOWS);
    RecordedControl {
        flows: flows.cloned().collect(),
        ..control.clone()
    }
}

/// What a search for a twin needs.
struct Search<'a> {
    estimates: Estimates,
    /// The controls that are fitted to, with the figures of all of their flows and those flows that
    /// are simulated.
    controls: Vec<RecordedControl>,
    simulator: &'a Simulator,
    settings: &'a FitSettings,
}

impl Search<'_> {
    /// The structure with the least price, and the number of evaluations that it took: features are
    /// added one at a time, as long as figures differ. Each is tried for a part of the evaluations,
    /// and the most promising one for all of them.
    fn structure(
        &self,
        watch: &mut impl FnMut(&[Feature]),
    ) -> Result<(Structure, usize), CalibrateError> {
        let all = self.settings.evaluations;
        let some = (all as f64 * SCREENING).ceil() as usize;
        let controls = self.controls.len();
        watch(&[]);
        let mut best = self.run(Space::new(&[], &self.estimates), None, all, self.enough())?;
        let mut evaluations = best.evaluations.len();
        // A little loss that hardly shows in the figures of some controls rules those of others, so
        // that it is looked for even where nothing differs.
        watch(&[Feature::Loss]);
        let base = best.space.twin(&best.best().point);
        let space = Space::new(&[Feature::Loss], &self.estimates);
        // It has to be clearly better.
        let enough = self.enough().min(0.5 * best.best().score());
        let lossy = self.run(space, Some(&base), all, enough)?;
        evaluations += lossy.evaluations.len();
        if lossy.priced(controls) < best.priced(controls) {
            best = lossy;
        }
        while !self.settled(&best) && best.space.features.len() < MOST_FEATURES {
            let base = best.space.twin(&best.best().point);
            let of_base = &best.space.features;
            let mut promising: Option<Structure> = None;
            for feature in Feature::ALL {
                let other = |other: &Feature| *other == feature || !feature.goes_with(*other);
                // Loss alone has been tried.
                let known = of_base.is_empty() && feature == Feature::Loss;
                if known || of_base.iter().any(other) {
                    continue;
                }
                let mut features = of_base.clone();
                features.push(feature);
                features.sort_unstable();
                watch(&features);
                let space = Space::new(&features, &self.estimates);
                let next = self.run(space, Some(&base), some, self.enough())?;
                evaluations += next.evaluations.len();
                let other = promising.as_ref().map_or(f64::MAX, |s| s.priced(controls));
                if next.priced(controls) < other {
                    promising = Some(next);
                }
                if promising.as_ref().is_some_and(|next| self.settled(next)) {
                    break;
                }
            }
            let Some(promising) = promising else {
                break;
            };
            let before = promising.evaluations.len();
            watch(&promising.space.features);
            let next = self.further(promising, all)?;
            evaluations += next.evaluations.len() - before;
            if next.priced(controls) >= best.priced(controls) {
                break;
            }
            best = next;
        }
        Ok((best, evaluations))
    }

    /// The score at which a search ends.
    fn enough(&self) -> f64 {
        ENOUGH * self.controls.len() as f64
    }

    /// Whether all figures of the structure's best twin are well within the tolerance.
    fn settled(&self, structure: &Structure) -> bool {
        let tolerance = self.settings.tolerance;
        tolerance.largest_compared(&structure.best().residuals) <= SETTLED
    }

    /// Searches the box of a structure, beginning where the recording suggests, and at a twin of a
    /// simpler structure, for `most` evaluations or until a score is `enough`.
    fn run(
        &self,
        space: Space,
        from: Option<&Twin>,
        most: usize,
        enough: f64,
    ) -> Result<Structure, CalibrateError> {
        let suggested = space.point(&self.estimates.start(&space.features));
        let mut starts = vec![suggested.clone()];
        if let Some(from) = from {
            let known = space.point(from);
            let places = known.iter().zip(&suggested).zip(&space.dimensions);
            // A feature at its least noticeable says nothing: begin where it is suggested, too.
            let both = places.map(|((&known, &suggested), dimension)| {
                match dimension.parameter.value(from) {
                    Some(_) => known,
                    None => suggested,
                }
            });
            starts.push(both.collect());
            starts.push(known);
        }
        self.search(space, Vec::new(), &starts, (most, enough))
    }

    /// Searches the box of a structure further, up to `most` evaluations in all.
    fn further(&self, structure: Structure, most: usize) -> Result<Structure, CalibrateError> {
        let Structure { space, evaluations } = structure;
        self.search(space, evaluations, &[], (most, self.enough()))
    }

    fn search(
        &self,
        space: Space,
        known: Vec<Evaluation>,
        starts: &[Vec<f64>],
        (most, enough): (usize, f64),
    ) -> Result<Structure, CalibrateError> {
        let dimensions = space.dimensions.len();
        let budget = Budget {
            initial: (dimensions + 5).min(most),
            most,
            patience: PATIENCE,
            enough,
        };
        let evaluate = |point: &[f64]| {
            let twin = space.twin(point);
            self.residuals(&twin, 1, seed::fold(self.settings.seed, 1))
        };
        let seed = self.settings.seed;
        let evaluations = minimise(known, starts, dimensions, budget, seed, evaluate)?;
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
            let residuals = self.residuals(&twin, REPEATS, seed)?;
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
