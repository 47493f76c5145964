//! A line of the text.

use crate::spool::counted;
use isotherm_damon::RegionSnapshot;

/// Whose snapshot an event belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Source {
    /// Context and scheme, of `damos_before_apply`.
    pub(super) scheme: Option<(u64, u64)>,
    pub(super) target: u64,
}

/// What a line of the right event says.
pub(super) struct Event {
    pub(super) end_ns: u64,
    pub(super) source: Source,
    pub(super) nr_regions: usize,
    /// `None`: damo's mark of the end of a lone snapshot, the region 0-0 with -1 accesses.
    pub(super) region: Option<RegionSnapshot>,
    /// Whether an age stands behind the accesses.
    pub(super) has_age: bool,
}

/// The sampling interval that a `damon_monitor_intervals_tune` event tells, us.
pub(super) fn sample_interval(text: &str) -> Option<u64> {
    let (_, fields) = text.split_once("damon_monitor_intervals_tune:")?;
    fields.split_whitespace().find_map(|f| f.strip_prefix("sample_us="))?.parse().ok()
}

impl Event {
    /// Whether a line is to be one.
    pub(super) fn is_one(text: &str) -> bool {
        text.contains("damon_aggregated:") || text.contains("damos_before_apply:")
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let applied = text.split_once("damos_before_apply:");
        let (before, fields) = applied.or_else(|| text.split_once("damon_aggregated:"))?;
        // "... 82877.315633: damon:"; the command's name may hold spaces and colons, the time is the last field.
        let before = before.trim_end().strip_suffix("damon:").unwrap_or(before);
        let time = before.split_whitespace().next_back()?.strip_suffix(':')?;
        let mut fields = fields.split_whitespace();
        let mut number = |name: &str| -> Option<u64> {
            fields.next()?.strip_prefix(name)?.strip_prefix('=')?.parse().ok()
        };
        let source = if applied.is_some() {
            Source {
                scheme: Some((number("ctx_idx")?, number("scheme_idx")?)),
                target: number("target_idx")?,
            }
        } else {
            Source { scheme: None, target: number("target_id")? }
        };
        let nr_regions = usize::try_from(number("nr_regions")?).ok()?;
        let (start, end) = fields.next()?.strip_suffix(':')?.split_once('-')?;
        let (start, end): (u64, u64) = (start.parse().ok()?, end.parse().ok()?);
        let nr: i64 = fields.next()?.parse().ok()?;
        let age = fields.next();
        let has_age = age.is_some();
        let age: i64 = age.map_or(Some(0), |age| age.parse().ok())?;
        let marker = (start, end, nr) == (0, 0, -1);
        let region = match (u32::try_from(nr), u32::try_from(age)) {
            (Ok(nr), Ok(age)) => Some(counted(start, end, nr, age)),
            _ if marker => None,
            _ => return None,
        };
        Some(Self { end_ns: nanoseconds(time)?, source, nr_regions, region, has_age })
    }
}

/// `seconds[.fraction]` in nanoseconds, exactly; digits past the ninth are dropped.
fn nanoseconds(text: &str) -> Option<u64> {
    let (secs, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = fraction.get(..9).unwrap_or(fraction);
    let fraction: u64 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    let scale = 10_u64.checked_pow(9 - u32::try_from(digits.len()).ok()?)?;
    secs.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction * scale)
}
