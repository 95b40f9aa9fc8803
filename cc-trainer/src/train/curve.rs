//! The learning curve: points in `train.json`, and the same figures for TensorBoard.

use std::time::{SystemTime, UNIX_EPOCH};

use super::distributed::Figures;
use super::{Run, TrainError, replay::Replay, statistics::CurvePoint};

/// Number of points on the curve of a whole run.
const POINTS: u64 = 200;

impl Run {
    /// Appends a point to the curve if the last update, of `steps` steps, crossed the border
    /// between two of the curve's [`POINTS`] equal parts.
    pub(super) fn extend_curve_after(&mut self, steps: u64) -> Result<(), TrainError> {
        let per_point = (self.record.config.steps / POINTS).max(1);
        let now = self.statistics.steps;
        match (now - steps) / per_point < now / per_point {
            true => self.extend_curve(),
            false => Ok(()),
        }
    }

    /// Appends the current point if the curve does not end with it already.
    pub(super) fn complete_curve(&mut self) -> Result<(), TrainError> {
        let last = self.record.curve.last();
        match last.is_none_or(|point| point.steps < self.statistics.steps) {
            true => self.extend_curve(),
            false => Ok(()),
        }
    }

    /// The run's figures at this moment.
    pub(super) fn point(&self) -> CurvePoint {
        CurvePoint {
            exchange: self.workers.as_ref().map(Figures::point),
            replay: self.replay.as_ref().map(Replay::point),
            ..self
                .statistics
                .point(self.seconds(), |task| self.tasks[task].clone())
        }
    }

    fn extend_curve(&mut self) -> Result<(), TrainError> {
        let point = self.point();
        let scalars = scalars(&point);
        self.events
            .scalars(
                point.steps,
                seconds_since_1970(),
                scalars.iter().map(|(tag, value)| (&**tag, *value)),
            )
            .map_err(TrainError::writing(&self.dir))?;
        self.record.curve.push(point);
        Ok(())
    }
}

/// TensorBoard's tags for a point, and their values; figures that do not exist yet are left out.
fn scalars(point: &CurvePoint) -> Vec<(String, f64)> {
    let of_run = [
        ("episode/return", point.episode_return),
        ("episode/steps", point.episode_steps),
        ("loss/policy", Some(point.policy_loss)),
        ("loss/baseline", Some(point.baseline_loss)),
        (
            "loss/prediction",
            (point.prediction_loss > 0.0).then_some(point.prediction_loss),
        ),
        ("loss/td", Some(point.td_loss)),
        ("loss/mc", Some(point.mc_loss)),
        ("policy/entropy", Some(point.entropy)),
        ("policy/divergence", Some(point.divergence)),
        ("policy/lag", Some(point.policy_lag)),
        ("learner/gradient_norm", Some(point.gradient_norm)),
        ("learner/learning_rate", Some(point.learning_rate)),
        ("speed/steps_per_second", Some(point.steps_per_second)),
        ("speed/learner_utilization", Some(point.learner_utilization)),
        ("speed/actor_utilization", Some(point.actor_utilization)),
        ("speed/dropped", Some(point.dropped as f64)),
    ];
    let of_tasks = point
        .tasks
        .iter()
        .flat_map(|task| {
            let td_loss = task.td_loss.map(|loss| (format!("td/{}", task.name), loss));
            let tag = format!("return/{}", task.name);
            [Some((tag, task.episode_return)), td_loss]
        })
        .flatten();
    let of_actions = (0..)
        .zip(&point.actions)
        .map(|(action, share): (usize, _)| (format!("actions/{action}"), *share));
    let of_exchange = (point.exchange.iter()).flat_map(|exchange| {
        [
            ("workers/connected", exchange.workers as f64),
            ("workers/actors", exchange.actors as f64),
            ("workers/learners", exchange.learners as f64),
            ("workers/steps_per_hour", exchange.steps_per_hour),
            ("workers/handling_ms", exchange.handling_ms),
            (
                "workers/received_bytes_per_s",
                exchange.received_bytes_per_s,
            ),
            ("workers/sent_bytes_per_s", exchange.sent_bytes_per_s),
            ("workers/stale", exchange.stale as f64),
            ("workers/refused", exchange.refused as f64),
            ("workers/lag_p50", exchange.lag_p50 as f64),
            ("workers/lag_p90", exchange.lag_p90 as f64),
            ("workers/lag_p99", exchange.lag_p99 as f64),
        ]
        .map(|(tag, value)| (tag.to_owned(), value))
    });
    let of_replay = (point.replay.iter()).flat_map(|replay| {
        [
            ("replay/share", replay.share),
            ("replay/kept", replay.kept as f64),
            ("replay/lag_mean", replay.lag_mean),
            ("replay/lag_max", replay.lag_max as f64),
        ]
        .map(|(tag, value)| (tag.to_owned(), value))
    });
    of_run
        .into_iter()
        .filter_map(|(tag, value)| Some((tag.to_owned(), value?)))
        .chain(of_tasks)
        .chain(of_actions)
        .chain(of_exchange)
        .chain(of_replay)
        .collect()
}

/// The wall-clock time as TensorBoard's events give it, s.
pub(super) fn seconds_since_1970() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}
