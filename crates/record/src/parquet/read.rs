//! Reading back what was written here.

use super::chunk::{Fault, MAX_PAGE};
use super::footer::{Footer, GroupAt, IDLE, ITEMS};
use super::rows::Group;
use super::{Bare, KEY_CRC, KEY_HEADER, KEY_ITEMS, hex};
use crate::rec::{MAX_REGIONS, Notes, Undecoded};
use crate::{Error, Format, Header, Item, ItemReader, Warning};
use isotherm_damon::{AddrRange, Snapshot, TargetId, TargetSnapshot};
use std::fs::File;
use std::os::unix::fs::FileExt;

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
    /// Changes of mappings whose beginning was lost.
    orphans: u64,
    ended: bool,
    /// Damage since the last snapshot, not reported yet.
    damage: Option<Damage>,
    /// The next snapshot may lack regions, which stood in a damaged group.
    broken: bool,
    /// The one that is left out for that.
    left_out: Option<u64>,
    warnings: Vec<Warning>,
    more_warnings: u64,
}

/// Most stretches of damage that are reported one by one.
const MAX_WARNINGS: usize = 64;

/// Groups that cannot be read, one behind another.
struct Damage {
    range: AddrRange,
    why: &'static str,
    /// End of the last snapshot before.
    from_ns: u64,
}

/// Whether the `nth` of the writer's checksums, if there is any, is that of `text`.
fn fits(footer: &Footer, nth: usize, text: &[u8]) -> bool {
    footer.checksum(nth).is_none_or(|crc| *crc == *hex(crc32fast::hash(text)).as_bytes())
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
            orphans: 0,
            ended: false,
            damage: None,
            broken: false,
            left_out: None,
            warnings,
            more_warnings: 0,
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
                        let (group, damage) = Group::load(&self.file, &self.footer, &at)?;
                        (self.group, self.row, self.row_text) = (group, 0, false);
                        if let Some(why) = damage {
                            // What is whole ends the damage before it.
                            if self.footer.is_ours && self.building.is_some() {
                                self.report_damage(Some(self.snapshot.start_ns));
                            }
                            self.lost(&at, why);
                        }
                        if self.group.rows == 0 {
                            self.lone_texts()?;
                        }
                        if (self.group.rows == 0 || self.group.damaged) && self.building.is_some() {
                            return self.built();
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
            if self.group.damaged {
                if !self.next_text()? {
                    self.bare.clear();
                    self.row = if self.group.texts.is_some() { self.row + 1 } else { self.group.rows };
                    self.row_text = false;
                }
                continue;
            }
            let row = self.row;
            let index = self.group.value(0, row);
            if self.building.is_some_and(|building| building != index) {
                return self.built();
            }
            if self.next_text()? {
                continue;
            }
            if std::mem::take(&mut self.broken) {
                self.left_out = Some(index);
            }
            if self.left_out == Some(index) {
                (self.row, self.row_text) = (row + 1, false);
                self.bare.clear();
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

    /// Takes the text of the row at hand, once. False where it has none, or where those of the group are damaged.
    fn next_text(&mut self) -> Result<bool, Fault> {
        if std::mem::replace(&mut self.row_text, true) {
            return Ok(false);
        }
        let Some(texts) = &mut self.group.texts else { return Ok(false) };
        match texts.next(&self.file).map_err(|fault| fault.of(&self.footer)) {
            Ok(Some(text)) => {
                (self.text, self.at) = (text, 0);
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(Fault::Bad(_)) => {
                self.lost_texts();
                Ok(false)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Takes the texts of a group that has no rows.
    fn lone_texts(&mut self) -> Result<(), Fault> {
        let Some(texts) = &self.group.texts else { return Ok(()) };
        match texts.lone(&self.file).map_err(|fault| fault.of(&self.footer)) {
            Ok(text) => (self.text, self.at) = (text, 0),
            Err(Fault::Bad(_)) => self.lost_texts(),
            Err(fault) => return Err(fault),
        }
        Ok(())
    }

    /// A group cannot be read.
    fn lost(&mut self, at: &GroupAt, why: &'static str) {
        // Of texts it is reported apart, if they are damaged too.
        let numbers = at.chunks.iter().enumerate().filter(|(column, _)| *column != ITEMS);
        let chunks = || numbers.clone().map(|(_, chunk)| chunk).filter(|chunk| chunk.len > 0);
        let start = chunks().map(|chunk| chunk.offset).min().unwrap_or(0);
        let end = chunks().map(|chunk| chunk.offset.saturating_add(chunk.len)).max().unwrap_or(start);
        match &mut self.damage {
            Some(damage) => damage.range.end = damage.range.end.max(end),
            None => {
                let is_whole = self.footer.is_ours && self.building.is_some();
                let from_ns = if is_whole { self.snapshot.end_ns } else { self.last_ns };
                self.damage = Some(Damage { range: AddrRange::new(start, end), why, from_ns });
            }
        }
        // Of files that other programs laid out anew nobody knows whether a snapshot goes on in the next group.
        if !self.footer.is_ours {
            self.building = None;
            self.broken = true;
        }
    }

    /// Neither can the other items of the group at hand, beyond those that were read.
    fn lost_texts(&mut self) {
        if let Some(texts) = self.group.texts.take() {
            let unread = texts.unread();
            let (offset, lost_bytes) = (unread.offset, unread.len);
            self.warn(Warning::Damaged { offset, lost_bytes, from_ns: 0, to_ns: 0 });
        }
    }

    fn warn(&mut self, warning: Warning) {
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(warning);
        } else {
            self.more_warnings += 1;
        }
    }

    /// Reports damage: up to the snapshot that begins then, if one came.
    fn report_damage(&mut self, next_ns: Option<u64>) {
        let Some(Damage { range, why, from_ns }) = self.damage.take() else { return };
        let (offset, lost_bytes, last_ns) = (range.start, range.size(), self.last_ns);
        self.warn(match next_ns {
            Some(to_ns) => Warning::Damaged { offset, lost_bytes, from_ns, to_ns },
            None if last_ns > 0 => Warning::Damaged { offset, lost_bytes, from_ns: 0, to_ns: 0 },
            // Then it may be something that is not read here at all.
            None => Warning::Stopped { why: why.to_owned(), last_ns },
        });
    }

    /// Completes the snapshot that was put together.
    fn built(&mut self) -> Result<Step, Fault> {
        self.building = None;
        // What was lost behind it is reported with the next one.
        if !self.group.damaged {
            self.report_damage(Some(self.snapshot.start_ns));
        }
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
            match kind.map(|kind| self.notes.decode(kind, json)) {
                Some(Ok(item)) => {
                    self.item = item;
                    return Ok(Some(Step::Item));
                }
                Some(Err(Undecoded::Orphan)) => self.orphans += 1,
                Some(Err(Undecoded::Unknown)) | None => self.unknown += 1,
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
                self.report_damage(None);
                if let Err(Fault::Bad(why) | Fault::Unsupported(why)) = step {
                    self.warnings.push(Warning::Stopped { why: why.to_owned(), last_ns: self.last_ns });
                }
                for (count, what) in [
                    (self.unknown, "items of a kind this version does not know"),
                    (self.orphans, "changes of mappings that rest on a lost part"),
                    (self.more_warnings, "further stretches of damage"),
                ] {
                    if count > 0 {
                        self.warnings.push(Warning::Skipped { count, what });
                    }
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
