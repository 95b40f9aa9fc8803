//! Curves with bands over a common axis, in panels side by side: a picture as a file of its own, light or dark as its
//! reader's screen is.

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
/// Behind each panel, for the names of its curves and what the next one has on its left.
const NAMES: f64 = 100.0;
const TOP: f64 = 62.0;
const BOTTOM: f64 = HEIGHT - 48.0;
/// Between the baselines of two names.
const NAME_HEIGHT: f64 = 14.0;

/// A picture.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// What goes to the right, with its unit.
    pub x: String,
    /// What goes up, with its unit.
    pub y: String,
    /// Below this the picture ends, though curves may go on; none where all of them is to be seen.
    pub floor: Option<f64>,
    /// Side by side, with the same axes.
    pub panels: Vec<Panel>,
}

/// A part of a picture.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What is shown in it.
    pub title: String,
    /// One above the other. Curves of the same name have the same colour in all panels.
    pub curves: Vec<Curve>,
}

/// A curve and the band about it.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Stands at its end.
    pub name: String,
    /// From left to right.
    pub points: Vec<Spread>,
}

/// Several values of the same thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Where on the way to the right.
    pub x: f64,
    /// Their mean.
    pub mean: f64,
    /// The least of them.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

impl Spread {
    /// None of no values.
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
    /// Writes it and the figures behind it into a directory, as `NAME.json` and `NAME.svg`; tells their paths.
    ///
    /// # Errors
    ///
    /// Which file could not be written, and why.
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

    /// The file.
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
        // All bands are below all curves.
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

/// Heights in rising order, as near to those given as they can be without touching each other or leaving the panel.
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
    fn a_spread_is_mean_and_ends() {
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
        // Light and dark.
        assert!(svg.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn a_style_can_stand_in_xml() {
        assert!(!STYLE.contains(['<', '&']));
    }

    #[test]
    fn a_floor_gives_the_rest_more_room() {
        let (all, cut) = (chart(None).y_axis(), chart(Some(0.0)).y_axis());
        let height = |axis: &Axis| axis.place(1.0) - axis.place(6.0);
        assert!(height(&cut) > 5.0 * height(&all));
        assert_eq!(cut.place(-100.0), BOTTOM);
    }

    #[test]
    fn a_picture_of_nothing_is_a_picture() {
        let mut empty = chart(None);
        empty.panels[0].curves.clear();
        empty.panels[1].curves[0].points.clear();
        empty.panels[1].curves.truncate(1);
        let svg = empty.svg();
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    }

    #[test]
    fn names_do_not_touch() {
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
