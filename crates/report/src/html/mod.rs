//! A recording as one page that a browser opens from disk: heat that can be zoomed, the working set, who holds what.
//!
//! The page carries a pyramid of the heat over time and address (the module `grid` sums it up, `pyramid` makes levels
//! and tiles of it, `code` says what a byte means), and a program of ours, in the `.js` files beside this one, that
//! draws the part in view. It loads nothing. Which areas there are is the choice of a [`crate::heatmap::Survey`], so two
//! passes over the recording make a page, as they make a picture:
//!
//! 1. `Survey`, and beside it a [`TrendAnalysis`](crate::trend::TrendAnalysis) and [`Holdings`];
//! 2. [`Canvas`], then [`write()`].

mod code;
mod grid;
mod model;
mod page;
mod pyramid;
#[cfg(test)]
mod tests;

pub use grid::Canvas;
pub use page::SIGNATURE;

use crate::before_end::GaveUp;
use crate::columns::elided;
use crate::heatmap::Scale;
use crate::holdings::Holdings;
use crate::provenance::Provenance;
use crate::trend::TrendReport;
use crate::units::{format_share, format_size};
use code::Coder;
use grid::Grid;
use model::Model;
use page::{Blocks, Words};
use pyramid::Pyramid;
use std::io::{self, Write};

/// Height of all heatmaps together, and of one, pixels: with what stands above it, one fits on a sheet of paper.
const HEIGHT: f64 = 900.0;
const MAX_HEIGHT: f64 = 380.0;

/// Most characters of a line of text: what the recording's command line, or a backend's blind spots, may bring along is
/// bounded by nothing else.
const MAX_LINE: usize = 1000;

/// What goes into a page besides the heat.
#[derive(Clone, Debug)]
pub struct Contents {
    /// Title; the recording's first line when empty.
    pub title: String,
    /// The working set over time.
    pub trend: TrendReport,
    /// What processes and mappings hold at the end.
    pub holdings: Holdings,
    /// Of whom that is how things stood before they gave up their memory and ended ([`WithoutEnds`](crate::WithoutEnds)).
    pub gave_up: Vec<GaveUp>,
    /// Command that draws heatmaps of the same recording, as a shell takes it; areas, times and names of files are added.
    /// The page gives it to people who want more detail than the page has.
    pub command: String,
    /// Most bytes of the page.
    pub max_bytes: u64,
}

/// What became of the detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Bytes of the page.
    pub bytes: u64,
    /// Areas of which finer levels were left out to keep within [`Contents::max_bytes`].
    pub coarsened: usize,
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum HtmlError {
    /// It would be larger than allowed even without any detail.
    #[error("a page of this recording takes at least {least} bytes, more than the {most} allowed")]
    TooLarge {
        /// Bytes of the smallest page.
        least: u64,
        /// Bytes allowed.
        most: u64,
    },
    /// It could not be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Writes the page.
///
/// # Errors
/// It cannot be as small as [`Contents::max_bytes`]; those of `out`.
pub fn write(mut canvas: Canvas, contents: &Contents, out: &mut impl Write) -> Result<Written, HtmlError> {
    let highest_hz = pyramid::highest_hz(&canvas.grids);
    let scale = scale(&canvas.grids, highest_hz);
    let coder = Coder::new(highest_hz);
    let mut pyramids = pyramids(&mut canvas.grids, coder)?;
    let words = words(&canvas.provenance, contents);
    let mut blocks = Blocks::default();
    let mut model = Model::new(&canvas, contents, (highest_hz, scale), &heights(&canvas.grids), &mut blocks)?;
    // Markup, words and all but the tiles. A tile's place in the page takes some twenty characters besides its bytes.
    let fixed = page::frame_len() + blocks.len() + crate::json::to_string(&model)?.len();
    let fixed = fixed + words.head.iter().chain(&words.foot).map(|l| 2 * l.len()).sum::<usize>() + 1024;
    let most = usize::try_from(contents.max_bytes).unwrap_or(usize::MAX);
    if !pyramid::fit(&mut pyramids, most.saturating_sub(fixed)) {
        let least = fixed + pyramids.iter().map(Pyramid::bytes).sum::<usize>();
        return Err(HtmlError::TooLarge { least: least as u64, most: contents.max_bytes });
    }
    for (area, pyramid) in model.areas.iter_mut().zip(&pyramids) {
        area.set_levels(pyramid, &mut blocks);
    }
    let mut counted = Counted { out, bytes: 0 };
    page::write(&words, &model, &blocks, &mut counted)?;
    let coarsened = pyramids.iter().filter(|p| p.dropped > 0).count();
    Ok(Written { bytes: counted.bytes, coarsened })
}

/// Counts what is written.
struct Counted<'a, W> {
    out: &'a mut W,
    bytes: u64,
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The pyramids of all areas, made on as many threads as there are processors.
fn pyramids(grids: &mut [Grid], coder: Coder) -> io::Result<Vec<Pyramid>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = grids.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = grids
            .chunks_mut(share)
            .map(|some| {
                scope.spawn(move || {
                    some.iter_mut().map(|grid| Pyramid::new(grid, coder)).collect::<io::Result<Vec<_>>>()
                })
            })
            .collect();
        let mut all = Vec::new();
        for worker in workers {
            all.extend(worker.join().map_err(|_| io::Error::other("compressing the cells failed"))??);
        }
        Ok(all)
    })
}

