//! What `perf script` prints of the tracepoints `damon:damon_aggregated` and `damon:damos_before_apply`.
//!
//! A line a region: `comm pid [cpu] sec.usec: damon:damon_aggregated: target_id=T nr_regions=N S-E: nr [age]`. `[cpu]` and
//! the age are missing in some; other events, comments and blank lines are passed over. A snapshot of a target is whole
//! when N lines of it were read. Start times are not in it; intervals only if `damon_monitor_intervals_tune` was
//! recorded too, which tells the sampling interval in force.
//!
//! `damos_before_apply: ctx_idx=C scheme_idx=S target_idx=T nr_regions=N S-E: nr age` is a region that a scheme is about
//! to be applied to: of the target's N regions those that fit the scheme, so its snapshots end with the next one's
//! beginning. Each scheme is a record of its own.

mod event;
mod parse;
mod write;

pub(crate) use parse::read;
pub(crate) use write::Writer;

/// What the file of a recording without a region consists of: an empty file would say nothing.
const NOTHING: &str = "# damon:damon_aggregated: no region was recorded";
