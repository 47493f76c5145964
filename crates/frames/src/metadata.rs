//! The memory a zone keeps its books in: the caller's, laid out here.

use isotherm_page::carve::{SLACK, room};
use isotherm_page::spans::{Span, locals_at_most};

use crate::bits::{Bitfield, PAGEBLOCK_ORDER};
use crate::cache::ITEMS;
use crate::lists::Pageblock;
use crate::padded::Padded;
use crate::sync::AtomicU16;
use crate::waiting::Waiting;
use crate::zone::PerCpu;
use crate::{Config, FrameRange};

/// Bytes that [`Zone::new`](crate::Zone::new) needs for its metadata at most, whatever their alignment: 2 a frame, and
/// about 80 for each 2 MiB, 0.05 % of the memory in all; to which come 18 KiB a CPU.
///
/// It can be computed when compiling, for memory that is known then. `usize::MAX` if no memory suffices.
///
/// ```
/// use isotherm_frames::{Config, FrameRange, metadata_size};
///
/// const RAM: [FrameRange; 1] = [FrameRange::of_bytes(0x10_0000, 64 << 20)];
/// const CONFIG: Config = Config::new(2);
/// static mut METADATA: [u8; metadata_size(&RAM, &CONFIG)] = [0; metadata_size(&RAM, &CONFIG)];
/// ```
#[must_use]
pub const fn metadata_size(ranges: &[FrameRange], config: &Config) -> usize {
    let locals = locals_at_most(ranges);
    let own = books(locals, config);
    own.saturating_add(room::<Span>(ranges.len())).saturating_add(room::<AtomicU16>(locals as usize))
}

/// Bytes that [`Zone::with_pages`](crate::Zone::with_pages) needs for its metadata at most, beside the array: as
/// [`metadata_size`], without the 2 bytes a frame.
#[must_use]
pub const fn zone_size(ranges: &[FrameRange], config: &Config) -> usize {
    books(locals_at_most(ranges), config)
}

const fn books(locals: u64, config: &Config) -> usize {
    if locals > usize::MAX as u64 / 4 {
        return usize::MAX;
    }
    let pageblocks = (locals >> PAGEBLOCK_ORDER) as usize;
    let waiting = match &config.reporting {
        Some(reporting) => Waiting::words(pageblocks, reporting.order.get()),
        None => 0,
    };
    let mut total = SLACK;
    total = total.saturating_add(room::<Bitfield>(pageblocks));
    total = total.saturating_add(room::<Pageblock>(pageblocks));
    total = total.saturating_add(room::<Padded<PerCpu<'_>>>(config.cpus));
    total = total.saturating_add(room::<u32>(config.cpus.saturating_mul(ITEMS)));
    total.saturating_add(room::<u64>(waiting))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_as_small_as_is_said() {
        let gib = [FrameRange::of_bytes(0, 1 << 30)];
        let (none, four) = (metadata_size(&gib, &Config::new(0)), metadata_size(&gib, &Config::new(4)));
        assert!(none < (1 << 19) + 512 * 81, "{none}");
        assert!((four - none) / 4 <= 18432, "{}", (four - none) / 4);
    }
}
