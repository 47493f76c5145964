//! A picture of pixels, written as PNG.

use super::{Anchor, Canvas, MADE_BY, PAPER, Rect, TextSize, TextStyle};
use crate::colour::Colour;
use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use std::io::{self, Write};

/// Largest width and height.
const MAX_SIDE: usize = 16_384;
/// Scan lines a pixel when filling polygons.
const SUBLINES: usize = 4;

fn raster_height(size: TextSize) -> RasterHeight {
    match size {
        TextSize::Small => RasterHeight::Size20,
        TextSize::Label => RasterHeight::Size24,
        TextSize::Title => RasterHeight::Size32,
    }
}

fn font_weight(bold: bool) -> FontWeight {
    if bold { FontWeight::Bold } else { FontWeight::Regular }
}

pub(super) fn char_width(size: TextSize) -> f64 {
    get_raster_width(FontWeight::Regular, raster_height(size)) as f64
}

/// The keyword of the text that names the program a PNG is of (PNG specification, 11.3.4.2 "Keywords and text strings").
const SOFTWARE: &str = "Software";

/// Whether what begins so is a PNG that [`Bitmap::write_png`] wrote: its mark stands before the pixels.
pub fn is_drawn_png(head: &[u8]) -> bool {
    let Some(mut rest) = head.strip_prefix(b"\x89PNG\r\n\x1a\n") else { return false };
    let mark = [SOFTWARE, MADE_BY].join("\0");
    // A chunk: length, kind, content, checksum.
    while let Some((length, more)) = rest.split_first_chunk() {
        let Some((kind, more)) = more.split_first_chunk::<4>() else { return false };
        let Some((content, after)) = more.split_at_checked(u32::from_be_bytes(*length) as usize) else {
            return false;
        };
        if kind == b"tEXt" && content == mark.as_bytes() {
            return true;
        }
        let Some((_checksum, after)) = after.split_first_chunk::<4>() else { return false };
        rest = after;
    }
    false
}

/// A picture of 8-bit RGB pixels.
#[derive(Clone, Debug)]
pub struct Bitmap {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

impl Bitmap {
    /// A white picture of `width` x `height` pixels, each 1..=16384.
    pub fn new(width: usize, height: usize) -> Self {
        let (width, height) = (width.clamp(1, MAX_SIDE), height.clamp(1, MAX_SIDE));
        let mut bitmap = Self { width, height, rgb: vec![0; width * height * 3] };
        bitmap.rect(Rect { x: 0.0, y: 0.0, width: width as f64, height: height as f64 }, PAPER);
        bitmap
    }

    /// Writes the picture as PNG, with a mark by which [`is_drawn_png`] knows it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_png(&self, out: impl Write) -> io::Result<()> {
        let mut encoder = png::Encoder::new(out, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_source_srgb(png::SrgbRenderingIntent::Perceptual);
        encoder.add_text_chunk(SOFTWARE.to_owned(), MADE_BY.to_owned()).map_err(io::Error::from)?;
        let mut writer = encoder.write_header().map_err(io::Error::from)?;
        writer.write_image_data(&self.rgb).map_err(io::Error::from)?;
        writer.finish().map_err(io::Error::from)
    }

    /// The colour of a pixel; `None` outside.
    pub fn pixel(&self, x: usize, y: usize) -> Option<Colour> {
        let at = (x < self.width && y < self.height).then(|| (y * self.width + x) * 3)?;
        let pixel = self.rgb.get(at..at + 3)?;
        Some(Colour { r: pixel[0], g: pixel[1], b: pixel[2] })
    }

    fn blend(&mut self, x: i64, y: i64, colour: Colour, opacity: f64) {
        let (Ok(x), Ok(y)) = (usize::try_from(x), usize::try_from(y)) else { return };
        if opacity > 0.0
            && let Some(below) = self.pixel(x, y)
        {
            let mixed = below.mix(colour, opacity.min(1.0));
            let at = (y * self.width + x) * 3;
            self.rgb[at..at + 3].copy_from_slice(&[mixed.r, mixed.g, mixed.b]);
        }
    }

