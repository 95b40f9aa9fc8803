//! Colours and markers of the schemes, the same in every plot.

use super::svg::escape;

/// Marker shapes in a square of 2 by 2 around the origin. Each scheme has a colour and a shape, so
/// that either one identifies it.
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

/// Assignment of colours and markers to schemes.
pub(super) struct Palette {
    schemes: Vec<String>,
}

impl Palette {
    /// Assigns colours and markers in the order of `schemes`; repeated names keep theirs.
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

    /// CSS class of a scheme's colour. There are eight colours, and the ninth scheme gets the first
    /// one again.
    pub(super) fn class(&self, scheme: &str) -> String {
        format!("c{}", self.place(scheme) % SHAPES.len())
    }

    /// Element id of a scheme's marker. Schemes with the same colour have different markers.
    pub(super) fn shape(&self, scheme: &str) -> String {
        let place = self.place(scheme);
        format!("m{}", (place + place / SHAPES.len()) % SHAPES.len())
    }

    /// Marker and name of a scheme as HTML.
    pub(super) fn key(&self, scheme: &str) -> String {
        format!(
            "<svg class=\"key {}\" viewBox=\"-1.3 -1.3 2.6 2.6\" aria-hidden=\"true\"><use \
             href=\"#{}\"/></svg>{}",
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

/// Definitions of all markers, which a page contains once.
pub(super) fn definitions() -> String {
    let shapes = SHAPES.iter().enumerate();
    let symbols: String = shapes
        .map(|(i, shape)| format!("<g id=\"m{i}\">{shape}</g>"))
        .collect();
    format!(
        "<svg class=\"defs\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>{symbols}</defs>\
         </svg>\n"
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
