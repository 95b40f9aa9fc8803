//! The report of a league: one self-contained HTML page, and its picture as a file of its own.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use cc_core::durable::{ReplaceError, replace_durably};

use super::{
    ReportError, STYLE,
    bars::{BarPanel, Bars},
    palette::Palette,
    svg::{Svg, escape},
};
use crate::{
    league::{Board, Kinds, Link, MARGIN, Measure, Property, Standings, table},
    summary::{Platform, table::figure},
};

/// Width of a panel of bars.
const PANEL: f64 = 300.0;
/// Measures that the picture shows, by their keys.
const SHOWN: [&str; 2] = ["win_rate", "score"];

/// Replaces `report.html` and `league.svg` in a directory durably and returns the path of the page.
///
/// # Errors
///
/// Returns an error when a file cannot be written.
pub fn write(dir: &Path, standings: &Standings, board: &Board) -> Result<PathBuf, ReportError> {
    let page = dir.join("report.html");
    let files = [
        (dir.join("league.svg"), picture(standings)),
        (page.clone(), html(standings, board)),
    ];
    for (path, text) in files {
        if let Err(ReplaceError { source, .. }) = replace_durably(&path, text.as_bytes()) {
            return Err(ReportError { path, source });
        }
    }
    Ok(page)
}

/// Renders the page of a league.
pub fn html(standings: &Standings, board: &Board) -> String {
    let palette = palette(standings);
    let title = format!("League on {}", escape(&standings.set));
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta \
         name=\"viewport\" content=\"width=device-width, initial-scale=1\"/><title>{title}</title>\
         <style>\n{STYLE}</style></head>\n<body>\n<header><h1>{title}</h1>\n<p class=\"about\">{}. \
         {}, {} of each scheme on each link. {}.</p></header>\n<main>\n",
        escape(&table::headline(standings)),
        match standings.settings.on {
            Platform::Kernel => format!("Linux {}", escape(&standings.settings.host.kernel)),
            Platform::Sim => "Simulated".to_owned(),
        },
        match standings.settings.runs {
            1 => "one run".to_owned(),
            runs => format!("{runs} runs"),
        },
        escape(&standings.settings.date),
    );
    for note in table::notes(standings) {
        let _ = writeln!(html, "<p class=\"note\">{}</p>", escape(&note));
    }
    let bars = bars(standings);
    let (width, height) = bars.size();
    let mut svg = Svg::new("bars", width, height, &title);
    bars.draw(&mut svg, &palette);
    let _ = write!(
        html,
        "<section><figure>{}<figcaption>Winning rate over all games, and the absolute score. \
         Lines: 95 % intervals over links.</figcaption></figure>\n{}</section>\n",
        svg.finish(),
        rows(&table::measures(standings))
    );
    if let [first, _, ..] = standings.order.as_slice() {
        let _ = write!(
            html,
            "<section><h2>Lead of {} over the others</h2>\n<p class=\"note\">On the same links: \
             the difference, or the factor where the mean is geometric (×), with its paired 95 % \
             interval; * where that leaves no doubt that there is one.</p>\n{}</section>\n",
            escape(first),
            rows(&table::leads(standings))
        );
    }
    if let Some(against) = &standings.against {
        let _ = write!(
            html,
            "<section><h2>Power against those named</h2>\n<p class=\"note\">Throughput / p95 \
             delay, divided by that of {}. Geometric mean; the least is of a single link.</p>\n{}\
             </section>\n",
            escape(&table::yardstick(against)),
            rows(&table::powers(against))
        );
    }
    for by in &standings.by {
        let _ = write!(
            html,
            "<section><h2>{}</h2>\n{}</section>\n",
            escape(&table::by_title(by)),
            rows(&table::kinds(by, &standings.order))
        );
    }
    if standings.schemes.values().any(|s| s.segments.len() > 1) {
        let _ = write!(
            html,
            "<section><h2>By segment</h2>\n<p class=\"note\">Winning rate and absolute score in \
             each scored segment of the links.</p>\n{}</section>\n",
            rows(&table::segments(standings))
        );
    }
    html += &breakdowns(standings, board);
    html += &method(standings);
    html += "</main>\n</body></html>\n";
    html
}

/// Renders the picture as an SVG file.
pub fn picture(standings: &Standings) -> String {
    let bars = bars(standings);
    let (width, height) = bars.size();
    let title = table::headline(standings);
    let mut svg = Svg::file("chart", width, height, &title, STYLE);
    bars.draw(&mut svg, &palette(standings));
    svg.finish()
}

fn palette(standings: &Standings) -> Palette {
    Palette::new(standings.order.iter().map(String::as_str))
}

/// The measures of the picture that the schemes have.
fn shown(standings: &Standings) -> Vec<&'static Measure> {
    let shown = standings.measures();
    shown
        .filter(|measure| SHOWN.contains(&measure.key))
        .collect()
}

/// A panel of bars per measure, with a row per scheme, those that won most first.
fn bars(standings: &Standings) -> Bars {
    let ranked = standings.ranked();
    let panel = |measure: &Measure| BarPanel {
        title: table::heading(measure),
        bars: (ranked.iter())
            .map(|(_, standing)| {
                let figure = standing.measures.get(measure.key)?;
                Some(figure.estimate.map(|value| value * measure.shown))
            })
            .collect(),
    };
    Bars {
        names: ranked.iter().map(|(name, _)| (*name).to_owned()).collect(),
        panels: shown(standings).into_iter().map(panel).collect(),
        width: PANEL,
    }
}

