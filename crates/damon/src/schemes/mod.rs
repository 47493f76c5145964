//! Schemes: acting on memory by how it is accessed (DAMOS).
//!
//! A [`Scheme`] says which regions get which [`Action`], how often, and under which limits. [`Schemes`] are those of a context,
//! with their state. They act on regions as a monitor has them ([`Moment`](crate::Moment)), through the caller's [`Actions`],
//! and measure through the caller's [`Metrics`]; they have no clock and touch no memory themselves.
//!
//! The rules are those of the kernel's design document ("Operation Schemes"), which grew out of the seeds' two schemes
//! (seed 000, "Configurations"). Where the document leaves something open, the kernel's behaviour is followed; where something
//! else is done, it says so below and where it is done.
//!
//! # A pass
//! Schemes act one after another, each as often as its `apply_interval` says: in whole sampling intervals, or at the end of
//! each aggregation, before its snapshot is handed out. Between aggregations `nr_accesses` is the moving sum. A pass goes
//! through these steps:
//! 1. Is the scheme active: not suspended, its watermarks allow it ([`Watermarks`]), snapshots are left ([`Status`])?
//! 2. If the quota's window is over, the next one opens and its effective size is fixed ([`Quota`]); a full one ends the pass.
//! 3. Regions whose size, frequency and age match ([`AccessPattern`]) are cut where the core's filters say so ([`Filters`]).
//!    Memory that they exclude is not tried. A part has its region's properties, also its size as far as the pattern goes.
//! 4. **Unknown is not cold.** Parts whose rate is unknown ([`RegionSnapshot::is_unknown`](crate::RegionSnapshot::is_unknown))
//!    are left alone unless [`Scheme::unknown`] is set, and counted ([`Stats::sz_unknown`]). The kernel cannot tell.
//! 5. Under a quota what remains is ordered: those with the highest score first ([`Weights`]). The kernel looks for
//!    the lowest score that fits and takes regions from there on up by address, so that a low one may take what a
//!    high one then lacks; here none of a lower score is tried before all of a higher. Among those of one score, which are equal
//!    to the kernel, memory whose accesses are too few for it to count is ordered by how many they are (`priority.rs`).
//! 6. The action is asked for until the window is full. The last region is split, in whole least regions. What was tried has
//!    its age start anew, also if nothing could be done, but for `stat`.
//!
//! # Nobody starves
//! Among regions that are equal by that a pass goes on where the last one stopped, by address, and comes round to the first again; so
//! under a standing quota each has its turn after as many windows as all of them have bytes for. (The kernel goes on to the
//! end, and begins anew in the next window.) The place is kept for each rank. Between different ranks priority holds: the
//! hottest may have all of it for as long as it stays so.
//!
//! # How well unknown memory is known
//! [`Watch`](crate::Watch) never draws what it knows and what it does not into one region. [`Classic`](crate::Classic) has no
//! such borders: memory that cannot be observed may share a region with memory that can. The rate is then that of the looks
//! that showed something, so that the region is not the colder for it, but an action takes all of the region. Who implements
//! [`Actions`] beside it looks at the pages themselves.
//!
//! # What counts
//! A region is *tried* when the action was asked for, and *applied* when it took effect on some of it. Pages that the
//! operations' filters exclude count as tried. Bytes tried are charged to the quota, of `stat` too; those on which the action
//! failed are charged less where [`Quota::fail_charge`] says so. What [`Actions`] refuse is neither tried nor charged. A
//! snapshot is counted for each target of a pass whose candidates were not cut by the quota; `max_nr_snapshots` ends the
//! pass before the first target that is too many.
//!
//! # What cannot be read
//! A goal or watermark whose metric cannot be read keeps its scheme from acting, since nobody sees what it does. The
//! kernel goes on as before.
//!
//! # Costs
//! A pass takes time in proportion to regions and filters; memory is allocated for as many regions as there ever were, and
//! then no more. Splitting never makes more regions than [`Attrs::max_nr_regions`](crate::Attrs::max_nr_regions).
//!
//! | rule | file |
//! |---|---|
//! | a scheme, and what makes it valid | `scheme.rs`, `error.rs` |
//! | the set: commits, apply intervals | `set.rs` |
//! | a pass | `apply.rs` |
//! | access patterns | `pattern.rs` |
//! | quota windows, time | `quota.rs` |
//! | how long a call is going to take | `pace.rs` |
//! | scores | `priority.rs` |
//! | goals | `goal.rs` |
//! | their tuners | `tuner.rs`, `pi.rs` |
//! | watermarks | `watermark.rs` |
//! | filters of both layers | `filter.rs` |
//! | statistics, tried regions | `stats.rs` |
//! | what the caller implements | `actions.rs` |
//!
//! ```
//! use core::time::Duration;
//! use isotherm_damon::schemes::*;
//! use isotherm_damon::*;
//! # struct Memory;
//! # impl Operations for Memory {
//! #     fn ranges(&mut self, _: TargetId) -> Vec<AddrRange> {
//! #         vec![AddrRange::new(0, 64 << 20)]
//! #     }
//! #     fn take_changed(&mut self) -> Vec<TargetId> {
//! #         Vec::new()
//! #     }
//! #     fn prepare(&mut self, checks: &mut [Check]) {
//! #         checks.iter_mut().for_each(|c| c.seen = Seen::Idle);
//! #     }
//! #     fn check(&mut self, checks: &mut [Check]) {
//! #         for c in checks {
//! #             c.unit = PAGE_SIZE;
//! #             c.seen = if c.addr >> 24 == 1 { Seen::Accessed } else { Seen::Idle };
//! #         }
//! #     }
//! #     fn is_alive(&mut self, _: TargetId) -> bool {
//! #         true
//! #     }
//! # }
//!
//! /// Adds up what it is asked to page out.
//! #[derive(Default)]
//! struct Pageout(u64);
//! impl Actions for Pageout {
//!     fn apply(&mut self, request: &Request<'_>) -> Result<Outcome, Refusal> {
//!         self.0 += request.range.size();
//!         Ok(Outcome { applied: request.range.size(), ..Outcome::default() })
//!     }
//! }
//!
//! // The seeds' prcl, and no more than 4 MiB a second.
//! let pattern = AccessPattern::ANY.size(4096, u64::MAX).share(0, 500).age(Duration::from_millis(500), Duration::MAX);
//! let quota = Quota { bytes: Some(4 << 20), ..Quota::default() };
//! let mut schemes = Schemes::new();
//! schemes.commit(vec![Scheme { quota, ..Scheme::new(pattern, Action::Pageout) }])?;
//!
//! // 64 MiB, of which the second quarter is in use all the time.
//! let mut monitor = Monitor::new(Attrs::default(), Memory, Classic::new(), 42)?;
//! monitor.add_target(TargetId(1))?;
//! let (mut interval, mut pageout) = (0, Pageout::default());
//! while interval < 200 * 5 {
//!     let now_ns = interval * 5_000_000;
//!     interval += monitor.tick(now_ns, Allowance::UNLIMITED, &mut schemes.driver(&mut pageout, &mut (), &mut ()));
//! }
//! // Five seconds, of which the first was too early for anything to be old enough for most of its time.
//! assert!(pageout.0 >= 16 << 20 && pageout.0 <= 20 << 20, "{}", pageout.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod actions;
mod apply;
mod attempt;
mod error;
mod filter;
mod goal;
mod pace;
mod pattern;
mod pi;
mod priority;
mod quota;
mod scheme;
mod set;
mod stats;
mod tuner;
mod watermark;

pub use actions::{Actions, Metrics, Outcome, Refusal, Request};
pub use error::{CommitError, Field, Reason, SchemeError};
pub use filter::{CoreFilter, CoreKind, Filter, Filters, OpsFilter, PageKind, passes};
pub use goal::{Goal, GoalMetric, MET};
pub use pace::Pace;
pub use pattern::{AccessPattern, Age, Bounds, Frequency};
pub use quota::{FailCharge, Quota, Weights};
pub use scheme::{Action, Node, Scheme};
pub use set::{Driver, Schemes, Status};
pub use stats::{Latencies, Stats, TriedRegion};
pub use tuner::GoalTuner;
pub use watermark::{WatermarkMetric, Watermarks};
