//! Runs in progress as graphs on a terminal: the rate of every flow, and the delay of the link.

use std::{
    io::{self, IsTerminal, Stderr, Write},
    time::{Duration, Instant},
};

use cc_sim::scenario::Scenario;
use cc_testbed::{evaluate::Live, summary::Run};
use ratatui::{
    Frame, Terminal, TerminalOptions, Viewport,
    backend::CrosstermBackend,
    layout::{Constraint, Layout, Position, Rect},
    style::{Color, Modifier, Style},
    symbols::Marker,
    text::{Line, Span, Text},
    widgets::{Axis, Block, Chart, Dataset, GraphType, LineGauge, Widget},
};

/// Rows of the graphs, with what is above and below them.
const HEIGHT: u16 = 16;
/// The graphs need as many columns.
const LEAST_WIDTH: u16 = 60;
/// The horizontal axis is as long as this from the beginning on, s.
const LEAST_SECONDS: f64 = 10.0;
/// Colours of the curves, in their order; more curves begin anew.
const COLOURS: [Color; 4] = [Color::Cyan, Color::Yellow, Color::Magenta, Color::Green];

/// Graphs in the lower rows of a terminal. Lines go above them.
pub(super) struct Graphs {
    terminal: Terminal<CrosstermBackend<Stderr>>,
    past: Past,
    begun: Instant,
}

impl Graphs {
    /// Graphs of runs on these scenarios; `None` where there is no terminal that is large enough.
    pub(super) fn start(scenarios: &[Scenario]) -> Option<Self> {
        // The terminal is asked where its cursor is, and answers on the standard input.
        if !io::stderr().is_terminal() || !io::stdin().is_terminal() {
            return None;
        }
        let (width, height) = ratatui::crossterm::terminal::size().ok()?;
        if width < LEAST_WIDTH || height <= HEIGHT {
            return None;
        }
        let options = TerminalOptions {
            viewport: Viewport::Inline(HEIGHT),
        };
        let backend = CrosstermBackend::new(io::stderr());
        let terminal = Terminal::with_options(backend, options).ok()?;
        Some(Self {
            terminal,
            past: Past::new(scenarios),
            begun: Instant::now(),
        })
    }

    /// Takes note of the latest second of a run.
    pub(super) fn observe(&mut self, run: &Run, live: &Live) {
        self.past.observe(run, live);
        self.draw();
    }

    /// Takes note of how much of all runs is done.
    pub(super) fn worked(&mut self, message: &str, done: Duration, all: Duration) {
        self.past.progress = Progress {
            message: message.to_owned(),
            share: (done.as_secs_f64() / all.as_secs_f64().max(1e-9)).clamp(0.0, 1.0),
            elapsed: self.begun.elapsed(),
        };
        self.draw();
    }

    fn draw(&mut self) {
        // A terminal that is gone is no reason to end the runs.
        let _ = self.terminal.draw(|frame| draw(frame, &self.past));
    }

    /// Prints a line above the graphs.
    pub(super) fn say(&mut self, line: &str) {
        let text = broken(line, self.terminal.get_frame().area().width.into());
        let _ = self.terminal.insert_before(text.height() as u16, |buffer| {
            text.render(buffer.area, buffer);
        });
        self.draw();
    }

    /// Leaves the graphs as they are, and the cursor below them.
    pub(super) fn end(&mut self) {
        let area = self.terminal.get_frame().area();
        let last = Position::new(0, area.bottom().saturating_sub(1));
        let _ = self.terminal.set_cursor_position(last);
        let _ = self.terminal.show_cursor();
        let _ = writeln!(io::stderr());
    }
}

/// A line broken into rows of that many characters, none of which is lost.
fn broken(line: &str, width: usize) -> Text<'static> {
    let letters: Vec<char> = line.chars().collect();
    let rows = letters.chunks(width.max(1));
    rows.map(|row| Line::from(row.iter().collect::<String>()))
        .collect()
}