    /// Pixels from `from` to `to`, inside `0..limit`.
    fn span(from: f64, to: f64, limit: usize) -> std::ops::Range<usize> {
        let clamp = |v: f64| (v.max(0.0) as usize).min(limit);
        clamp(from)..clamp(to)
    }
}

impl Canvas for Bitmap {
    fn rect(&mut self, rect: Rect, colour: Colour) {
        let columns = Self::span(rect.x.round(), rect.right().round(), self.width);
        for y in Self::span(rect.y.round(), rect.bottom().round(), self.height) {
            let line =
                &mut self.rgb[(y * self.width + columns.start) * 3..(y * self.width + columns.end) * 3];
            for pixel in line.chunks_exact_mut(3) {
                pixel.copy_from_slice(&[colour.r, colour.g, colour.b]);
            }
        }
    }

    fn fill(&mut self, points: &[(f64, f64)], colour: Colour, opacity: f64) {
        let bounds =
            points.iter().fold((f64::MAX, f64::MIN), |(low, high), (_, y)| (low.min(*y), high.max(*y)));
        let mut coverage = vec![0.0; self.width];
        let mut crossings: Vec<f64> = Vec::new();
        for y in Self::span(bounds.0.floor(), bounds.1.ceil(), self.height) {
            coverage.fill(0.0);
            for sub in 0..SUBLINES {
                let at = y as f64 + (sub as f64 + 0.5) / SUBLINES as f64;
                crossings.clear();
                for (i, &(x0, y0)) in points.iter().enumerate() {
                    let (x1, y1) = points[(i + 1) % points.len()];
                    if (y0 <= at) != (y1 <= at) {
                        crossings.push(x0 + (at - y0) / (y1 - y0) * (x1 - x0));
                    }
                }
                crossings.sort_by(f64::total_cmp);
                for pair in crossings.chunks_exact(2) {
                    for x in Self::span(pair[0].floor(), pair[1].ceil(), self.width) {
                        let inside = pair[1].min(x as f64 + 1.0) - pair[0].max(x as f64);
                        coverage[x] += inside.max(0.0) / SUBLINES as f64;
                    }
                }
            }
            for (x, covered) in coverage.iter().enumerate() {
                self.blend(x as i64, y as i64, colour, covered * opacity);
            }
        }
    }

    fn line(&mut self, points: &[(f64, f64)], width: f64, colour: Colour) {
        let reach = width / 2.0 + 1.0;
        for pair in points.windows(2) {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            let (dx, dy) = (x1 - x0, y1 - y0);
            let length2 = (dx * dx + dy * dy).max(f64::MIN_POSITIVE);
            for y in Self::span((y0.min(y1) - reach).floor(), (y0.max(y1) + reach).ceil(), self.height) {
                for x in Self::span((x0.min(x1) - reach).floor(), (x0.max(x1) + reach).ceil(), self.width) {
                    let (px, py) = (x as f64 + 0.5 - x0, y as f64 + 0.5 - y0);
                    let along = ((px * dx + py * dy) / length2).clamp(0.0, 1.0);
                    let distance = (px - along * dx).hypot(py - along * dy);
                    self.blend(x as i64, y as i64, colour, (width / 2.0 + 0.5 - distance).clamp(0.0, 1.0));
                }
            }
        }
    }

    fn text(&mut self, x: f64, y: f64, text: &str, style: TextStyle) {
        let (height, weight) = (raster_height(style.size), font_weight(style.bold));
        let advance = get_raster_width(FontWeight::Regular, height) as f64;
        let total = style.size.width(text);
        let back = match style.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => total / 2.0,
            Anchor::End => total,
        };
        let half = style.size.height() / 2.0;
        for (i, c) in text.chars().enumerate() {
            let glyph = get_raster(c, weight, height).or_else(|| get_raster('?', weight, height));
            let Some(glyph) = glyph else { continue };
            for (row, line) in glyph.rows().enumerate() {
                for (column, shade) in line.iter().enumerate() {
                    let along = i as f64 * advance - back + column as f64;
                    let across = row as f64 - half;
                    let (px, py) =
                        if style.upwards { (x + across, y - along - 1.0) } else { (x + along, y + across) };
                    self.blend(px.round() as i64, py.round() as i64, style.colour, f64::from(*shade) / 255.0);
                }
            }
        }
    }

