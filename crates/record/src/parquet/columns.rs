//! A group's rows as columns.

use super::group::Group;
use super::intern::Interner;
use super::pages::{Chunk, Data, Encoder, Packed, Values, statistics};
use super::{ANON, MAX_CELL};
use isotherm_damon::{AddrRange, RegionSnapshot};
use parquet::errors::Result;
use parquet::file::statistics::Statistics;
use parquet::schema::types::{ColumnDescPtr, SchemaDescPtr};
use std::collections::HashMap;
use std::sync::Arc;

/// Turns groups into columns, in memory that it keeps.
pub(super) struct Columns {
    schema: SchemaDescPtr,
    encoder: Encoder,
    addresses: Interner<u64>,
    /// Accesses, as counted and in basis points, with the scale of their snapshot: see [`Count`].
    counts: Interner<u128>,
    /// Ages, with the length of the aggregation.
    ages: Interner<u64>,
    others: Interner<u64>,
    numbers: [Vec<u32>; 2],
    known: Vec<bool>,
    chunks: Vec<Chunk>,
}

/// What `nr_accesses`, its basis points and the rate are worked out from.
#[derive(Clone, Copy)]
struct Count {
    nr: u32,
    bp: u32,
    scale: u32,
    unknown: bool,
}

impl Count {
    const fn key(self) -> u128 {
        self.nr as u128 | (self.bp as u128) << 32 | (self.scale as u128) << 64 | (self.unknown as u128) << 96
    }

    const fn of(key: u128) -> Self {
        Self { nr: key as u32, bp: (key >> 32) as u32, scale: (key >> 64) as u32, unknown: key >> 96 != 0 }
    }
}

impl Columns {
    pub(super) fn new(schema: SchemaDescPtr) -> std::io::Result<Self> {
        Ok(Self {
            schema,
            encoder: Encoder::new()?,
            addresses: Interner::new(),
            counts: Interner::new(),
            ages: Interner::new(),
            others: Interner::new(),
            numbers: Default::default(),
            known: Vec::new(),
            chunks: Vec::new(),
        })
    }

    /// The columns of a group, in the order of the schema.
    pub(super) fn encode(&mut self, group: &Group) -> Result<Vec<Chunk>> {
        let snapshot =
            |value: fn(&super::group::Head) -> u64| group.heads.iter().map(move |h| (Some(value(h)), h.rows));
        self.runs(snapshot(|h| h.index), Kind::U64)?;
        self.runs(
            group.heads.iter().map(|h| (h.wall_us.map(|(start, _)| start as u64), h.rows)),
            Kind::Time,
        )?;
        self.runs(group.heads.iter().map(|h| (h.wall_us.map(|(_, end)| end as u64), h.rows)), Kind::Time)?;
        self.runs(snapshot(|h| h.start_ns), Kind::U64)?;
        self.runs(snapshot(|h| h.end_ns), Kind::U64)?;
        self.runs(group.targets.iter().map(|t| (Some(t.id), t.rows)), Kind::U64)?;
        self.runs(
            group.targets.iter().map(|t| (Some(t.who.as_ref().map_or(0, |w| u64::from(w.pid))), t.rows)),
            Kind::U32,
        )?;
        self.comms(group)?;
        self.addresses(group)?;
        self.counts(group)?;
        self.ages(group)?;
        self.mappings(group)?;
        self.evidence(&group.regions)?;
        self.runs(snapshot(|h| h.sample_ns), Kind::U64)?;
        self.items(group)?;
        Ok(std::mem::take(&mut self.chunks))
    }

    fn column(&self) -> ColumnDescPtr {
        self.schema.column(self.chunks.len())
    }

    fn push(&mut self, data: &Data<'_>) -> Result<()> {
        let chunk = self.encoder.chunk(&self.column(), data)?;
        self.chunks.push(chunk);
        Ok(())
    }

    /// A column that changes at most with the snapshot or the target: its value, or none, for so many rows.
    fn runs(&mut self, runs: impl Iterator<Item = (Option<u64>, usize)>, kind: Kind) -> Result<()> {
        self.runs_or_none(runs, kind, kind == Kind::Time)
    }