/// What has been seen so far, which the graphs show.
struct Past {
    scenarios: Vec<Scenario>,
    /// The scenario whose runs are shown, which began last.
    shown: usize,
    /// The runs of that scenario, one for each scheme, the latest last.
    runs: Vec<Shown>,
    progress: Progress,
}

/// A run that is shown, by the seconds since its beginning.
struct Shown {
    scheme: String,
    number: u32,
    /// Payload that each flow got through the link, Mbit/s.
    rates: Vec<Vec<(f64, f64)>>,
    /// Mean one-way delay of the data packets of all flows, ms.
    delays: Vec<(f64, f64)>,
}

/// How much of all runs is done, and since when.
#[derive(Default)]
struct Progress {
    message: String,
    share: f64,
    elapsed: Duration,
}

impl Past {
    fn new(scenarios: &[Scenario]) -> Self {
        Self {
            scenarios: scenarios.to_vec(),
            shown: 0,
            runs: Vec::new(),
            progress: Progress::default(),
        }
    }

    fn observe(&mut self, run: &Run, live: &Live) {
        let named = |scenario: &Scenario| scenario.name == run.scenario;
        let Some(place) = self.scenarios.iter().position(named) else {
            return;
        };
        let at = live.at.as_secs_f64();
        let is_same = |shown: &Shown| (&shown.scheme, shown.number) == (&run.scheme, run.run);
        // A run that is repeated begins anew.
        let known = self.runs.iter().position(is_same).filter(|&known| {
            place == self.shown && self.runs[known].last_at().is_none_or(|last| last < at)
        });
        let known = match known {
            Some(known) => known,
            None => {
                if place != self.shown {
                    self.shown = place;
                    self.runs.clear();
                }
                self.runs.retain(|shown| shown.scheme != run.scheme);
                self.runs.push(Shown {
                    scheme: run.scheme.clone(),
                    number: run.run,
                    rates: vec![Vec::new(); live.flows_mbps.len()],
                    delays: Vec::new(),
                });
                self.runs.len() - 1
            }
        };
        let shown = &mut self.runs[known];
        for (rates, &mbps) in shown.rates.iter_mut().zip(&live.flows_mbps) {
            rates.push((at, mbps));
        }
        shown.delays.extend(live.owd_ms.map(|ms| (at, ms)));
    }

    /// The curves to draw: of every scheme where each has one flow, otherwise of the latest run's
    /// flows.
    fn curves(&self) -> Vec<Curve<'_>> {
        let Some(latest) = self.runs.last() else {
            return Vec::new();
        };
        if latest.rates.len() == 1 {
            let alone = self.runs.iter().map(|shown| Curve {
                name: shown.scheme.clone(),
                rates: shown.rates.first().map_or(&[], Vec::as_slice),
                delays: &shown.delays,
            });
            return alone.collect();
        }
        let flows = self.scenarios[self.shown].flows.iter().zip(&latest.rates);
        let curves = flows.enumerate().map(|(number, (flow, rates))| Curve {
            name: flow.scheme.clone().unwrap_or_else(|| latest.scheme.clone()),
            rates,
            // They share the queue, and so the delay.
            delays: match number {
                0 => &latest.delays,
                _ => &[],
            },
        });
        curves.collect()
    }
}

impl Shown {
    fn last_at(&self) -> Option<f64> {
        self.rates.first()?.last().map(|(at, _)| *at)
    }
}

/// The curves of a flow, and the name beside them.
struct Curve<'a> {
    name: String,
    rates: &'a [(f64, f64)],
    delays: &'a [(f64, f64)],
}

