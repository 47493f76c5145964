//! What the end of a file says: its columns, its metadata, and where each group's chunks lie. Groups are read one at a
//! time from the bytes of the footer: of a file of a million groups no list is made.

use super::chunk::ZSTD;
use super::thrift::{BINARY, I32, I64, LIST, STRUCT, Thrift};
use parquet::file::metadata::RowGroupMetaData;

/// The columns that are read back, in the order of the module `read`.
pub(super) const COLUMNS: [&str; 13] = [
    "snapshot",
    "start_ns",
    "end_ns",
    "target_id",
    "region_start",
    "region_end",
    "nr_accesses",
    "nr_accesses_bp",
    "max_nr_accesses",
    "age",
    "seen",
    "exposure",
    "resident",
];

/// Two more, which too must be there, and one that files of earlier versions lack.
pub(super) const SAMPLE_NS: usize = COLUMNS.len();
pub(super) const ITEMS: usize = COLUMNS.len() + 1;
pub(super) const IDLE: usize = COLUMNS.len() + 2;
pub(super) const NR_COLUMNS: usize = COLUMNS.len() + 3;

fn index_of(name: &[u8]) -> Option<usize> {
    match name {
        b"sample_ns" => Some(SAMPLE_NS),
        b"isotherm_items" => Some(ITEMS),
        b"idle" => Some(IDLE),
        name => COLUMNS.iter().position(|c| c.as_bytes() == name),
    }
}

/// A column's type below its meaning, as the format numbers them, and whether it may be null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) physical: i64,
    pub(super) optional: bool,
}

/// Where a column of a group lies.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChunkAt {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) codec: i64,
}

/// A row group.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupAt {
    pub(super) rows: u64,
    pub(super) chunks: [ChunkAt; NR_COLUMNS],
}

/// Checksum of where the columns of all groups lie, and of what type they are. The checksum of a page does not tell of which column it is.
#[derive(Default)]
pub(super) struct Layout(crc32fast::Hasher);

impl Layout {
    /// Adds a group, and of what type its columns are.
    pub(super) fn add(&mut self, group: &GroupAt, kinds: &[Option<Kind>; NR_COLUMNS]) {
        self.0.update(&group.rows.to_le_bytes());
        for kind in kinds.iter().copied().map(Option::unwrap_or_default) {
            self.0.update(&[kind.physical as u8, u8::from(kind.optional)]);
        }
        for chunk in &group.chunks {
            for number in [chunk.offset, chunk.len, chunk.codec.cast_unsigned()] {
                self.0.update(&number.to_le_bytes());
            }
        }
    }

    pub(super) fn finish(self) -> u32 {
        self.0.finalize()
    }
}

impl GroupAt {
    /// What the library says of a group that it wrote, and of what type its columns are.
    pub(super) fn written(metadata: &RowGroupMetaData) -> (Self, [Option<Kind>; NR_COLUMNS]) {
        let size = |n: i64| u64::try_from(n).unwrap_or(0);
        let mut group = Self { rows: size(metadata.num_rows()), ..Self::default() };
        let mut kinds = [None; NR_COLUMNS];
        for column in metadata.columns() {
            let of = column.column_descr();
            if let Some(index) = index_of(of.name().as_bytes()) {
                let (offset, len) = column.byte_range();
                group.chunks[index] = ChunkAt { offset, len, codec: ZSTD };
                kinds[index] = Some(Kind {
                    physical: of.physical_type() as i64,
                    optional: of.self_type().is_optional(),
                });
            }
        }
        (group, kinds)
    }
}

/// The footer of a file.
#[derive(Debug)]
pub(super) struct Footer {
    bytes: Vec<u8>,
    /// Its groups do not lie where the writer put them: other programs that copy a file lay it out anew, and say who they are.
    pub(super) displaced: bool,
    /// It was written here: its groups end between snapshots.
    pub(super) is_ours: bool,
    kinds: [Option<Kind>; NR_COLUMNS],
    /// Where the next group's entry begins, and how many are left.
    next: usize,
    left: u64,
    /// Where the metadata begin, and how many there are.
    pairs: (usize, u64),
}

