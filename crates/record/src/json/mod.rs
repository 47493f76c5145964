//! damo's JSON, in one zlib stream (`json_compressed`, its default) or plain.
//!
//! An array of records, one a target: `{kdamond_idx, context_idx, intervals {sample_us, aggr_us, ops_update_us, ..},
//! scheme_idx, target_id, scheme_filters, snapshots [], data_source}`; a snapshot: `{start_time, end_time, regions [],
//! total_bytes, damos_stats, sample_interval_us}`, times in ns; a region: `{start, end, nr_accesses {samples, percent},
//! age {usec, aggr_intervals}, probe_hits, sz_filter_passed}`. Newer files wrap the array in objects.
//!
//! Numbers may be integers, floats, or strings with commas, units or `max`; most keys may be missing.

mod filters;
mod limited;
mod measure;
mod number;
mod read;
mod snapshot;
mod waiting;
mod write;

pub(crate) use read::read;
pub(crate) use write::Writer;
