//! Time series of runs: rate, delay and cwnd over time, one row of panels per run, all on the same
//! axes.

use std::fmt::Write as _;

use super::{
    axis::{Axis, label},
    palette::Palette,
    svg::{Anchor, Svg, escape},
};
use crate::summary::{RunFile, Series, statistics, table::figure};

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 158.0;
const LEFT: f64 = 40.0;
const RIGHT: f64 = WIDTH - 8.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = HEIGHT - 22.0;
/// Most points of a curve; more could not be distinguished.
const POINTS: usize = 150;
/// Number of time slices in the table of the same values.
const SLICES: usize = 10;
/// Number of shades; all further flows share the last one.
const SHADES: usize = 8;

/// Runs to show below each other.
pub(super) struct TimeSeries<'a> {
    files: Vec<&'a RunFile>,
    /// Propagation delay of the forward direction, ms.
    propagation_ms: Option<f64>,
    seconds: f64,
    rate: Axis,
    delay: Axis,
    cwnd: Axis,
}

impl<'a> TimeSeries<'a> {
    pub(super) fn new(files: Vec<&'a RunFile>, propagation_ms: Option<f64>) -> Self {
        let series = || files.iter().map(|file| &file.series);
        let length = |series: &Series| series.bin_s * length(series) as f64;
        let seconds = series().map(length).fold(0.0, f64::max);
        let capacity = series().flat_map(|series| thin(&series.capacity_mbps, POINTS).flatten());
        let flows = files
            .iter()
            .flat_map(|file| (0..file.series.flows.len()).map(|i| rates(file, i)));
        let most = flows.flat_map(|rates| thin(&rates, POINTS).flatten().collect::<Vec<_>>());
        let most = most.chain(capacity).fold(0.0, f64::max);
        let delays = series().flat_map(|series| thin(&series.delay_ms, POINTS).flatten());
        let cwnds = series().flat_map(|series| &series.flows);
        let cwnds = cwnds.flat_map(|flow| thin(&flow.cwnd, POINTS).flatten());
        let places = (BOTTOM, TOP);
        Self {
            propagation_ms: propagation_ms.filter(|delay| *delay > 0.0),
            seconds,
            rate: Axis::linear(0.0, 1.05 * most, places),
            delay: Axis::log(delays.chain(propagation_ms), 2.0, places),
            cwnd: Axis::log(cwnds, 2.0, places),
            files,
        }
    }

    /// Renders a heading and three panels per run.
    pub(super) fn draw(&self, palette: &Palette) -> String {
        self.files
            .iter()
            .map(|file| self.row(file, palette))
            .collect()
    }

    /// Renders the values of the panels as a table, averaged over a few time slices.
    pub(super) fn table(&self, palette: &Palette) -> String {
        let slice = self.seconds / SLICES as f64;
        let mut html = String::from("<table><thead><tr><th>scheme</th><th>mean of</th>");
        for i in 0..SLICES {
            let (from, to) = (
                label(round(i as f64 * slice)),
                label(round((i + 1) as f64 * slice)),
            );
            let _ = write!(html, "<th>{from}–{to} s</th>");
        }
        html.push_str("</tr></thead><tbody>\n");
        for file in &self.files {
            let mut row = |what: &str, values: &[Option<f64>]| {
                let key = palette.key(&file.run.scheme);
                let _ = write!(html, "<tr><th>{key}</th><td>{}</td>", escape(what));
                for value in in_slices(values, file.series.bin_s, slice) {
                    let _ = write!(html, "<td>{}</td>", value.map_or("–".to_owned(), figure));
                }
                html.push_str("</tr>\n");
            };
            row("link, Mbit/s", &file.series.capacity_mbps);
            for (i, flow) in file.series.flows.iter().enumerate() {
                let name = flow_name(file, i);
                row(&format!("{name}rate, Mbit/s"), &rates(file, i));
                row(&format!("{name}cwnd, segments"), &flow.cwnd);
            }
            row("delay, ms", &file.series.delay_ms);
        }
        html.push_str("</tbody></table>\n");
        html
    }