    fn cells(&mut self, rect: Rect, columns: usize, rows: usize, cell: &dyn Fn(usize, usize) -> Colour) {
        let edge =
            |from: f64, size: f64, i: usize, n: usize| (from + size * i as f64 / n.max(1) as f64).round();
        for row in 0..rows {
            let (top, bottom) =
                (edge(rect.y, rect.height, row, rows), edge(rect.y, rect.height, row + 1, rows));
            for column in 0..columns {
                let left = edge(rect.x, rect.width, column, columns);
                let width = edge(rect.x, rect.width, column + 1, columns) - left;
                self.rect(Rect { x: left, y: top, width, height: bottom - top }, cell(column, row));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RED: Colour = Colour::hex(0xff_0000);

    fn dark(bitmap: &Bitmap, x: std::ops::Range<usize>, y: std::ops::Range<usize>) -> usize {
        let at = |x, y| bitmap.pixel(x, y).is_some_and(|c| c != PAPER);
        y.map(|y| x.clone().filter(|x| at(*x, y)).count()).sum()
    }

    #[test]
    fn shapes_cover_the_area_they_should() {
        let mut bitmap = Bitmap::new(40, 40);
        bitmap.fill(&[(10.0, 10.0), (30.0, 10.0), (30.0, 20.0), (10.0, 20.0)], RED, 1.0);
        assert_eq!(dark(&bitmap, 0..40, 0..40), 200);
        let mut bitmap = Bitmap::new(40, 40);
        bitmap.line(&[(5.0, 20.5), (35.0, 20.5)], 1.0, RED);
        assert_eq!(bitmap.pixel(20, 20), Some(RED));
        assert_eq!(dark(&bitmap, 0..40, 0..19), 0);
    }

    #[test]
    fn text_is_where_its_anchor_says() {
        let style = TextStyle::new(TextSize::Label);
        let mut bitmap = Bitmap::new(200, 200);
        bitmap.text(100.0, 100.0, "Heat 200 Hz", style.anchor(Anchor::End));
        assert!(dark(&bitmap, 0..100, 90..110) > 50);
        assert_eq!(dark(&bitmap, 100..200, 0..200), 0);
        let mut bitmap = Bitmap::new(200, 200);
        bitmap.text(100.0, 150.0, "upwards", TextStyle { upwards: true, ..style });
        assert!(dark(&bitmap, 90..110, 80..150) > 50);
        assert_eq!(dark(&bitmap, 0..200, 151..200), 0);
    }

    #[test]
    fn what_lies_outside_is_cut_off() {
        let mut bitmap = Bitmap::new(10, 10);
        let far = [(-1e12, -5.0), (1e12, 50.0), (f64::NAN, 3.0)];
        bitmap.fill(&far, RED, 1.0);
        bitmap.text(-500.0, 1e9, "far \u{4e16} away", TextStyle::new(TextSize::Title));
        bitmap.rect(Rect { x: -5.0, y: 5.0, width: 1e9, height: 1e9 }, RED);
        assert_eq!(bitmap.pixel(9, 9), Some(RED));
        assert_eq!(bitmap.pixel(10, 9), None);
    }

    #[test]
    fn a_png_reads_back_as_drawn() {
        let mut bitmap = Bitmap::new(8, 4);
        bitmap.cells(Rect { x: 0.0, y: 0.0, width: 8.0, height: 4.0 }, 2, 1, &|c, _| {
            if c == 0 { RED } else { PAPER }
        });
        let mut file = Vec::new();
        bitmap.write_png(&mut file).unwrap();
        assert!(is_drawn_png(&file), "it knows its own");
        let mut other = Vec::new();
        png::Encoder::new(&mut other, 1, 1).write_header().unwrap();
        assert!(!is_drawn_png(&other) && !is_drawn_png(&file[..60]) && !is_drawn_png(b""));
        let mut reader = png::Decoder::new(io::Cursor::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        assert_eq!(pixels, bitmap.rgb);
        assert_eq!((&pixels[..3], &pixels[12..15]), (&[255, 0, 0][..], &[255, 255, 255][..]));
    }
}