/// As [`crate::heatmap::Heatmap::scale`] has it: linear, unless most of the heat would be next to invisible.
fn scale(grids: &[Grid], highest_hz: f64) -> &'static str {
    let (mut low, mut all) = (0.0, 0.0);
    for sum in grids.iter().flat_map(|g| &g.sums).filter(|s| s.seen > 0.0) {
        let hz = f64::from(sum.heat) / f64::from(sum.seen);
        all += hz;
        if hz < highest_hz / 8.0 {
            low += hz;
        }
    }
    match if low > all / 2.0 { Scale::Sqrt } else { Scale::Linear } {
        Scale::Sqrt => "sqrt",
        _ => "linear",
    }
}

/// How high each area is drawn: more where there is more memory, but all of them so that they can be read.
fn heights(grids: &[Grid]) -> Vec<u32> {
    let weight = |grid: &Grid| (grid.area.range().size() as f64).sqrt();
    let total: f64 = grids.iter().map(weight).sum();
    grids.iter().map(|grid| (HEIGHT * weight(grid) / total).clamp(120.0, MAX_HEIGHT).round() as u32).collect()
}

fn words(provenance: &Provenance, contents: &Contents) -> Words {
    let mut head = provenance.head();
    let title = match contents.title.is_empty() {
        true if head.is_empty() => "Recording".to_owned(),
        true => head.remove(0),
        false => crate::names::printable(&contents.title).into_owned(),
    };
    let trend = &contents.trend;
    if let (Some(median), Some(p5), Some(p95)) =
        (trend.percentile(50), trend.percentile(5), trend.percentile(95))
    {
        head.push(format!(
            "working set ({}): median {}, from {} (5 % of the time) to {} (95 %)",
            crate::trend::Definition::default(),
            format_size(median),
            format_size(p5),
            format_size(p95)
        ));
    }
    if let Some(share) = provenance.cost.cpu_share() {
        head.push(format!("cost of monitoring: {} of a CPU", format_share(share)));
    }
    head.extend(provenance.actions_in_words().into_iter().map(|line| format!("actions: {line}")));
    let mut foot = provenance.foot();
    foot.extend(
        trend.unknown_remark().map(|remark| format!("working set: {}", remark.trim_start_matches("and "))),
    );
    foot.push(
        "rates and ages are kept in steps: within 2 % and 5 % of what was recorded; rates below 1/19,600 of the highest \
         are shown as at most that"
            .to_owned(),
    );
    let lines = |lines: Vec<String>| lines.iter().map(|line| elided(line, MAX_LINE)).collect();
    Words { title: elided(&title, MAX_LINE), head: lines(head), foot: lines(foot) }
}
