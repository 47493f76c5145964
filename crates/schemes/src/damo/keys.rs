//! The keys of damo's JSON. A key that is mistyped must not have a scheme act on more memory than was meant.

use crate::error::Problem;
use crate::words::meant;
use serde_json::{Map, Value};

pub(super) const SCHEME: [&str; 11] = [
    "action",
    "dests",
    "target_nid",
    "access_pattern",
    "apply_interval_us",
    "quotas",
    "watermarks",
    "filters",
    "stats",
    "tried_regions",
    "tried_bytes",
];
pub(super) const PATTERN: [&str; 3] = ["sz_bytes", "nr_accesses", "age"];
pub(super) const BOUNDS: [&str; 2] = ["min", "max"];
pub(super) const QUOTA: [&str; 9] = [
    "time_ms",
    "sz_bytes",
    "reset_interval_ms",
    "weights",
    "goals",
    "goal_tuner",
    "fail_charge_num",
    "fail_charge_denom",
    "effective_sz_bytes",
];
pub(super) const WEIGHTS: [&str; 3] = ["sz_permil", "nr_accesses_permil", "age_permil"];
pub(super) const GOAL: [&str; 6] =
    ["metric", "target_value", "current_value", "nid", "memcg_path", "complement"];
pub(super) const WATERMARKS: [&str; 5] = ["metric", "interval_us", "high_permil", "mid_permil", "low_permil"];
pub(super) const FILTER: [&str; 9] = [
    "filter_type",
    "matching",
    "allow",
    "filter_pass",
    "memcg_path",
    "address_range",
    "damon_target_idx",
    "hugepage_size",
    "probe_hits_wsum_range",
];

/// A key that is none of those known.
pub(super) struct Unknown {
    /// As it may be printed.
    pub key: String,
    /// Why it is refused; `None`: it is something new, which may be left out and said.
    pub refused: Option<Problem>,
}

/// What of an object is not known. What may be a slip is refused, and so is anything new that says which memory is meant (`strict`).
pub(super) fn unknown(object: &Map<String, Value>, known: &[&str], strict: bool) -> Vec<Unknown> {
    let unknown = object.keys().filter(|key| !known.contains(&key.as_str())).take(10).map(|key| {
        let meant = meant(key, known.iter().copied());
        let problem = Problem::UnknownKey { meant: meant.clone(), known: known.join(", ") };
        Unknown {
            key: key.chars().take(60).collect(),
            refused: (strict || meant.is_some()).then_some(problem),
        }
    });
    unknown.collect()
}
