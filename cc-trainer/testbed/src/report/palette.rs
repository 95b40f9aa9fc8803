//! The look of each scheme, the same in every picture.

use super::svg::escape;

/// Shapes of markers, in a square of 2 by 2 about the origin. Each scheme has a colour and a shape, so that
/// either suffices.
const SHAPES: [&str; 8] = [
    "<circle r=\".9\"/>",
    "<rect x=\"-.8\" y=\"-.8\" width=\"1.6\" height=\"1.6\"/>",
    "<path d=\"M0-1.05L1 .75H-1z\"/>",
    "<path d=\"M0-1.1L1.1 0 0 1.1-1.1 0z\"/>",
    "<path d=\"M0 1.05L1-.75H-1z\"/>",
    "<path d=\"M-.35-1h.7v.65H1v.7H.35V1h-.7V.35H-1v-.7h.65z\"/>",
    "<path d=\"M0-1.1L1.05-.34.65.89H-.65L-1.05-.34z\"/>",
    "<path d=\"M0-.5L.5-1 1-.5.5 0 1 .5.5 1 0 .5-.5 1-1 .5-.5 0-1-.5-.5-1z\"/>",
];

/// Which scheme looks how.
pub(super) struct Palette {
    schemes: Vec<String>,
}

impl Palette {
    /// Looks are given in this order; a name that comes again has the look it has.
    pub(super) fn new<'a>(schemes: impl Iterator<Item = &'a str>) -> Self {
        let mut palette = Self {
            schemes: Vec::new(),
        };
        for scheme in schemes {
            if !palette.schemes.iter().any(|known| known == scheme) {
                palette.schemes.push(scheme.to_owned());
            }
        }
        palette
    }

    /// The class that sets a scheme's colour. There are eight; the ninth scheme shares the first's.
    pub(super) fn class(&self, scheme: &str) -> String {
        format!("c{}", self.place(scheme) % SHAPES.len())
    }

    /// The id of its shape. Schemes that share a colour differ in shape.
    pub(super) fn shape(&self, scheme: &str) -> String {
        let place = self.place(scheme);
        format!("m{}", (place + place / SHAPES.len()) % SHAPES.len())
    }

    /// Its marker and name, as HTML.
    pub(super) fn key(&self, scheme: &str) -> String {
        format!(
            "<svg class=\"key {}\" viewBox=\"-1.3 -1.3 2.6 2.6\" aria-hidden=\"true\"><use href=\"#{}\"/></svg>{}",
            self.class(scheme),
            self.shape(scheme),
            escape(scheme)
        )
    }

    fn place(&self, scheme: &str) -> usize {
        let known = self.schemes.iter().position(|known| known == scheme);
        known.unwrap_or(self.schemes.len())
    }
}

/// The shapes, for the page to define once.
pub(super) fn definitions() -> String {
    let shapes = SHAPES.iter().enumerate();
    let symbols: String = shapes
        .map(|(i, shape)| format!("<g id=\"m{i}\">{shape}</g>"))
        .collect();
    format!(
        "<svg class=\"defs\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>{symbols}</defs></svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn sixty_schemes_look_different() {
        let names: Vec<String> = (0..60).map(|i| format!("s{i}")).collect();
        let palette = Palette::new(names.iter().chain(&names).map(String::as_str));
        let looks: HashSet<_> = names
            .iter()
            .map(|name| (palette.class(name), palette.shape(name)))
            .collect();
        assert_eq!(looks.len(), 60);
    }
}