    /// The same; `nullable`: not each row has a value.
    fn runs_or_none(
        &mut self,
        runs: impl Iterator<Item = (Option<u64>, usize)>,
        kind: Kind,
        nullable: bool,
    ) -> Result<()> {
        self.others.clear();
        let mut list: Vec<(Option<u32>, usize)> = Vec::new();
        let (mut rows, mut nulls) = (0, 0);
        for (value, len) in runs.filter(|r| r.1 > 0) {
            let number = value.map(|v| self.others.number(v));
            rows += len;
            nulls += if number.is_none() { len } else { 0 };
            match list.last_mut() {
                Some((last, run)) if *last == number => *run += len,
                _ => list.push((number, len)),
            }
        }
        let keys = self.others.keys();
        let page = self.encoder.runs(&list, keys.len(), nullable)?;
        let (dictionary, statistics) = kind.dictionary(&mut self.encoder, keys, nulls)?;
        let distinct = keys.len();
        self.push(&Data { dictionary: Some(&dictionary), pages: &[(page, rows)], statistics, distinct })
    }

    fn texts(&mut self, runs: &[(Option<u32>, usize)], texts: &[&[u8]]) -> Result<()> {
        let rows = runs.iter().map(|r| r.1).sum();
        let page = self.encoder.runs(runs, texts.len(), true)?;
        let dictionary = self.encoder.plain(&Values::Text(texts), None)?;
        let distinct = texts.len();
        self.push(&Data { dictionary: Some(&dictionary), pages: &[(page, rows)], statistics: None, distinct })
    }

    fn comms(&mut self, group: &Group) -> Result<()> {
        let mut index: HashMap<&str, u32> = HashMap::new();
        let mut texts: Vec<&[u8]> = Vec::new();
        let runs: Vec<(Option<u32>, usize)> = group
            .targets
            .iter()
            .filter(|t| t.rows > 0)
            .map(|target| {
                let comm = target.who.as_ref().map(|w| w.comm.as_str()).filter(|c| !c.is_empty());
                let number = comm.map(|comm| {
                    *index.entry(comm).or_insert_with(|| {
                        texts.push(comm.as_bytes());
                        texts.len() as u32 - 1
                    })
                });
                (number, target.rows)
            })
            .collect();
        self.texts(&runs, &texts)
    }

    fn addresses(&mut self, group: &Group) -> Result<()> {
        let regions = group.regions.as_slice();
        self.addresses.clear();
        let [starts, ends] = &mut self.numbers;
        starts.clear();
        ends.clear();
        // Regions mostly end where one ended in the snapshot before: that is tried first. Up to `until` are its rows.
        let (mut before, mut until) = (0, 0);
        for head in &group.heads {
            let first = ends.len();
            for region in regions.iter().skip(first).take(head.rows) {
                let AddrRange { start, end } = region.range;
                starts.push(self.addresses.number(start));
                let known = (before..until.min(before + 2)).find(|row| regions[*row].range.end == end);
                match known {
                    Some(row) => {
                        ends.push(ends[row]);
                        self.addresses.was(end, ends[row]);
                        before = row + 1;
                    }
                    None => {
                        ends.push(self.addresses.number(end));
                        before += usize::from(regions.get(before).is_some_and(|r| r.range.end < end));
                    }
                }
            }
            (before, until) = (first, ends.len());
        }
        let keys = self.addresses.keys();
        let distinct = keys.len();
        if distinct > regions.len() {
            // Hardly a value comes twice: a dictionary is nothing but a detour.
            for end in [false, true] {
                let pick = |r: &RegionSnapshot| if end { r.range.end } else { r.range.start };
                let values: Vec<u64> = regions.iter().map(pick).collect();
                let values = Values::U64(&values);
                let page = self.encoder.plain(&values, None)?;
                let statistics = statistics(&values, 0);
                let pages = &[(page, regions.len())];
                self.push(&Data { dictionary: None, pages, statistics, distinct: 0 })?;
            }
            return Ok(());
        }
        // One dictionary serves both.
        let values = Values::U64(keys);
        let dictionary = self.encoder.plain(&values, None)?;
        let statistics = statistics(&values, 0);
        for which in 0..2 {
            let page = self.encoder.numbers(&self.numbers[which], distinct, None)?;
            let statistics = statistics.clone();
            let pages = &[(page, regions.len())];
            self.push(&Data { dictionary: Some(&dictionary), pages, statistics, distinct })?;
        }
        Ok(())
    }

