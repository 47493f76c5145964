//! What can be said to `isotherm lab fork`.

use clap::Args;

// A paragraph is one line, broken where the terminal ends.
const EXAMPLES: &str = "\
Examples:
  isotherm lab fork                         about two minutes
  isotherm lab fork --runs 100 | tail -20   more runs, for a machine that is not alone
  isotherm lab fork --json | jq .bars

Memory is populated in pages of 4 KiB (order 0), in folios of 2 MiB mapped by PTEs (order 9, PTEs), in folios of 16 KiB, \
64 KiB and 2 MiB, and in folios of 2 MiB mapped by PMDs; then forked, the child ended, its accessed bits harvested, and \
zapped. Ours works on page tables in ordinary memory, of x86-64, arm64 and RISC-V, in batches and in turn by a loop over the \
pages, on the same frames: of each run the shortest of several times counts, to which the machine adds least; the ratio by their median stands beside it as \
typical. Linux forks this program with memory of the same layout, once a run; what a fork without that memory takes, \
which is the duplication of the task, is subtracted.

Bars are judged by medians: batches beside page by page by the median of the runs' ratios. With it goes the interval in \
which it lies with 95 % confidence, from six runs on; where that holds the limit, noise may have decided, and the verdict \
says so. No difference counts as shown where the interval leaves less than 2 % open.

Takes about 5 GiB of address space and 1.2 GiB of memory. As root it looks of which folios Linux' memory really is; and \
only root can have folios of 16 and 64 KiB, by splitting huge pages of this program through the debug file system (Linux \
6.10, not locked down). Nothing is mounted for that and no setting changed; what cannot be done is skipped, with the \
reason. The status is 0 when the bars are met, 1 otherwise, 130 after Ctrl-C. The bars hold for 1 GiB: with another \
--size they are shown, and the status is 0.";

/// Time fork, exit, zap and young harvest of page tables in batches, page by page, and beside Linux.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ForkArgs {
    /// Runs of each layout, up to 10000
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: u32,
    /// MiB of memory that is forked, an even number up to 65536 [default: 1024]
    #[arg(long, value_name = "MIB", value_parser = even)]
    pub size: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn even(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(mib) if mib % 2 == 0 && (2..=65_536).contains(&mib) => Ok(mib),
        _ => Err("give an even number of MiB, from 2 to 65536, without a unit".into()),
    }
}