/// Where the schemes win: winning rates by the properties of the links.
fn breakdowns(standings: &Standings, board: &Board) -> String {
    let properties = Property::ALL.into_iter();
    let tables: String = properties
        .filter_map(|property| breakdown(standings, board, property))
        .collect();
    match tables.is_empty() {
        true => tables,
        false => format!(
            "<section><h2>Where they win</h2>\n<p class=\"note\">Winning rate in % on links of \
             each kind.</p>\n{tables}</section>\n"
        ),
    }
}

/// The winning rates by one property; `None` where all links are equal in it.
fn breakdown(standings: &Standings, board: &Board, property: Property) -> Option<String> {
    let links: Vec<&Link> = board.links.iter().collect();
    let kinds = Kinds::of(&links, property);
    if kinds.names.len() < 2 {
        return None;
    }
    let head = [property.heading().to_owned()].into_iter();
    let head: Vec<String> = head.chain(kinds.names.iter().cloned()).collect();
    let row = |scheme: &str| {
        let place = board.schemes.iter().position(|name| name == scheme)?;
        let rate = |wanted: usize| {
            let links = (0..links.len()).filter(|&link| kinds.of_links[link] == wanted);
            let (mut won, mut games) = (0, 0);
            for link in links {
                let cell = &board.cells[link][place];
                won += cell.wins();
                games += cell.won.len();
            }
            figure(100.0 * won as f64 / games as f64)
        };
        let rates = (0..kinds.names.len()).map(rate);
        Some(std::iter::once(scheme.to_owned()).chain(rates).collect())
    };
    let ranked = standings.ranked();
    let body = ranked.iter().filter_map(|(name, _)| row(name));
    let all: Vec<Vec<String>> = std::iter::once(head).chain(body).collect();
    Some(rows(&all))
}

fn method(standings: &Standings) -> String {
    let settings = &standings.settings;
    let mut facts = vec![
        (
            "command",
            format!("<code>{}</code>", escape(&settings.command)),
        ),
        ("seed", settings.seed.to_string()),
        ("cc-trainer", escape(&settings.host.version)),
        (
            "processor",
            format!(
                "{}, {} cores",
                escape(&settings.host.cpu),
                settings.host.cores
            ),
        ),
    ];
    for set in &settings.sets {
        let (name, role, hash) = (escape(&set.name), escape(&set.role), escape(&set.sha256));
        facts.push((
            "set",
            format!("{name} ({role}), SHA-256 <code>{hash}</code>"),
        ));
    }
    for policy in &settings.policies {
        facts.push((
            "policy",
            format!(
                "{}: {} <code>{}</code>",
                escape(&policy.scheme),
                escape(&policy.source),
                escape(&policy.sha256)
            ),
        ));
    }
    let facts: String = facts
        .iter()
        .map(|(name, value)| format!("<dt>{name}</dt><dd>{value}</dd>\n"))
        .collect();
    let has = |key: &str| standings.measures().any(|measure| measure.key == key);
    let harm = match has("harm_throughput") {
        true => {
            "<li>Harm: the part of a neighbour's throughput that is missing beside the scheme, \
             (alone - with us) / alone, and the same of its p95 delay, (with us - alone) / with \
             us. Beyond its own: less the harm that a flow of the neighbour's scheme does in our \
             place.</li>\n"
        }
        false => "",
    };
    format!(
        "<section id=\"method\"><h2>Host and method</h2>\n<dl>\n{facts}</dl>\n<ul>\n\
         <li>A game is one scored segment of a link. By power: the winners have at least {} of the \
         highest throughput² / delay. Beside other flows: the winners' throughput is as near to \
         the fair share as the nearest, within 10 %. Several flows of one scheme: by the balance \
         of their throughputs. Winning rates depend on who is in the league.</li>\n\
         <li>Score: (throughput / capacity)² × base RTT / mean RTT, 1 at best, where the capacity \
         of a flow beside others is its fair share. Geometric mean.</li>\n\
         <li>Power: throughput / p95 delay, divided by that of the best other scheme on the same \
         link. Geometric mean.</li>\n{harm}\
         <li>Intervals are 95 % percentile bootstraps over links, drawn together for all \
         schemes.</li>\n</ul>\n</section>\n",
        1.0 - MARGIN,
    )
}

/// A table as HTML, the first row as the head.
fn rows(rows: &[Vec<String>]) -> String {
    let line = |row: &Vec<String>, tag: &str| {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let tag = if column == 0 { "th" } else { tag };
            // The interval goes below the figure.
            match cell.split_once(" [") {
                Some((mean, interval)) => format!(
                    "<{tag}>{}<small>[{}</small></{tag}>",
                    escape(mean),
                    escape(interval)
                ),
                None => format!("<{tag}>{}</{tag}>", escape(cell)),
            }
        });
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let head: String = rows.iter().take(1).map(|row| line(row, "th")).collect();
    let body: String = rows.iter().skip(1).map(|row| line(row, "td")).collect();
    format!(
        "<div class=\"scroll\"><table><thead>{head}</thead><tbody>\n{body}</tbody></table></div>\n"
    )
}