impl Footer {
    /// `None` where the bytes make no sense.
    pub(super) fn parse(bytes: Vec<u8>) -> Option<Self> {
        let mut kinds = [None; NR_COLUMNS];
        let (mut next, mut left, mut pairs, mut is_ours) = (0, 0, (0, 0), false);
        let mut thrift = Thrift::new(&bytes, 0);
        let mut last = 0;
        while let Some((number, kind)) = thrift.field(&mut last)? {
            match (number, kind) {
                (2, LIST) => {
                    let (len, _) = thrift.list()?;
                    for _ in 0..len {
                        if let Some((index, kind)) = schema_element(&mut thrift)? {
                            kinds[index] = Some(kind);
                        }
                    }
                }
                (4, LIST) => {
                    (left, _) = thrift.list()?;
                    next = thrift.at();
                    for _ in 0..left {
                        thrift.skip(STRUCT)?;
                    }
                }
                (5, LIST) => {
                    let (len, _) = thrift.list()?;
                    pairs = (thrift.at(), len);
                    for _ in 0..len {
                        thrift.skip(STRUCT)?;
                    }
                }
                (6, BINARY) => is_ours = thrift.binary()?.starts_with(b"isotherm"),
                (_, kind) => thrift.skip(kind)?,
            }
        }
        let mut footer = Self { kinds, next, left, pairs, bytes, displaced: false, is_ours };
        if let Some(layout) = footer.checksum(2).filter(|_| is_ours) {
            footer.displaced = footer.layout().as_deref() != Some(layout);
        }
        Some(footer)
    }

    /// The `nth` of the checksums that the writer left, as text.
    pub(super) fn checksum(&self, nth: usize) -> Option<&[u8]> {
        Some(self.value(super::KEY_CRC)?.split(|byte| *byte == b' ').nth(nth).unwrap_or_default())
    }

    /// The same of the groups as the footer has them; `None` where it makes no sense.
    fn layout(&self) -> Option<Vec<u8>> {
        let (mut at, mut layout) = (self.next, Layout::default());
        for _ in 0..self.left {
            let (group, next) = self.group_at(at)?;
            at = next;
            layout.add(&group, &self.kinds);
        }
        Some(super::hex(layout.finish()).into_bytes())
    }

