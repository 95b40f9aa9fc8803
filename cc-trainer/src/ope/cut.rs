//! Sub-trajectories, and what the end of a recording does to them.
//!
//! A clock ends recordings, not a number of decisions. The sub-trajectory that is under way then is
//! cut off, the more often the longer its decisions stay in force: leaving out just those would
//! make silence look rarer than it is, and for a candidate whose decisions lead to more of it, or
//! less, in a different way. So all that *begin* shortly before the end are left out. When
//! a sub-trajectory begins does not depend on what happens in it.
//!
//! How shortly is read off the recording: the smallest time such that next to none of those that
//! began earlier are cut off.

use super::OpeFlow;

/// Largest fraction of the sub-trajectories that began early enough which may nevertheless be cut
/// off. With none at all, a single flow that stays silent to the end could take most of a recording
/// with it.
pub(super) const MOST_CUT: f64 = 0.005;

/// The end of a flow's recording by a clock: when it came, and whether it cut decisions off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordingEnd {
    /// Time from the beginning of the flow's first step to the end, s. It must not depend on what
    /// was decided meanwhile.
    pub after_s: f64,
    /// Whether the decision after the last step is missing because of this end. Decisions that are
    /// missing for other reasons are taken to be missing whatever their outcome.
    pub reached: bool,
}

/// Indices of consecutive decisions of one flow.
pub(super) type SubTrajectory = std::ops::Range<usize>;

/// The sub-trajectories that are evaluated.
pub(super) struct Selected {
    /// The sub-trajectories of each flow.
    pub(super) of: Vec<Vec<SubTrajectory>>,
    /// Number of whole ones that are left out because they began near the end.
    pub(super) left_out: usize,
    /// How near that is, s.
    pub(super) within_s: f64,
}

impl Selected {
    pub(super) fn new(flows: &[OpeFlow], horizon: usize) -> Self {
        let mut of: Vec<_> = flows
            .iter()
            .map(|flow| sub_trajectories(flow, horizon))
            .collect();
        let mut begun = Vec::new();
        for (flow, own) in flows.iter().zip(&of) {
            let whole = own.iter().filter_map(|own| left(flow, own.start));
            begun.extend(whole.map(|left| (left, false)));
            if flow.end.is_some_and(|end| end.reached) && !flow.ended {
                let last = flow.steps.len() / horizon * horizon;
                begun.extend(left(flow, last).map(|left| (left, true)));
            }
        }
        let within_s = near(&mut begun);
        let mut left_out = 0;
        for (flow, own) in flows.iter().zip(&mut of) {
            let before = own.len();
            let early = |left| left > within_s || within_s == 0.0;
            own.retain(|own| left(flow, own.start).is_none_or(early));
            left_out += before - own.len();
        }
        Self {
            of,
            left_out,
            within_s,
        }
    }
}

/// Returns the time from the beginning of a step until a clock ended the flow's recording, s;
/// `None` where none did.
fn left(flow: &OpeFlow, step: usize) -> Option<f64> {
    let before: f64 = flow.steps[..step].iter().map(|step| step.seconds).sum();
    Some((flow.end?.after_s - before).max(0.0))
}

/// Returns the time before the end within which too many sub-trajectories are cut off, s. `begun`
/// has for each one how much time was left when it began, and whether it was cut off.
fn near(begun: &mut [(f64, bool)]) -> f64 {
    begun.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut count, mut cut) = (0.0, 0.0);
    let mut near = begun.first().map_or(0.0, |first| first.0);
    for same in begun.chunk_by(|a, b| a.0 == b.0) {
        count += same.len() as f64;
        cut += same.iter().filter(|(_, cut)| *cut).count() as f64;
        if cut <= MOST_CUT * count {
            near = f64::NEG_INFINITY;
        } else if near == f64::NEG_INFINITY {
            near = same[0].0;
        }
    }
    near.max(0.0)
}

/// Cuts a flow into sub-trajectories of full length, plus a shorter last one if
/// the flow terminated in it.
pub(super) fn sub_trajectories(flow: &OpeFlow, horizon: usize) -> Vec<SubTrajectory> {
    let steps = flow.steps.len();
    (0..steps)
        .step_by(horizon)
        .map(|start| start..(start + horizon).min(steps))
        .filter(|sub_trajectory| sub_trajectory.len() == horizon || flow.ended)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ope::OpeStep;

    /// A flow with decisions that are in force for these times, whose recording was cut off.
    fn flow(seconds: &[f64], after_s: f64) -> OpeFlow {
        let step = |&seconds: &f64| OpeStep {
            features: vec![1.0],
            action: 0,
            behaviour: 0.5,
            candidate: vec![0.5, 0.5],
            rewards: vec![1.0],
            seconds,
        };
        OpeFlow {
            id: 1,
            cluster: 1,
            steps: seconds.iter().map(step).collect(),
            ended: false,
            end: Some(RecordingEnd {
                after_s,
                reached: true,
            }),
        }
    }

    #[test]
    fn what_begins_where_others_are_cut_off_is_left_out() {
        // Sub-trajectories of 2 s. The slow flow's sixth decision was still in force at the end, so
        // one that began with 5 s left is cut off: whole ones that began then or later go as well.
        let even = flow(&[1.0; 9], 9.0);
        let slow = flow(&[1.0; 5], 9.0);
        let selected = Selected::new(&[even.clone(), slow], 2);
        assert_eq!(selected.of, [vec![0..2, 2..4], vec![0..2, 2..4]]);
        assert_eq!((selected.left_out, selected.within_s), (2, 5.0));
        // Where all take the same time, only what is cut off itself is left out.
        let selected = Selected::new(&[even.clone(), even], 2);
        assert_eq!(selected.of[0], [0..2, 2..4, 4..6, 6..8]);
        assert_eq!((selected.left_out, selected.within_s), (0, 1.0));
    }

    #[test]
    fn gaps_are_no_ends_and_one_silent_flow_does_not_cost_the_recording() {
        let mut gap = flow(&[1.0; 5], 60.0);
        if let Some(end) = &mut gap.end {
            end.reached = false;
        }
        let unknown = OpeFlow {
            end: None,
            ..gap.clone()
        };
        let selected = Selected::new(&[gap, unknown], 2);
        assert_eq!((selected.left_out, selected.within_s), (0, 0.0));
        let mut flows = vec![flow(&[1.0; 100], 101.0); 20];
        flows.push(flow(&[1.0; 4], 101.0));
        let selected = Selected::new(&flows, 2);
        assert_eq!((selected.left_out, selected.within_s), (0, 1.0));
    }

    #[test]
    fn flows_without_an_end_are_cut_into_whole_sub_trajectories() {
        let mut flow = flow(&[0.1; 10], 1.0);
        assert_eq!(sub_trajectories(&flow, 4), [0..4, 4..8]);
        flow.ended = true;
        assert_eq!(sub_trajectories(&flow, 4), [0..4, 4..8, 8..10]);
    }
}
