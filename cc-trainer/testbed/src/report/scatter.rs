//! Scatter plots of throughput against delay. Higher is more throughput, and further right is less
//! delay.

use super::{
    axis::{Axis, label},
    palette::Palette,
    svg::{Anchor, Svg},
};
use crate::summary::table::figure;

/// Size and level of detail of a plot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    class: &'static str,
    width: f64,
    height: f64,
    /// Edge of the plot area, in pixels.
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    /// Half the size of the marker of a mean and of a single run, in pixels.
    mean: f64,
    run: f64,
    /// Approximate number of horizontal and of vertical ticks.
    ticks: (usize, usize),
    /// Whether axes and schemes are labelled.
    has_names: bool,
}

/// A large plot with labels.
pub(super) const FULL: Frame = Frame {
    class: "scatter",
    width: 520.0,
    height: 370.0,
    left: 54.0,
    right: 506.0,
    top: 14.0,
    bottom: 322.0,
    mean: 7.0,
    run: 2.6,
    ticks: (9, 6),
    has_names: true,
};

/// A small plot, one of many.
pub(super) const SMALL: Frame = Frame {
    class: "scatter small",
    width: 200.0,
    height: 140.0,
    left: 30.0,
    right: 192.0,
    top: 8.0,
    bottom: 120.0,
    mean: 5.0,
    run: 1.6,
    ticks: (4, 4),
    has_names: false,
};

/// Font size of labels, and the approximate width of a character, in pixels.
const LETTER: f64 = 13.0;
const LETTER_WIDTH: f64 = 7.2;

/// A scatter plot of several schemes.
pub(super) struct Scatter<'a> {
    /// Title of the plot, which screen readers speak.
    pub(super) title: String,
    /// Labels of the horizontal and of the vertical axis.
    pub(super) delay: &'a str,
    pub(super) throughput: &'a str,
    pub(super) clouds: Vec<Cloud<'a>>,
    /// Highest possible throughput, with its label.
    pub(super) ceiling: Option<(f64, String)>,
    /// Least possible delay, with its label.
    pub(super) floor: Option<(f64, String)>,
}

/// The mean of one scheme, and the samples behind it.
pub(super) struct Cloud<'a> {
    pub(super) scheme: &'a str,
    pub(super) mean: Point,
    /// Confidence intervals of the mean.
    pub(super) delay_interval: Option<(f64, f64)>,
    pub(super) throughput_interval: Option<(f64, f64)>,
    /// Samples behind the mean, each with a description.
    pub(super) samples: Vec<(Point, String)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) delay: f64,
    pub(super) throughput: f64,
}

