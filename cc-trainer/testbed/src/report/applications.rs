//! Completion times of the messages of applications: a plot and a table for each kind of messages.

use std::fmt::Write as _;

use super::{
    axis::{Axis, label},
    palette::Palette,
    svg::{Anchor, Svg, escape},
};
use crate::summary::{Application, RunFile, table::application_rows};

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = HEIGHT - 44.0;
/// Points of a curve at most.
const POINTS: usize = 400;
/// Number of complete messages from which a plot shows more than the table.
const PLOTTED: usize = 5;

/// Draws the messages of one scenario; nothing where there are none.
pub(super) fn draw(cells: &[&Application], files: &[&RunFile], palette: &Palette) -> String {
    let mut html = String::new();
    for cells in cells.chunk_by(|a, b| a.message == b.message) {
        let name = &cells[0].message;
        let curves: Vec<(&str, Vec<f64>)> = (cells.iter())
            .map(|cell| (cell.scheme.as_str(), completion_ms(cell, files)))
            .collect();
        let _ = write!(
            html,
            "<h3>Messages: {}</h3>\n<div class=\"pair\">",
            escape(name)
        );
        if curves.iter().any(|(_, times)| times.len() >= PLOTTED) {
            let title = format!("Completion times of {name} on {}", cells[0].scenario);
            let _ = write!(
                html,
                "<figure>{}<figcaption>Share of the messages that were complete within a time, \
                 over all valid runs.</figcaption></figure>",
                plot(&title, &curves, palette)
            );
        } else {
            html.push_str("<div></div>");
        }
        let _ = writeln!(
            html,
            "<div class=\"scroll\">{}</div></div>",
            table(cells, palette)
        );
    }
    html
}

/// Completion times of a cell's messages in ascending order, ms.
fn completion_ms(cell: &Application, files: &[&RunFile]) -> Vec<f64> {
    let own = files
        .iter()
        .filter(|file| file.run.is_valid() && file.run.scheme == cell.scheme);
    let messages = own
        .flat_map(|file| &file.messages)
        .filter(|message| message.name == cell.message);
    let mut times: Vec<f64> = messages
        .filter_map(|message| message.completion_ms)
        .collect();
    times.sort_by(f64::total_cmp);
    times
}

/// Plots the distribution function of each scheme's completion times.
fn plot(title: &str, curves: &[(&str, Vec<f64>)], palette: &Palette) -> String {
    let mut svg = Svg::new("course", WIDTH, HEIGHT, title);
    let times = curves.iter().flat_map(|(_, times)| times).copied();
    let x = Axis::log(times, 2.0, (LEFT, RIGHT));
    let y = Axis::linear(0.0, 100.0, (BOTTOM, TOP));
    svg.text("tick", (LEFT, TOP - 14.0), Anchor::Start, "% complete");
    for tick in y.ticks(5) {
        let at = y.place(tick);
        svg.line("grid", (LEFT, at), (RIGHT, at));
        svg.text("tick", (LEFT - 5.0, at + 4.0), Anchor::End, &label(tick));
    }
    for tick in x.ticks(6) {
        svg.text(
            "tick",
            (x.place(tick), BOTTOM + 16.0),
            Anchor::Middle,
            &label(tick),
        );
    }
    svg.text(
        "tick",
        ((LEFT + RIGHT) / 2.0, BOTTOM + 36.0),
        Anchor::Middle,
        "completion time, ms",
    );
    svg.line("axis", (LEFT, BOTTOM), (RIGHT, BOTTOM));
    for (scheme, times) in curves {
        let stride = times.len().div_ceil(POINTS).max(1);
        let shown =
            (0..times.len()).filter(|place| place % stride == 0 || place + 1 == times.len());
        let point = |place: usize| {
            let share = 100.0 * (place + 1) as f64 / times.len() as f64;
            (x.place(times[place]), y.place(share))
        };
        svg.polyline(
            &format!("curve {}", palette.class(scheme)),
            &[shown.map(point).collect()],
        );
    }
    svg.finish()
}

/// The figures of each scheme.
fn table(cells: &[&Application], palette: &Palette) -> String {
    let cells: Vec<Application> = cells.iter().map(|&cell| cell.clone()).collect();
    let mut html = String::from("<table>");
    for (number, row) in application_rows(&cells).iter().enumerate() {
        html.push_str(match number {
            0 => "<thead><tr>",
            _ => "<tr>",
        });
        for (column, text) in row.iter().enumerate() {
            // An interval goes below its value.
            let text = match text.split_once(" [") {
                Some((value, interval)) => {
                    format!("{}<small>[{}</small>", escape(value), escape(interval))
                }
                None => escape(text),
            };
            let _ = match (number, column) {
                (0, _) => write!(html, "<th>{text}</th>"),
                (_, 0) => write!(html, "<th>{}</th>", palette.key(&row[0])),
                _ => write!(html, "<td>{text}</td>"),
            };
        }
        html.push_str(match number {
            0 => "</tr></thead><tbody>\n",
            _ => "</tr>\n",
        });
    }
    html + "</tbody></table>"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{AppMeasures, MessageRecord, Run, apps};

    #[test]
    fn each_kind_of_messages_has_a_plot_and_a_table() {
        let messages = (1..=1_000).map(|n| MessageRecord {
            name: "flow".into(),
            completion_ms: Some(f64::from(n)),
            ..MessageRecord::default()
        });
        let messages: Vec<MessageRecord> = messages.collect();
        let file = RunFile {
            run: Run {
                scenario: "a".into(),
                scheme: "cubic<".into(),
                apps: [("flow".to_owned(), AppMeasures::default())].into(),
                ..Run::default()
            },
            messages,
            ..RunFile::default()
        };
        let cells = apps::pool([&file]);
        let palette = Palette::new(["cubic<"].into_iter());
        let html = draw(&cells.iter().collect::<Vec<_>>(), &[&file], &palette);
        assert!(html.contains("<svg") && html.contains("curve c0"), "{html}");
        assert!(
            html.contains("<td>500<small>[") && html.contains("cubic&lt;"),
            "{html}"
        );
        assert!(!html.contains("cubic<"), "{html}");
        assert_eq!(draw(&[], &[&file], &palette), "");
    }
}