    /// The columns that are not there, if any.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        let names = COLUMNS.into_iter().chain(["sample_ns", "isotherm_items"]);
        names.zip(&self.kinds).filter(|(_, kind)| kind.is_none()).map(|(name, _)| name).collect()
    }

    pub(super) fn has(&self, column: usize) -> bool {
        self.kinds.get(column).is_some_and(Option::is_some)
    }

    pub(super) fn kind(&self, column: usize) -> Kind {
        self.kinds.get(column).copied().flatten().unwrap_or_default()
    }

    /// A value of the file's metadata.
    pub(super) fn value(&self, key: &str) -> Option<&[u8]> {
        let (at, len) = self.pairs;
        let mut thrift = Thrift::new(&self.bytes, at);
        for _ in 0..len {
            let (mut found, mut value) = (false, None);
            let mut last = 0;
            while let Some((number, kind)) = thrift.field(&mut last)? {
                match (number, kind) {
                    (1, BINARY) => found = thrift.binary()? == key.as_bytes(),
                    (2, BINARY) => value = Some(thrift.binary()?),
                    (_, kind) => thrift.skip(kind)?,
                }
            }
            if found {
                return value;
            }
        }
        None
    }

    /// The next row group; `Some(None)` when there is none left, `None` when its entry makes no sense.
    pub(super) fn next_group(&mut self) -> Option<Option<GroupAt>> {
        if self.left == 0 {
            return Some(None);
        }
        self.left -= 1;
        let (group, next) = self.group_at(self.next)?;
        self.next = next;
        Some(Some(group))
    }

    /// Number of the first row group, from 0, that claims bytes of itself or of those before it for two columns. Writers put
    /// group behind group; where they lie otherwise, reading may take the same bytes any number of times.
    pub(super) fn overlapping(&self) -> Option<u64> {
        let (mut at, mut floor) = (self.next, 0);
        for nth in 0..self.left {
            // What makes no sense is found again when it is its turn to be read.
            let (group, next) = self.group_at(at)?;
            at = next;
            let mut chunks = group.chunks;
            chunks.sort_unstable_by_key(|chunk| chunk.offset);
            for chunk in chunks.iter().filter(|chunk| chunk.len > 0) {
                if chunk.offset < floor {
                    return Some(nth);
                }
                floor = chunk.offset.saturating_add(chunk.len);
            }
        }
        None
    }

    /// The row group whose entry begins at `at`, and where the next one does.
    fn group_at(&self, at: usize) -> Option<(GroupAt, usize)> {
        let mut thrift = Thrift::new(&self.bytes, at);
        let mut group = GroupAt::default();
        let mut last = 0;
        while let Some((number, kind)) = thrift.field(&mut last)? {
            match (number, kind) {
                (1, LIST) => {
                    let (len, _) = thrift.list()?;
                    for _ in 0..len {
                        if let Some((index, chunk)) = column_chunk(&mut thrift)? {
                            group.chunks[index] = chunk;
                        }
                    }
                }
                (3, I64) => group.rows = thrift.size()?,
                (_, kind) => thrift.skip(kind)?,
            }
        }
        Some((group, thrift.at()))
    }
}

/// A column of the schema, if it is one that is read.
fn schema_element(thrift: &mut Thrift<'_>) -> Option<Option<(usize, Kind)>> {
    let mut index = None;
    let mut element = Kind::default();
    let mut nested = false;
    let mut last = 0;
    while let Some((number, kind)) = thrift.field(&mut last)? {
        match (number, kind) {
            (1, I32) => element.physical = thrift.int()?,
            (3, I32) => {
                let repetition = thrift.int()?;
                element.optional = repetition == 1;
                nested |= repetition > 1;
            }
            (4, BINARY) => index = index_of(thrift.binary()?),
            (5, I32) => nested |= thrift.int()? > 0,
            (_, kind) => thrift.skip(kind)?,
        }
    }
    Some(index.filter(|_| !nested).map(|index| (index, element)))
}

fn column_chunk(thrift: &mut Thrift<'_>) -> Option<Option<(usize, ChunkAt)>> {
    let mut found = None;
    let mut last = 0;
    while let Some((number, kind)) = thrift.field(&mut last)? {
        match (number, kind) {
            (3, STRUCT) => found = column_metadata(thrift)?,
            (_, kind) => thrift.skip(kind)?,
        }
    }
    Some(found)
}

fn column_metadata(thrift: &mut Thrift<'_>) -> Option<Option<(usize, ChunkAt)>> {
    let mut index = None;
    let mut chunk = ChunkAt::default();
    let (mut data, mut dictionary) = (0, 0);
    let mut last = 0;
    while let Some((number, kind)) = thrift.field(&mut last)? {
        match (number, kind) {
            (3, LIST) => {
                let (len, element) = thrift.list()?;
                for nth in 0..len {
                    if element != BINARY {
                        return None;
                    }
                    let name = thrift.binary()?;
                    index = if nth == 0 { index_of(name) } else { None };
                }
            }
            (4, I32) => chunk.codec = thrift.int()?,
            (7, I64) => chunk.len = thrift.size()?,
            (9, I64) => data = thrift.size()?,
            (11, I64) => dictionary = thrift.size()?,
            (_, kind) => thrift.skip(kind)?,
        }
    }
    // Some writers put 0 where there is no dictionary.
    chunk.offset = if dictionary > 0 { data.min(dictionary) } else { data };
    Some(index.map(|index| (index, chunk)))
}