    fn row(&self, file: &RunFile, palette: &Palette) -> String {
        let run = &file.run;
        let what = match run.p95_owd_ms {
            Some(delay) => format!(
                "run {}: {} Mbit/s, p95 delay {} ms",
                run.run,
                figure(run.throughput_mbps),
                figure(delay)
            ),
            None => format!("run {}: nothing delivered", run.run),
        };
        let invalid = if run.is_valid() { "" } else { ", invalid" };
        let key = palette.key(&run.scheme);
        let mut html = format!(
            "<h4>{key} <small>{what}{invalid}</small>{}</h4>\n<div class=\"panels\">\n",
            self.flows(file, palette)
        );
        html += &self.rate_panel(file, palette);
        html += &self.delay_panel(file, palette);
        html += &self.cwnd_panel(file, palette);
        html.push_str("</div>\n");
        html
    }

    /// The legend of the flows' shades.
    fn flows(&self, file: &RunFile, palette: &Palette) -> String {
        if file.series.flows.len() < 2 {
            return String::new();
        }
        let flow = |i: usize| {
            let (class, name) = (
                flow_class(file, i, palette),
                escape(flow_name(file, i).trim()),
            );
            format!(" <span class=\"flow {class}\"><i></i>{name}</span>")
        };
        (0..file.series.flows.len()).map(flow).collect()
    }

    fn rate_panel(&self, file: &RunFile, palette: &Palette) -> String {
        let mut svg = self.panel(file, "Rate, Mbit/s", &self.rate);
        let series = &file.series;
        for piece in pieces(thin(&series.capacity_mbps, POINTS)) {
            let step = bin(series, series.capacity_mbps.len());
            let edge = |(i, rate): &(usize, f64)| {
                let (from, to) = (*i as f64 * step, (*i + 1) as f64 * step);
                let y = self.rate.place(*rate);
                [(self.time(from), y), (self.time(to), y)]
            };
            let mut outline: Vec<(f64, f64)> = piece.iter().flat_map(edge).collect();
            let ends = (outline.first().copied(), outline.last().copied());
            if let (Some(first), Some(last)) = ends {
                outline.extend([(last.0, BOTTOM), (first.0, BOTTOM)]);
            }
            svg.area("capacity", &outline);
        }
        for i in 0..series.flows.len() {
            let (class, rates) = (flow_class(file, i, palette), rates(file, i));
            self.curve(&mut svg, file, &class, &rates, &self.rate);
        }
        svg.finish()
    }

    fn delay_panel(&self, file: &RunFile, palette: &Palette) -> String {
        let mut svg = self.panel(file, "One-way delay, ms", &self.delay);
        if let Some(delay) = self.propagation_ms {
            let y = self.delay.place(delay);
            svg.line("limit", (LEFT, y), (RIGHT, y));
        }
        let class = palette.class(&file.run.scheme);
        self.curve(&mut svg, file, &class, &file.series.delay_ms, &self.delay);
        svg.finish()
    }

    fn cwnd_panel(&self, file: &RunFile, palette: &Palette) -> String {
        let mut svg = self.panel(file, "Congestion window, segments", &self.cwnd);
        for (i, flow) in file.series.flows.iter().enumerate() {
            let class = flow_class(file, i, palette);
            self.curve(&mut svg, file, &class, &flow.cwnd, &self.cwnd);
        }
        svg.finish()
    }

