//! Progress of a run for people: a live view on a terminal, otherwise a line every ten seconds.

use std::{
    fmt::Write as _,
    io::{IsTerminal, Write as _},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::distributed::ExchangePoint;
use super::{CurvePoint, TrainEvent, record::Record};

/// Time between two lines when standard error is not a terminal.
const LINE_PERIOD: Duration = Duration::from_secs(10);
/// Largest number of tasks that the live view lists.
const TASKS: usize = 24;

/// Shows the progress of a run on standard error.
#[derive(Debug)]
pub struct ProgressView {
    bar: ProgressBar,
    /// When the last line was printed; `None` before the first.
    printed: Option<Instant>,
}

impl ProgressView {
    /// A live view if standard error is a terminal, else lines.
    pub fn new() -> Self {
        let target = match std::io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let style = ProgressStyle::with_template("{bar:40} {percent} %, {eta} left\n{msg}");
        Self {
            bar: ProgressBar::with_draw_target(Some(0), target)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())),
            printed: None,
        }
    }

    /// Updates the view, or prints a line if one is due.
    pub fn show(&mut self, event: TrainEvent<'_>) {
        match event {
            TrainEvent::Begun { record, steps } => {
                self.bar.set_length(record.config.steps);
                self.bar.set_position(steps);
                // Else the steps of earlier parts would count towards the speed of this one.
                self.bar.reset_eta();
                self.print(&title(record, steps));
            }
            TrainEvent::Listening { address, run } => {
                self.print(&format!("listening for workers of run {run} on {address}"));
            }
            TrainEvent::Metrics { address } => {
                self.print(&format!("serving metrics on http://{address}/metrics"));
            }
            TrainEvent::Warning(warning) => self.print(&format!("warning: {warning}")),
            TrainEvent::Progress(point) if self.bar.is_hidden() => {
                if self.printed.is_none_or(|at| at.elapsed() >= LINE_PERIOD) {
                    self.printed = Some(Instant::now());
                    self.print(&line(point));
                }
            }
            TrainEvent::Progress(point) => {
                self.bar.set_position(point.steps);
                self.bar.set_message(view(point));
            }
        }
    }

    /// Removes the live view from the terminal.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }

    fn print(&self, line: &str) {
        match self.bar.is_hidden() {
            // Training goes on when nothing reads standard error any more.
            true => drop(writeln!(std::io::stderr(), "{line}")),
            false => self.bar.println(line),
        }
    }
}

impl Default for ProgressView {
    fn default() -> Self {
        Self::new()
    }
}

/// The main figures of a point on one line.
pub fn line(point: &CurvePoint) -> String {
    let mut line = format!(
        "{} steps, {:.0} s: return {}, entropy {:.3}, lag {:.1}, dropped {}, {} steps/s",
        count(point.steps as f64),
        point.seconds,
        or_dash(point.episode_return),
        point.entropy,
        point.policy_lag,
        count(point.dropped as f64),
        count(point.steps_per_second),
    );
    if let Some(replay) = &point.replay {
        // Writing to a string does not fail.
        let _ = write!(
            line,
            "; {:.0} % replayed, of lag {:.0} (mean)",
            100.0 * replay.share,
            replay.lag_mean
        );
    }
    match &point.exchange {
        None => line,
        Some(exchange) => format!("{line}; {}", of_workers(point, exchange)),
    }
}

/// The figures of workers on other machines.
fn of_workers(point: &CurvePoint, exchange: &ExchangePoint) -> String {
    let learners = match exchange.learners {
        0 | 1 => String::new(),
        several => format!("{several} learners, "),
    };
    format!(
        "{learners}{} workers, {} steps/h, learner busy {:.0} %, handling {:.1} ms, {}B/s in, \
         {}B/s out, lag {}/{}/{} (50/90/99 %), stale {}",
        exchange.workers,
        count(exchange.steps_per_hour),
        point.learner_utilization * 100.0,
        exchange.handling_ms,
        count(exchange.received_bytes_per_s),
        count(exchange.sent_bytes_per_s),
        exchange.lag_p50,
        exchange.lag_p90,
        exchange.lag_p99,
        exchange.stale,
    )
}

