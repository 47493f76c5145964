//! Framing: the preamble, block headers with their checksums, and the summary.

use super::MAX_PAYLOAD;
use super::varint::{Cursor, put, put_signed};
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot};

pub(crate) const MAGIC: [u8; 8] = *b"\x89ITH\r\n\x1a\n";
const MAJOR: u16 = 1;
const MINOR: u16 = 4;
pub(super) const PREAMBLE_LEN: usize = 16;

pub(super) const SYNC: [u8; 4] = *b"\xf1BLK";
const ITEMS: u8 = 1;
/// Length of a block header without the summary.
pub(super) const HEADER_LEN: usize = 28;
/// Most areas a summary lists for a target.
const MAX_AREAS: usize = 8;
/// Most targets a summary lists, so that its length fits 16 bits.
const MAX_TARGETS: usize = 256;

/// The first bytes of a file.
pub(super) fn preamble() -> [u8; PREAMBLE_LEN] {
    let mut out = [0; PREAMBLE_LEN];
    out[..8].copy_from_slice(&MAGIC);
    out[8..10].copy_from_slice(&MAJOR.to_le_bytes());
    out[10..12].copy_from_slice(&MINOR.to_le_bytes());
    let crc = crc32fast::hash(&out[..12]);
    out[12..].copy_from_slice(&crc.to_le_bytes());
    out
}

/// What a preamble says.
pub(super) enum Preamble {
    /// This version can read it.
    Readable,
    /// A newer major version.
    Newer(u16),
    /// Not a preamble, or a damaged one.
    Damaged,
}

/// Reads a preamble.
pub(super) fn read_preamble(bytes: &[u8; PREAMBLE_LEN]) -> Preamble {
    if bytes[..8] != MAGIC || u32_at(bytes, 12) != Some(crc32fast::hash(&bytes[..12])) {
        return Preamble::Damaged;
    }
    match u16::from_le_bytes([bytes[8], bytes[9]]) {
        MAJOR => Preamble::Readable,
        newer => Preamble::Newer(newer),
    }
}

/// What a block holds, known without decompressing it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Start of the first snapshot, ns (of the first other item when the block has no snapshot; 0 when that has no
    /// time either).
    pub first_ns: u64,
    /// End of the last snapshot, ns.
    pub last_ns: u64,
    /// Snapshots.
    pub nr_snapshots: u64,
    /// Regions of all snapshots and targets.
    pub nr_regions: u64,
    /// Items other than snapshots.
    pub nr_others: u64,
    /// Highest `max_nr_accesses` of its snapshots.
    pub max_nr_accesses: u32,
    /// Sampling interval of its last snapshot, ns.
    pub sample_ns: u64,
    /// The targets its snapshots mention (the first 256).
    pub targets: Vec<TargetSummary>,
}

/// A target in a [`Summary`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetSummary {
    /// Target id.
    pub id: u64,
    /// Its regions, over all snapshots.
    pub nr_regions: u64,
    /// Where they lie: sorted, disjoint, at most eight. Empty when there is no region.
    pub areas: Vec<AddrRange>,
}

impl TargetSummary {
    /// Lowest and highest address of its regions; `None` when it has none.
    pub fn bounds(&self) -> Option<AddrRange> {
        Some(AddrRange::new(self.areas.first()?.start, self.areas.last()?.end))
    }

    /// Adds what `other` says of the same target.
    pub fn merge(&mut self, other: &Self) {
        self.nr_regions = self.nr_regions.saturating_add(other.nr_regions);
        other.areas.iter().for_each(|&area| self.cover(area));
    }

    /// Adds an area, joining it with those it touches, and the closest ones when there are too many.
    fn cover(&mut self, area: AddrRange) {
        let first = self.areas.partition_point(|a| a.end < area.start);
        let past = self.areas.partition_point(|a| a.start <= area.end);
        if let [old] = self.areas.get_mut(first..past).unwrap_or_default() {
            // By far the commonest: nothing new, or a border that moved.
            old.start = old.start.min(area.start);
            old.end = old.end.max(area.end);
            return;
        }
        let joined = self
            .areas
            .get(first..past)
            .unwrap_or_default()
            .iter()
            .fold(area, |a, b| AddrRange::new(a.start.min(b.start), a.end.max(b.end)));
        self.areas.splice(first..past.max(first), [joined]);
        while self.areas.len() > MAX_AREAS {
            let closest = self.areas.windows(2).enumerate().min_by_key(|(_, w)| w[1].start - w[0].end);
            let Some((at, _)) = closest else { break };
            self.areas[at].end = self.areas[at + 1].end;
            self.areas.remove(at + 1);
        }
    }
}

