//! A cheap first pass over a recording: block headers only.

use super::block::Summary;
use super::blocks::Blocks;
use crate::{Error, Warning};
use std::collections::HashMap;
use std::io::Read;

/// What the block headers of a recording say of it as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Everything, as if the recording were one block. Blocks without snapshots leave the times alone.
    pub total: Summary,
    /// Blocks read.
    pub nr_blocks: u64,
    /// What is wrong with the file.
    pub warnings: Vec<Warning>,
    /// Where in the total each target is.
    index: HashMap<u64, usize>,
}

impl Scan {
    fn add(&mut self, block: &Summary) {
        let total = &mut self.total;
        self.nr_blocks += 1;
        total.nr_others = total.nr_others.saturating_add(block.nr_others);
        if block.nr_snapshots == 0 {
            return;
        }
        if total.nr_snapshots == 0 {
            total.first_ns = block.first_ns;
            total.last_ns = block.last_ns;
        }
        total.first_ns = total.first_ns.min(block.first_ns);
        total.last_ns = total.last_ns.max(block.last_ns);
        total.nr_snapshots = total.nr_snapshots.saturating_add(block.nr_snapshots);
        total.nr_regions = total.nr_regions.saturating_add(block.nr_regions);
        total.max_nr_accesses = total.max_nr_accesses.max(block.max_nr_accesses);
        total.sample_ns = block.sample_ns;
        for target in &block.targets {
            let at = *self.index.entry(target.id).or_insert(total.targets.len());
            match total.targets.get_mut(at) {
                Some(known) => known.merge(target),
                None => total.targets.push(target.clone()),
            }
        }
    }
}

/// Reads the block headers of a recording in Isotherm's own format: its time range, its size, and for each target
/// where its regions lie. No payload is decompressed.
///
/// # Errors
/// As [`crate::rec::Reader::new`], and [`Error::Io`].
pub fn scan_summaries<R: Read>(input: R, file: impl Into<String>) -> Result<Scan, Error> {
    let mut blocks = Blocks::new(input, file.into())?;
    let mut scan = Scan::default();
    // Whether the recording was finished stands in a payload; the reader's second pass tells.
    blocks.finished = true;
    while let Some(summary) = blocks.next()? {
        blocks.last_ns = blocks.last_ns.max(summary.last_ns);
        scan.add(&summary);
    }
    blocks.conclude();
    scan.warnings = blocks.warnings;
    Ok(scan)
}

/// The version of the format in which a file was written that begins with `head`, as `1.1`; `None` when it is no such file.
pub fn version_of(head: &[u8]) -> Option<String> {
    let number = |at: usize| head.get(at..at + 2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    let (major, minor) = (number(8)?, number(10)?);
    head.starts_with(&super::block::MAGIC).then(|| format!("{major}.{minor}"))
}