impl Scatter<'_> {
    pub(super) fn draw(&self, frame: &Frame, palette: &Palette) -> String {
        let (x, y) = (self.delay_axis(frame), self.throughput_axis(frame));
        let &Frame {
            left,
            right,
            top,
            bottom,
            ..
        } = frame;
        let at = |point: Point| (x.place(point.delay), y.place(point.throughput));
        let mut svg = Svg::new(frame.class, frame.width, frame.height, &self.title);

        for tick in y.ticks(frame.ticks.1) {
            let y = y.place(tick);
            svg.line("grid", (left, y), (right, y));
            svg.text("tick", (left - 6.0, y + 4.0), Anchor::End, &label(tick));
        }
        for tick in x.ticks(frame.ticks.0) {
            let x = x.place(tick);
            svg.line("grid", (x, top), (x, bottom));
            svg.text("tick", (x, bottom + 16.0), Anchor::Middle, &label(tick));
        }
        svg.line("axis", (left, bottom), (right, bottom));
        svg.line("axis", (left, top), (left, bottom));
        if let Some((value, _)) = self.ceiling {
            svg.line("limit", (left, y.place(value)), (right, y.place(value)));
        }
        if let Some((value, _)) = self.floor {
            svg.line("limit", (x.place(value), top), (x.place(value), bottom));
        }

        for cloud in &self.clouds {
            let (shape, class) = (palette.shape(cloud.scheme), palette.class(cloud.scheme));
            for (point, hint) in &cloud.samples {
                svg.shape(&shape, &format!("run {class}"), at(*point), frame.run, hint);
            }
        }
        for cloud in &self.clouds {
            let class = format!("whisker {}", palette.class(cloud.scheme));
            let (cx, cy) = at(cloud.mean);
            if let Some((low, high)) = cloud.delay_interval {
                svg.line(&class, (x.place(low), cy), (x.place(high), cy));
            }
            if let Some((low, high)) = cloud.throughput_interval {
                svg.line(&class, (cx, y.place(low)), (cx, y.place(high)));
            }
        }
        for cloud in &self.clouds {
            let Point { delay, throughput } = cloud.mean;
            let (rate, time) = (figure(throughput), figure(delay));
            let hint = format!("{}: throughput {rate}, delay {time}", cloud.scheme);
            let (shape, class) = (palette.shape(cloud.scheme), palette.class(cloud.scheme));
            svg.shape(
                &shape,
                &format!("mean {class}"),
                at(cloud.mean),
                frame.mean,
                &hint,
            );
        }
        if frame.has_names {
            self.name(&mut svg, frame, palette, (&x, &y));
        }
        svg.finish()
    }

    /// Labels the axes, the limits and the schemes.
    fn name(&self, svg: &mut Svg, frame: &Frame, palette: &Palette, (x, y): (&Axis, &Axis)) {
        let &Frame {
            left,
            right,
            top,
            bottom,
            ..
        } = frame;
        let at = |point: Point| (x.place(point.delay), y.place(point.throughput));
        let middle = ((left + right) / 2.0, (top + bottom) / 2.0);
        svg.text(
            "title",
            (middle.0, frame.height - 9.0),
            Anchor::Middle,
            self.delay,
        );
        svg.upright_text("title", (15.0, middle.1), self.throughput);

        let mut labels = Labels::new(frame);
        if let Some((value, name)) = &self.ceiling {
            let place = (left + 6.0, y.place(*value) - 5.0);
            svg.text("note", place, Anchor::Start, name);
            labels.keep_clear(Rect::of_text(place, name));
        }
        if let Some((value, name)) = &self.floor {
            let end = (x.place(*value) - 5.0, bottom - 6.0);
            svg.text("note", end, Anchor::End, name);
            labels.keep_clear(Rect::of_text((end.0 - width(name), end.1), name));
        }
        // The arrow towards better values is in the corner of the worst ones, which has the most
        // room.
        let (from, to) = ((left + 12.0, bottom - 12.0), (left + 34.0, bottom - 34.0));
        let head = vec![(to.0 - 9.0, to.1), to, (to.0, to.1 + 9.0)];
        svg.polyline("better", &[vec![from, to], head]);
        svg.text(
            "note",
            (left + 38.0, bottom - 16.0),
            Anchor::Start,
            "better",
        );
        labels.keep_clear(Rect {
            left: left + 8.0,
            top: bottom - 38.0,
            right: left + 78.0,
            bottom: bottom - 8.0,
        });

        for cloud in &self.clouds {
            labels.keep_clear(Rect::about(at(cloud.mean), frame.mean));
            for (point, _) in &cloud.samples {
                labels.avoid(Rect::about(at(*point), frame.run));
            }
        }
        for cloud in &self.clouds {
            let (place, is_far) = labels.place(at(cloud.mean), cloud.scheme);
            if is_far {
                let near = at(cloud.mean)
                    .0
                    .clamp(place.0, place.0 + width(cloud.scheme));
                let class = format!("leader {}", palette.class(cloud.scheme));
                svg.line(&class, at(cloud.mean), (near, place.1 - 4.0));
            }
            svg.text("label", place, Anchor::Start, cloud.scheme);
        }
    }

    /// The horizontal axis, from the longest to the shortest delay.
    fn delay_axis(&self, frame: &Frame) -> Axis {
        let values = self.points().map(|point| point.delay);
        let ends = self.clouds.iter().filter_map(|cloud| cloud.delay_interval);
        let ends = ends.flat_map(|(low, high)| [low, high]);
        let floor = self.floor.iter().map(|(value, _)| *value);
        Axis::log(
            values.chain(ends).chain(floor),
            1.6,
            (frame.right, frame.left),
        )
    }

    /// The vertical axis, which begins at zero unless all values are far above it.
    fn throughput_axis(&self, frame: &Frame) -> Axis {
        let values = || self.points().map(|point| point.throughput);
        let ends = self
            .clouds
            .iter()
            .filter_map(|cloud| cloud.throughput_interval);
        let ceiling = self.ceiling.iter().map(|(value, _)| *value);
        let most = values()
            .chain(ends.clone().map(|(_, high)| high))
            .chain(ceiling)
            .fold(0.0, f64::max);
        let least = values()
            .chain(ends.map(|(low, _)| low))
            .fold(most, f64::min);
        let least = if least < 0.6 * most {
            0.0
        } else {
            least - 0.25 * (most - least).max(0.02 * most)
        };
        Axis::linear(
            least,
            most + 0.09 * (most - least),
            (frame.bottom, frame.top),
        )
    }

    fn points(&self) -> impl Iterator<Item = Point> + '_ {
        self.clouds.iter().flat_map(|cloud| {
            let samples = cloud.samples.iter().map(|(point, _)| *point);
            samples.chain([cloud.mean])
        })
    }
}