impl Summary {
    /// Adds a snapshot; its targets come by [`Self::add_target`].
    pub(super) fn add(&mut self, snapshot: &Snapshot) {
        if self.nr_snapshots == 0 {
            self.first_ns = snapshot.start_ns;
            self.last_ns = snapshot.end_ns;
        }
        self.first_ns = self.first_ns.min(snapshot.start_ns);
        self.last_ns = self.last_ns.max(snapshot.end_ns);
        self.nr_snapshots += 1;
        self.max_nr_accesses = self.max_nr_accesses.max(snapshot.max_nr_accesses);
        self.sample_ns = snapshot.sample_ns;
    }

    /// Adds what a snapshot says of a target: how many regions, and, unless they lie where they lay in the snapshot
    /// before, where. `slot`: the how-manieth target of the block it is.
    pub(super) fn add_target(&mut self, slot: usize, id: u64, nr_regions: u64, regions: &[RegionSnapshot]) {
        self.nr_regions += nr_regions;
        if slot == self.targets.len() && slot < MAX_TARGETS {
            self.targets.push(TargetSummary { id, ..TargetSummary::default() });
        }
        let Some(summary) = self.targets.get_mut(slot) else { return };
        summary.nr_regions += nr_regions;
        let mut run: Option<AddrRange> = None;
        for region in regions {
            match &mut run {
                Some(run) if run.end == region.range.start => run.end = region.range.end,
                _ => {
                    if let Some(run) = run.replace(region.range) {
                        summary.cover(sorted(run));
                    }
                }
            }
        }
        if let Some(run) = run {
            summary.cover(sorted(run));
        }
    }

    /// Adds an item other than a snapshot, with its time if it has one.
    pub(super) fn add_other(&mut self, time_ns: Option<u64>) {
        self.nr_others += 1;
        if let Some(time) = time_ns.filter(|_| self.nr_snapshots == 0) {
            self.first_ns = if self.first_ns == 0 { time } else { self.first_ns.min(time) };
            self.last_ns = self.last_ns.max(time);
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        put(&mut out, self.first_ns);
        put_signed(&mut out, self.last_ns.wrapping_sub(self.first_ns) as i64);
        put(&mut out, self.nr_snapshots);
        put(&mut out, self.nr_regions);
        put(&mut out, self.nr_others);
        put(&mut out, u64::from(self.max_nr_accesses));
        put(&mut out, self.sample_ns);
        put(&mut out, self.targets.len() as u64);
        for target in &self.targets {
            put(&mut out, target.id);
            put(&mut out, target.nr_regions);
            put(&mut out, target.areas.len() as u64);
            let mut last = 0;
            for area in &target.areas {
                put_signed(&mut out, area.start.wrapping_sub(last) as i64);
                put_signed(&mut out, area.end.wrapping_sub(area.start) as i64);
                last = area.end;
            }
        }
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut c = Cursor::new(bytes);
        let first_ns = c.uint()?;
        let mut summary = Self {
            first_ns,
            last_ns: first_ns.wrapping_add(c.int()? as u64),
            nr_snapshots: c.uint()?,
            nr_regions: c.uint()?,
            nr_others: c.uint()?,
            max_nr_accesses: u32::try_from(c.uint()?).ok()?,
            sample_ns: c.uint()?,
            targets: Vec::new(),
        };
        for _ in 0..c.uint()? {
            let mut target = TargetSummary { id: c.uint()?, nr_regions: c.uint()?, areas: Vec::new() };
            let mut last = 0_u64;
            for _ in 0..c.uint()? {
                let start = last.wrapping_add(c.int()? as u64);
                last = start.wrapping_add(c.int()? as u64);
                target.areas.push(AddrRange::new(start, last));
            }
            summary.targets.push(target);
        }
        Some(summary)
    }
}

/// The range with its ends in order: foreign files may hold regions that end before they start.
fn sorted(range: AddrRange) -> AddrRange {
    AddrRange::new(range.start.min(range.end), range.end.max(range.start))
}

/// A block header whose checksum fitted.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) sequence: u32,
    /// Whether this version knows the block's type.
    pub(super) known: bool,
    pub(super) summary: Summary,
    /// Header and summary, bytes.
    pub(super) header_len: usize,
    pub(super) payload_len: usize,
    pub(super) raw_len: usize,
    payload_crc: u32,
    /// Of header and summary, and so of the payload's checksum: of the whole block.
    pub(super) checksum: u32,
}

/// What stands at a place that may be a block's first byte.
pub(super) enum Parsed {
    /// A header.
    Header(Header),
    /// This many bytes from there are needed to tell.
    NeedsBytes(usize),
    /// No block begins there; so many bytes were looked at to see that.
    NoBlock(usize),
}

