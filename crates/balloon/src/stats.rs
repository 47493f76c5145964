//! Statistics of the guest's memory (virtio 1.3, 5.5.6.3 and 5.5.6.4; the tags from 10 on as Linux 6.12 defines them).

/// What a statistic is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum Stat {
    /// Memory swapped in, bytes.
    SwapIn = 0,
    /// Memory swapped out, bytes.
    SwapOut = 1,
    /// Major page faults, number.
    MajorFaults = 2,
    /// Minor page faults, number.
    MinorFaults = 3,
    /// Memory used for nothing, bytes.
    FreeMemory = 4,
    /// Memory the guest has, bytes.
    TotalMemory = 5,
    /// Estimate of the memory available without swapping, bytes.
    AvailableMemory = 6,
    /// Memory that can be reclaimed without I/O, bytes.
    DiskCaches = 7,
    /// Huge pages of hugetlb allocated, number.
    HugetlbAllocations = 8,
    /// Allocations of huge pages of hugetlb that failed, number.
    HugetlbFailures = 9,
    /// Invocations of the out-of-memory killer, number.
    OomKills = 10,
    /// Allocations that stalled, number.
    AllocStalls = 11,
    /// Memory scanned in the background, bytes.
    AsyncScans = 12,
    /// Memory scanned by allocating tasks, bytes.
    DirectScans = 13,
    /// Memory reclaimed in the background, bytes.
    AsyncReclaims = 14,
    /// Memory reclaimed by allocating tasks, bytes.
    DirectReclaims = 15,
}

impl Stat {
    /// All statistics, by tag.
    pub const ALL: [Self; 16] = [
        Self::SwapIn,
        Self::SwapOut,
        Self::MajorFaults,
        Self::MinorFaults,
        Self::FreeMemory,
        Self::TotalMemory,
        Self::AvailableMemory,
        Self::DiskCaches,
        Self::HugetlbAllocations,
        Self::HugetlbFailures,
        Self::OomKills,
        Self::AllocStalls,
        Self::AsyncScans,
        Self::DirectScans,
        Self::AsyncReclaims,
        Self::DirectReclaims,
    ];

    /// The number on the wire.
    pub const fn tag(self) -> u16 {
        self as u16
    }

    /// The statistic of a tag, if it is known.
    pub fn from_tag(tag: u16) -> Option<Self> {
        Self::ALL.get(usize::from(tag)).copied()
    }
}

/// Size of an entry in bytes: tag of 16 bits, value of 64 bits, packed.
pub const ENTRY_SIZE: usize = 10;

/// A set of statistics: a value for each that is supplied.
///
/// A driver must supply the same subset every time (5.5.6.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats([Option<u64>; Stat::ALL.len()]);

impl Stats {
    /// Size in bytes of all statistics in the form of the wire.
    pub const MAX_SIZE: usize = Stat::ALL.len() * ENTRY_SIZE;

    /// No statistics.
    pub const fn new() -> Self {
        Self([None; Stat::ALL.len()])
    }

    /// The same with one more, for chains: `Stats::new().with(Stat::FreeMemory, 1 << 20)`.
    #[must_use]
    pub fn with(mut self, stat: Stat, value: u64) -> Self {
        self.set(stat, value);
        self
    }

    /// Sets a value.
    pub fn set(&mut self, stat: Stat, value: u64) {
        self.0[usize::from(stat.tag())] = Some(value);
    }

    /// A value, if it is supplied.
    pub fn get(&self, stat: Stat) -> Option<u64> {
        self.0[usize::from(stat.tag())]
    }

    /// What is supplied, by tag.
    pub fn iter(&self) -> impl Iterator<Item = (Stat, u64)> + '_ {
        Stat::ALL.into_iter().filter_map(|stat| Some((stat, self.get(stat)?)))
    }

    /// Writes the entries into `buffer`, little-endian (or in the guest's own order for a legacy device), and
    /// returns the number of bytes. What does not fit is left out; [`MAX_SIZE`](Self::MAX_SIZE) bytes fit all.
    pub fn encode(&self, buffer: &mut [u8], legacy: bool) -> usize {
        let mut used = 0;
        for ((stat, value), entry) in self.iter().zip(buffer.chunks_exact_mut(ENTRY_SIZE)) {
            let (tag, value) = if legacy {
                (stat.tag().to_ne_bytes(), value.to_ne_bytes())
            } else {
                (stat.tag().to_le_bytes(), value.to_le_bytes())
            };
            entry[..2].copy_from_slice(&tag);
            entry[2..].copy_from_slice(&value);
            used += ENTRY_SIZE;
        }
        used
    }

    /// Reads entries; the inverse of [`encode`](Self::encode). Unknown tags are ignored, as is an incomplete entry
    /// at the end; of several entries with one tag the last holds.
    pub fn decode(buffer: &[u8], legacy: bool) -> Self {
        let mut stats = Self::new();
        for entry in buffer.chunks_exact(ENTRY_SIZE) {
            let (&[t0, t1, ref value @ ..], _) =
                entry.split_first_chunk::<ENTRY_SIZE>().unwrap_or((&[0; 10], &[]));
            let (tag, value) = if legacy {
                (u16::from_ne_bytes([t0, t1]), u64::from_ne_bytes(*value))
            } else {
                (u16::from_le_bytes([t0, t1]), u64::from_le_bytes(*value))
            };
            if let Some(stat) = Stat::from_tag(tag) {
                stats.set(stat, value);
            }
        }
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_those_of_the_specification() {
        for (tag, stat) in Stat::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(stat.tag()), tag);
            assert_eq!(Stat::from_tag(tag as u16), Some(stat));
        }
        assert_eq!(Stat::from_tag(16), None);
        assert_eq!(Stat::FreeMemory.tag(), 4);
        assert_eq!(Stat::DirectReclaims.tag(), 15);
    }

    #[test]
    fn entries_are_ten_packed_bytes() {
        let mut buffer = [0; Stats::MAX_SIZE];
        let stats = Stats::new().with(Stat::TotalMemory, 0x0102_0304_0506_0708).with(Stat::SwapIn, 9);
        assert_eq!(stats.encode(&mut buffer, false), 20);
        assert_eq!(buffer[..20], [0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 5, 0, 8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(Stats::decode(&buffer[..20], false), stats);
    }

    #[test]
    fn strange_entries_are_passed_over() {
        let mut bytes = [0xff; 35];
        bytes[10..12].copy_from_slice(&[4, 0]);
        bytes[12..20].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Stats::decode(&bytes, false), Stats::new().with(Stat::FreeMemory, 1));
        assert_eq!(Stats::decode(&[], false), Stats::new());
    }

    #[test]
    fn a_short_buffer_takes_whole_entries_only() {
        let mut buffer = [0; 19];
        let stats = Stats::new().with(Stat::SwapIn, 1).with(Stat::SwapOut, 2);
        assert_eq!(stats.encode(&mut buffer, false), 10);
        assert_eq!(Stats::decode(&buffer[..10], false), Stats::new().with(Stat::SwapIn, 1));
    }
}
