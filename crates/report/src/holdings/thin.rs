//! Snapshots of very many regions: of a target that has a million of them no more parts are kept than reports can tell apart.

use super::layer::Part;
use super::objects::Scale;

/// Parts of a target's memory that a snapshot is reduced to. A guess: far beyond what a monitor tells apart at its default of a
/// thousand regions. Measured with a snapshot of a million regions in random order, each takes 1.2 kB: two segments with their
/// histories, and the room in which they grow.
pub(super) const MOST_PARTS: usize = 1 << 15;

/// Share of memory accessed within this time by which neighbours are compared, seconds: the window of the shortest working set.
const WINDOW_S: f64 = 1.0;

/// Joins neighbours until at most `max` are left, or none that touch: those first of which the fewest bytes are told to be what
/// they are not. All sums stay what they were but for that.
pub(super) fn thin(parts: &mut Vec<Part>, max: usize, scale: &Scale) {
    let mut costs: Vec<f64> = Vec::new();
    loop {
        let Some(excess) = parts.len().checked_sub(max).filter(|n| *n > 0) else { return };
        costs.clear();
        costs.extend(parts.windows(2).filter_map(|pair| cost(&pair[0], &pair[1])));
        if costs.is_empty() {
            return;
        }
        let nth = excess.min(costs.len()) - 1;
        let (_, &mut limit, _) = costs.select_nth_unstable_by(nth, f64::total_cmp);
        let mut left = excess;
        parts.dedup_by(|next, last| {
            let joins = left > 0 && cost(last, next).is_some_and(|cost| cost <= limit);
            if joins {
                left -= 1;
                *last = joined(last, next, scale);
            }
            joins
        });
        if left == excess {
            return;
        }
    }
}

/// Bytes that would be told to be what they are not if these were one; nothing where they do not touch, or of one it is known what
/// is in memory and of the other not.
fn cost(a: &Part, b: &Part) -> Option<f64> {
    if a.range.end != b.range.start || a.resident.is_some() != b.resident.is_some() {
        return None;
    }
    let accessed = |part: &Part| -(-part.per_s * WINDOW_S).exp_m1();
    let there = |part: &Part| part.resident.unwrap_or(1.0);
    let differ = (accessed(a) - accessed(b)).abs()
        + (a.hz - b.hz).abs() / a.hz.max(b.hz).max(1.0)
        + (a.seen - b.seen).abs()
        + (there(a) - there(b)).abs()
        // Times from a second on that memory is called cold after.
        + ((a.idle_s.max(1.0) / b.idle_s.max(1.0)).ln().abs() / 10f64.ln()).min(1.0);
    Some(differ * a.range.size().min(b.range.size()) as f64)
}

fn joined(a: &Part, b: &Part, scale: &Scale) -> Part {
    let (of_a, of_b) = (a.range.size() as f64, b.range.size() as f64);
    let mean = |a: f64, of_a: f64, b: f64, of_b: f64| match of_a + of_b {
        all if all > 0.0 => (a * of_a + b * of_b) / all,
        _ => a.midpoint(b),
    };
    let there = |part: &Part, bytes: f64| bytes * part.resident.unwrap_or(1.0);
    let (there_a, there_b) = (there(a, of_a), there(b, of_b));
    // What is known of it is of what is there, and rates are of what is known.
    let hz = mean(a.hz, there_a * a.seen, b.hz, there_b * b.seen);
    Part {
        range: isotherm_damon::AddrRange::new(a.range.start, b.range.end),
        seen: mean(a.seen, there_a, b.seen, there_b),
        per_s: if a.per_s == b.per_s { a.per_s } else { scale.per_s(hz) },
        hz,
        resident: a.resident.zip(b.resident).map(|(a, b)| mean(a, of_a, b, of_b)),
        idle_s: mean(a.idle_s, of_a, b.idle_s, of_b),
        whole: isotherm_damon::AddrRange::new(a.whole.start.min(b.whole.start), a.whole.end.max(b.whole.end)),
        strewn: a.strewn || b.strewn,
    }
}
