//! Recordings made without a process to monitor, for tests, measurements and demonstrations.
//!
//! A miniature of DAMON (kernel design document, "Monitoring") runs over an address space whose every chunk has an access
//! rate of its own that changes now and then: one random look at each region a sampling interval, merge, snapshot,
//! split. So the regions move and age as those of a real run do, which is what matters to the size of a recording and
//! the speed of reading it. It is no substitute for a monitor: the number of looks is drawn, not counted.

use crate::{
    Backend, End, Error, Format, Header, Item, ItemReader, Mapping, Mappings, RecordedAttrs, TargetInfo,
    Warning,
};
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};

const PAGE: u64 = 4096;
/// The areas of a target, in pages: heap, mmap area and stack of an ordinary 64-bit process.
const AREAS: [(&str, u64, u64); 3] = [
    ("[heap]", 0x5_5555_5756, 48 << 10),
    ("", 0x7_ffff_7000 - (384 << 10), 384 << 10),
    ("[stack]", 0x7_ffff_ffde, 33),
];
/// Chunk of memory with one access rate, in pages.
const CHUNK: u64 = 512;
/// Shares of sampling intervals in which a chunk is accessed: mostly cold.
const RATES: [f64; 16] = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.02, 0.05, 0.15, 0.4, 0.7, 1.0, 1.0];

/// What recording to make.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The same seed makes the same recording.
    pub seed: u64,
    /// Targets in each snapshot; at least 1.
    pub nr_targets: u64,
    /// Snapshots go on until there are so many regions in all.
    pub nr_regions: u64,
    /// Upper bound of the regions of a target; about three quarters of it are the rule.
    pub max_nr_regions: usize,
    /// Sampling interval, ns; an aggregation takes 20 of them.
    pub sample_ns: u64,
    /// Rates finer than one access an aggregation, as a backend that estimates them hands out.
    pub fractions: bool,
}

impl Default for Shape {
    /// 1 million regions of one target at DAMON's default attributes.
    fn default() -> Self {
        Self {
            seed: 1,
            nr_targets: 1,
            nr_regions: 1_000_000,
            max_nr_regions: 1000,
            sample_ns: 5_000_000,
            fractions: false,
        }
    }
}

/// Samples in an aggregation.
const SAMPLES: u32 = 20;

/// A recording that is made while it is read.
pub struct Synthetic {
    shape: Shape,
    random: Random,
    targets: Vec<Target>,
    now_ns: u64,
    regions_made: u64,
    opening: std::vec::IntoIter<Item>,
    other: Item,
    snapshot: Item,
    ended: bool,
}

impl Synthetic {
    /// A recording of this shape.
    pub fn new(shape: Shape) -> Self {
        let started_ns = 1_000_000_000_000;
        let attrs = RecordedAttrs {
            sample_us: shape.sample_ns / 1000,
            aggr_us: shape.sample_ns / 1000 * u64::from(SAMPLES),
            update_us: 1_000_000,
            min_nr_regions: 10,
            max_nr_regions: shape.max_nr_regions as u64,
        };
        let mut opening = vec![Item::Header(Header {
            producer: concat!("isotherm ", env!("CARGO_PKG_VERSION"), " (synthetic)").to_owned(),
            started_ns,
            page_size: PAGE,
            attrs,
            backend: Backend { name: "synthetic".to_owned(), ..Backend::default() },
            ..Header::default()
        })];
        for id in Self::ids(&shape) {
            let comm = format!("synthetic-{id}");
            opening.push(Item::Target(TargetInfo {
                id,
                pid: u32::try_from(id).unwrap_or_default(),
                cmdline: vec![comm.clone()],
                comm,
                time_ns: started_ns,
                ..TargetInfo::default()
            }));
            let maps = AREAS
                .iter()
                .map(|&(name, start, pages)| Mapping {
                    start: start * PAGE,
                    end: (start + pages) * PAGE,
                    perms: "rw-p".into(),
                    name: name.into(),
                    ..Mapping::default()
                })
                .collect();
            opening.push(Item::Mappings(Mappings {
                target: id,
                time_ns: started_ns,
                maps,
                ..Mappings::default()
            }));
        }
        Self {
            shape,
            random: Random(shape.seed),
            targets: Self::ids(&shape).map(|id| Target::new(id, shape.seed)).collect(),
            now_ns: started_ns,
            regions_made: 0,
            opening: opening.into_iter(),
            other: Item::End(End::default()),
            snapshot: Item::Snapshot(Snapshot::default()),
            ended: false,
        }
    }