/// Places labels beside markers without overlap.
struct Labels {
    /// Area in which labels may be, and their least distance from a marker's centre.
    plot: Rect,
    gap: f64,
    /// Areas that a label must not cover, and areas that it should not cover.
    taken: Vec<Rect>,
    busy: Vec<Rect>,
}

impl Labels {
    fn new(frame: &Frame) -> Self {
        Self {
            plot: Rect {
                left: frame.left + 2.0,
                top: frame.top,
                right: frame.right,
                bottom: frame.bottom - 2.0,
            },
            gap: frame.mean + 4.0,
            taken: Vec::new(),
            busy: Vec::new(),
        }
    }

    fn keep_clear(&mut self, place: Rect) {
        self.taken.push(place);
    }

    fn avoid(&mut self, place: Rect) {
        self.busy.push(place);
    }

    /// Chooses the position of a label (the start of its baseline), and whether it is so far away
    /// that a line must connect it to the marker.
    fn place(&mut self, marker: (f64, f64), name: &str) -> ((f64, f64), bool) {
        let width = width(name);
        let candidates = [0.0, 10.0, 22.0, 36.0]
            .map(|further| self.gap + further)
            .into_iter()
            .enumerate()
            .flat_map(|(ring, gap)| {
                let (x, y) = marker;
                let (beside, middle) = (y + 4.5, x - width / 2.0);
                let diagonal = 0.7 * gap;
                let places = [
                    (x + gap, beside),
                    (x - gap - width, beside),
                    (middle, y - gap),
                    (middle, y + gap + 9.0),
                    (x + diagonal, y - diagonal),
                    (x - diagonal - width, y - diagonal),
                    (x + diagonal, y + diagonal + 9.0),
                    (x - diagonal - width, y + diagonal + 9.0),
                ];
                let cost = move |order: usize| 60.0 * ring as f64 + order as f64;
                places
                    .into_iter()
                    .enumerate()
                    .map(move |(order, place)| (place, ring, cost(order)))
            });
        let rated = candidates.map(|(place, ring, cost)| {
            let text = Rect::of_text(place, name);
            let covers =
                |boxes: &[Rect]| boxes.iter().map(|other| text.overlap(other)).sum::<f64>();
            let outside = text.area() - text.overlap(&self.plot);
            (
                cost + 20.0 * covers(&self.taken) + covers(&self.busy) + 20.0 * outside,
                place,
                ring,
            )
        });
        let best = rated.min_by(|a, b| a.0.total_cmp(&b.0));
        // The list of candidates is never empty.
        let (_, place, ring) = best.unwrap_or((0.0, marker, 0));
        self.keep_clear(Rect::of_text(place, name));
        (place, ring > 0)
    }
}

