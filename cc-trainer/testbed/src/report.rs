//! The report of an evaluation: one self-contained HTML page with plots, their numbers and the
//! facts needed to judge them.

mod applications;
mod axis;
pub mod bars;
pub mod chart;
pub mod league;
mod overview;
mod palette;
pub mod panels;
mod scatter;
mod svg;
mod time_series;

use std::{
    fmt::Write as _,
    io,
    path::{Path, PathBuf},
};

use cc_core::durable::{ReplaceError, replace_durably};

use crate::summary::{
    Application, FlowRun, Platform, Run, RunFile, ScenarioFacts, Summary,
    aggregate::{Group, P95_DELAY, THROUGHPUT, groups},
    splits, statistics,
    table::{self, figure, setting},
};

use overview::Overview;
use palette::Palette;
use scatter::{Cloud, Point, Scatter};
use svg::escape;
use time_series::TimeSeries;

const STYLE: &str = include_str!("report/style.css");
/// Explanation of runs on the kernel, part of the page.
const ON_KERNEL: &str = "Flows of the kernel's own TCP cross a link that is emulated on the \
    same host, in real time. Packets leave it by a virtual clock, so a late wake-up moves single \
    packets and never changes the rate. A run in which packets were too late, or lost outside of \
    the link, is repeated; one that stays so is shown as invalid.";
/// Explanation of simulated runs, part of the page.
const IN_SIMULATOR: &str = "Flows of a simulated TCP, which does as Linux's, cross a \
    simulated link, in virtual time. Policies decide with a delay that is drawn from what the \
    agent showed on the real kernel.";

/// The report could not be written.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot write the report {path}: {source}; is the folder there, writable, and the disk not \
     full?"
)]
pub struct ReportError {
    path: PathBuf,
    source: io::Error,
}

/// Replaces `report.html` in a directory durably and returns its path.
///
/// # Errors
///
/// Returns an error when the file cannot be written.
pub fn write(dir: &Path, summary: &Summary, runs: &[RunFile]) -> Result<PathBuf, ReportError> {
    let path = dir.join("report.html");
    match replace_durably(&path, html(summary, runs).as_bytes()) {
        Ok(()) => Ok(path),
        Err(ReplaceError { source, .. }) => Err(ReportError { path, source }),
    }
}

/// Renders the report. `runs` provide the time series; a run of the summary without one is shown
/// without its plots.
pub fn html(summary: &Summary, runs: &[RunFile]) -> String {
    let groups = groups(summary);
    let settings = &summary.settings;
    let named = settings.schemes.iter().map(String::as_str);
    let ran = groups.iter().map(|group| group.scheme);
    let flows = summary
        .runs
        .iter()
        .flat_map(|run| &run.flows)
        .map(|flow| flow.scheme.as_str());
    let page = Page {
        summary,
        palette: Palette::new(named.chain(ran).chain(flows)),
        sections: sections(summary, &groups, runs),
        groups,
    };
    page.html()
}

struct Page<'a> {
    summary: &'a Summary,
    palette: Palette,
    groups: Vec<Group<'a>>,
    sections: Vec<Section<'a>>,
}

/// One scenario of the page.
struct Section<'a> {
    facts: ScenarioFacts,
    groups: Vec<Group<'a>>,
    files: Vec<&'a RunFile>,
    /// Messages of applications, by their names and schemes.
    applications: Vec<&'a Application>,
}

fn sections<'a>(
    summary: &'a Summary,
    groups: &[Group<'a>],
    runs: &'a [RunFile],
) -> Vec<Section<'a>> {
    let section = |groups: &[Group<'a>]| {
        let name = groups[0].scenario;
        let facts = summary
            .settings
            .scenarios
            .iter()
            .find(|facts| facts.name == name);
        let unknown = || ScenarioFacts {
            name: name.to_owned(),
            ..ScenarioFacts::default()
        };
        Section {
            facts: facts.cloned().unwrap_or_else(unknown),
            groups: groups.to_vec(),
            files: runs
                .iter()
                .filter(|file| file.run.scenario == name)
                .collect(),
            applications: (summary.applications.iter())
                .filter(|cell| cell.scenario == name)
                .collect(),
        }
    };
    groups
        .chunk_by(|a, b| a.scenario == b.scenario)
        .map(section)
        .collect()
}