    /// `nr_accesses`, its basis points, `max_nr_accesses` and the rate.
    fn counts(&mut self, group: &Group) -> Result<()> {
        self.counts.clear();
        let [numbers, rates] = &mut self.numbers;
        numbers.clear();
        rates.clear();
        self.known.clear();
        let mut scales: Vec<(u64, u32)> = Vec::new();
        let mut scale_index: HashMap<(u64, u32), usize> = HashMap::new();
        let mut regions = group.regions.iter();
        for head in &group.heads {
            let scale = (head.sample_ns, head.max_nr_accesses);
            let scale = *scale_index.entry(scale).or_insert_with(|| {
                scales.push(scale);
                scales.len() - 1
            });
            let scale_known = head.sample_ns > 0 && head.max_nr_accesses > 0;
            for region in regions.by_ref().take(head.rows) {
                let unknown = region.is_unknown() || !scale_known;
                let (nr, bp) = (region.nr_accesses, region.nr_accesses_bp);
                let number = self.counts.number(Count { nr, bp, scale: scale as u32, unknown }.key());
                numbers.push(number);
                self.known.push(!unknown);
                if !unknown {
                    rates.push(number);
                }
            }
        }
        let counts: Vec<Count> = self.counts.keys().iter().copied().map(Count::of).collect();
        let rows = self.known.len();
        let nulls = rows - rates.len();
        let distinct = counts.len();
        let page = [(self.encoder.numbers(&self.numbers[0], distinct, None)?, rows)];
        for pick in [|c: &Count| c.nr, |c: &Count| c.bp] {
            let values: Vec<u32> = counts.iter().map(pick).collect();
            let values = Values::U32(&values);
            let dictionary = self.encoder.plain(&values, None)?;
            let statistics = statistics(&values, 0);
            self.push(&Data { dictionary: Some(&dictionary), pages: &page, statistics, distinct })?;
        }
        self.runs(group.heads.iter().map(|h| (Some(u64::from(h.max_nr_accesses)), h.rows)), Kind::U32)?;
        let rate = |c: &Count| {
            let (sample_ns, max) = scales.get(c.scale as usize).copied().unwrap_or_default();
            let region =
                RegionSnapshot { nr_accesses: c.nr, nr_accesses_bp: c.bp, ..RegionSnapshot::default() };
            region.rate_hz(sample_ns, max)
        };
        let values: Vec<f64> = counts.iter().map(rate).collect();
        let rates = Values::F64(&values);
        let dictionary = self.encoder.plain(&rates, None)?;
        let known: Vec<f64> = counts.iter().filter(|c| !c.unknown).map(rate).collect();
        let statistics = statistics(&Values::F64(&known), nulls);
        let page = [(self.encoder.numbers(&self.numbers[1], distinct, Some(&self.known))?, rows)];
        self.push(&Data { dictionary: Some(&dictionary), pages: &page, statistics, distinct })
    }

    /// `age` and `age_ns`.
    fn ages(&mut self, group: &Group) -> Result<()> {
        self.ages.clear();
        let numbers = &mut self.numbers[0];
        numbers.clear();
        let mut lengths: Vec<u64> = Vec::new();
        let mut regions = group.regions.iter();
        for head in &group.heads {
            let length = match head.sample_ns.saturating_mul(u64::from(head.max_nr_accesses)) {
                0 => head.end_ns.saturating_sub(head.start_ns),
                known => known,
            };
            if lengths.last() != Some(&length) {
                lengths.push(length);
            }
            let scale = (lengths.len() as u64 - 1) << 32;
            numbers
                .extend(regions.by_ref().take(head.rows).map(|r| self.ages.number(u64::from(r.age) | scale)));
        }
        let keys = self.ages.keys();
        let distinct = keys.len();
        let rows = numbers.len();
        let ages: Vec<u32> = keys.iter().map(|&key| key as u32).collect();
        let ns = |&key: &u64| {
            lengths.get((key >> 32) as usize).copied().unwrap_or(0).saturating_mul(key & 0xffff_ffff)
        };
        let ns: Vec<u64> = keys.iter().map(ns).collect();
        let page = [(self.encoder.numbers(&self.numbers[0], distinct, None)?, rows)];
        for values in [Values::U32(&ages), Values::U64(&ns)] {
            let dictionary = self.encoder.plain(&values, None)?;
            let statistics = statistics(&values, 0);
            self.push(&Data { dictionary: Some(&dictionary), pages: &page, statistics, distinct })?;
        }
        Ok(())
    }

