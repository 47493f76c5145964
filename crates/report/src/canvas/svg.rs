//! A picture as SVG: text stays text; cells are an embedded PNG, since a rectangle each would make files of megabytes.

use super::{Anchor, Canvas, PAPER, Rect, TextStyle};
use crate::colour::Colour;
use std::fmt::Write;

/// An SVG document under construction.
#[derive(Clone, Debug)]
pub struct Svg {
    body: String,
}

/// How every one begins, and no other.
pub const SVG_SIGNATURE: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" data-made-by=\"isotherm\"";

/// Width of a character of the usual monospaced fonts, in units of the font size.
const ADVANCE: f64 = 0.6;

impl Svg {
    /// A white picture of `width` x `height` pixels.
    pub fn new(width: usize, height: usize) -> Self {
        let body = format!(
            "{SVG_SIGNATURE} width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"'Noto Sans Mono','DejaVu Sans Mono',Menlo,Consolas,monospace\">\n"
        );
        let mut svg = Self { body };
        svg.rect(Rect { x: 0.0, y: 0.0, width: width as f64, height: height as f64 }, PAPER);
        svg
    }

    /// The document.
    pub fn finish(mut self) -> String {
        self.body.push_str("</svg>\n");
        self.body
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.body.write_fmt(element);
        self.body.push('\n');
    }
}

fn hex(c: Colour) -> String {
    format!("#{:02x}{:02x}{:02x}", c.r, c.g, c.b)
}

/// `text` as XML character data; characters that XML does not allow become `?`.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

fn path(points: &[(f64, f64)]) -> String {
    points.iter().map(|(x, y)| format!("{x:.2},{y:.2}")).collect::<Vec<_>>().join(" ")
}

/// RFC 4648, section 4.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let symbol = ALPHABET[(group >> (18 - 6 * i) & 63) as usize];
            out.push(if i <= chunk.len() { char::from(symbol) } else { '=' });
        }
    }
    out
}

impl Canvas for Svg {
    fn rect(&mut self, rect: Rect, colour: Colour) {
        let Rect { x, y, width, height } = rect;
        self.push(format_args!(
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{:.2}\" height=\"{:.2}\" fill=\"{}\"/>",
            width.max(0.0),
            height.max(0.0),
            hex(colour)
        ));
    }

    fn fill(&mut self, points: &[(f64, f64)], colour: Colour, opacity: f64) {
        self.push(format_args!(
            "<polygon points=\"{}\" fill=\"{}\" fill-opacity=\"{opacity:.2}\" fill-rule=\"evenodd\"/>",
            path(points),
            hex(colour)
        ));
    }

    fn line(&mut self, points: &[(f64, f64)], width: f64, colour: Colour) {
        self.push(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{width:.2}\" stroke-linejoin=\"round\"/>",
            path(points),
            hex(colour)
        ));
    }

    fn text(&mut self, x: f64, y: f64, text: &str, style: TextStyle) {
        let size = style.size.char_width() / ADVANCE;
        let anchor = match style.anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let weight = if style.bold { " font-weight=\"bold\"" } else { "" };
        let turn =
            if style.upwards { format!(" transform=\"rotate(-90 {x:.2} {y:.2})\"") } else { String::new() };
        // 0.35 em from the middle of a line to its baseline; not every viewer knows dominant-baseline.
        self.push(format_args!(
            "<text x=\"{x:.2}\" y=\"{y:.2}\" dy=\"0.35em\" font-size=\"{size:.1}\" text-anchor=\"{anchor}\" \
             fill=\"{}\"{weight}{turn} xml:space=\"preserve\">{}</text>",
            hex(style.colour),
            escaped(text)
        ));
    }

    fn cells(&mut self, rect: Rect, columns: usize, rows: usize, cell: &dyn Fn(usize, usize) -> Colour) {
        let mut bitmap = super::Bitmap::new(columns, rows);
        let whole = Rect { x: 0.0, y: 0.0, width: columns as f64, height: rows as f64 };
        bitmap.cells(whole, columns, rows, cell);
        let mut png = Vec::new();
        // Writing to memory cannot fail.
        let _ = bitmap.write_png(&mut png);
        self.push(format_args!(
            "<image x=\"{:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{:.2}\" preserveAspectRatio=\"none\" \
             style=\"image-rendering:pixelated\" href=\"data:image/png;base64,{}\"/>",
            rect.x,
            rect.y,
            rect.width,
            rect.height,
            base64(&png)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canvas::TextSize;

    #[test]
    fn base64_as_in_the_rfc() {
        for (text, code) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(text.as_bytes()), code);
        }
    }

    #[test]
    fn a_name_cannot_inject_markup() {
        let mut svg = Svg::new(10, 10);
        svg.text(0.0, 0.0, "</text><script>\u{1}&\"", TextStyle::new(TextSize::Small));
        let text = svg.finish();
        assert!(
            text.contains("&lt;/text&gt;&lt;script&gt;?&amp;&quot;") && !text.contains("<script"),
            "{text}"
        );
    }
}
