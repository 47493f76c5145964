//! Reading back what was written here.

use super::chunk::{Fault, MAX_PAGE, Numbers, Texts, numbers};
use super::footer::{COLUMNS, Footer, GroupAt, IDLE, ITEMS, SAMPLE_NS};
use super::{Bare, KEY_CRC, KEY_HEADER, KEY_ITEMS, hex};
use crate::rec::{MAX_REGIONS, Notes};
use crate::{Error, Format, Header, Item, ItemReader, Warning};
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Most rows of a group that is read: a snapshot of the largest size behind a group that is nearly full.
pub(super) const MAX_ROWS: usize = MAX_REGIONS + 2 * super::GROUP_ROWS;

/// What a file begins and ends with.
const MAGIC: &[u8; 4] = b"PAR1";

/// Reads Parquet that was written here.
pub(crate) struct Reader {
    file: File,
    name: String,
    footer: Footer,
    notes: Notes,
    header: Option<Header>,
    /// The group at hand, and the next row in it.
    group: Group,
    row: usize,
    /// Text of other items, and how far it was read.
    text: Vec<u8>,
    at: usize,
    /// The text of the row at hand was taken.
    row_text: bool,
    /// What no snapshot follows.
    tail: bool,
    /// Number of the snapshot that is being put together.
    building: Option<u64>,
    snapshot: Snapshot,
    /// Its regions, and its targets that have none.
    regions: usize,
    bare: Vec<(usize, u64)>,
    item: Item,
    last_ns: u64,
    unknown: u64,
    ended: bool,
    warnings: Vec<Warning>,
}

/// Whether the `nth` of the writer's checksums, if there is any, is that of `text`.
fn fits(footer: &Footer, nth: usize, text: &[u8]) -> bool {
    footer.checksum(nth).is_none_or(|crc| *crc == *hex(crc32fast::hash(text)).as_bytes())
}

/// A row group in memory.
#[derive(Default)]
struct Group {
    rows: usize,
    columns: [Numbers; COLUMNS.len()],
    sample_ns: Numbers,
    idle: Numbers,
    texts: Texts,
}

impl Group {
    fn load(file: &File, footer: &Footer, at: &GroupAt) -> Result<Self, Fault> {
        let rows = usize::try_from(at.rows).ok().filter(|&rows| rows <= MAX_ROWS);
        let rows = rows.ok_or(Fault::Bad("a row group has more rows than those that are written here"))?;
        let mut group = Self { rows, ..Self::default() };
        group.texts = Texts::new(at.chunks[ITEMS], footer.kind(ITEMS))?;
        if rows == 0 {
            return Ok(group);
        }
        let column = |index: usize| numbers(file, at.chunks[index], footer.kind(index), rows);
        for (index, values) in group.columns.iter_mut().enumerate() {
            *values = column(index)?;
        }
        group.sample_ns = column(SAMPLE_NS)?;
        if footer.has(IDLE) {
            group.idle = column(IDLE)?;
        }
        Ok(group)
    }

    /// A number of a row; 0 where there is none.
    fn value(&self, column: usize, row: usize) -> u64 {
        self.columns.get(column).and_then(|c| c.values.get(row)).copied().unwrap_or(0)
    }

    fn known(&self, column: usize, row: usize) -> Option<u64> {
        let known = self.columns.get(column)?.known.get(row)?;
        known.then(|| self.value(column, row))
    }

    fn region(&self, row: usize) -> RegionSnapshot {
        let narrow = |column| u32::try_from(self.value(column, row)).unwrap_or(u32::MAX);
        let seen = f64::from_bits(self.value(10, row));
        let idle = self.idle.values.get(row).map_or(0.0, |bits| f64::from_bits(*bits));
        RegionSnapshot {
            range: AddrRange::new(self.value(4, row), self.value(5, row)),
            nr_accesses: narrow(6),
            nr_accesses_bp: narrow(7),
            age: narrow(9),
            // The cast saturates, and is 0 of what is no number.
            seen_bp: ((seen * 10_000.0).round() as u16).min(10_000),
            exposure: self
                .known(11, row)
                .map_or(RegionSnapshot::COUNTED, |n| u32::try_from(n).unwrap_or(RegionSnapshot::COUNTED)),
            resident: self.known(12, row),
            idle_bp: ((idle * 10_000.0).round() as u16).min(9999),
        }
    }
}

/// What comes next.
enum Step {
    Snapshot,
    Item,
    End,
}

