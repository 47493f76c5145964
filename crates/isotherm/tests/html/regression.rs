//! The pictures of the page as they were when somebody last looked at them: what is drawn now may differ from them only as
//! much as another browser's smoothing of edges makes it.
//!
//! The reference is small and holds graphics only, each stretched over a grid of cells, so that neither fonts nor the width
//! of a column matter. `ISOTHERM_NEW_PICTURES=1` writes it anew, to be looked at before it is committed.

use super::browser::{Page, Picture};
use super::common::run;
use super::recorded::sample;
use std::path::{Path, PathBuf};
use tempfile::tempdir;

/// Cells across and down that each graphic is reduced to.
const COLUMNS: usize = 96;
const ROWS: usize = 24;
/// How far a colour may be off before its cell counts as another: stripes lie otherwise by a pixel, edges are smoothed.
const NEAR: u8 = 28;
/// The share of cells that may be: those along the edges of what is drawn.
const EDGES: f64 = 0.03;

/// Pixels, red, green and blue, `COLUMNS` a row.
type Cells = Vec<[u8; 3]>;

/// The mean colour of each cell of a graphic.
fn reduced(picture: &Picture, [x, y, width, height]: [f64; 4]) -> Cells {
    let mut cells = Vec::with_capacity(COLUMNS * ROWS);
    for row in 0..ROWS {
        for column in 0..COLUMNS {
            let within = |at: usize, of: usize, start: f64, length: f64| {
                let edge = |at: usize| (start + length * at as f64 / of as f64) as usize;
                edge(at)..edge(at + 1).max(edge(at) + 1)
            };
            let (mut sum, mut count) = ([0_u32; 3], 0);
            for py in within(row, ROWS, y + 1.0, height - 2.0) {
                for px in within(column, COLUMNS, x + 1.0, width - 2.0) {
                    let pixel = picture.pixel((px as f64, py as f64));
                    sum.iter_mut().zip(pixel).for_each(|(sum, part)| *sum += u32::from(part));
                    count += 1;
                }
            }
            cells.push(sum.map(|sum| (sum / count) as u8));
        }
    }
    cells
}

/// All graphics of the page, one below the other.
fn graphics(page: &mut Page) -> Cells {
    let picture = page.picture();
    let nr = page.number("document.querySelectorAll('.area canvas').length") as usize;
    assert!(nr >= 3, "heap, libraries and stack");
    let mut selectors: Vec<String> = (0..nr).map(|at| format!("#area-{at}")).collect();
    selectors.push("#trend-plot .plot".to_owned());
    selectors.iter().flat_map(|selector| reduced(&picture, page.place(selector))).collect()
}

/// The share of cells that have another colour.
fn different(seen: &[[u8; 3]], expected: &[[u8; 3]]) -> f64 {
    if seen.len() != expected.len() {
        return 1.0;
    }
    let other = |(a, b): &(&[u8; 3], &[u8; 3])| a.iter().zip(*b).any(|(a, b)| a.abs_diff(*b) > NEAR);
    seen.iter().zip(expected).filter(other).count() as f64 / seen.len() as f64
}

fn write(path: &Path, cells: &[[u8; 3]]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = std::fs::File::create(path).unwrap();
    let mut encoder = png::Encoder::new(file, COLUMNS as u32, (cells.len() / COLUMNS) as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(cells.as_flattened()).unwrap();
}

fn read(path: &Path) -> Cells {
    let file = std::fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut reader = png::Decoder::new(std::io::BufReader::new(file)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    pixels.as_chunks().0.to_vec()
}

#[test]
fn the_pictures_are_those_that_somebody_looked_at() {
    let dir = tempdir().unwrap();
    sample(dir.path());
    run(dir.path(), &["report", "html", "-o", "page.html", "--area", "all"]).ok();
    for (dark, name) in [(false, "light.png"), (true, "dark.png")] {
        let Some(mut page) = Page::open(&dir.path().join("page.html"), dark) else { return };
        let seen = graphics(&mut page);
        let reference: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/html/pictures", name].iter().collect();
        if std::env::var_os("ISOTHERM_NEW_PICTURES").is_some() {
            write(&reference, &seen);
        }
        let expected = read(&reference);
        let off = different(&seen, &expected);
        if off > EDGES {
            let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
            write(&kept, &seen);
            panic!("{:.1} % differ from {}: see {}", off * 100.0, reference.display(), kept.display());
        }
        // It can fail: upside down, or in the other scheme's colours.
        let turned: Cells = seen.iter().rev().copied().collect();
        assert!(different(&turned, &expected) > EDGES);
        page.close();
        let Some(mut page) = Page::open(&dir.path().join("page.html"), !dark) else { return };
        assert!(different(&graphics(&mut page), &expected) > EDGES);
        // Zoomed in it is another picture.
        page.click("#time-in");
        assert!(different(&graphics(&mut page), &seen) > EDGES);
        page.close();
    }
}
