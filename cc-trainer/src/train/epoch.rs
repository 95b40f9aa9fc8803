//! The end of an epoch, a pass over the recorded flows that are learned from: the policy is tried
//! on those that are held out.

use super::{
    Run, TrainError,
    curve::seconds_since_1970,
    held_out::{HeldOutEstimate, HeldOutPoint, best},
};

impl Run {
    /// Tries the policy on the flows that are held out if the last update, of `steps` steps,
    /// completed an epoch. Where training may end by the result, the policy file is that of the
    /// best epoch.
    pub(super) fn try_held_out_after(&mut self, steps: u64) -> Result<(), TrainError> {
        let Some(held_out) = &self.held_out else {
            return Ok(());
        };
        let now = self.statistics.steps;
        let epoch = now / held_out.steps_per_epoch;
        if (now - steps) / held_out.steps_per_epoch == epoch {
            return Ok(());
        }
        let mut parameters = Vec::new();
        let copied = self.learner.served_parameters(&mut parameters);
        copied.map_err(|cause| self.device_failed(cause))?;
        let point = HeldOutPoint {
            epoch,
            steps: now,
            ..held_out.point(&self.record.shape, &parameters)
        };
        let estimated = |of: fn(&HeldOutEstimate) -> f64| point.estimate.as_ref().map(of);
        let figures = [
            ("held_out/log_likelihood", Some(point.log_likelihood)),
            ("held_out/reward", estimated(|e| e.candidate)),
            ("held_out/reward_recorded", estimated(|e| e.recorded)),
            ("held_out/reward_low", estimated(|e| e.low)),
            ("held_out/effective", estimated(|e| e.effective)),
            ("held_out/score", point.score),
        ];
        let known = figures
            .into_iter()
            .filter_map(|(tag, value)| Some((tag, value?)));
        self.events
            .scalars(now, seconds_since_1970(), known)
            .map_err(TrainError::writing(&self.dir))?;
        self.record.held_out.push(point);
        if self.keeps_best() && best(&self.record.held_out).is_some_and(|best| best.epoch == epoch)
        {
            self.save_policy(&parameters)?;
        }
        Ok(())
    }

    /// Whether the policy file is that of the best epoch or judgement, instead of the newest one.
    pub(super) fn keeps_best(&self) -> bool {
        if let Some(validation) = &self.validation {
            return validation.keeps_best() && !self.record.validation.is_empty();
        }
        self.held_out.as_ref().is_some_and(|own| own.patience > 0)
            && best(&self.record.held_out).is_some()
    }

    /// Whether as many points as the configured patience have had no better score than one before.
    /// Those of the cloning phase do not count, unless there is no other phase.
    pub(super) fn is_past_its_best(&self) -> bool {
        let points = &self.record.held_out;
        let (Some(held_out), Some(best)) = (&self.held_out, best(points)) else {
            return false;
        };
        let counts = |point: &&HeldOutPoint| {
            let is_cloned = point.steps as f64 <= held_out.cloning_steps && !held_out.cloning;
            point.steps > best.steps && !is_cloned
        };
        held_out.patience > 0 && points.iter().filter(counts).count() as u64 >= held_out.patience
    }
}
