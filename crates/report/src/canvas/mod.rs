//! Drawing surfaces: the same calls make a PNG or an SVG.
//!
//! Text in a PNG comes from a font that is compiled in, so that pictures look the same on every machine and need none
//! of its fonts. Layout counts characters of a fixed width, which holds for both surfaces.
//!
//! # Why not a library
//! plotters 0.3.7 (features `bitmap_backend`, `bitmap_encoder`, `svg_backend`, `ab_glyph`) was weighed by drawing a heatmap of
//! 445 x 280 cells with axes and a caption:
//!
//! | | plotters | this module |
//! |---|---|---|
//! | code | its own | 480 lines, tests apart |
//! | crates | 26; PNGs by `image` 0.24, which has had a successor since 2024 | `png`, `noto-sans-mono-bitmap` and what `png` needs |
//! | to build it (release, one CPU) | 38 s | - |
//! | font | one to be registered: DejaVu Sans Bold has 709 kB; SVG assumes the viewer's to be as wide | compiled in |
//! | SVG | 10.7 MB: a rectangle a cell | 0.3 MB: cells are an embedded PNG |
//! | PNG | 102 kB | 50 to 400 kB, by content |
//!
//! Its axes would replace some 60 lines here. What makes these pictures what they are would stay: panels of different scale one
//! below the other over one time axis, binary ticks and addresses, names in brackets, striped cells, wrapped notes. Its image element
//! would make the SVG small, from pixels that this module's bitmap would still have to draw. So it was not taken.

mod bitmap;
mod page;
mod svg;

pub use bitmap::{Bitmap, is_drawn_png};
pub(crate) use page::{MARGIN, Page};
pub(crate) use svg::base64;
pub use svg::{SVG_SIGNATURE, Svg};

use crate::colour::Colour;

/// What pictures say they were made by: only those may be replaced by others.
pub(crate) const MADE_BY: &str = "isotherm";

/// Text and axes.
pub(crate) const INK: Colour = Colour::hex(0x24_292f);
/// What matters less.
pub(crate) const FAINT: Colour = Colour::hex(0x6b_7280);
/// Grid lines and frames.
pub(crate) const HAIRLINE: Colour = Colour::hex(0xd4_d7dd);
/// Paper.
pub(crate) const PAPER: Colour = Colour::hex(0xff_ffff);
/// Where nothing was monitored.
pub(crate) const VOID: Colour = Colour::hex(0xe6_e8ec);

/// The top of an axis of bytes and the distance of its ticks, some `ticks` of them: binary round.
pub(crate) fn byte_axis(highest: f64, ticks: f64) -> (f64, f64) {
    let step = 2f64.powf((highest / ticks).max(1.0).log2().ceil());
    ((highest / step).ceil().max(1.0) * step, step)
}

/// Height of a line of text, pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextSize {
    /// 20: notes.
    Small,
    /// 24: axes.
    Label,
    /// 32: titles.
    Title,
}

impl TextSize {
    /// Width of every character, pixels.
    pub fn char_width(self) -> f64 {
        bitmap::char_width(self)
    }

    /// Width of `text`, pixels.
    pub fn width(self, text: &str) -> f64 {
        text.chars().count() as f64 * self.char_width()
    }

    /// Height of a line, pixels.
    pub fn height(self) -> f64 {
        match self {
            Self::Small => 20.0,
            Self::Label => 24.0,
            Self::Title => 32.0,
        }
    }
}

/// Which point of a text its position names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Anchor {
    /// Its left end.
    #[default]
    Start,
    /// Its middle.
    Middle,
    /// Its right end.
    End,
}

/// How a text looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextStyle {
    /// Size.
    pub size: TextSize,
    /// Weight.
    pub bold: bool,
    /// Which point its position names.
    pub anchor: Anchor,
    /// Colour.
    pub colour: Colour,
    /// Written from below to above.
    pub upwards: bool,
}

impl TextStyle {
    /// Regular text of a size, from its left end, in ink.
    pub fn new(size: TextSize) -> Self {
        Self { size, bold: false, anchor: Anchor::Start, colour: INK, upwards: false }
    }

    /// The same, bold.
    pub fn bold(self) -> Self {
        Self { bold: true, ..self }
    }

    /// The same, faint.
    pub fn faint(self) -> Self {
        Self { colour: FAINT, ..self }
    }

    /// The same, with another anchor.
    pub fn anchor(self, anchor: Anchor) -> Self {
        Self { anchor, ..self }
    }
}

/// A rectangle, pixels from the upper left corner.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rect {
    /// Left edge.
    pub x: f64,
    /// Upper edge.
    pub y: f64,
    /// Width.
    pub width: f64,
    /// Height.
    pub height: f64,
}

impl Rect {
    /// Its right edge.
    pub fn right(&self) -> f64 {
        self.x + self.width
    }

    /// Its lower edge.
    pub fn bottom(&self) -> f64 {
        self.y + self.height
    }
}

/// A surface to draw on. What lies outside is cut off.
pub trait Canvas {
    /// Fills a rectangle.
    fn rect(&mut self, rect: Rect, colour: Colour);

    /// Fills a polygon (even-odd rule); `opacity` 0..=1.
    fn fill(&mut self, points: &[(f64, f64)], colour: Colour, opacity: f64);

    /// Draws a line through points.
    fn line(&mut self, points: &[(f64, f64)], width: f64, colour: Colour);

    /// Writes a text; `(x, y)` is the point that the anchor names, in the middle of the line's height.
    fn text(&mut self, x: f64, y: f64, text: &str, style: TextStyle);

    /// Fills `rect` with `columns` x `rows` cells without smoothing; `cell(column, row)` counts rows from the top.
    fn cells(&mut self, rect: Rect, columns: usize, rows: usize, cell: &dyn Fn(usize, usize) -> Colour);
}