impl Page<'_> {
    fn html(&self) -> String {
        let title = self.title();
        let mut html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta \
             name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
             <title>{title}</title><style>\n{STYLE}</style></head>\n\
             <body>\n{}<header><h1>{title}</h1>\n",
            palette::definitions()
        );
        html += &self.introduction();
        html.push_str("</header>\n<main>\n");
        if self.sections.len() > 1 {
            html += "<section id=\"overview\"><h2>All scenarios</h2>\n";
            if let Some(overview) = Overview::new(&self.groups) {
                html += &overview.draw(&self.palette);
            }
            html += &self.thumbnails();
            html += &self.results();
            html += "</section>\n";
        }
        for (i, section) in self.sections.iter().enumerate() {
            let _ = write!(html, "<section id=\"s{i}\">");
            html += &section.html(&self.palette);
            html += "</section>\n";
        }
        html += &self.invalid_runs();
        html += &self.method();
        html += "</main>\n</body></html>\n";
        html
    }

    fn title(&self) -> String {
        match &self.sections[..] {
            [one] => format!("Congestion control on {}", escape(&one.facts.name)),
            several => format!("Congestion control on {} links", several.len()),
        }
    }

    fn introduction(&self) -> String {
        let Summary {
            runs,
            host,
            settings,
            ..
        } = self.summary;
        let schemes: Vec<String> = settings
            .schemes
            .iter()
            .map(|scheme| self.palette.key(scheme))
            .collect();
        let invalid = runs.iter().filter(|run| !run.is_valid()).count();
        let mut html = format!(
            "<p class=\"about\">{} runs, {} of each scheme on each scenario, {} s each{}. {}, \
             {}.</p>\n<p>{}</p>\n",
            runs.len(),
            settings.runs,
            setting(settings.seconds),
            match settings
                .scenarios
                .iter()
                .any(|facts| facts.seconds.is_some())
            {
                true => " unless the scenario says otherwise",
                false => "",
            },
            match settings.on {
                Platform::Kernel => format!("Linux {}", escape(&host.kernel)),
                Platform::Sim => "Simulated".to_owned(),
            },
            escape(&settings.date),
            schemes.join(" &#160; ")
        );
        for note in splits::notes(settings) {
            let _ = writeln!(html, "<p class=\"about\">{}</p>", escape(&note));
        }
        if invalid > 0 {
            let _ = writeln!(
                html,
                "<p class=\"warn\">Invalid runs, in no mean: {invalid} of {} (<a \
                 href=\"#invalid\">reasons</a>).</p>",
                runs.len()
            );
        }
        html
    }

    /// Small plots of all scenarios.
    fn thumbnails(&self) -> String {
        let thumbnail = |(i, section): (usize, &Section<'_>)| {
            let picture = section
                .scatter()
                .map(|scatter| scatter.draw(&scatter::SMALL, &self.palette));
            let name = escape(&section.facts.name);
            format!(
                "<a href=\"#s{i}\">{name}{}</a>\n",
                picture.unwrap_or_default()
            )
        };
        let thumbnails: String = self.sections.iter().enumerate().map(thumbnail).collect();
        format!(
            "<h3>Each scenario</h3>\n<p class=\"note\">Throughput in Mbit/s over 95th-percentile \
             one-way delay in ms. Dashed: the link's rate and propagation delay.</p>\n<div \
             class=\"thumbnails\">\n{thumbnails}</div>\n"
        )
    }

    /// One table with the means on all scenarios, whose rows link to the scenarios' sections.
    fn results(&self) -> String {
        let mut schemes: Vec<&str> = Vec::new();
        for group in &self.groups {
            if !schemes.contains(&group.scheme) {
                schemes.push(group.scheme);
            }
        }
        let mut html = String::from(
            "<details><summary>These pictures in numbers</summary>\n<p class=\"note\">Mean \
             throughput in Mbit/s, and mean 95th-percentile one-way delay.</p>\n<div \
             class=\"scroll\"><table><thead><tr><th>scenario</th>",
        );
        for scheme in &schemes {
            let _ = write!(html, "<th>{}</th>", self.palette.key(scheme));
        }
        html.push_str("</tr></thead><tbody>\n");
        for (i, section) in self.sections.iter().enumerate() {
            let name = escape(&section.facts.name);
            let _ = write!(html, "<tr><th><a href=\"#s{i}\">{name}</a></th>");
            for scheme in &schemes {
                let group = section.groups.iter().find(|group| group.scheme == *scheme);
                let mean = |measure| {
                    group
                        .and_then(|group| group.estimate(measure))
                        .map(|estimate| estimate.mean)
                };
                let show = |value: Option<f64>| value.map_or("–".to_owned(), figure);
                let (rate, delay) = (show(mean(&THROUGHPUT)), show(mean(&P95_DELAY)));
                let _ = write!(html, "<td>{rate}<small>{delay} ms</small></td>");
            }
            html.push_str("</tr>\n");
        }
        html + "</tbody></table></div></details>\n"
    }

    fn invalid_runs(&self) -> String {
        let invalid: Vec<&Run> = self
            .summary
            .runs
            .iter()
            .filter(|run| !run.is_valid())
            .collect();
        if invalid.is_empty() {
            return String::new();
        }
        let mut html = String::from(
            "<section id=\"invalid\"><h2>Invalid runs</h2>\n<p>The host disturbed these runs so \
             much that their figures say nothing of the schemes. They are in no mean and no \
             scatter.</p>\n<div class=\"scroll\"><table><thead><tr><th>scenario</th>\
             <th>scheme</th><th>run</th><th>attempts</th><th>reasons</th></tr></thead><tbody>\n",
        );
        for run in invalid {
            let _ = writeln!(
                html,
                "<tr><th>{}</th><td class=\"text\">{}</td><td>{}</td><td>{}</td><td \
                 class=\"text\">{}</td></tr>",
                escape(&run.scenario),
                self.palette.key(&run.scheme),
                run.run,
                run.validity.attempts,
                escape(&run.validity.reasons.join("; "))
            );
        }
        html + "</tbody></table></div></section>\n"
    }

    fn method(&self) -> String {
        let Summary { host, settings, .. } = self.summary;
        let mut facts = vec![
            (
                "command",
                format!("<code>{}</code>", escape(&settings.command)),
            ),
            ("began", escape(&settings.date)),
            ("seed", settings.seed.to_string()),
            ("cc-trainer", escape(&host.version)),
            ("kernel", escape(&host.kernel)),
            (
                "processor",
                format!("{}, {} cores", escape(&host.cpu), host.cores),
            ),
            (
                "memory",
                format!("{} GiB", figure(host.memory_bytes as f64 / 2_f64.powi(30))),
            ),
            (
                "congestion controls",
                escape(&host.congestion_controls.join(" ")),
            ),
        ];
        for policy in &settings.policies {
            let hash = match policy.sha256.as_str() {
                "" => String::new(),
                hash => format!(", SHA-256 <code>{}</code>", escape(hash)),
            };
            facts.push((
                "policy",
                format!(
                    "{}: {}{hash}",
                    escape(&policy.scheme),
                    escape(&policy.source)
                ),
            ));
        }
        let facts: String = facts
            .iter()
            .map(|(name, value)| format!("<dt>{name}</dt><dd>{value}</dd>\n"))
            .collect();
        format!(
            "<section id=\"method\"><h2>Host and method</h2>\n<dl>\n{facts}</dl>\n\
             <ul>\n\
             <li>{}</li>\n\
             <li>Throughput counts payload that crossed the link, retransmissions included; the \
             link's rate and utilisation count IP packets. With 1500-byte packets payload is 96.5 \
             % of that.</li>\n\
             <li>One-way delay is that of each data packet from its arrival at the link until it \
             is delivered, propagation included. Percentiles are nearest ranks over the packets \
             of a run.</li>\n\
             <li>Figures are means over valid runs, intervals are 95 % percentile bootstraps of \
             the mean over runs. Of three runs such an interval spans all three: it shows how far \
             runs differ, and is no more exact than that. Of one run there is none.</li>\n\
             <li>Loss counts packets that the link dropped for whatever reason, a full queue or \
             chance.</li>\n\
             <li>Messages of applications: the completion time counts from when a message was \
             asked for or written until its receiver had all of it; where a connection is opened \
             for it, the handshake is part of it. Messages of all valid runs are pooled. Intervals \
             of the median and the 99th percentile are by order statistics, at 95 %; they take \
             messages for independent. Dropped: packets of any flow that the link dropped in \
             those tenths of a second in which a message was under way.</li>\n\
             <li>Convergence: from the start of the last flow until every flow's throughput, \
             averaged over {} s, stays within {} % of the equal share for {} s. Jain's index is 1 \
             when all flows get the same and 1/n when one of n gets all.</li>\n\
             <li>An emulated link has no other users than its scenario's flows, and a queue of \
             one kind; results of real networks vary more.</li>\n\
             </ul>\n</section>\n",
            match settings.on {
                Platform::Kernel => ON_KERNEL,
                Platform::Sim => IN_SIMULATOR,
            },
            statistics::CONVERGENCE_WINDOW_S,
            100.0 * statistics::CONVERGENCE_TOLERANCE,
            statistics::CONVERGENCE_HOLD_S
        )
    }
}