    fn ids(shape: &Shape) -> impl Iterator<Item = u64> {
        4001..4001 + shape.nr_targets.max(1)
    }

    fn aggregate(&mut self) {
        let Item::Snapshot(snapshot) = &mut self.snapshot else { return };
        snapshot.start_ns = self.now_ns;
        // Timers come a little late, never early.
        self.now_ns += self.shape.sample_ns * u64::from(SAMPLES) + self.random.below(60_000);
        snapshot.end_ns = self.now_ns;
        snapshot.sample_ns = self.shape.sample_ns;
        snapshot.max_nr_accesses = SAMPLES;
        snapshot.targets.resize_with(self.targets.len(), TargetSnapshot::default);
        for (target, out) in self.targets.iter_mut().zip(&mut snapshot.targets) {
            target.aggregate(&mut self.random, self.shape.max_nr_regions, self.shape.fractions);
            out.id = TargetId(target.id);
            out.regions.clear();
            out.regions.extend(target.regions.iter().map(Region::out));
            self.regions_made += out.regions.len() as u64;
            target.split(&mut self.random, self.shape.max_nr_regions);
        }
    }
}

impl ItemReader for Synthetic {
    fn next_ref(&mut self) -> Result<Option<&Item>, Error> {
        if let Some(item) = self.opening.next() {
            self.other = item;
            return Ok(Some(&self.other));
        }
        if self.regions_made < self.shape.nr_regions {
            self.aggregate();
            return Ok(Some(&self.snapshot));
        }
        if self.ended {
            return Ok(None);
        }
        self.ended = true;
        let reason = "as many regions as asked for".to_owned();
        self.other = Item::End(End { time_ns: self.now_ns, reason, blind_spots: Vec::new() });
        Ok(Some(&self.other))
    }

    fn format(&self) -> Format {
        Format::Rec
    }

    fn warnings(&self) -> &[Warning] {
        &[]
    }
}

/// A region while it is monitored; addresses in pages.
#[derive(Clone, Copy, Debug)]
struct Region {
    start: u64,
    end: u64,
    nr: u32,
    bp: u32,
    last: u32,
    age: u32,
}

impl Region {
    fn out(&self) -> RegionSnapshot {
        RegionSnapshot {
            range: AddrRange::new(self.start * PAGE, self.end * PAGE),
            nr_accesses: self.nr,
            nr_accesses_bp: self.bp,
            age: self.age,
            ..RegionSnapshot::default()
        }
    }

    const fn pages(&self) -> u64 {
        self.end - self.start
    }
}

struct Target {
    id: u64,
    regions: Vec<Region>,
    /// Index into [`RATES`] of each chunk of each area.
    rates: Vec<Vec<u8>>,
    pages: u64,
    last_nr_regions: usize,
}

impl Target {
    fn new(id: u64, seed: u64) -> Self {
        let mut random = Random(seed ^ id);
        let region = |start, end| Region { start, end, nr: 0, bp: 0, last: 0, age: 0 };
        Self {
            id,
            regions: AREAS.iter().map(|&(_, start, pages)| region(start, start + pages)).collect(),
            rates: AREAS
                .iter()
                .map(|&(_, _, pages)| (0..pages.div_ceil(CHUNK)).map(|_| random.rate()).collect())
                .collect(),
            pages: AREAS.iter().map(|a| a.2).sum(),
            last_nr_regions: 0,
        }
    }