/// Draws what has been seen on the whole frame.
fn draw(frame: &mut Frame<'_>, past: &Past) {
    let [title, legend, graphs, gauge] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let curves = past.curves();
    if let (Some(scenario), false) = (past.scenarios.get(past.shown), curves.is_empty()) {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let name = Span::styled(scenario.name.clone(), bold);
        let about = Span::raw(format!("  {}", scenario.description));
        frame.render_widget(Line::from(vec![name, about]), title);
    }
    frame.render_widget(names(&curves), legend);
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)])
        .spacing(2)
        .areas(graphs);
    graph(frame, left, "rate, Mbit/s", &curves, |curve| curve.rates);
    graph(frame, right, "one-way delay, ms", &curves, |curve| {
        curve.delays
    });
    let Progress {
        message,
        share,
        elapsed,
    } = &past.progress;
    let left = match *share {
        0.0 => String::new(),
        share => {
            let left = elapsed.as_secs_f64() * (1.0 - share) / share;
            format!(", {left:.0} s left")
        }
    };
    let progress = LineGauge::default()
        .ratio(*share)
        .label(format!("{message}{left}"))
        .filled_style(Style::new().fg(Color::Cyan));
    frame.render_widget(progress, gauge);
}

/// The curves' names in their colours, with the latest rate and delay of each.
fn names(curves: &[Curve<'_>]) -> Line<'static> {
    let mut spans = Vec::new();
    for (curve, colour) in curves.iter().zip(COLOURS.into_iter().cycle()) {
        let style = Style::new().fg(colour).add_modifier(Modifier::BOLD);
        spans.push(Span::styled(format!("━ {}", curve.name), style));
        let latest = |curve: &[(f64, f64)]| curve.last().map(|(_, value)| *value);
        if let Some(mbps) = latest(curve.rates) {
            spans.push(Span::raw(format!(" {mbps:.1} Mbit/s")));
        }
        if let Some(ms) = latest(curve.delays) {
            spans.push(Span::raw(format!(" {ms:.0} ms")));
        }
        spans.push(Span::raw("   "));
    }
    Line::from(spans)
}

fn graph(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &'static str,
    curves: &[Curve<'_>],
    values: impl for<'a> Fn(&Curve<'a>) -> &'a [(f64, f64)],
) {
    let all = || curves.iter().flat_map(&values);
    let most = all().map(|(_, value)| *value).fold(1.0, f64::max).ceil();
    let last = all().map(|(at, _)| *at).fold(LEAST_SECONDS, f64::max);
    let datasets = curves.iter().zip(COLOURS.into_iter().cycle());
    let datasets = datasets.map(|(curve, colour)| {
        Dataset::default()
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(Style::new().fg(colour))
            .data(values(curve))
    });
    let dim = Style::new().add_modifier(Modifier::DIM);
    let axis = |most: f64, labels: [String; 2]| {
        Axis::default()
            .bounds([0.0, most])
            .labels(labels)
            .style(dim)
    };
    let chart = Chart::new(datasets.collect())
        .block(Block::new().title(title))
        .x_axis(axis(last, ["0".to_owned(), format!("{last:.0} s")]))
        .y_axis(axis(most, ["0".to_owned(), format!("{most:.0}")]));
    frame.render_widget(chart, area);
}

#[cfg(test)]
mod tests {
    use cc_sim::scenario;
    use ratatui::{
        backend::TestBackend,
        buffer::{Buffer, Cell},
    };

    use super::*;

    fn demo() -> Past {
        Past::new(&scenario::load("demo").expect("a set"))
    }

    fn second(past: &mut Past, scenario: &str, scheme: &str, at: u64, rates: &[f64]) {
        let run = Run {
            scenario: scenario.to_owned(),
            scheme: scheme.to_owned(),
            ..Run::default()
        };
        let live = Live {
            at: Duration::from_secs(at),
            flows_mbps: rates.to_vec(),
            owd_ms: Some(20.0 + at as f64),
            loss_rate: 0.0,
        };
        past.observe(&run, &live);
    }

    fn drawn(past: &Past, width: u16) -> Buffer {
        let mut terminal =
            Terminal::new(TestBackend::new(width, HEIGHT)).expect("an area of memory");
        terminal
            .draw(|frame| draw(frame, past))
            .expect("it cannot fail");
        terminal.backend().buffer().clone()
    }

    fn lines(buffer: &Buffer) -> Vec<String> {
        let width = buffer.area.width as usize;
        let cells = buffer.content().chunks(width);
        cells
            .map(|row| row.iter().map(Cell::symbol).collect())
            .collect()
    }

    fn has_colour(buffer: &Buffer, colour: Color) -> bool {
        let is_drawn = |symbol: &str| {
            symbol
                .chars()
                .any(|one| ('\u{2801}'..='\u{28ff}').contains(&one))
        };
        let mut cells = buffer.content().iter();
        cells.any(|cell| cell.fg == colour && is_drawn(cell.symbol()))
    }

    #[test]
    fn schemes_that_have_the_link_for_themselves_share_the_graphs() {
        let mut past = demo();
        for at in 1..=20 {
            second(&mut past, "alone", "rlcc", at, &[23.0]);
        }
        for at in 1..=10 {
            second(&mut past, "alone", "cubic", at, &[at as f64]);
        }
        past.progress = Progress {
            message: "1 of 4 runs".to_owned(),
            share: 0.375,
            elapsed: Duration::from_secs(30),
        };
        for width in [60, 80, 200] {
            let buffer = drawn(&past, width);
            let lines = lines(&buffer);
            assert!(lines[0].starts_with("alone  24 Mbit/s"), "{}", lines[0]);
            let names = "━ rlcc 23.0 Mbit/s 40 ms   ━ cubic 10.0 Mbit/s 30 ms";
            assert!(lines[1].starts_with(names), "{}", lines[1]);
            assert!(has_colour(&buffer, Color::Cyan) && has_colour(&buffer, Color::Yellow));
            assert!(lines[2].contains("rate, Mbit/s") && lines[2].contains("one-way delay, ms"));
            let last = lines.last().expect("a line");
            assert!(last.contains("1 of 4 runs, 50 s left"), "{last}");
            assert!(lines.iter().any(|line| line.contains("20 s")), "{lines:#?}");
        }
    }

    #[test]
    fn flows_that_share_a_link_are_those_of_the_latest_run() {
        let mut past = demo();
        for at in 1..=5 {
            second(&mut past, "alone", "rlcc", at, &[23.0]);
            second(&mut past, "beside-cubic", "rlcc", at, &[11.0, 12.0]);
        }
        let names = &lines(&drawn(&past, 100))[1];
        assert!(
            names.starts_with("━ rlcc 11.0 Mbit/s 25 ms   ━ cubic 12.0 Mbit/s"),
            "{names}"
        );
        // Another scheme under test, with two flows of CUBIC.
        second(&mut past, "beside-cubic", "cubic", 1, &[9.0, 14.0]);
        let names = &lines(&drawn(&past, 100))[1];
        assert!(
            names.starts_with("━ cubic 9.0 Mbit/s 21 ms   ━ cubic 14.0"),
            "{names}"
        );
        // A run that is repeated leaves nothing of its first try.
        second(&mut past, "beside-cubic", "cubic", 1, &[8.0, 15.0]);
        assert_eq!(past.runs.last().map(|run| run.rates[0].len()), Some(1));
    }

    #[test]
    fn a_long_line_is_broken_and_nothing_of_it_is_lost() {
        let line = "alone rlcc #1  22.72 Mbit/s  INVALID: a-word-that-is-longer-than-a-row-is-wide";
        let text = broken(line, 20);
        assert_eq!(text.height(), line.len().div_ceil(20));
        let rows = text.lines.iter().map(ToString::to_string);
        assert_eq!(rows.collect::<String>(), line);
    }

    #[test]
    fn nothing_has_been_seen_yet() {
        let lines = lines(&drawn(&demo(), 60));
        assert!(lines[0].trim().is_empty());
    }
}
