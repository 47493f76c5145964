//! The monitor over simulated address spaces, whose access rates are known page by page: what `lab accuracy` measures on live
//! processes, here without noise, the same for the same seed, and some hundred times as fast as time passes.
//!
//! [`Simulated`] is the operations on a [`Pattern`]. [`Purse`] and [`tick`] give looks, clears and wake-ups the price that they have
//! on a virtual machine, under the default ceiling of 1 % of a CPU. [`run()`] lets the sampler watch a few phases of patterns.
//! [`HotBytes`], [`Second`] and [`told`] judge what it told.

mod patterns;
mod price;
mod score;
mod space;

pub use patterns::{areas, worker, zipf};
pub use price::{Pace, Phase, Prices, Purse, Run, run, run_at, tick};
pub use score::{HotBytes, Second, share_accessed, told};
pub use space::{Kind, Pattern, Simulated};

use isotherm_damon::{Callbacks, Snapshot, Target};

/// Bytes of a page.
pub const PAGE: u64 = isotherm_damon::PAGE_SIZE;
/// Bytes of a MiB.
pub const MIB: u64 = 1 << 20;

/// Keeps the snapshots that are handed out.
#[derive(Default)]
pub struct Keep(pub Vec<Snapshot>);

impl Callbacks for Keep {
    fn after_aggregation(&mut self, _targets: &mut [Target], snapshot: &Snapshot) {
        self.0.push(snapshot.clone());
    }
}
