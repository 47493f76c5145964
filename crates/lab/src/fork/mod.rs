//! Fork, exit, zap and young harvest of page tables: in batches, page by page, and beside Linux.
//!
//! The experiment of the patch series "Transparent Contiguous PTEs for User Mappings" (version 4, December 2023): a
//! process with populated memory forks, and the time of that is compared with a baseline. Here the baseline is a loop
//! over the pages as a kernel without batches has it (`per_page.rs`), in paired runs that take turns at being first;
//! Linux forks memory of the same layout in the same run. Of Linux' figures those of a fork without that memory are
//! subtracted, since they hold the duplication of the task as well.

mod bars;
mod bench;
mod folios;
mod linux;
mod memory;
mod ours;
mod per_page;
mod split;
mod table;

pub use linux::Linux;
pub use ours::Ours;
pub use table::table;

use crate::experiment::{Interrupted, Watch};
use crate::machine::available_memory;
use serde::Serialize;

/// Bytes of a page.
const PAGE: usize = 4096;

/// MiB that the bars hold for.
pub const GIB: u64 = 1024;

/// Pages of the memory that is forked are laid out so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Every page by itself.
    Order0,
    /// Folios of 2 MiB, mapped by PTEs.
    Order9,
    /// Folios of 16 KiB, 64 KiB and 2 MiB, mapped by PTEs, as much memory of each.
    Mixed,
    /// Folios of 2 MiB, mapped by PMDs.
    Pmd,
}

impl Layout {
    /// All.
    pub const ALL: [Layout; 4] = [Layout::Order0, Layout::Order9, Layout::Mixed, Layout::Pmd];

    /// What people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Layout::Order0 => "order 0",
            Layout::Order9 => "order 9, PTEs",
            Layout::Mixed => "16K, 64K, 2M",
            Layout::Pmd => "order 9, PMDs",
        }
    }

    /// The order of the folios that the 2 MiB consist of which the `page`th page is in.
    fn order_at(self, page: u64) -> u8 {
        match self {
            Layout::Order0 => 0,
            Layout::Order9 | Layout::Pmd => 9,
            // 2 MiB of each in turn.
            Layout::Mixed => match (page >> 9) % 3 {
                0 => 2,
                1 => 4,
                _ => 9,
            },
        }
    }
}

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Copying the mappings of memory that was just written, the flush of the parent's TLB included.
    Fork,
    /// The end of the child.
    Exit,
    /// Removing the parent's mappings, freeing its memory.
    Zap,
    /// Testing and clearing the accessed bits of all pages.
    Harvest,
}

impl Operation {
    /// All, in the order in which they happen.
    pub const ALL: [Operation; 4] = [Operation::Fork, Operation::Exit, Operation::Harvest, Operation::Zap];

    /// What people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Operation::Fork => "fork",
            Operation::Exit => "exit",
            Operation::Zap => "zap",
            Operation::Harvest => "young harvest",
        }
    }
}

/// How much and how often.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Setup {
    /// Runs of each layout.
    pub runs: u32,
    /// MiB of memory that is forked.
    pub mib: u64,
}

impl Setup {
    /// Why this machine has no room for it; `None` if it has, or does not say.
    #[must_use]
    pub fn shortage(&self) -> Option<String> {
        // What Linux forks, or the machine of ours, never both; with tables and books.
        let need = self.mib.saturating_add(self.mib / 20).saturating_add(64);
        let available = available_memory()? >> 20;
        (need > available).then(|| {
            format!("forking {} MiB takes {need} MiB of memory, and {available} are available", self.mib)
        })
    }
}

/// Why there are no, or not all, results.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody asked to stop.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// Page tables could not be set up.
    #[error("cannot set up page tables to measure with: {0}")]
    Tables(#[from] isotherm_pagetable::Error),
    /// An operation on them failed.
    #[error("an operation on page tables failed: {0}")]
    Stopped(#[from] isotherm_pagetable::Stopped),
    /// There are no frames left in the machine that is measured.
    #[error("the hosted machine has no frames left")]
    NoFrames,
    /// The system refused what Linux' side needs.
    #[error("cannot {what}: {why}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        why: std::io::Error,
    },
}

/// All that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Fork {
    /// Ours.
    pub ours: Vec<Ours>,
    /// Linux'.
    pub linux: Vec<Linux>,
}

impl Fork {
    /// Measures everything.
    ///
    /// # Errors
    /// See [`Error`]; what was measured before stays in `self`.
    pub fn measure(&mut self, setup: &Setup, watch: &mut Watch<'_>) -> Result<(), Error> {
        Ours::measure(&Layout::ALL, setup, watch, &mut self.ours)?;
        for layout in Layout::ALL {
            (watch.progress)(&format!("{}: Linux ...", layout.name()));
            self.linux.push(Linux::measure(layout, setup, watch)?);
        }
        Ok(())
    }
}

/// Held by tests that fork, and by those whose memory a fork meanwhile would share: a write would copy it.
#[cfg(test)]
static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