impl Header {
    /// Looks for a block header at the beginning of `bytes`.
    pub(super) fn parse(bytes: &[u8]) -> Parsed {
        if !bytes.iter().zip(&SYNC).all(|(a, b)| a == b) {
            return Parsed::NoBlock(0);
        }
        if bytes.len() < HEADER_LEN {
            return Parsed::NeedsBytes(HEADER_LEN);
        }
        let header_len = HEADER_LEN + usize::from(u16::from_le_bytes([bytes[6], bytes[7]]));
        let Some(summary) = bytes.get(HEADER_LEN..header_len) else {
            return Parsed::NeedsBytes(header_len);
        };
        Self::checked(bytes, header_len, summary).map_or(Parsed::NoBlock(header_len), Parsed::Header)
    }

    fn checked(bytes: &[u8], header_len: usize, summary: &[u8]) -> Option<Self> {
        let mut crc = crc32fast::Hasher::new();
        crc.update(bytes.get(..24)?);
        crc.update(summary);
        let checksum = crc.finalize();
        if u32_at(bytes, 24)? != checksum {
            return None;
        }
        let known = bytes[4] == ITEMS;
        let payload_len = u32_at(bytes, 12)? as usize;
        let raw_len = u32_at(bytes, 16)? as usize;
        if payload_len > MAX_PAYLOAD || raw_len > MAX_PAYLOAD {
            return None;
        }
        Some(Self {
            sequence: u32_at(bytes, 8)?,
            known,
            summary: if known { Summary::decode(summary)? } else { Summary::default() },
            header_len,
            payload_len,
            raw_len,
            payload_crc: u32_at(bytes, 20)?,
            checksum,
        })
    }

    /// Whether `payload` is what was written.
    pub(super) fn fits(&self, payload: &[u8]) -> bool {
        crc32fast::hash(payload) == self.payload_crc
    }
}

/// Appends a whole block.
pub(super) fn write(out: &mut Vec<u8>, sequence: u32, summary: &Summary, payload: &[u8], raw_len: usize) {
    let summary = summary.encode();
    let start = out.len();
    out.extend_from_slice(&SYNC);
    out.extend_from_slice(&[ITEMS, 0]);
    // 256 targets with 8 areas each stay under 64 KiB: 256 x (2 + 8 x 2) varints of at most 10 bytes; see the test.
    out.extend_from_slice(&(summary.len() as u16).to_le_bytes());
    out.extend_from_slice(&sequence.to_le_bytes());
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&(raw_len as u32).to_le_bytes());
    out.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
    let mut crc = crc32fast::Hasher::new();
    crc.update(&out[start..]);
    crc.update(&summary);
    out.extend_from_slice(&crc.finalize().to_le_bytes());
    out.extend_from_slice(&summary);
    out.extend_from_slice(payload);
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_largest_summary_fits_its_length_field() {
        let area = |i: u64| AddrRange::new(u64::MAX / 9 * i, u64::MAX / 9 * i + u64::MAX / 18);
        let target = TargetSummary {
            id: u64::MAX,
            nr_regions: u64::MAX,
            areas: (0..MAX_AREAS as u64).map(area).collect(),
        };
        let summary = Summary { targets: vec![target; MAX_TARGETS], ..Summary::default() };
        let bytes = summary.encode();
        assert!(bytes.len() <= usize::from(u16::MAX), "{}", bytes.len());
        assert_eq!(Summary::decode(&bytes), Some(summary));
    }

    proptest! {
        /// Areas stay sorted, disjoint, few, and cover every address they were given.
        #[test]
        fn areas_cover_what_was_added(ranges in prop::collection::vec((0..500_u64, 1..20_u64), 0..60)) {
            let mut target = TargetSummary::default();
            for &(start, size) in &ranges {
                target.cover(AddrRange::new(start, start + size));
            }
            prop_assert!(target.areas.len() <= MAX_AREAS);
            prop_assert!(target.areas.windows(2).all(|w| w[0].end < w[1].start));
            for &(start, size) in &ranges {
                let inside = |a: &AddrRange| a.start <= start && start + size <= a.end;
                prop_assert!(target.areas.iter().any(inside));
            }
            let lo = ranges.iter().map(|r| r.0).min();
            prop_assert_eq!(target.bounds().map(|b| b.start), lo);
            let hi = ranges.iter().map(|r| r.0 + r.1).max();
            prop_assert_eq!(target.bounds().map(|b| b.end), hi);
        }

        #[test]
        fn any_bytes_are_a_header_or_not(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            Header::parse(&bytes);
            Summary::decode(&bytes);
        }
    }
}