#[derive(Clone, Copy, Debug)]
struct Rect {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

impl Rect {
    fn about((x, y): (f64, f64), half: f64) -> Self {
        Self {
            left: x - half,
            top: y - half,
            right: x + half,
            bottom: y + half,
        }
    }

    fn of_text((x, y): (f64, f64), text: &str) -> Self {
        Self {
            left: x - 1.0,
            top: y - 0.85 * LETTER,
            right: x + width(text) + 1.0,
            bottom: y + 0.25 * LETTER,
        }
    }

    fn area(&self) -> f64 {
        (self.right - self.left) * (self.bottom - self.top)
    }

    fn overlap(&self, other: &Self) -> f64 {
        let x = self.right.min(other.right) - self.left.max(other.left);
        let y = self.bottom.min(other.bottom) - self.top.max(other.top);
        x.max(0.0) * y.max(0.0)
    }
}

fn width(text: &str) -> f64 {
    LETTER_WIDTH * text.chars().count() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Positions of the markers of means, in their order.
    fn means(svg: &str) -> Vec<(f64, f64)> {
        let marks = svg.split("class=\"mean").skip(1);
        let place = |mark: &str| {
            let inside = mark.split_once("translate(").expect("a mark has a place").1;
            let (x, y) = inside
                .split_once(')')
                .expect("closed")
                .0
                .split_once(' ')
                .expect("two numbers");
            (x.parse().expect("a number"), y.parse().expect("a number"))
        };
        marks.map(place).collect()
    }

    fn cloud(scheme: &'static str, delay: f64, throughput: f64) -> Cloud<'static> {
        Cloud {
            scheme,
            mean: Point { delay, throughput },
            delay_interval: None,
            throughput_interval: None,
            samples: vec![(Point { delay, throughput }, "run 0".into())],
        }
    }

    fn scatter(clouds: Vec<Cloud<'static>>) -> Scatter<'static> {
        Scatter {
            title: "t".into(),
            delay: "x",
            throughput: "y",
            clouds,
            ceiling: Some((12.0, "link".into())),
            floor: None,
        }
    }

    #[test]
    fn more_throughput_is_higher_and_less_delay_is_further_right() {
        let picture = scatter(vec![cloud("slow", 400.0, 3.0), cloud("good", 20.0, 11.0)]);
        let svg = picture.draw(&FULL, &Palette::new(["slow", "good"].into_iter()));
        let [slow, good] = means(&svg)[..] else {
            panic!("two means: {svg}")
        };
        assert!(good.0 > slow.0 && good.1 < slow.1, "{slow:?} {good:?}");
        assert!(
            (FULL.left..=FULL.right).contains(&slow.0)
                && (FULL.top..=FULL.bottom).contains(&slow.1)
        );
    }

    #[test]
    fn labels_of_schemes_at_one_point_do_not_overlap() {
        let mut labels = Labels::new(&FULL);
        let places = ["cubic", "reno", "bbr", "vegas"]
            .map(|name| (labels.place((250.0, 180.0), name).0, name));
        for (i, (place, name)) in places.iter().enumerate() {
            for (other, other_name) in &places[..i] {
                let overlap =
                    Rect::of_text(*place, name).overlap(&Rect::of_text(*other, other_name));
                assert!(overlap < 1.0, "{name} on {other_name}");
            }
        }
    }
}
