//! What a trial found.

use super::series::Step;
use serde::Serialize;

/// Times within which memory is counted as accessed again, seconds.
pub const WITHIN_S: [u64; 8] = [1, 5, 10, 30, 60, 300, 600, 3600];

/// What a scheme would have done.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SchemeTrial {
    /// Its name, or its number and action.
    pub scheme: String,
    /// Its action.
    pub action: String,
    /// Bytes the action would have been tried on, each time anew.
    pub tried_bytes: u64,
    /// Bytes on which it would have taken effect: of `pageout` those that were resident.
    pub applied_bytes: u64,
    /// Bytes that were accessed again after they were acted on: of `pageout` the refaults.
    pub accessed_again_bytes: u64,
    /// Of them, those accessed again sooner than the scheme's minimum age.
    pub accessed_again_within_min_age_bytes: u64,
    /// Of them, those accessed again within so many seconds, see [`WITHIN_S`].
    pub accessed_again_within: Vec<(u64, u64)>,
    /// Bytes not accessed again until the recording ended.
    pub left_bytes: u64,
    /// Bytes that matched but for their rate, which is unknown, in the last pass.
    pub unknown_bytes: u64,
    /// Quota windows that were full.
    pub quota_exceeds: u64,
}

impl SchemeTrial {
    /// Bytes accessed again by bytes acted on; `None` where there were none.
    pub fn accessed_again_share(&self) -> Option<f64> {
        (self.applied_bytes > 0).then(|| self.accessed_again_bytes as f64 / self.applied_bytes as f64)
    }
}

/// What a set of schemes would have done.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TrialReport {
    /// Length of the recording, seconds.
    pub seconds: f64,
    /// Snapshots.
    pub snapshots: u64,
    /// Resident memory of the targets without the schemes, mean over time, bytes.
    pub resident_bytes: f64,
    /// The recording says how much is resident, of 99 % of it; otherwise what is mapped was taken for that.
    pub resident_known: bool,
    /// Resident memory kept out, mean over time, bytes.
    pub out_bytes: f64,
    /// The same over all the time, byte-seconds.
    pub out_byte_seconds: f64,
    /// Most memory out at a time, bytes.
    pub most_out_bytes: u64,
    /// Each scheme.
    pub schemes: Vec<SchemeTrial>,
    /// Over time.
    pub over_time: Vec<Step>,
    /// What a recording cannot say, and what was assumed in its place, a sentence each.
    pub assumed: Vec<String>,
}

impl TrialReport {
    /// Bytes paged out, by all schemes.
    pub fn paged_out_bytes(&self) -> u64 {
        self.pageouts().map(|scheme| scheme.applied_bytes).sum()
    }

    /// Bytes paged out that came back.
    pub fn refaulted_bytes(&self) -> u64 {
        self.pageouts().map(|scheme| scheme.accessed_again_bytes).sum()
    }

    fn pageouts(&self) -> impl Iterator<Item = &SchemeTrial> {
        self.schemes.iter().filter(|scheme| scheme.action == "pageout")
    }

    /// Memory kept out as a share of what is resident without the schemes.
    pub fn out_share(&self) -> f64 {
        if self.resident_bytes > 0.0 { self.out_bytes / self.resident_bytes } else { 0.0 }
    }
}