impl Reader {
    pub(crate) fn new(file: File, name: String) -> Result<Self, Error> {
        let malformed =
            |why: &str| Error::Malformed { file: name.clone(), format: Format::Parquet, why: why.to_owned() };
        let io = |e| Error::io("read", &name, e);
        let len = file.metadata().map_err(io)?.len();
        let mut tail = [0; 8];
        let cut = "it is cut off: its end, which tells what it holds, is not there";
        let tail_at = len.checked_sub(12).ok_or_else(|| malformed(cut))?;
        file.read_exact_at(&mut tail, tail_at + 4).map_err(io)?;
        let [a, b, c, d, magic @ ..] = tail;
        let footer_len = u64::from(u32::from_le_bytes([a, b, c, d]));
        if magic != *MAGIC {
            return Err(malformed(cut));
        }
        if footer_len > tail_at || footer_len > MAX_PAGE as u64 {
            return Err(malformed("its end, which tells what it holds, makes no sense"));
        }
        let mut footer = vec![0; footer_len as usize];
        file.read_exact_at(&mut footer, tail_at + 4 - footer_len).map_err(io)?;
        let footer = Footer::parse(footer);
        let footer = footer.ok_or_else(|| malformed("its end, which tells what it holds, makes no sense"))?;
        let mut missing = footer.missing();
        // Files of earlier versions have neither.
        if footer.value(KEY_CRC).is_some() && !footer.has(IDLE) {
            missing.push("idle");
        }
        if !missing.is_empty() {
            return Err(Error::Unsupported {
                file: name,
                why: format!(
                    "this Parquet file is no recording that this version of isotherm wrote: it has no column {}",
                    missing.join(", ")
                ),
            });
        }
        if let Some(nth) = footer.overlapping() {
            return Err(malformed(&format!(
                "row group {} claims bytes that belong to another column or row group: data would be counted twice",
                nth + 1
            )));
        }
        if footer.displaced {
            return Err(malformed(
                "its end, which tells where columns lie, is damaged: its checksum does not fit",
            ));
        }
        let header =
            footer.value(KEY_HEADER).filter(|text| fits(&footer, 0, text)).map(serde_json::from_slice);
        let mut warnings = Vec::new();
        let header = match header {
            Some(Ok(header)) => header,
            _ => {
                warnings.push(Warning::HeaderLost);
                Header::default()
            }
        };
        Ok(Self {
            file,
            name,
            footer,
            notes: Notes::default(),
            header: Some(header),
            group: Group::default(),
            row: 0,
            text: Vec::new(),
            at: 0,
            row_text: false,
            tail: false,
            building: None,
            snapshot: Snapshot::default(),
            regions: 0,
            bare: Vec::new(),
            item: Item::Header(Header::default()),
            last_ns: 0,
            unknown: 0,
            ended: false,
            warnings,
        })
    }

    fn step(&mut self) -> Result<Step, Fault> {
        loop {
            if let Some(step) = self.line()? {
                return Ok(step);
            }
            if self.row == self.group.rows {
                let next = self.footer.next_group();
                match next.ok_or(Fault::Bad("its end makes no sense"))? {
                    Some(at) => {
                        self.group = Group::default();
                        self.group = Group::load(&self.file, &self.footer, &at)?;
                        self.row = 0;
                        self.row_text = false;
                        if self.group.rows == 0 {
                            self.text = self.group.texts.lone(&self.file)?;
                            self.at = 0;
                            if self.building.is_some() {
                                return self.built();
                            }
                        }
                        continue;
                    }
                    None if self.building.is_some() => return self.built(),
                    None if !std::mem::replace(&mut self.tail, true) => {
                        let items = self.footer.value(KEY_ITEMS).unwrap_or_default();
                        if !fits(&self.footer, 1, items) {
                            return Err(Fault::Bad(
                                "what it says behind its last snapshot is damaged: its checksum does not fit",
                            ));
                        }
                        self.text = items.to_vec();
                        self.at = 0;
                        continue;
                    }
                    None => return Ok(Step::End),
                }
            }
            let row = self.row;
            let index = self.group.value(0, row);
            if self.building.is_some_and(|building| building != index) {
                return self.built();
            }
            if !std::mem::replace(&mut self.row_text, true)
                && let Some(text) = self.group.texts.next(&self.file)?
            {
                self.text = text;
                self.at = 0;
                continue;
            }
            if self.building.is_none() {
                self.building = Some(index);
                self.snapshot.start_ns = self.group.value(1, row);
                self.snapshot.end_ns = self.group.value(2, row);
                self.snapshot.sample_ns = self.group.sample_ns.values.get(row).copied().unwrap_or(0);
                self.snapshot.max_nr_accesses = u32::try_from(self.group.value(8, row)).unwrap_or(u32::MAX);
                self.snapshot.targets.clear();
                self.regions = 0;
            }
            self.regions += 1;
            if self.regions > MAX_REGIONS {
                return Err(Fault::Bad("a snapshot has more regions than a recording holds"));
            }
            let id = TargetId(self.group.value(3, row));
            let region = self.group.region(row);
            match self.snapshot.targets.last_mut() {
                Some(last) if last.id == id => last.regions.push(region),
                _ => self.snapshot.targets.push(TargetSnapshot::new(id, vec![region])),
            }
            self.row += 1;
            self.row_text = false;
        }
    }

