//! Panels of lines over one span of time, in a grid: what a monitoring system shows, without one.
//! The panels are an SVG file of their own and follow the reader's light or dark colour scheme.

use super::{
    STYLE,
    axis::{Axis, label},
    palette::Palette,
    svg::{Anchor, Svg},
    time_series::pieces,
};

const COLUMNS: usize = 2;
const WIDTH: f64 = 560.0;
/// Space to the left of a panel's axis, for its ticks.
const LEFT: f64 = 52.0;
const RIGHT: f64 = WIDTH - 18.0;
/// From the top of a panel to its plot: its title, its note, and the numbers of events.
const TOP: f64 = 56.0;
const PLOT: f64 = 120.0;
/// From the plot to the first row of names: the ticks of time.
const BELOW: f64 = 34.0;
/// Distance between the baselines of two rows of text.
const ROW: f64 = 15.0;
/// Space below a panel, before the next row begins.
const GAP: f64 = 16.0;
/// Space above the panels without events: the title.
const HEAD: f64 = 34.0;
/// Width of a small letter, a little more than the widest fonts need on average.
const LETTER: f64 = 6.3;
/// Length of the line before a name.
const SAMPLE: f64 = 14.0;
/// The least range of shares, in %, and of counts: a zero is no noise to be enlarged.
const LEAST_RANGE: f64 = 1.0;

/// A grid of panels over the same time.
#[derive(Clone, Debug)]
pub struct Panels {
    /// Title of them all, which screen readers speak.
    pub title: String,
    /// Time between two values of a line, s.
    pub step_s: f64,
    /// What happened when, s after the first value. Each panel has a numbered mark there.
    pub events: Vec<(f64, String)>,
    /// The panels, row by row.
    pub panels: Vec<Panel>,
}

/// One panel of the grid: a heading, and what it shows.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Heading of the panel, on one line.
    pub title: String,
    /// A line of explanation below it.
    pub note: String,
    /// Lines or rows, which fill the panel below heading and note.
    pub content: Content,
}

/// What a panel shows: lines over time, or rows of text as a table.
#[derive(Clone, Debug)]
pub enum Content {
    /// Lines over time, on an axis that begins at zero.
    Lines(Unit, Vec<Line>),
    /// Rows of text, cut off where they do not fit.
    Rows(Vec<String>),
}

/// A line and its name.
#[derive(Clone, Debug)]
pub struct Line {
    /// Name of the line, shown below the panel.
    pub name: String,
    /// Its values, a step apart; `None` where there is none.
    pub values: Vec<Option<f64>>,
}

/// The unit of values. What is shown is a multiple of it in which they are neither long nor all
/// near zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Numbers of things, such as flows.
    Count,
    /// Things per second, such as decisions.
    PerSecond,
    /// Durations in s, shown in s, ms or µs.
    Seconds,
    /// Rates in bit/s, shown with a prefix.
    BitsPerSecond,
    /// Parts of one, shown in percent.
    Share,
}

impl Unit {
    /// The multiple for values up to `most`, and how many of it are one of the unit.
    fn scaled(self, most: f64) -> (&'static str, f64) {
        match self {
            Self::Count => ("", 1.0),
            Self::PerSecond => ("/s", 1.0),
            Self::Seconds if most >= 1.0 => ("s", 1.0),
            Self::Seconds if most >= 1e-3 => ("ms", 1e3),
            Self::Seconds => ("µs", 1e6),
            Self::BitsPerSecond if most >= 1e6 => ("Mbit/s", 1e-6),
            Self::BitsPerSecond if most >= 1e3 => ("kbit/s", 1e-3),
            Self::BitsPerSecond => ("bit/s", 1.0),
            Self::Share => ("%", 100.0),
        }
    }

    /// The least length of an axis, in its multiple.
    fn least_range(self) -> f64 {
        match self {
            Self::Count | Self::PerSecond | Self::Share => LEAST_RANGE,
            Self::Seconds | Self::BitsPerSecond => 0.0,
        }
    }
}

impl Panels {
    /// Renders the panels as an SVG file.
    pub fn svg(&self) -> String {
        let width = COLUMNS as f64 * WIDTH;
        let rows: Vec<&[Panel]> = self.panels.chunks(COLUMNS).collect();
        let height = |row: &&[Panel]| row.iter().map(Panel::height).fold(0.0, f64::max) + GAP;
        let events = self.key(width);
        let head = HEAD + events.len() as f64 * ROW;
        let all = head + rows.iter().map(height).sum::<f64>();
        let mut svg = Svg::file("chart", width, all, &self.title, STYLE);
        svg.text("title", (LEFT, 20.0), Anchor::Start, &self.title);
        for (row, number) in events.iter().zip(1..) {
            let at = (LEFT, 22.0 + f64::from(number) * ROW);
            svg.text("small tick", at, Anchor::Start, row);
        }
        let mut top = head;
        for row in &rows {
            for (panel, column) in row.iter().zip(0..) {
                self.draw(panel, (f64::from(column) * WIDTH, top), &mut svg);
            }
            top += height(row);
        }
        svg.finish()
    }

