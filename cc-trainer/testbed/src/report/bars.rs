//! Bars in panels side by side, with a row per name in each.

use super::{
    STYLE,
    axis::{Axis, label},
    palette::Palette,
    svg::{Anchor, Svg},
};
use crate::{league::Estimate, summary::table::figure};

/// Width of the names, and of the space after a panel.
const NAMES: f64 = 130.0;
const GAP: f64 = 40.0;
/// Height of a row, of the heading above and of the axis below.
const ROW: f64 = 24.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 30.0;

/// Panels of bars, which have their rows in common.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Name of each row, from the top.
    pub names: Vec<String>,
    /// Panels from the left, each with an axis of its own from 0.
    pub panels: Vec<BarPanel>,
    /// Width of a panel in pixels.
    pub width: f64,
}

/// One panel of bars, with its heading.
#[derive(Clone, Debug)]
pub struct BarPanel {
    /// Heading above the bars, with the unit.
    pub title: String,
    /// A bar per name, in their order; `None` leaves the row empty.
    pub bars: Vec<Option<Estimate>>,
}

impl Bars {
    /// Renders the bars as an SVG file, whose title screen readers speak.
    pub fn svg(&self, title: &str) -> String {
        let (width, height) = self.size();
        let mut svg = Svg::file("chart", width, height, title, STYLE);
        self.draw(
            &mut svg,
            &Palette::new(self.names.iter().map(String::as_str)),
        );
        svg.finish()
    }

    /// Width and height in pixels.
    pub(super) fn size(&self) -> (f64, f64) {
        (
            NAMES + self.panels.len().max(1) as f64 * (self.width + GAP),
            self.bottom() + BOTTOM,
        )
    }

    fn bottom(&self) -> f64 {
        TOP + self.names.len() as f64 * ROW
    }

    /// Draws the panels; names have their colours in the palette.
    pub(super) fn draw(&self, svg: &mut Svg, palette: &Palette) {
        for (name, row) in self.names.iter().zip(0..) {
            let y = TOP + (f64::from(row) + 0.65) * ROW;
            let class = format!("name {}", palette.class(name));
            svg.text(&class, (NAMES - 10.0, y), Anchor::End, name);
        }
        for (panel, place) in self.panels.iter().zip(0..) {
            let left = NAMES + f64::from(place) * (self.width + GAP);
            self.draw_panel(panel, left, svg, palette);
        }
    }

    fn draw_panel(&self, panel: &BarPanel, left: f64, svg: &mut Svg, palette: &Palette) {
        let bottom = self.bottom();
        let ends = panel.bars.iter().flatten();
        let most = ends.map(|estimate| estimate.high.unwrap_or(estimate.mean));
        let x = Axis::linear(0.0, most.fold(0.0, f64::max), (left, left + self.width));
        svg.text("title", (left, 18.0), Anchor::Start, &panel.title);
        for tick in x.ticks(5) {
            let at = x.place(tick);
            svg.line("grid", (at, TOP), (at, bottom));
            svg.text("tick", (at, bottom + 16.0), Anchor::Middle, &label(tick));
        }
        for ((name, bar), row) in self.names.iter().zip(&panel.bars).zip(0..) {
            let Some(estimate) = bar else {
                continue;
            };
            let class = palette.class(name);
            let (top, height) = (TOP + f64::from(row) * ROW + 0.2 * ROW, 0.6 * ROW);
            let end = x.place(estimate.mean);
            let corners = [
                (left, top),
                (end, top),
                (end, top + height),
                (left, top + height),
            ];
            svg.area(&format!("band {class}"), &corners);
            let middle = top + height / 2.0;
            if let (Some(low), Some(high)) = (estimate.low, estimate.high) {
                let ends = ((x.place(low), middle), (x.place(high), middle));
                svg.line(&format!("whisker {class}"), ends.0, ends.1);
            }
            let at = (left + 6.0, middle + 4.0);
            svg.text("tick", at, Anchor::Start, &figure(estimate.mean));
        }
        svg.line("axis", (left, TOP), (left, bottom));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_panel_has_a_bar_per_estimate_and_whiskers_where_there_is_an_interval() {
        let estimate = |mean, low, high| Some(Estimate { mean, low, high });
        let bars = Bars {
            names: vec!["a < b".to_owned(), "c".to_owned()],
            panels: vec![
                BarPanel {
                    title: "one".to_owned(),
                    bars: vec![estimate(3.0, Some(2.0), Some(4.0)), None],
                },
                BarPanel {
                    title: "other".to_owned(),
                    bars: vec![estimate(1.0, None, None), estimate(f64::NAN, None, None)],
                },
            ],
            width: 200.0,
        };
        let svg = bars.svg("returns");
        for (class, count) in [("band c0", 2), ("band c1", 1), ("whisker c0", 1)] {
            assert_eq!(
                svg.matches(&format!("\"{class}\"")).count(),
                count,
                "{class}"
            );
        }
        assert!(svg.contains("a &lt; b") && svg.contains(">other</text>"));
        let none = Bars {
            names: Vec::new(),
            panels: Vec::new(),
            width: 200.0,
        };
        assert!(none.svg("nothing").ends_with("</svg>\n"));
    }
}