    /// Share of looks at random pages of a region that find an access.
    fn rate(&self, region: &Region) -> f64 {
        let Some((area, rates)) = AREAS.iter().zip(&self.rates).rfind(|(a, _)| a.1 <= region.start) else {
            return 0.0;
        };
        let (first, last) = ((region.start - area.1) / CHUNK, (region.end - 1 - area.1) / CHUNK);
        let chunks = rates.get(first as usize..=last as usize).unwrap_or_default();
        chunks.iter().map(|&i| RATES[usize::from(i)]).sum::<f64>() / chunks.len().max(1) as f64
    }

    fn aggregate(&mut self, random: &mut Random, max_nr_regions: usize, fractions: bool) {
        // About one chunk in 500 changes its rate in an aggregation.
        for _ in 0..self.pages / CHUNK / 500 + 1 {
            let area = random.below(self.rates.len() as u64) as usize;
            let chunk = random.below(self.rates[area].len() as u64) as usize;
            self.rates[area][chunk] = random.rate();
        }
        let mut highest = 0;
        for i in 0..self.regions.len() {
            let rate = self.rate(&self.regions[i]);
            let nr = random.looks(rate);
            let bp = if fractions && nr > 0 && nr < SAMPLES {
                nr * 10_000 - 5000 + random.below(100) as u32 * 100
            } else {
                nr * 10_000
            };
            let region = &mut self.regions[i];
            region.nr = nr;
            region.bp = bp;
            highest = highest.max(nr);
        }
        let threshold = highest / 10;
        for region in &mut self.regions {
            region.age = if region.nr.abs_diff(region.last) > threshold { 0 } else { region.age + 1 };
            region.last = region.nr;
        }
        let mut threshold = threshold;
        loop {
            self.merge(threshold, self.pages / 10, fractions);
            threshold = (threshold * 2).max(1);
            if self.regions.len() <= max_nr_regions || threshold > SAMPLES {
                break;
            }
        }
    }

    fn merge(&mut self, threshold: u32, max_pages: u64, fractions: bool) {
        self.regions.dedup_by(|b, a| {
            let pages = a.pages() + b.pages();
            if a.end != b.start || a.nr.abs_diff(b.nr) > threshold || pages > max_pages {
                return false;
            }
            let sizes = (a.pages(), b.pages());
            let mean = |x: u32, y: u32| ((u64::from(x) * sizes.0 + u64::from(y) * sizes.1) / pages) as u32;
            (a.nr, a.age) = (mean(a.nr, b.nr), mean(a.age, b.age));
            // As the kernel does, where nothing finer is known.
            a.bp = if fractions { mean(a.bp, b.bp) / 100 * 100 } else { a.nr * 10_000 };
            a.last = a.nr;
            a.end = b.end;
            true
        });
    }

    fn split(&mut self, random: &mut Random, max_nr_regions: usize) {
        let count = self.regions.len();
        if count > max_nr_regions / 2 {
            return;
        }
        let pieces = if count == self.last_nr_regions && count < max_nr_regions / 3 { 3 } else { 2 };
        self.last_nr_regions = count;
        let mut split = Vec::with_capacity(count * pieces);
        for &region in &self.regions {
            let mut rest = region;
            for _ in 1..pieces {
                let left = rest.pages() * (1 + random.below(9)) / 10;
                if left > 0 && left < rest.pages() {
                    split.push(Region { end: rest.start + left, ..rest });
                    rest.start += left;
                }
            }
            split.push(rest);
        }
        self.regions = split;
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, seeded, good enough for this.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn rate(&mut self) -> u8 {
        self.below(RATES.len() as u64) as u8
    }

    /// Hits among the looks of an aggregation.
    fn looks(&mut self, rate: f64) -> u32 {
        if rate <= 0.0 || rate >= 1.0 {
            return if rate > 0.0 { SAMPLES } else { 0 };
        }
        let limit = (rate * f64::from(u32::MAX)) as u64;
        (0..SAMPLES).filter(|_| self.next() >> 32 < limit).count() as u32
    }
}