impl Section<'_> {
    fn html(&self, palette: &Palette) -> String {
        let mut html = format!("<h2>{}</h2>\n", escape(&self.facts.name));
        let _ = writeln!(html, "<p class=\"about\">{}</p>", self.about());
        let _ = writeln!(
            html,
            "<div class=\"pair{}\">{}<div class=\"scroll\">{}</div></div>\n{}",
            // Leaves room for the columns of fairness measures.
            if self.groups.iter().any(Group::is_shared) {
                " wide"
            } else {
                ""
            },
            self.figure(palette),
            self.means(palette),
            self.every_run(palette)
        );
        html += &applications::draw(&self.applications, &self.files, palette);
        let typical = self.groups.iter().filter_map(|group| {
            let files = self
                .files
                .iter()
                .copied()
                .filter(|file| file.run.scheme == group.scheme);
            time_series::typical(files)
        });
        let typical: Vec<&RunFile> = typical.collect();
        if !typical.is_empty() {
            let owd_ms = (self.facts.owd_ms > 0.0).then_some(self.facts.owd_ms);
            let time_series = TimeSeries::new(typical, owd_ms);
            let _ = writeln!(
                html,
                "<details><summary>Rate, delay and window over time</summary>\n<p \
                 class=\"note\">Of each scheme the run with the median throughput. Shaded: what \
                 the link offers. Dashed: propagation delay. Delay and window on logarithmic \
                 axes, the same for all schemes.</p>\n{}<details><summary>These curves in \
                 numbers</summary><div class=\"scroll\">{}</div></details></details>",
                time_series.draw(palette),
                time_series.table(palette)
            );
        }
        html
    }

    /// Describes the scenario in one line.
    fn about(&self) -> String {
        let facts = &self.facts;
        let rate = self
            .capacity_mbps()
            .map(|rate| format!("{} Mbit/s", setting(rate)));
        let rtt = (facts.rtt_ms > 0.0).then(|| format!("RTT {} ms", setting(facts.rtt_ms)));
        let flows = (facts.flows > 1).then(|| format!("{} flows", facts.flows));
        let description = (!facts.description.is_empty()).then(|| escape(&facts.description));
        let parts = [description, rate, rtt, flows].into_iter().flatten();
        parts.collect::<Vec<_>>().join(" · ")
    }

    /// Capacity of the link: the mean over the time series, or else the mean rate of the scenario.
    fn capacity_mbps(&self) -> Option<f64> {
        let offered = self
            .files
            .iter()
            .flat_map(|file| &file.series.capacity_mbps);
        let offered: Option<Vec<f64>> = offered.copied().collect();
        offered
            .and_then(|rates| statistics::mean(&rates))
            .or(self.facts.rate_mbps)
    }

    fn figure(&self, palette: &Palette) -> String {
        match self.scatter() {
            Some(scatter) => format!("<figure>{}</figure>", scatter.draw(&scatter::FULL, palette)),
            None => "<p class=\"warn\">No scheme has a valid run here.</p>".to_owned(),
        }
    }

    /// The scatter plot of the scenario; `None` without a valid run.
    fn scatter(&self) -> Option<Scatter<'_>> {
        let clouds: Vec<Cloud<'_>> = self.groups.iter().filter_map(cloud).collect();
        let limit = |rate: f64| (rate, format!("link {} Mbit/s", setting(rate)));
        let floor = |delay: f64| (delay, format!("propagation {} ms", setting(delay)));
        (!clouds.is_empty()).then(|| Scatter {
            title: format!("Throughput against delay on {}", self.facts.name),
            delay: "p95 one-way delay, ms (less is further right)",
            throughput: "throughput, Mbit/s",
            clouds,
            ceiling: self.capacity_mbps().map(limit),
            floor: Some(self.facts.owd_ms)
                .filter(|delay| *delay > 0.0)
                .map(floor),
        })
    }

    fn means(&self, palette: &Palette) -> String {
        let measures = table::measures(&self.groups);
        let mut html = String::from("<table><thead><tr><th>scheme</th>");
        for measure in &measures {
            let _ = write!(html, "<th>{}</th>", escape(&table::heading(measure)));
        }
        html.push_str("<th>valid runs</th></tr></thead><tbody>\n");
        for group in &self.groups {
            let _ = write!(html, "<tr><th>{}</th>", palette.key(group.scheme));
            let valid = group.valid().count();
            for measure in &measures {
                let Some(estimate) = group.estimate(measure) else {
                    html.push_str("<td>–</td>");
                    continue;
                };
                let _ = write!(html, "<td>{}", figure(estimate.mean));
                if let Some((low, high)) = estimate.interval {
                    let _ = write!(html, "<small>{}–{}</small>", figure(low), figure(high));
                }
                if estimate.samples < valid {
                    let _ = write!(html, "<small>{} of {valid} runs</small>", estimate.samples);
                }
                html.push_str("</td>");
            }
            let class = if valid < group.runs.len() {
                " class=\"warn\""
            } else {
                ""
            };
            let _ = writeln!(html, "<td{class}>{valid}/{}</td></tr>", group.runs.len());
        }
        html + "</tbody></table>\n"
    }

    /// The table of all runs, which are the small markers of the plot.
    fn every_run(&self, palette: &Palette) -> String {
        let runs = || self.groups.iter().flat_map(|group| &group.runs);
        let has_flows = runs().any(|run| run.flows.len() > 1);
        let has_decisions = runs().any(|run| run.decision_delay.is_some());
        let mut html = String::from(
            "<details><summary>Every run</summary><div class=\"scroll\"><table><thead><tr>\
             <th>scheme</th><th>run</th><th>throughput, Mbit/s</th><th>p95 delay, ms</th><th>mean \
             delay, ms</th><th>mean RTT, ms</th><th>loss, %</th><th>retransmissions</th>",
        );
        if has_decisions {
            html.push_str("<th>decision delay p50, µs</th><th>p99, µs</th>");
        }
        html.push_str("<th>emulator's lateness p99.9, ms</th></tr></thead><tbody>\n");
        for run in runs() {
            let name = match run.is_valid() {
                true => run.run.to_string(),
                false => format!("{} (invalid)", run.run),
            };
            let lateness = figure(run.validity.lateness_p999_ms);
            let _ = write!(
                html,
                "<tr><th>{}</th><td>{name}</td>",
                palette.key(&run.scheme)
            );
            html += &figures(&Figures::from(*run), has_decisions);
            let _ = writeln!(html, "<td>{lateness}</td></tr>");
            for (i, flow) in run.flows.iter().enumerate().filter(|_| has_flows) {
                let (from, to) = (setting(flow.start_s), setting(flow.stop_s));
                let key = palette.key(&flow.scheme);
                let _ = write!(
                    html,
                    "<tr><td class=\"text\">&#160; flow {i}: {key}</td><td>{from}–{to} s</td>"
                );
                html += &figures(&Figures::from(flow), has_decisions);
                html += "<td></td></tr>\n";
            }
        }
        html + "</tbody></table></div></details>\n"
    }
}

