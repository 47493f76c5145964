//! The rows of a group, read into memory.

use super::chunk::{Fault, Numbers, Texts, numbers};
use super::footer::{COLUMNS, Footer, GroupAt, IDLE, ITEMS, SAMPLE_NS};
use crate::rec::MAX_REGIONS;
use isotherm_damon::{AddrRange, RegionSnapshot};
use std::fs::File;

/// Most rows of a group that is read: a snapshot of the largest size behind a group that is nearly full.
pub(super) const MAX_ROWS: usize = MAX_REGIONS + 2 * super::GROUP_ROWS;

/// A row group in memory.
#[derive(Default)]
pub(super) struct Group {
    pub(super) rows: usize,
    /// Its numbers are damaged: of its rows only the texts are read.
    pub(super) damaged: bool,
    columns: [Numbers; COLUMNS.len()],
    pub(super) sample_ns: Numbers,
    idle: Numbers,
    /// The other items; none where they are damaged.
    pub(super) texts: Option<Texts>,
}

impl Group {
    /// What can be read of a group, and what is wrong with it. Damage is no error: the groups behind it are whole.
    pub(super) fn load(
        file: &File,
        footer: &Footer,
        at: &GroupAt,
    ) -> Result<(Self, Option<&'static str>), Fault> {
        let texts = Some(Texts::new(at.chunks[ITEMS], footer.kind(ITEMS))?);
        match Self::numbers(file, footer, at).map_err(|fault| fault.of(footer)) {
            Ok(group) => Ok((Self { texts, ..group }, None)),
            Err(Fault::Bad(why)) => {
                let rows = usize::try_from(at.rows).unwrap_or(MAX_ROWS).min(MAX_ROWS);
                Ok((Self { rows, damaged: true, texts, ..Self::default() }, Some(why)))
            }
            Err(fault) => Err(fault),
        }
    }

    /// The columns of numbers.
    fn numbers(file: &File, footer: &Footer, at: &GroupAt) -> Result<Self, Fault> {
        let rows = usize::try_from(at.rows).ok().filter(|&rows| rows <= MAX_ROWS);
        let rows =
            rows.ok_or(Fault::Unsupported("a row group has more rows than those that are written here"))?;
        let mut group = Self { rows, ..Self::default() };
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
    pub(super) fn value(&self, column: usize, row: usize) -> u64 {
        self.columns.get(column).and_then(|c| c.values.get(row)).copied().unwrap_or(0)
    }

    fn known(&self, column: usize, row: usize) -> Option<u64> {
        let known = self.columns.get(column)?.known.get(row)?;
        known.then(|| self.value(column, row))
    }

    pub(super) fn region(&self, row: usize) -> RegionSnapshot {
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

impl Fault {
    /// What cannot be read of a file that was written here is damaged: the headers of pages have no checksum.
    pub(super) fn of(self, footer: &Footer) -> Self {
        match self {
            Self::Unsupported(why) if footer.is_ours => Self::Bad(why),
            fault => fault,
        }
    }
}