    /// The rows of text that say what the numbered events are.
    fn key(&self, width: f64) -> Vec<String> {
        let names = self.events.iter().zip(1..);
        let names = names.map(|((at, what), number)| format!("{number}: {what} ({at:.0} s)"));
        let mut rows: Vec<String> = Vec::new();
        for name in names {
            match rows.last_mut() {
                Some(row) if letters(row) + letters(&name) + LEFT < width - LEFT => {
                    *row += "   ";
                    *row += &name;
                }
                _ => rows.push(name),
            }
        }
        rows
    }

    fn draw(&self, panel: &Panel, (left, top): (f64, f64), svg: &mut Svg) {
        let start = left + LEFT;
        svg.text("title", (start, top + 14.0), Anchor::Start, &panel.title);
        let note = cut(&panel.note, RIGHT - LEFT);
        svg.text("small tick", (start, top + 29.0), Anchor::Start, &note);
        match &panel.content {
            Content::Lines(unit, lines) => self.draw_lines(*unit, lines, (left, top), svg),
            Content::Rows(rows) => {
                for (row, number) in rows.iter().zip(0..) {
                    let at = (start, top + TOP + f64::from(number) * ROW);
                    svg.text("small tick", at, Anchor::Start, &cut(row, RIGHT - LEFT));
                }
            }
        }
    }

    fn draw_lines(&self, unit: Unit, lines: &[Line], (left, top): (f64, f64), svg: &mut Svg) {
        let (start, end) = (left + LEFT, left + RIGHT);
        let (high, low) = (top + TOP, top + TOP + PLOT);
        let values = lines.iter().flat_map(|line| line.values.iter().flatten());
        let most = values.copied().filter(|value| value.is_finite());
        let most = most.fold(0.0, f64::max);
        let (name, factor) = unit.scaled(most);
        let y = Axis::linear(
            0.0,
            (1.05 * most * factor).max(unit.least_range()),
            (low, high),
        );
        for tick in y.ticks(4) {
            let at = y.place(tick);
            svg.line("grid", (start, at), (end, at));
            svg.text("tick", (start - 5.0, at + 4.0), Anchor::End, &label(tick));
        }
        svg.text("small tick", (start - 5.0, high - 10.0), Anchor::End, name);
        let steps = lines.iter().map(|line| line.values.len());
        let seconds = self.step_s * steps.max().unwrap_or(0).saturating_sub(1) as f64;
        let x = Axis::linear(0.0, seconds, (start, end));
        for tick in x.ticks(6) {
            let text = match tick + 0.15 * seconds > seconds {
                true => format!("{} s", label(tick)),
                false => label(tick),
            };
            svg.text("tick", (x.place(tick), low + 16.0), Anchor::Middle, &text);
        }
        svg.line("axis", (start, low), (end, low));
        let mut before = f64::NEG_INFINITY;
        for ((at, _), number) in self.events.iter().zip(1..) {
            let at = x.place(*at);
            svg.line("limit", (at, high), (at, low));
            // Two numbers side by side are told apart.
            let written = at.max(before + 2.0 * LETTER);
            before = written;
            svg.text(
                "small tick",
                (written, high - 4.0),
                Anchor::Middle,
                &format!("{number}"),
            );
        }
        let palette = Palette::new(lines.iter().map(|line| line.name.as_str()));
        let place =
            |(i, value): (usize, f64)| (x.place(self.step_s * i as f64), y.place(value * factor));
        for line in lines {
            let finite = |value: &Option<f64>| value.filter(|value| value.is_finite());
            let pieces = pieces(line.values.iter().map(finite));
            let pieces: Vec<Vec<(f64, f64)>> = pieces
                .into_iter()
                .map(|piece| piece.into_iter().map(place).collect())
                .collect();
            svg.polyline(&format!("curve {}", palette.class(&line.name)), &pieces);
        }
        for (name, (row, from)) in lines.iter().zip(places(lines)) {
            let (at, height) = (start + from, low + BELOW + row as f64 * ROW);
            let class = format!("curve {}", palette.class(&name.name));
            svg.line(&class, (at, height - 4.0), (at + SAMPLE, height - 4.0));
            let text = (at + SAMPLE + 4.0, height);
            svg.text("small tick", text, Anchor::Start, &legend(&name.name));
        }
    }
}

