//! Charts of curves with bands on common axes, in panels side by side. A chart is an SVG file of
//! its own and follows the reader's light or dark colour scheme.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{
    STYLE,
    axis::{Axis, label},
    palette::Palette,
    svg::{Anchor, Svg},
};

const PANEL: f64 = 400.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 62.0;
/// Space to the right of each panel, for the names of its curves and the next panel's axis.
const NAMES: f64 = 100.0;
const TOP: f64 = 62.0;
const BOTTOM: f64 = HEIGHT - 48.0;
/// Distance between the baselines of two names.
const NAME_HEIGHT: f64 = 14.0;

/// A chart of one or more panels.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Title of the chart, which screen readers speak.
    pub title: String,
    /// Label of the horizontal axis, with its unit.
    pub x: String,
    /// Label of the vertical axis, with its unit.
    pub y: String,
    /// Least value of the vertical axis, below which curves are clipped; `None` shows them
    /// entirely.
    pub floor: Option<f64>,
    /// Panels side by side, which share their axes.
    pub panels: Vec<Panel>,
}

/// One panel of a chart.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Heading above the curves of the panel.
    pub title: String,
    /// Curves of the panel. Curves of the same name have the same colour in all panels.
    pub curves: Vec<Curve>,
}

/// A curve and the band around it.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Name of the curve, shown at its right end.
    pub name: String,
    /// Points in the order of their `x`.
    pub points: Vec<Spread>,
}

/// Mean and range of several values at one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Position on the horizontal axis.
    pub x: f64,
    /// Arithmetic mean of the values.
    pub mean: f64,
    /// The least of the values.
    pub least: f64,
    /// The greatest of the values.
    pub greatest: f64,
}

