//! Reports on recordings of data access patterns: which memory is hot, how big the working set is, how both move.
//!
//! Analysis and drawing are apart. An analysis is an accumulator ([`Accumulate`]): it is given the items of a recording
//! in order, keeps an amount of memory that does not depend on the recording's length, and is finished into a plain
//! result that serialises to JSON. Renderers turn results into text, PNG or SVG and know nothing of recordings.
//!
//! | report | accumulator | result |
//! |---|---|---|
//! | regions of a moment | [`access::AccessAnalysis`] | [`access::AccessReport`] |
//! | time x address | [`heatmap::Survey`] to choose what to show, then [`heatmap::Raster`] | [`heatmap::Heatmap`] |
//! | a page for browsers | [`html::Canvas`], for areas that a [`heatmap::Survey`] chose | [`html::write`] |
//! | working set, number of regions | [`trend::TrendAnalysis`] | [`trend::TrendReport`] |
//! | gain and cost of several values | - | [`tradeoff::Tradeoff`] |
//! | everything as text | [`raw::RawWriter`] | - |
//! | mapped, resident, working set, hot, cold, unknown by process, mapping, object | [`holdings::Holdings`], [`holdings::HoldingsAnalysis`] | [`holdings::HoldingsReport`] |
//! | what differs between recordings | [`diff::Profile`], a recording each | [`diff::DiffReport`] |
//! | what a recording holds | [`info::InfoAnalysis`] | [`info::InfoReport`] |
//! | end of a recording | [`summary::SummaryAnalysis`] | [`summary::Summary`] |
//!
//! Only memory that exists counts: regions are cut to the mappings of their target where the recording has them. One that
//! lies outside of all of them, and is accessed or resident for all that, counts as [`UNKNOWN_MAPPING`]. A byte
//! of a file or of shared memory that several targets map counts once wherever several targets are added up, and what is
//! unknown ([`isotherm_damon::RegionSnapshot::is_unknown`]) is never taken for cold: it has its own colour, its own sums.
//!
//! Figures carry their units. A rate is in Hz, accesses seen a second, at most one a sampling interval; what a backend
//! could not see, and what the overhead budget cut, stands in the head and foot of every report
//! ([`provenance::Provenance`]).
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![forbid(unsafe_code)]

pub mod access;
pub mod canvas;
pub mod colour;
pub mod columns;
pub mod diff;
pub mod heatmap;
pub mod holdings;
pub mod html;
pub mod info;
pub mod json;
pub mod lines;
pub mod names;
pub mod provenance;
pub mod rate;
pub mod raw;
pub mod summary;
pub mod tradeoff;
pub mod trend;
pub mod units;

mod before_end;
mod segments;
mod space;
pub use before_end::{GaveUp, WithoutEnds};
pub use space::UNKNOWN_MAPPING;
#[cfg(test)]
mod synthetic;

use isotherm_damon::Snapshot;
use isotherm_record::Item;

/// What a report says where filters leave nothing of what there is, which is an answer. What is asked for by name or address and is
/// not there is none: [`heatmap::AreaError`].
pub(crate) const NOTHING_FITS: &str = "nothing is left: none fits all filters";

/// An analysis that is given a recording item by item, in constant memory.
pub trait Accumulate {
    /// Takes the end of an aggregation.
    fn snapshot(&mut self, snapshot: &Snapshot);

    /// Takes an item other than a snapshot.
    fn note(&mut self, item: &Item);

    /// Takes any item.
    fn item(&mut self, item: &Item) {
        match item {
            Item::Snapshot(snapshot) => self.snapshot(snapshot),
            other => self.note(other),
        }
    }
}