    fn mappings(&mut self, group: &Group) -> Result<()> {
        let numbers = &mut self.numbers[0];
        numbers.clear();
        self.known.clear();
        let mut index: HashMap<&str, u32> = HashMap::new();
        let mut texts: Vec<&[u8]> = Vec::new();
        // Of each list of mappings, the numbers of the names met so far.
        let mut lists: HashMap<*const super::group::Names, Vec<Option<u32>>> = HashMap::new();
        let mut regions = group.regions.iter();
        for target in &group.targets {
            let Some(names) = &target.names else {
                regions.by_ref().take(target.rows).for_each(|_| self.known.push(false));
                continue;
            };
            let known = lists.entry(Arc::as_ptr(names)).or_insert_with(|| vec![None; names.maps.len()]);
            let mut walk = names.walk();
            for region in regions.by_ref().take(target.rows) {
                let Some(at) = walk.main(region.range) else {
                    self.known.push(false);
                    continue;
                };
                let number = *known[at].get_or_insert_with(|| {
                    let name = match &*names.maps[at].name {
                        "" => ANON,
                        name => name,
                    };
                    *index.entry(name).or_insert_with(|| {
                        texts.push(name.as_bytes());
                        texts.len() as u32 - 1
                    })
                });
                self.known.push(true);
                numbers.push(number);
            }
        }
        let rows = self.known.len();
        let page = [(self.encoder.numbers(&self.numbers[0], texts.len(), Some(&self.known))?, rows)];
        let dictionary = self.encoder.plain(&Values::Text(&texts), None)?;
        let distinct = texts.len();
        self.push(&Data { dictionary: Some(&dictionary), pages: &page, statistics: None, distinct })
    }

    /// `seen`, `exposure`, `resident` and `idle`.
    fn evidence(&mut self, regions: &[RegionSnapshot]) -> Result<()> {
        let [seen, exposure, resident, idle] = evidence_runs(regions);
        let seen_of = |r: &RegionSnapshot| Some(u64::from(r.seen_bp));
        self.sparse(seen, regions.iter().map(seen_of), Kind::Share)?;
        self.sparse(exposure, regions.iter().map(exposure_of), Kind::U64)?;
        self.sparse(resident, regions.iter().map(|r| r.resident), Kind::U64)?;
        let idle_of = |r: &RegionSnapshot| Some(u64::from(r.idle_bp));
        self.sparse(idle, regions.iter().map(idle_of), Kind::Share)
    }

    /// A column of which each row has a value of its own, or none; `runs`, where they are few.
    fn sparse(&mut self, runs: Runs, rows: impl Iterator<Item = Option<u64>>, kind: Kind) -> Result<()> {
        if runs.list.len() <= Runs::FEW {
            return self.runs_or_none(runs.list.into_iter(), kind, kind != Kind::Share);
        }
        self.others.clear();
        let numbers = &mut self.numbers[0];
        numbers.clear();
        self.known.clear();
        for value in rows {
            self.known.push(value.is_some());
            if let Some(value) = value {
                numbers.push(self.others.number(value));
            }
        }
        let rows = self.known.len();
        let nulls = rows - numbers.len();
        let keys = self.others.keys();
        let distinct = keys.len();
        let known = (kind != Kind::Share).then_some(&self.known[..]);
        let page = [(self.encoder.numbers(&self.numbers[0], distinct, known)?, rows)];
        let (dictionary, statistics) = kind.dictionary(&mut self.encoder, keys, nulls)?;
        self.push(&Data { dictionary: Some(&dictionary), pages: &page, statistics, distinct })
    }

