//! The panels of the dashboard, drawn from what Prometheus answers about a span of time.

use std::{
    env, fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use cc_testbed::report::panels::{Content, Line, Panel, Panels, Unit};
use serde_json::Value;

use crate::watchers::{Watchers, example_text, interval};

/// The variable that names the directory to write the panels to, within the workspace or absolute.
const DIRECTORY_VARIABLE: &str = "CC_MONITORING_PANELS";
const FILE: &str = "panels.svg";
/// Most values of a line; more could not be distinguished.
const VALUES: f64 = 150.0;

/// Variables of the dashboard's queries.
pub(crate) struct Variables<'a> {
    pub(crate) rate_interval: &'a str,
    pub(crate) cgroup: &'a str,
}

impl Variables<'_> {
    /// A query of the dashboard with the values of its variables.
    pub(crate) fn in_query(&self, query: &str) -> String {
        query
            .replace("$__rate_interval", self.rate_interval)
            .replace("$cgroup", self.cgroup)
    }
}

/// The panels of the repository's dashboard.
pub(crate) fn dashboard() -> Vec<Value> {
    let text = example_text("grafana/rlcc.json");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    dashboard["panels"].as_array().expect("panels").clone()
}

/// The queries of a panel, each with the form of its names.
pub(crate) fn queries(panel: &Value) -> Vec<(&str, &str)> {
    let targets = panel["targets"].as_array().into_iter().flatten();
    targets
        .filter_map(|target| {
            let form = target["legendFormat"].as_str().unwrap_or_default();
            Some((target["expr"].as_str()?, form))
        })
        .collect()
}

/// What has happened since a time.
pub(crate) struct Story {
    since: SystemTime,
    events: Vec<(f64, String)>,
}

impl Story {
    pub(crate) fn begin() -> Self {
        Self {
            since: SystemTime::now(),
            events: Vec::new(),
        }
    }

    /// Notes that something happens now, for a mark in each panel.
    pub(crate) fn event(&mut self, what: &str) {
        self.events.push((self.length(), what.to_owned()));
    }

    fn length(&self) -> f64 {
        let length = self.since.elapsed().unwrap_or(Duration::ZERO);
        length.as_secs_f64()
    }

    /// Draws the dashboard of the time since it began, writes it where a variable says so, and
    /// checks that no panel is empty.
    pub(crate) fn draw(&self, watchers: &Watchers<'_>, cgroup: &str) {
        let step_s = (self.length() / VALUES)
            .ceil()
            .max(interval().as_secs_f64());
        // What Grafana chooses: four scrapes.
        let rate_interval = format!("{}s", 4 * interval().as_secs());
        let variables = Variables {
            rate_interval: &rate_interval,
            cgroup,
        };
        let since = self.since.duration_since(UNIX_EPOCH).expect("it is later");
        let since = since.as_secs_f64().floor();
        let span = Span {
            watchers,
            variables,
            ends: (since, since + self.length()),
            step_s,
        };
        let panels: Vec<Panel> = dashboard().iter().map(|panel| span.panel(panel)).collect();
        let empty = panels.iter().filter(|panel| !has_something(panel));
        let empty: Vec<&str> = empty.map(|panel| panel.title.as_str()).collect();
        let drawn = Panels {
            title: "The dashboard during staged incidents".to_owned(),
            step_s,
            events: self.events.clone(),
            panels: panels.clone(),
        };
        if let Some(directory) = env::var_os(DIRECTORY_VARIABLE) {
            let workspace = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
            let directory = workspace.join(directory);
            fs::create_dir_all(&directory).expect("a place for the panels");
            fs::write(directory.join(FILE), drawn.svg()).expect("writes");
        }
        assert_eq!(empty, Vec::<&str>::new(), "panels without values");
    }
}

/// What is asked of Prometheus for the panels.
struct Span<'a> {
    watchers: &'a Watchers<'a>,
    variables: Variables<'a>,
    /// Its first and last second of the Unix time.
    ends: (f64, f64),
    step_s: f64,
}

impl Span<'_> {
    fn panel(&self, panel: &Value) -> Panel {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let content = match panel["type"].as_str() {
            Some("table") => Content::Rows(self.rows(panel)),
            // A single figure is drawn over time as well.
            _ => Content::Lines(unit(panel), self.lines(panel)),
        };
        Panel {
            title: text(&panel["title"]),
            note: text(&panel["description"]),
            content,
        }
    }

    fn lines(&self, panel: &Value) -> Vec<Line> {
        let steps = ((self.ends.1 - self.ends.0) / self.step_s) as usize + 1;
        let mut lines = Vec::new();
        for (query, form) in queries(panel) {
            let query = self.variables.in_query(query);
            let answer = self.watchers.range(&query, self.ends, self.step_s);
            for series in answer.unwrap_or_else(|error| panic!("{query}: {error}")) {
                let mut values = vec![None; steps];
                for point in series["values"].as_array().into_iter().flatten() {
                    let at = point[0].as_f64().expect("a time");
                    let place = ((at - self.ends.0) / self.step_s).round() as usize;
                    let value = point[1].as_str().and_then(|value| value.parse().ok());
                    if let Some(slot) = values.get_mut(place) {
                        *slot = value.filter(|value: &f64| value.is_finite());
                    }
                }
                let name = named(form, &series["metric"]);
                lines.push(Line { name, values });
            }
        }
        lines
    }

    fn rows(&self, panel: &Value) -> Vec<String> {
        let mut rows = Vec::new();
        for (query, _) in queries(panel) {
            let query = self.variables.in_query(query);
            let answer = self.watchers.query(&query);
            for series in answer.unwrap_or_else(|error| panic!("{query}: {error}")) {
                let labels = series["metric"].as_object().into_iter().flatten();
                let labels = labels.filter(|(name, _)| *name != "__name__" && *name != "job");
                let labels: Vec<String> = labels
                    .map(|(name, value)| format!("{name} {}", value.as_str().unwrap_or("")))
                    .collect();
                rows.push(labels.join(", "));
            }
        }
        rows
    }
}

fn has_something(panel: &Panel) -> bool {
    match &panel.content {
        Content::Lines(_, lines) => lines
            .iter()
            .any(|line| line.values.iter().any(Option::is_some)),
        Content::Rows(rows) => !rows.is_empty(),
    }
}

/// A name in the form of the dashboard, in which `{{label}}` stands for a label's value.
fn named(form: &str, labels: &Value) -> String {
    let mut name = form.to_owned();
    for (label, value) in labels.as_object().into_iter().flatten() {
        name = name.replace(&format!("{{{{{label}}}}}"), value.as_str().unwrap_or(""));
    }
    name
}

fn unit(panel: &Value) -> Unit {
    match panel["fieldConfig"]["defaults"]["unit"].as_str() {
        Some("s") => Unit::Seconds,
        Some("ops") => Unit::PerSecond,
        Some("bps") => Unit::BitsPerSecond,
        Some("percentunit") => Unit::Share,
        Some("short") => Unit::Count,
        other => panic!("a unit that has not been drawn yet: {other:?}"),
    }
}
