//! Progress output of commands that carry out runs.

mod graphs;

use std::io::IsTerminal;

use cc_sim::scenario::Scenario;
use cc_testbed::{
    evaluate::{Event, Live},
    summary::Run,
};
use graphs::Graphs;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What lines are printed beside the bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lines {
    /// A line for each invalid run.
    Invalid,
    /// A line for each run that has ended.
    Runs,
    /// These, and a line per second about each run in progress.
    Seconds,
}

/// Progress output of runs: on a terminal a bar with the time left, or graphs, and lines.
pub(super) struct Screen {
    bar: ProgressBar,
    /// Take the bar's place, and that of the lines about runs in progress.
    graphs: Option<Graphs>,
    lines: Lines,
    left: usize,
    ended: usize,
}

impl Screen {
    pub(super) fn new(lines: Lines) -> Self {
        let target = match std::io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let style = ProgressStyle::with_template("{bar:40} {msg}, {eta} left");
        Self {
            bar: ProgressBar::with_draw_target(Some(0), target)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())),
            graphs: None,
            lines,
            left: 0,
            ended: 0,
        }
    }

    /// A screen that draws the runs in progress on these scenarios as graphs, where there is a
    /// terminal for it, and prints a line per second about each where there is not.
    pub(super) fn live(scenarios: &[Scenario]) -> Self {
        let graphs = Graphs::start(scenarios);
        let mut screen = Self::new(Lines::Seconds);
        if graphs.is_some() {
            screen.bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        screen.graphs = graphs;
        screen
    }

    pub(super) fn show(&mut self, event: &Event<'_>) {
        match event {
            Event::Begun { left, kept } => {
                self.left = *left;
                if *kept > 0 {
                    self.say(&format!(
                        "{kept} runs are kept from before, {left} are left"
                    ));
                }
                self.count();
            }
            Event::Live { run, live } if self.lines >= Lines::Seconds => match &mut self.graphs {
                Some(graphs) => graphs.observe(run, live),
                None => self.say(&live_line(run, live)),
            },
            Event::Live { .. } => {}
            Event::Ended { run, again } => {
                self.ended += 1;
                self.left += usize::from(*again);
                if self.lines >= Lines::Runs || !run.is_valid() {
                    self.say(&run_line(run, *again));
                }
                self.count();
            }
            Event::Worked { done, all } => {
                self.bar.set_length(all.as_millis() as u64);
                self.bar.set_position(done.as_millis() as u64);
                let message = self.bar.message();
                if let Some(graphs) = &mut self.graphs {
                    graphs.worked(&message, *done, *all);
                }
            }
        }
    }

    fn count(&self) {
        self.bar
            .set_message(format!("{} of {} runs", self.ended, self.left));
    }

    fn say(&mut self, line: &str) {
        match &mut self.graphs {
            Some(graphs) => graphs.say(line),
            None if self.bar.is_hidden() => super::note(line),
            None => self.bar.println(line),
        }
    }

    pub(super) fn end(&mut self) {
        self.bar.finish_and_clear();
        if let Some(graphs) = &mut self.graphs {
            graphs.end();
        }
    }
}

fn run_line(run: &Run, again: bool) -> String {
    let p95 = run
        .p95_owd_ms
        .map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"));
    let validity = match (run.is_valid(), again) {
        (true, _) => String::new(),
        (false, true) => format!(
            "  INVALID, to be repeated: {}",
            run.validity.reasons.join("; ")
        ),
        (false, false) => format!("  INVALID: {}", run.validity.reasons.join("; ")),
    };
    format!(
        "{}  {:.2} Mbit/s  p95 {p95} ms  loss {:.2} %{validity}",
        title(run),
        run.throughput_mbps,
        run.loss_rate * 100.0,
    )
}

fn live_line(run: &Run, live: &Live) -> String {
    let delay = live
        .owd_ms
        .map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"));
    let flows: Vec<_> = live
        .flows_mbps
        .iter()
        .map(|mbps| format!("{mbps:.2}"))
        .collect();
    format!(
        "{}  {:>4.0} s  {} Mbit/s  {delay} ms  loss {:.2} %",
        title(run),
        live.at.as_secs_f64(),
        flows.join(" + "),
        live.loss_rate * 100.0,
    )
}

fn title(run: &Run) -> String {
    format!("{} {} #{}", run.scenario, run.scheme, run.run + 1)
}