    /// The items that are no regions: hardly any row has one, and those that have may be long.
    fn items(&mut self, group: &Group) -> Result<()> {
        let rows = group.regions.len();
        if rows == 0 {
            let texts: Vec<&[u8]> = group.lone.iter().map(|text| text.as_bytes()).collect();
            return self.texts(&[], &texts);
        }
        let mut pages: Vec<(Packed, usize)> = Vec::new();
        let mut cells = group.items.iter().peekable();
        let mut from = 0;
        while from < rows || pages.is_empty() {
            let mut texts: Vec<&[u8]> = Vec::new();
            let mut len = 0;
            let mut to = rows;
            self.known.clear();
            while let Some((row, cell)) = cells.peek() {
                if !texts.is_empty() && len + cell.len() > MAX_CELL {
                    to = *row;
                    break;
                }
                self.known.resize(row - from, false);
                self.known.push(true);
                len += cell.len();
                texts.push(cell.as_bytes());
                cells.next();
            }
            self.known.resize(to - from, false);
            pages.push((self.encoder.plain(&Values::Text(&texts), Some(&self.known))?, to - from));
            from = to;
        }
        self.push(&Data { dictionary: None, pages: &pages, statistics: None, distinct: 0 })
    }
}

/// The values of a column and for how many rows each, as long as they are few: most backends know little evidence, and hardly any
/// region is idle in part.
#[derive(Default)]
struct Runs {
    list: Vec<(Option<u64>, usize)>,
}

impl Runs {
    /// Beyond so many, numbers are as short. A guess.
    const FEW: usize = 64;

    fn add(&mut self, value: Option<u64>, rows: usize) {
        let many = self.list.len() > Self::FEW;
        match self.list.last_mut() {
            Some((last, all)) if *last == value => *all += rows,
            _ if many => {}
            _ => self.list.push((value, rows)),
        }
    }
}

fn exposure_of(region: &RegionSnapshot) -> Option<u64> {
    (region.exposure != RegionSnapshot::COUNTED).then_some(u64::from(region.exposure))
}

/// Those of `seen`, `exposure`, `resident` and `idle`, in one pass: the rows of a group are more than a cache holds.
fn evidence_runs(regions: &[RegionSnapshot]) -> [Runs; 4] {
    let mut runs: [Runs; 4] = Default::default();
    let same = |a: &RegionSnapshot, b: &RegionSnapshot| {
        (a.seen_bp, a.exposure, a.resident, a.idle_bp) == (b.seen_bp, b.exposure, b.resident, b.idle_bp)
    };
    for alike in regions.chunk_by(same) {
        let Some(r) = alike.first() else { continue };
        let values = [Some(u64::from(r.seen_bp)), exposure_of(r), r.resident, Some(u64::from(r.idle_bp))];
        runs.iter_mut().zip(values).for_each(|(runs, value)| runs.add(value, alike.len()));
        if runs.iter().all(|runs| runs.list.len() > Runs::FEW) {
            break;
        }
    }
    runs
}

/// What the values of a column are.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    U32,
    U64,
    /// Wall-clock time, or none.
    Time,
    /// Basis points, told as a share.
    Share,
}

impl Kind {
    fn dictionary(
        self,
        encoder: &mut Encoder,
        keys: &[u64],
        nulls: usize,
    ) -> Result<(Packed, Option<Statistics>)> {
        let (narrow, signed, shares): (Vec<u32>, Vec<i64>, Vec<f64>);
        let values = match self {
            Self::U64 => Values::U64(keys),
            Self::U32 => {
                narrow = keys.iter().map(|&v| v as u32).collect();
                Values::U32(&narrow)
            }
            Self::Time => {
                signed = keys.iter().map(|&v| v as i64).collect();
                Values::I64(&signed)
            }
            Self::Share => {
                shares = keys.iter().map(|&bp| bp as f64 / 10_000.0).collect();
                Values::F64(&shares)
            }
        };
        Ok((encoder.plain(&values, None)?, statistics(&values, nulls)))
    }
}