    /// A panel with axes but without curves.
    fn panel(&self, file: &RunFile, what: &str, axis: &Axis) -> Svg {
        let title = format!(
            "{what} over time: {} on {}",
            file.run.scheme, file.run.scenario
        );
        let mut svg = Svg::new("course", WIDTH, HEIGHT, &title);
        svg.text("title", (LEFT, 14.0), Anchor::Start, what);
        for tick in axis.ticks(5) {
            let y = axis.place(tick);
            svg.line("grid", (LEFT, y), (RIGHT, y));
            svg.text("tick", (LEFT - 5.0, y + 4.0), Anchor::End, &label(tick));
        }
        for tick in Axis::linear(0.0, self.seconds, (LEFT, RIGHT)).ticks(6) {
            let is_last = tick > 0.93 * self.seconds;
            let name = if is_last {
                format!("{} s", label(tick))
            } else {
                label(tick)
            };
            let anchor = if is_last { Anchor::End } else { Anchor::Middle };
            let x = self.time(tick) + if is_last { 4.0 } else { 0.0 };
            svg.text("tick", (x, BOTTOM + 16.0), anchor, &name);
        }
        svg.line("axis", (LEFT, BOTTOM), (RIGHT, BOTTOM));
        svg
    }

    fn curve(
        &self,
        svg: &mut Svg,
        file: &RunFile,
        class: &str,
        values: &[Option<f64>],
        axis: &Axis,
    ) {
        let step = bin(&file.series, values.len());
        let place =
            |(i, value): (usize, f64)| (self.time((i as f64 + 0.5) * step), axis.place(value));
        let pieces = pieces(thin(values, POINTS)).into_iter();
        let pieces: Vec<Vec<(f64, f64)>> = pieces
            .map(|piece| piece.into_iter().map(place).collect())
            .collect();
        svg.polyline(&format!("curve {class}"), &pieces);
    }

    fn time(&self, seconds: f64) -> f64 {
        Axis::linear(0.0, self.seconds, (LEFT, RIGHT)).place(seconds)
    }
}

/// The run with the median throughput, among the valid runs if there are any.
pub(super) fn typical<'a>(files: impl Iterator<Item = &'a RunFile>) -> Option<&'a RunFile> {
    let all: Vec<&RunFile> = files.collect();
    let valid: Vec<&RunFile> = all
        .iter()
        .copied()
        .filter(|file| file.run.is_valid())
        .collect();
    let mut files = if valid.is_empty() { all } else { valid };
    files.sort_by(|a, b| {
        let by_rate = a.run.throughput_mbps.total_cmp(&b.run.throughput_mbps);
        by_rate.then(a.run.run.cmp(&b.run.run))
    });
    files.get(files.len().checked_sub(1)? / 2).copied()
}

/// The prefix `flow 1 (cubic) ` of a flow's rows; empty for a single flow.
fn flow_name(file: &RunFile, flow: usize) -> String {
    let scheme = file.run.flows.get(flow).map(|flow| flow.scheme.as_str());
    match scheme {
        _ if file.series.flows.len() < 2 => String::new(),
        Some(scheme) => format!("flow {flow} ({scheme}) "),
        None => format!("flow {flow} "),
    }
}

/// CSS classes of a flow: the scheme's colour in the flow's shade.
fn flow_class(file: &RunFile, flow: usize, palette: &Palette) -> String {
    let scheme = file
        .run
        .flows
        .get(flow)
        .map_or(&file.run.scheme, |flow| &flow.scheme);
    let peers = file
        .run
        .flows
        .iter()
        .take(flow)
        .filter(|peer| peer.scheme == *scheme);
    format!(
        "{} f{}",
        palette.class(scheme),
        peers.count().min(SHADES - 1)
    )
}

fn length(series: &Series) -> usize {
    let flows = series.flows.iter().map(|flow| flow.throughput_mbps.len());
    let lists = [series.capacity_mbps.len(), series.delay_ms.len()];
    flows.chain(lists).max().unwrap_or(0)
}

/// The rates of a flow while it was active.
fn rates(file: &RunFile, flow: usize) -> Vec<Option<f64>> {
    let ran = file
        .run
        .flows
        .get(flow)
        .map_or((0.0, f64::INFINITY), |flow| (flow.start_s, flow.stop_s));
    let bin_s = file.series.bin_s;
    let is_on = |i: usize| (i + 1) as f64 * bin_s > ran.0 && (i as f64) * bin_s < ran.1;
    let rates = file.series.flows[flow].throughput_mbps.iter().enumerate();
    rates.map(|(i, rate)| is_on(i).then_some(*rate)).collect()
}