/// The points of a scheme in the scatter plot; `None` when no valid run delivered anything.
fn cloud<'a>(group: &Group<'a>) -> Option<Cloud<'a>> {
    let (throughput, delay) = (group.estimate(&THROUGHPUT)?, group.estimate(&P95_DELAY)?);
    let sample = |run: &Run| {
        let (delay, throughput) = (run.p95_owd_ms?, run.throughput_mbps);
        let (rate, ms) = (figure(throughput), figure(delay));
        let hint = format!(
            "{} run {}: {rate} Mbit/s, p95 delay {ms} ms",
            group.scheme, run.run
        );
        Some((Point { delay, throughput }, hint))
    };
    Some(Cloud {
        scheme: group.scheme,
        mean: Point {
            delay: delay.mean,
            throughput: throughput.mean,
        },
        delay_interval: delay.interval,
        throughput_interval: throughput.interval,
        samples: group.valid().filter_map(sample).collect(),
    })
}

/// The figures that runs and flows share.
struct Figures {
    throughput_mbps: f64,
    delays_ms: [Option<f64>; 3],
    loss_rate: f64,
    retransmissions: u64,
    decision_us: Option<(f64, f64)>,
}

impl From<&Run> for Figures {
    fn from(run: &Run) -> Self {
        Self {
            throughput_mbps: run.throughput_mbps,
            delays_ms: [run.p95_owd_ms, run.mean_owd_ms, run.mean_rtt_ms],
            loss_rate: run.loss_rate,
            retransmissions: run.retransmissions,
            decision_us: run.decision_delay.map(|delay| (delay.p50_us, delay.p99_us)),
        }
    }
}

impl From<&FlowRun> for Figures {
    fn from(flow: &FlowRun) -> Self {
        Self {
            throughput_mbps: flow.throughput_mbps,
            delays_ms: [flow.p95_owd_ms, flow.mean_owd_ms, flow.mean_rtt_ms],
            loss_rate: flow.loss_rate,
            retransmissions: flow.retransmissions,
            decision_us: flow
                .decision_delay
                .map(|delay| (delay.p50_us, delay.p99_us)),
        }
    }
}

/// Formats the figures as table cells.
fn figures(figures: &Figures, has_decisions: bool) -> String {
    let maybe = |value: Option<f64>| value.map_or("–".to_owned(), figure);
    let mut cells = vec![figure(figures.throughput_mbps)];
    cells.extend(figures.delays_ms.map(maybe));
    cells.extend([
        figure(100.0 * figures.loss_rate),
        figures.retransmissions.to_string(),
    ]);
    if has_decisions {
        let (p50, p99) = figures.decision_us.unzip();
        cells.extend([maybe(p50), maybe(p99)]);
    }
    cells
        .iter()
        .map(|cell| format!("<td>{cell}</td>"))
        .collect()
}

#[cfg(test)]
mod tests;