    /// Completes the snapshot that was put together.
    fn built(&mut self) -> Result<Step, Fault> {
        self.building = None;
        if !self.bare.is_empty() {
            let mut with = self.snapshot.targets.drain(..);
            let mut bare = self.bare.drain(..).peekable();
            let mut all = Vec::new();
            loop {
                if let Some((_, id)) = bare.next_if(|(place, _)| *place <= all.len()) {
                    all.push(TargetSnapshot::new(TargetId(id), Vec::new()));
                } else if let Some(target) = with.next() {
                    all.push(target);
                } else if let Some((_, id)) = bare.next() {
                    all.push(TargetSnapshot::new(TargetId(id), Vec::new()));
                } else {
                    break;
                }
            }
            drop(with);
            drop(bare);
            self.snapshot.targets = all;
        }
        self.last_ns = self.snapshot.end_ns;
        Ok(Step::Snapshot)
    }

    /// The next item of the text at hand.
    fn line(&mut self) -> Result<Option<Step>, Fault> {
        while let Some(rest) = self.text.get(self.at..).filter(|rest| !rest.is_empty()) {
            let len = rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
            let line = &rest[..len];
            self.at += len + 1;
            let Some((kind, json)) =
                line.iter().position(|&b| b == b' ').map(|at| (&line[..at], &line[at + 1..]))
            else {
                self.unknown += 1;
                continue;
            };
            if let b"s" | b"t" = kind {
                let Ok(bare) = serde_json::from_slice::<Bare>(json) else {
                    self.unknown += 1;
                    continue;
                };
                if kind == b"t" {
                    self.bare = bare.bare;
                    continue;
                }
                self.last_ns = bare.end_ns;
                let targets =
                    bare.targets.into_iter().map(|id| TargetSnapshot::new(TargetId(id), Vec::new()));
                self.item = Item::Snapshot(Snapshot {
                    start_ns: bare.start_ns,
                    end_ns: bare.end_ns,
                    sample_ns: bare.sample_ns,
                    max_nr_accesses: u32::try_from(bare.max_nr_accesses).unwrap_or(u32::MAX),
                    targets: targets.take(MAX_REGIONS).collect(),
                });
                return Ok(Some(Step::Item));
            }
            let kind = std::str::from_utf8(kind).ok().and_then(|kind| kind.parse().ok());
            match kind.and_then(|kind| self.notes.decode(kind, json)) {
                Some(item) => {
                    self.item = item;
                    return Ok(Some(Step::Item));
                }
                None => self.unknown += 1,
            }
        }
        Ok(None)
    }
}

impl ItemReader for Reader {
    fn next_ref(&mut self) -> Result<Option<&Item>, Error> {
        if let Some(header) = self.header.take() {
            self.item = Item::Header(header);
            return Ok(Some(&self.item));
        }
        if self.ended {
            return Ok(None);
        }
        match self.step() {
            Ok(Step::Snapshot) => {
                // Its memory goes along; the next one is put together in new memory.
                self.item = Item::Snapshot(std::mem::take(&mut self.snapshot));
                Ok(Some(&self.item))
            }
            Ok(Step::Item) => Ok(Some(&self.item)),
            Err(Fault::Io(e)) => Err(Error::io("read", &self.name, e)),
            step => {
                self.ended = true;
                if let Err(Fault::Bad(why)) = step {
                    self.warnings.push(Warning::Stopped { why: why.to_owned(), last_ns: self.last_ns });
                }
                if self.unknown > 0 {
                    let what = "items of a kind this version does not know";
                    self.warnings.push(Warning::Skipped { count: self.unknown, what });
                }
                Ok(None)
            }
        }
    }

    fn format(&self) -> Format {
        Format::Parquet
    }

    fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}
