//! Colours of heat, and how much colour a terminal can show.

use crate::heatmap::UnknownWord;
use std::str::FromStr;

/// A colour, sRGB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour {
    /// Red.
    pub r: u8,
    /// Green.
    pub g: u8,
    /// Blue.
    pub b: u8,
}

impl Colour {
    /// From `0xrrggbb`.
    pub const fn hex(rgb: u32) -> Self {
        Self { r: (rgb >> 16) as u8, g: (rgb >> 8) as u8, b: rgb as u8 }
    }

    /// `share` of the way from `self` to `other`, 0..=1.
    pub fn mix(self, other: Self, share: f64) -> Self {
        let channel = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * share).round() as u8;
        Self { r: channel(self.r, other.r), g: channel(self.g, other.g), b: channel(self.b, other.b) }
    }

    /// The nearest of xterm's 256 colours: the 6 x 6 x 6 cube (16..=231) and the greys (232..=255).
    pub fn ansi256(self) -> u8 {
        const STEPS: [u8; 6] = [0, 95, 135, 175, 215, 255];
        let nearest = |v: u8| (0..6u8).min_by_key(|i| STEPS[usize::from(*i)].abs_diff(v)).unwrap_or(0);
        let distance = |c: Colour| {
            let d = |a: u8, b: u8| u32::from(a.abs_diff(b)).pow(2);
            d(c.r, self.r) + d(c.g, self.g) + d(c.b, self.b)
        };
        let (r, g, b) = (nearest(self.r), nearest(self.g), nearest(self.b));
        let cube = Colour { r: STEPS[usize::from(r)], g: STEPS[usize::from(g)], b: STEPS[usize::from(b)] };
        let mean = (u32::from(self.r) + u32::from(self.g) + u32::from(self.b)) / 3;
        let step = (mean.saturating_sub(3) / 10).min(23) as u8;
        let level = 8 + 10 * step;
        let grey = Colour { r: level, g: level, b: level };
        if distance(grey) < distance(cube) { 232 + step } else { 16 + 36 * r + 6 * g + b }
    }
}

/// The colour map "inferno" of matplotlib (S. van der Walt, N. Smith, CC0), perceptually uniform and readable without
/// colour vision: eleven of its points, evenly spaced.
const INFERNO: [u32; 11] = [
    0x00_0004, 0x16_0b39, 0x42_0a68, 0x6a_176e, 0x93_2667, 0xbc_3754, 0xdd_513a, 0xf3_7819, 0xfc_a50a,
    0xf6_d746, 0xfc_ffa4,
];

/// The colour of `level` between 0 (no access) and 1 (the highest rate). 0 is a deep violet rather than inferno's black,
/// so that memory without access differs from a terminal's background, which is what is not monitored.
pub fn heat(level: f64) -> Colour {
    let level = if level.is_nan() { 0.0 } else { level.clamp(0.0, 1.0) };
    let at = 0.5 + level * 9.5;
    let index = (at as usize).min(INFERNO.len() - 2);
    Colour::hex(INFERNO[index]).mix(Colour::hex(INFERNO[index + 1]), at - index as f64)
}

/// What is unknown: a green that no rate has, told apart from the dark and the bright of heat also without colour vision by
/// its stripes.
pub const UNKNOWN: Colour = Colour::hex(0x3f_7d6e);
/// The stripes.
pub const UNKNOWN_STRIPE: Colour = Colour::hex(0xa5_cfc4);

/// Where an action of a scheme took effect: a blue that no rate has, in dashes, so that it is told apart without colour, too.
pub const ACTED: Colour = Colour::hex(0x35_c2ff);

/// Whether the mark of an action is drawn in this row of a picture: dashes, and between them the heat.
pub const fn is_dash(row: usize) -> bool {
    row % 4 < 2
}

/// The colour of the cell of what is unknown in this column and row: diagonal stripes.
pub fn unknown(column: usize, row: usize) -> Colour {
    if (column + row).is_multiple_of(4) { UNKNOWN_STRIPE } else { UNKNOWN }
}

/// When to use colour: the argument of `--color`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColourChoice {
    /// When the output is a terminal that can, and `NO_COLOR` is not set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl FromStr for ColourChoice {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        match word {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(UnknownWord { word: word.to_owned(), expected: "one of auto, always and never" }),
        }
    }
}

/// How a terminal shows heat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColourMode {
    /// 24-bit colours.
    True,
    /// xterm's 256 colours.
    Ansi256,
    /// No colour: digits.
    #[default]
    Plain,
}

impl ColourMode {
    /// What to use on an output, given its environment: `is_terminal`, and the variables `NO_COLOR`
    /// (<https://no-color.org>: set and not empty), `COLORTERM` and `TERM`.
    pub fn detect(
        choice: ColourChoice,
        is_terminal: bool,
        no_color: Option<&str>,
        colorterm: Option<&str>,
        term: Option<&str>,
    ) -> Self {
        let term = term.unwrap_or("");
        let best = match colorterm {
            Some("truecolor" | "24bit") => Self::True,
            _ if term.ends_with("-direct") => Self::True,
            _ => Self::Ansi256,
        };
        let dumb =
            !is_terminal || term.is_empty() || term == "dumb" || no_color.is_some_and(|v| !v.is_empty());
        match choice {
            ColourChoice::Always => best,
            ColourChoice::Auto if !dumb => best,
            _ => Self::Plain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance (WCAG), for the promise that hotter is brighter.
    fn luminance(c: Colour) -> f64 {
        let linear = |v: u8| (f64::from(v) / 255.0).powf(2.2);
        0.2126 * linear(c.r) + 0.7152 * linear(c.g) + 0.0722 * linear(c.b)
    }

    #[test]
    fn hotter_is_brighter_all_the_way() {
        let steps: Vec<f64> = (0..=100).map(|i| luminance(heat(f64::from(i) / 100.0))).collect();
        assert!(steps.windows(2).all(|w| w[1] > w[0]));
        assert_eq!(heat(1.0), Colour::hex(0xfc_ffa4));
        assert_eq!(heat(f64::NAN), heat(0.0));
    }

    #[test]
    fn the_nearest_of_256_colours() {
        for (rgb, index) in [(0, 16), (0xff_ffff, 231), (0xff_0000, 196), (0x80_8080, 244), (0x5f_87af, 67)] {
            assert_eq!(Colour::hex(rgb).ansi256(), index, "{rgb:x}");
        }
    }

    #[test]
    fn the_environment_decides_only_when_it_is_asked() {
        let auto = ColourChoice::Auto;
        let term = Some("xterm-256color");
        assert_eq!(ColourMode::detect(auto, true, None, Some("truecolor"), term), ColourMode::True);
        assert_eq!(ColourMode::detect(auto, true, None, None, term), ColourMode::Ansi256);
        assert_eq!(ColourMode::detect(auto, true, Some("1"), None, term), ColourMode::Plain);
        assert_eq!(ColourMode::detect(auto, true, Some(""), None, term), ColourMode::Ansi256);
        assert_eq!(ColourMode::detect(auto, false, None, None, term), ColourMode::Plain);
        assert_eq!(ColourMode::detect(auto, true, None, None, Some("dumb")), ColourMode::Plain);
        assert_eq!(
            ColourMode::detect(ColourChoice::Always, false, Some("1"), None, None),
            ColourMode::Ansi256
        );
        assert_eq!(ColourMode::detect(ColourChoice::Never, true, None, None, term), ColourMode::Plain);
    }
}