impl Panel {
    fn height(&self) -> f64 {
        match &self.content {
            Content::Lines(_, lines) => {
                let rows = places(lines).last().map_or(0, |(row, _)| row + 1);
                TOP + PLOT + BELOW + rows as f64 * ROW
            }
            Content::Rows(rows) => TOP + rows.len() as f64 * ROW,
        }
    }
}

/// The row of each line's name below the plot, and where it begins in the row.
fn places(lines: &[Line]) -> Vec<(usize, f64)> {
    let (mut row, mut from) = (0, 0.0);
    let place = |line: &Line| {
        let length = SAMPLE + 4.0 + letters(&legend(&line.name));
        if from > 0.0 && from + length > RIGHT - LEFT {
            (row, from) = (row + 1, 0.0);
        }
        let place = (row, from);
        from += length + 12.0;
        place
    };
    lines.iter().map(place).collect()
}

fn legend(name: &str) -> String {
    cut(name, RIGHT - LEFT - SAMPLE - 4.0)
}

/// About as long as a small text is.
fn letters(text: &str) -> f64 {
    LETTER * text.chars().count() as f64
}

/// The text, without its middle where it is longer than `width`.
fn cut(text: &str, width: f64) -> String {
    let (length, most) = (text.chars().count(), (width / LETTER) as usize);
    if length <= most {
        return text.to_owned();
    }
    let kept = most.saturating_sub(1) / 2;
    let head: String = text.chars().take(kept).collect();
    let tail: String = text.chars().skip(length - kept).collect();
    format!("{head}…{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, values: &[Option<f64>]) -> Line {
        Line {
            name: name.to_owned(),
            values: values.to_owned(),
        }
    }

    fn panel(content: Content) -> Panel {
        Panel {
            title: "a < b".to_owned(),
            note: "n".repeat(300),
            content,
        }
    }

    fn drawn(panels: Vec<Panel>) -> String {
        let panels = Panels {
            title: "all".to_owned(),
            step_s: 1.0,
            events: vec![(0.5, "it began".to_owned()), (0.6, "it ended".to_owned())],
            panels,
        };
        panels.svg()
    }

    #[test]
    fn lines_have_names_and_gaps_where_values_are_missing() {
        let gap = [Some(1.0), Some(3.0), None, Some(f64::NAN), Some(2.0)];
        let lines = vec![line("one", &gap), line("other", &[Some(0.0); 5])];
        let svg = drawn(vec![panel(Content::Lines(Unit::Count, lines))]);
        for part in [">one<", ">other<", "curve c1", "1: it began", "a &lt; b"] {
            assert!(svg.contains(part), "{part}");
        }
        let curve = svg.split("<path class=\"curve c0\" d=\"").nth(1);
        let path = curve.and_then(|rest| rest.split('"').next());
        assert_eq!(path.map(|path| path.matches('M').count()), Some(2));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn panels_without_values_are_well_formed() {
        let none = vec![line("one", &[]), line("other", &[None, None])];
        let svg = drawn(vec![
            panel(Content::Lines(Unit::Seconds, none)),
            panel(Content::Lines(Unit::Share, vec![])),
            panel(Content::Rows(vec!["a row".to_owned()])),
            panel(Content::Rows(vec![])),
        ]);
        assert!(svg.ends_with("</svg>\n") && svg.contains(">a row<"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(
            Panels {
                title: String::new(),
                step_s: 1.0,
                events: vec![],
                panels: vec![],
            }
            .svg()
            .ends_with("</svg>\n")
        );
    }

    #[test]
    fn units_are_scaled_to_what_they_show() {
        for (unit, most, shown) in [
            (Unit::Seconds, 0.02, ("ms", 1e3)),
            (Unit::Seconds, 2e-5, ("µs", 1e6)),
            (Unit::BitsPerSecond, 3e7, ("Mbit/s", 1e-6)),
            (Unit::Share, 0.01, ("%", 100.0)),
            (Unit::Count, 5e6, ("", 1.0)),
        ] {
            assert_eq!(unit.scaled(most), shown);
        }
    }

    #[test]
    fn names_that_do_not_fit_begin_another_row() {
        let long = "n".repeat(50);
        let lines = [line(&long, &[]), line(&long, &[]), line("short", &[])];
        let places = places(&lines);
        let rows: Vec<usize> = places.iter().map(|place| place.0).collect();
        assert_eq!(rows, [0, 1, 1]);
        assert!(letters(&legend(&"n".repeat(500))) <= RIGHT - LEFT);
    }
}
