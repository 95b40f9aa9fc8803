//! Writer of SVG elements. Plots inside a page use the page's colours and follow its light or dark
//! scheme; a plot in a file of its own contains the style sheet.

use std::fmt::{Display, Write as _};

/// Position of a text relative to its anchor point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// An SVG plot under construction. Lengths are in pixels from the upper left corner.
pub(super) struct Svg {
    body: String,
}

impl Svg {
    /// Starts a plot of this size, which scales with the page. Screen readers speak the title.
    pub(super) fn new(class: &str, width: f64, height: f64, title: &str) -> Self {
        let body = format!(
            "<svg class=\"{class}\" viewBox=\"0 0 {} {}\" role=\"img\"><title>{}</title>",
            Px(width),
            Px(height),
            escape(title)
        );
        Self { body }
    }

    /// Starts a plot in a file of its own, with the style sheet of the pages.
    pub(super) fn file(class: &str, width: f64, height: f64, title: &str, style: &str) -> Self {
        let Self { body } = Self::new(class, width, height, title);
        let body = body.replacen(
            "<svg",
            &format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\"",
                Px(width),
                Px(height)
            ),
            1,
        );
        let ground = "<rect class=\"ground\" width=\"100%\" height=\"100%\"/>";
        Self {
            body: format!("{body}<style>\n{style}</style>{ground}"),
        }
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let (x1, y1, x2, y2) = (Px(from.0), Px(from.1), Px(to.0), Px(to.1));
        self.put(format_args!(
            "<path class=\"{class}\" d=\"M{x1} {y1}L{x2} {y2}\"/>"
        ));
    }

    /// Draws lines through the points of each piece. A piece of one point is a dot if the class has
    /// round caps.
    pub(super) fn polyline(&mut self, class: &str, pieces: &[Vec<(f64, f64)>]) {
        let path: String = pieces.iter().map(|points| path(points)).collect();
        if !path.is_empty() {
            self.put(format_args!("<path class=\"{class}\" d=\"{path}\"/>"));
        }
    }

    /// Fills the area within the points.
    pub(super) fn area(&mut self, class: &str, points: &[(f64, f64)]) {
        if !points.is_empty() {
            let path = path(points);
            self.put(format_args!("<path class=\"{class}\" d=\"{path}Z\"/>"));
        }
    }

    pub(super) fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let (x, y, text) = (Px(at.0), Px(at.1), escape(text));
        self.put(format_args!(
            "<text class=\"{class}\" x=\"{x}\" y=\"{y}\"{anchor}>{text}</text>"
        ));
    }

    /// Writes a text that runs upwards, centred at a point.
    pub(super) fn upright_text(&mut self, class: &str, at: (f64, f64), text: &str) {
        let (x, y, text) = (Px(at.0), Px(at.1), escape(text));
        self.put(format_args!(
            "<text class=\"{class}\" text-anchor=\"middle\" transform=\"translate({x} \
             {y})rotate(-90)\">{text}</text>"
        ));
    }

    /// Draws a marker that the page defines, with a tooltip.
    pub(super) fn shape(&mut self, id: &str, class: &str, at: (f64, f64), scale: f64, hint: &str) {
        let (x, y, hint) = (Px(at.0), Px(at.1), escape(hint));
        self.put(format_args!(
            "<use href=\"#{id}\" class=\"{class}\" transform=\"translate({x} {y})scale({scale})\">\
             <title>{hint}</title></use>"
        ));
    }

    pub(super) fn finish(mut self) -> String {
        self.body.push_str("</svg>\n");
        self.body
    }

    fn put(&mut self, element: impl Display) {
        // Writing to a string cannot fail.
        let _ = write!(self.body, "{element}");
    }
}

/// Escapes a text for HTML and XML, in elements and in quoted attributes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Control characters are allowed in neither HTML nor XML.
            c if c.is_control() && !matches!(c, '\n' | '\t') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A length rounded to a tenth of a pixel, formatted in as few characters as possible.
struct Px(f64);

impl Display for Px {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tenths = (self.0 * 10.0).round() as i64;
        let sign = if tenths < 0 { "-" } else { "" };
        match (tenths.abs() / 10, tenths.abs() % 10) {
            (whole, 0) => write!(f, "{sign}{whole}"),
            (whole, tenth) => write!(f, "{sign}{whole}.{tenth}"),
        }
    }
}

/// The path data of a polyline. Points in the middle of a level line are left out.
fn path(points: &[(f64, f64)]) -> String {
    let round = |&(x, y): &(f64, f64)| ((x * 10.0).round() / 10.0, (y * 10.0).round() / 10.0);
    let points: Vec<(f64, f64)> = points.iter().map(round).collect();
    let is_level = |i: usize| {
        i > 0
            && i + 1 < points.len()
            && points[i - 1].1 == points[i].1
            && points[i].1 == points[i + 1].1
    };
    let kept = points.iter().enumerate().filter(|&(i, _)| !is_level(i));
    let mut path = String::new();
    for (i, &(x, y)) in kept {
        let (command, x, y) = (if i == 0 { 'M' } else { 'L' }, Px(x), Px(y));
        let _ = write!(path, "{command}{x} {y}");
    }
    if points.len() == 1 {
        path.push_str("h0");
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_rounded_to_a_tenth_of_a_pixel() {
        for (length, written) in [
            (1.0, "1"),
            (1.04, "1"),
            (-0.26, "-0.3"),
            (-0.04, "0"),
            (12.96, "13"),
        ] {
            assert_eq!(Px(length).to_string(), written);
        }
    }

    #[test]
    fn level_lines_are_reduced_to_two_points() {
        let points = [(0.0, 1.0), (1.0, 1.01), (2.0, 1.0), (3.0, 5.0)];
        assert_eq!(path(&points), "M0 1L2 1L3 5");
        assert_eq!(path(&points[..1]), "M0 1h0");
        assert_eq!(path(&[]), "");
    }

    #[test]
    fn texts_are_escaped() {
        assert_eq!(
            escape("<a b=\"c\">&'\u{1}"),
            "&lt;a b=&quot;c&quot;&gt;&amp;&#39;\u{fffd}"
        );
        let mut svg = Svg::new("plot", 10.0, 10.0, "<t>");
        svg.text("label", (1.0, 2.0), Anchor::End, "a&b");
        let svg = svg.finish();
        assert!(
            svg.contains("&lt;t&gt;") && svg.contains("a&amp;b"),
            "{svg}"
        );
    }

    #[test]
    fn a_file_contains_its_style_sheet() {
        let svg = Svg::file("plot", 30.0, 20.0, "t", ".a > .b {}\n").finish();
        let head =
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"30\" height=\"20\" class=\"plot\" ";
        assert!(svg.starts_with(head), "{svg}");
        assert!(svg.contains("<style>\n.a > .b {}\n</style>"), "{svg}");
        assert_eq!(svg.matches("<svg").count(), 1);
    }
}
