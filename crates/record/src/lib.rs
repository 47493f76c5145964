//! Recordings of data access patterns.
//!
//! A recording is a sequence of [`Item`]s. Whatever file they come from (our own format, one of damo's), a reader
//! hands out the same items; whatever file they go to, a writer takes the same items.
//!
//! [`open`] and [`create`] are the way in; [`rec`] is our own format, [`rec::scan_summaries`] looks over a recording
//! before it is read, and [`synthetic`] makes one without a process to monitor.
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![forbid(unsafe_code)]

mod binary;
mod content;
mod error;
mod files;
mod format;
mod joined;
mod json;
mod model;
mod parquet;
mod perf_script;
mod printable;
pub mod rec;
mod replace;
mod spool;
pub mod synthetic;
mod whole;

pub use content::{holds_something, is_own, is_recording, nr_snapshots};
pub use error::{Error, Warning};
pub use files::{Conversion, ReadOptions, convert, create, create_on, open, open_from, open_with};
pub use format::{Format, UnknownFormatName};
use isotherm_damon::Snapshot;
pub use joined::open_joined;
pub use model::*;
pub use printable::{command_line, disturbs, printable, printable_lines, shell_word};
pub use replace::{PRIVATE, Placement, Replacement, is_being_written};
pub use spool::RecordChoice;

/// Hands out the items of a recording in order of time.
///
/// The first item is always a [`Header`]. A file that is cut or damaged is no error: what can be read is handed out, and
/// [`Self::warnings`] says what is missing.
pub trait ItemReader: Send {
    /// The next item, `None` at the end. Snapshots are decoded into memory that the next call reuses; this is the way
    /// to read a recording fast.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be read on.
    fn next_ref(&mut self) -> Result<Option<&Item>, Error>;

    /// The next item, to keep.
    ///
    /// # Errors
    /// As [`Self::next_ref`].
    fn next_item(&mut self) -> Result<Option<Item>, Error> {
        Ok(self.next_ref()?.cloned())
    }

    /// The format of the file.
    fn format(&self) -> Format;

    /// What is wrong with the file, or was assumed. Complete once the end was reached.
    fn warnings(&self) -> &[Warning];
}

/// Takes the items of a recording, the [`Header`] first.
pub trait ItemWriter: Send {
    /// Writes a snapshot, with the regions of all targets. Isotherm's own format also takes one that holds only what
    /// changed ([`Snapshot::changes`]).
    ///
    /// # Errors
    /// [`Error::Io`] from the output, [`Error::TooManyRegions`], [`Error::Encode`].
    fn write_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), Error>;

    /// Writes an item that is not a snapshot. Formats that have no place for it leave it out; see [`Format::losses`].
    ///
    /// # Errors
    /// As [`Self::write_snapshot`].
    fn write_other(&mut self, item: &Item) -> Result<(), Error> {
        let _ = item;
        Ok(())
    }

    /// Writes an item.
    ///
    /// # Errors
    /// As [`Self::write_snapshot`].
    fn write(&mut self, item: &Item) -> Result<(), Error> {
        match item {
            Item::Snapshot(snapshot) => self.write_snapshot(snapshot),
            other => self.write_other(other),
        }
    }

    /// Writes what is left and completes the file. Nothing may be written after it.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn finish(&mut self) -> Result<(), Error>;
}