impl Spread {
    /// The mean and range of `values` at `x`; `None` without values.
    pub fn of(x: f64, values: &[f64]) -> Option<Self> {
        (!values.is_empty()).then(|| Self {
            x,
            mean: values.iter().sum::<f64>() / values.len() as f64,
            least: values.iter().copied().fold(f64::INFINITY, f64::min),
            greatest: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }
}

impl Chart {
    /// Writes the chart and its figures into a directory, as `NAME.svg` and `NAME.json`, and
    /// returns the paths.
    ///
    /// # Errors
    ///
    /// Returns the file that could not be written, and the reason.
    pub fn write(
        &self,
        dir: &Path,
        name: &str,
        figures: &impl Serialize,
    ) -> Result<[PathBuf; 2], (PathBuf, io::Error)> {
        let json = serde_json::to_string(figures)
            .unwrap_or_else(|error| unreachable!("plain data serialises: {error}"));
        let files = [("json", json + "\n"), ("svg", self.svg())];
        let [json, svg] = files.map(|(extension, text)| {
            let path = dir.join(format!("{name}.{extension}"));
            let written = fs::create_dir_all(dir).and_then(|()| fs::write(&path, text));
            match written {
                Ok(()) => Ok(path),
                Err(source) => Err((path, source)),
            }
        });
        Ok([json?, svg?])
    }

    /// Renders the chart as an SVG file.
    pub fn svg(&self) -> String {
        let width = LEFT + self.panels.len() as f64 * (PANEL + NAMES);
        let mut svg = Svg::file("chart", width, HEIGHT, &self.title, STYLE);
        svg.text("title", (LEFT, 20.0), Anchor::Start, &self.title);
        let middle = (TOP + BOTTOM) / 2.0;
        svg.upright_text("tick", (16.0, middle), &self.y);
        let palette = Palette::new(self.curves().map(|curve| curve.name.as_str()));
        let y = self.y_axis();
        for (panel, left) in self.panels.iter().zip(0..) {
            let left = LEFT + f64::from(left) * (PANEL + NAMES);
            self.draw(panel, (left, left + PANEL), &y, &palette, &mut svg);
        }
        svg.finish()
    }

    fn draw(&self, panel: &Panel, ends: (f64, f64), y: &Axis, palette: &Palette, svg: &mut Svg) {
        let x = self.x_axis(ends);
        svg.text(
            "small tick",
            (ends.0, TOP - 14.0),
            Anchor::Start,
            &panel.title,
        );
        for tick in y.ticks(6) {
            let at = y.place(tick);
            svg.line("grid", (ends.0, at), (ends.1, at));
            svg.text("tick", (ends.0 - 5.0, at + 4.0), Anchor::End, &label(tick));
        }
        for tick in x.ticks(6) {
            let at = (x.place(tick), BOTTOM + 16.0);
            svg.text("tick", at, Anchor::Middle, &label(tick));
        }
        let below = ((ends.0 + ends.1) / 2.0, BOTTOM + 36.0);
        svg.text("tick", below, Anchor::Middle, &self.x);
        svg.line("axis", (ends.0, BOTTOM), (ends.1, BOTTOM));
        let line = |curve: &Curve, of: fn(&Spread) -> f64| -> Vec<(f64, f64)> {
            let place = |point: &Spread| (x.place(point.x), y.place(of(point)));
            curve.points.iter().map(place).collect()
        };
        // All bands are drawn below all curves.
        for curve in &panel.curves {
            let mut outline = line(curve, |point| point.greatest);
            outline.extend(line(curve, |point| point.least).into_iter().rev());
            svg.area(&format!("band {}", palette.class(&curve.name)), &outline);
        }
        let mut names = Vec::new();
        for curve in &panel.curves {
            let class = palette.class(&curve.name);
            let means = line(curve, |point| point.mean);
            if let Some(end) = means.last() {
                names.push((end.1, class.clone(), &curve.name));
            }
            svg.polyline(&format!("curve {class}"), &[means]);
        }
        names.sort_by(|one, other| one.0.total_cmp(&other.0));
        let heights: Vec<f64> = names.iter().map(|name| name.0).collect();
        for ((_, class, name), height) in names.iter().zip(apart(&heights)) {
            let at = (ends.1 + 6.0, height + 4.0);
            svg.text(&format!("name {class}"), at, Anchor::Start, name);
        }
    }

    fn x_axis(&self, places: (f64, f64)) -> Axis {
        let (least, greatest) = range(self.points().map(|point| point.x));
        Axis::linear(least, greatest, places)
    }

    fn y_axis(&self) -> Axis {
        let ends = self
            .points()
            .flat_map(|point| [point.least, point.greatest]);
        let (least, greatest) = range(ends);
        let least = self.floor.map_or(least, |floor| floor.max(least));
        let room = 0.04 * (greatest - least);
        Axis::linear(least - room, greatest + room, (BOTTOM, TOP))
    }

    fn curves(&self) -> impl Iterator<Item = &Curve> {
        self.panels.iter().flat_map(|panel| &panel.curves)
    }

    fn points(&self) -> impl Iterator<Item = &Spread> {
        self.curves().flat_map(|curve| &curve.points)
    }
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold(
        (f64::INFINITY, f64::NEG_INFINITY),
        |(least, greatest), value| (least.min(value), greatest.max(value)),
    )
}

/// Heights in ascending order, as near to the given ones as possible without overlap of the names
/// and within the panel.
fn apart(heights: &[f64]) -> Vec<f64> {
    let mut apart: Vec<f64> = Vec::with_capacity(heights.len());
    for &height in heights {
        let free = apart.last().map_or(TOP, |last| last + NAME_HEIGHT);
        apart.push(height.max(free));
    }
    let mut free = BOTTOM;
    for height in apart.iter_mut().rev() {
        *height = height.min(free);
        free = *height - NAME_HEIGHT;
    }
    apart
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(floor: Option<f64>) -> Chart {
        let curve = |name: &str, height: f64| {
            let point = |x| Spread::of(x, &[height, height + 1.0, height + 5.0]);
            Curve {
                name: name.to_owned(),
                points: [0.0, 1e5, 2e5].into_iter().filter_map(point).collect(),
            }
        };
        let panel = |title: &str| Panel {
            title: title.to_owned(),
            curves: vec![curve("a < b", -100.0), curve("c", 1.0), curve("d", 1.5)],
        };
        Chart {
            title: "returns".to_owned(),
            x: "steps".to_owned(),
            y: "return".to_owned(),
            floor,
            panels: vec![panel("one"), panel("other")],
        }
    }

    #[test]
    fn a_spread_has_the_mean_and_the_extremes() {
        let spread = Spread::of(3.0, &[1.0, 5.0, 0.0]).expect("three values");
        assert_eq!(
            (spread.x, spread.mean, spread.least, spread.greatest),
            (3.0, 2.0, 0.0, 5.0)
        );
        assert_eq!(Spread::of(3.0, &[]), None);
    }

    #[test]
    fn each_curve_has_a_band_and_a_name_and_its_colour_in_every_panel() {
        let svg = chart(None).svg();
        for class in ["band c0", "band c1", "band c2", "curve c0", "name c2"] {
            assert_eq!(svg.matches(&format!("\"{class}\"")).count(), 2, "{class}");
        }
        assert!(svg.contains("a &lt; b") && !svg.contains("a < b"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        // One style for light and one for dark screens.
        assert!(svg.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn the_style_sheet_is_allowed_in_xml() {
        assert!(!STYLE.contains(['<', '&']));
    }

    #[test]
    fn a_floor_stretches_the_values_above_it() {
        let (all, cut) = (chart(None).y_axis(), chart(Some(0.0)).y_axis());
        let height = |axis: &Axis| axis.place(1.0) - axis.place(6.0);
        assert!(height(&cut) > 5.0 * height(&all));
        assert_eq!(cut.place(-100.0), BOTTOM);
    }

    #[test]
    fn a_chart_without_points_is_well_formed() {
        let mut empty = chart(None);
        empty.panels[0].curves.clear();
        empty.panels[1].curves[0].points.clear();
        empty.panels[1].curves.truncate(1);
        let svg = empty.svg();
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    }

    #[test]
    fn names_of_curves_do_not_overlap() {
        let places = apart(&[TOP + 10.0, TOP + 11.0, TOP + 12.0, BOTTOM - 1.0, BOTTOM]);
        assert!(
            places
                .windows(2)
                .all(|pair| pair[1] - pair[0] >= NAME_HEIGHT)
        );
        assert!(places[0] >= TOP && places[4] <= BOTTOM);
        assert_eq!(apart(&[100.0, 200.0]), [100.0, 200.0]);
    }
}
