//! From sums to what the page carries: levels, tiles, bytes.
//!
//! Level 0 is the grid; a cell of each next level is what four of the one below say together, added up before it is
//! coded, so that a view from afar shows means, not samples. Every level is cut into tiles of [`TILE`] x [`TILE`] cells,
//! compressed one by one: the page decodes what is in view. When all of it is larger than it may be, the finest levels go,
//! those that take most bytes first, until the rest fits ([`fit`]).

use super::code::{Coder, EMPTY};
use super::grid::{Grid, Sum};
use flate2::{Compression, write::ZlibEncoder};
use std::cmp::Reverse;
use std::io::{self, Write};

/// Cells along each side of a tile.
pub(super) const TILE: usize = 256;

/// Characters that tell where a tile stands, at most: `[4000000,200000],`.
const ENTRY: usize = 18;

/// One resolution of an area.
#[derive(Clone, Debug, Default)]
pub(super) struct Level {
    pub columns: usize,
    pub rows: usize,
    /// Zlib streams, column of tiles by column of tiles, from the lowest address up: for each the planes of rate, age and
    /// known share, each column by column. Empty: nothing of the tile was monitored.
    pub tiles: Vec<Vec<u8>>,
}

impl Level {
    /// Bytes of its tiles in the page, and of the list of them.
    pub fn bytes(&self) -> usize {
        self.tiles.iter().map(|tile| base64_len(tile.len()) + ENTRY).sum()
    }
}

/// Characters of so many bytes in base64.
pub(super) fn base64_len(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}

/// The levels of an area, finest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Pyramid {
    pub levels: Vec<Level>,
    /// How many finer levels there were.
    pub dropped: usize,
}

impl Pyramid {
    /// Of `grid`, whose sums are used up.
    ///
    /// # Errors
    /// Of the compression, which has none to make.
    pub fn new(grid: &mut Grid, coder: Coder) -> io::Result<Self> {
        let mut sums = std::mem::take(&mut grid.sums);
        let (mut rows, mut columns) = (grid.rows.cells, sums.len() / grid.rows.cells.max(1));
        let mut levels = Vec::new();
        loop {
            levels.push(level(&sums, columns, rows, coder)?);
            if columns.max(rows) <= TILE {
                return Ok(Self { levels, dropped: 0 });
            }
            (sums, columns, rows) = halved(&sums, columns, rows);
        }
    }

    /// Bytes of all levels in the page.
    pub fn bytes(&self) -> usize {
        self.levels.iter().map(Level::bytes).sum()
    }
}

/// The upper end of the scale, Hz: the highest rate of a cell, or the least that it may be.
pub(super) fn highest_hz(grids: &[Grid]) -> f64 {
    let known = grids.iter().flat_map(|g| &g.sums).filter(|s| s.seen > 0.0);
    crate::heatmap::scale_end(known.map(|s| f64::from(s.heat) / f64::from(s.seen)).fold(0.0, f64::max))
}

/// Drops finest levels until no more than `bytes` are left: of the areas that are shown in most detail the one in which
/// that takes most. Whether it was possible.
pub(super) fn fit(pyramids: &mut [Pyramid], bytes: usize) -> bool {
    let mut all: usize = pyramids.iter().map(Pyramid::bytes).sum();
    while all > bytes {
        let order = |p: &Pyramid| (Reverse(p.dropped), p.levels.first().map_or(0, Level::bytes));
        let Some(next) = pyramids.iter_mut().filter(|p| p.levels.len() > 1).max_by_key(|p| order(p)) else {
            return false;
        };
        all -= next.levels.remove(0).bytes();
        next.dropped += 1;
    }
    true
}

/// Sums of half as many columns and rows, rounded up.
fn halved(sums: &[Sum], columns: usize, rows: usize) -> (Vec<Sum>, usize, usize) {
    let (to_columns, to_rows) = (columns.div_ceil(2), rows.div_ceil(2));
    let mut to = vec![Sum::default(); to_columns * to_rows];
    for (i, column) in sums.chunks(rows).enumerate() {
        let into = &mut to[i / 2 * to_rows..(i / 2 + 1) * to_rows];
        for (sum, pair) in into.iter_mut().zip(column.chunks(2)) {
            pair.iter().for_each(|part| sum.add(part, 1.0));
        }
    }
    (to, to_columns, to_rows)
}

fn level(sums: &[Sum], columns: usize, rows: usize, coder: Coder) -> io::Result<Level> {
    let mut tiles = Vec::new();
    for left in (0..columns).step_by(TILE) {
        for low in (0..rows).step_by(TILE) {
            let (right, high) = ((left + TILE).min(columns), (low + TILE).min(rows));
            let cells = (left..right).flat_map(|column| &sums[column * rows + low..column * rows + high]);
            tiles.push(tile(cells, coder)?);
        }
    }
    Ok(Level { columns, rows, tiles })
}

fn tile<'a>(cells: impl Iterator<Item = &'a Sum>, coder: Coder) -> io::Result<Vec<u8>> {
    let mut planes: [Vec<u8>; 3] = Default::default();
    for cell in cells {
        for (plane, code) in planes.iter_mut().zip(coder.cell(cell)) {
            plane.push(code);
        }
    }
    if planes[0].iter().all(|code| *code == EMPTY) {
        return Ok(Vec::new());
    }
    // The best takes twice the time for less than a hundredth of the bytes (a synthetic recording of 50 M regions).
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    planes.iter().try_for_each(|plane| encoder.write_all(plane))?;
    encoder.finish()
}
