//! Where reported blocks go: the host, seen from here.

use crate::Block;

/// The most blocks that are ever away at the host at a time, so that what is being reported is never missed enough to
/// look like an end of memory (seed 003: "only a set of 16 pages can be isolated").
pub const MAX_BATCH: usize = 16;

/// A host that takes reports of free blocks: a balloon device, `madvise`, a hole in a file.
pub trait ReportSink {
    /// Why a report failed.
    type Error;

    /// Reports to the host that these blocks, 1 to [`MAX_BATCH`], hold nothing; returns when the host has acknowledged.
    ///
    /// The blocks are isolated for as long as the call lasts: nobody can allocate them. Afterwards what they held is
    /// lost: they read as zeros, or as what the host and the guest agreed on (`VIRTIO_BALLOON_F_PAGE_POISON`).
    ///
    /// # Errors
    /// The host did not take the report. The blocks go back as not reported, and will be tried again, unless the host
    /// [keeps](Self::keeps) them.
    fn report(&mut self, blocks: &[Block]) -> Result<(), Self::Error>;

    /// Whether the host may still take what the blocks of the report hold that failed last, with this error: a device, say, that
    /// does not answer and does not acknowledge its reset either. Then whoever was given them could lose what he writes there, so
    /// they are handed out no more. By default the host has nothing of a report that failed.
    fn keeps(&self, error: &Self::Error) -> bool {
        let _ = error;
        false
    }
}

impl<S: ReportSink + ?Sized> ReportSink for &mut S {
    type Error = S::Error;

    fn report(&mut self, blocks: &[Block]) -> Result<(), Self::Error> {
        (**self).report(blocks)
    }

    fn keeps(&self, error: &Self::Error) -> bool {
        (**self).keeps(error)
    }
}