fn title(record: &Record, steps: u64) -> String {
    let config = &record.config;
    let goes_on = match steps {
        0 => "begins".to_owned(),
        _ => format!("goes on after {} steps", count(steps as f64)),
    };
    format!(
        "training {goes_on}: {} parameters, {} actors of {} environments, seed {}, to {} steps",
        count(record.parameters as f64),
        config.actors().max(1),
        config.actor.environments,
        config.seed,
        count(config.steps as f64),
    )
}

/// All figures of a point on several lines, with a line per task.
fn view(point: &CurvePoint) -> String {
    let actions: Vec<_> = point
        .actions
        .iter()
        .map(|share| format!("{:.0}", share * 100.0))
        .collect();
    let mut view = format!(
        "steps    {} at {}/s, {} updates, policy lag {:.1}, dropped {}\n\
         busy     learner {:.0} %, actors {:.0} %\n\
         policy   entropy {:.3} nats, actions {} %, divergence {:.4}\n\
         loss     policy {:.4}, baseline {:.4} (TD {:.4}, MC {:.4}), gradient {:.3}, \
         learning rate {:.2e}\n\
         return   {} over {} steps, {} episodes",
        count(point.steps as f64),
        count(point.steps_per_second),
        count(point.updates as f64),
        point.policy_lag,
        count(point.dropped as f64),
        point.learner_utilization * 100.0,
        point.actor_utilization * 100.0,
        point.entropy,
        actions.join(" "),
        point.divergence,
        point.policy_loss,
        point.baseline_loss,
        point.td_loss,
        point.mc_loss,
        point.gradient_norm,
        point.learning_rate,
        or_dash(point.episode_return),
        or_dash(point.episode_steps),
        count(point.episodes as f64),
    );
    if point.tasks.len() > 1 {
        for task in point.tasks.iter().take(TASKS) {
            // Writing to a string does not fail.
            let _ = write!(view, "\n  {:8.2}  {}", task.episode_return, task.name);
        }
        if point.tasks.len() > TASKS {
            let _ = write!(view, "\n  and {} more", point.tasks.len() - TASKS);
        }
    }
    view
}

/// A number with about three significant digits, in thousands (k) or millions (M) if it is large.
fn count(number: f64) -> String {
    match number {
        ..1e4 => format!("{number:.0}"),
        ..1e6 => format!("{:.1}k", number / 1e3),
        _ => format!("{:.2}M", number / 1e6),
    }
}

fn or_dash(number: Option<f64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| format!("{number:.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::TaskPoint;

    #[test]
    fn a_line_shows_the_main_figures() {
        let point = CurvePoint {
            steps: 1_250_000,
            seconds: 61.4,
            episode_return: Some(187.333),
            entropy: 0.5,
            policy_lag: 1.25,
            steps_per_second: 85_300.0,
            ..CurvePoint::default()
        };
        assert_eq!(
            line(&point),
            "1.25M steps, 61 s: return 187.33, entropy 0.500, lag 1.2, dropped 0, 85.3k steps/s"
        );
        assert!(line(&CurvePoint::default()).contains("return -,"));
    }

    #[test]
    fn the_view_has_a_line_per_task() {
        let tasks = ["slow", "fast"].map(|name| TaskPoint {
            name: name.to_owned(),
            episodes: 1,
            episode_return: 2.0,
            td_loss: None,
        });
        let view = view(&CurvePoint {
            tasks: tasks.to_vec(),
            actions: vec![0.25, 0.75],
            ..CurvePoint::default()
        });
        assert!(view.contains("actions 25 75 %"));
        assert!(
            view.ends_with("\n      2.00  slow\n      2.00  fast"),
            "{view}"
        );
    }
}