/// Number of bins per point of a curve over this many bins.
fn stride(bins: usize, points: usize) -> usize {
    bins.div_ceil(points).max(1)
}

/// Time per point of a curve over this many bins, s.
fn bin(series: &Series, bins: usize) -> f64 {
    series.bin_s * stride(bins, POINTS) as f64
}

/// At most `points` means of adjacent values; `None` where all of them are missing.
fn thin(values: &[Option<f64>], points: usize) -> impl Iterator<Item = Option<f64>> + '_ {
    values.chunks(stride(values.len(), points)).map(|chunk| {
        let known: Vec<f64> = chunk
            .iter()
            .flatten()
            .copied()
            .filter(|value| value.is_finite())
            .collect();
        statistics::mean(&known)
    })
}

/// Means of the values within slices of time.
fn in_slices(values: &[Option<f64>], bin_s: f64, slice_s: f64) -> Vec<Option<f64>> {
    let slice = |i: usize| {
        let of = |time: f64| ((time / bin_s).round() as usize).min(values.len());
        let known: Vec<f64> = values[of(i as f64 * slice_s)..of((i + 1) as f64 * slice_s)]
            .iter()
            .flatten()
            .copied()
            .collect();
        statistics::mean(&known)
    };
    (0..SLICES).map(slice).collect()
}

/// Runs of consecutive known values, each with its index.
pub(super) fn pieces(values: impl Iterator<Item = Option<f64>>) -> Vec<Vec<(usize, f64)>> {
    let mut pieces = vec![Vec::new()];
    for (i, value) in values.enumerate() {
        match (value, pieces.last_mut()) {
            (Some(value), Some(piece)) => piece.push((i, value)),
            _ => pieces.push(Vec::new()),
        }
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

fn round(seconds: f64) -> f64 {
    (seconds * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::Run;

    #[test]
    fn curves_are_thinned_to_means() {
        let values: Vec<Option<f64>> = (0..300).map(|i| Some(f64::from(i))).collect();
        let thinned: Vec<Option<f64>> = thin(&values, 150).collect();
        assert_eq!((thinned.len(), thinned[0]), (150, Some(0.5)));
        assert_eq!(
            thin(&[None, None, Some(2.0), None], 2).collect::<Vec<_>>(),
            [None, Some(2.0)]
        );
        assert_eq!(thin(&[], 5).count(), 0);
    }

    #[test]
    fn missing_values_split_a_curve() {
        let parted = pieces([None, Some(1.0), Some(2.0), None, None, Some(3.0)].into_iter());
        assert_eq!(parted, [vec![(1, 1.0), (2, 2.0)], vec![(5, 3.0)]]);
    }

    #[test]
    fn the_typical_run_is_the_valid_one_in_the_middle() {
        let file = |run, throughput_mbps, reasons: &[&str]| {
            let mut run = Run {
                run,
                throughput_mbps,
                ..Run::default()
            };
            run.validity.reasons = reasons.iter().map(|reason| (*reason).to_owned()).collect();
            RunFile {
                run,
                ..RunFile::default()
            }
        };
        let files = [
            file(0, 9.0, &[]),
            file(1, 5.0, &["late"]),
            file(2, 3.0, &[]),
            file(3, 7.0, &[]),
        ];
        assert_eq!(typical(files.iter()).map(|file| file.run.run), Some(3));
        assert_eq!(
            typical(files[1..2].iter()).map(|file| file.run.run),
            Some(1)
        );
        assert!(typical([].iter()).is_none());
    }

    #[test]
    fn slices_are_means_over_time() {
        let values: Vec<Option<f64>> = (0..100).map(|i| Some(f64::from(i / 10))).collect();
        let slices = in_slices(&values, 0.1, 1.0);
        assert_eq!(
            slices,
            (0..10).map(|i| Some(f64::from(i))).collect::<Vec<_>>()
        );
        assert_eq!(in_slices(&values[..5], 0.1, 1.0)[1], None);
    }
}
