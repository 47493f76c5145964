//! damo's former binary `record` format, versions 0, 1 and 2.

/// What versions 1 and 2 begin with; there is no terminating NUL.
pub(crate) const MAGIC: &[u8; 16] = b"damon_recfmt_ver";

/// Whether `head` can be the beginning of a version 0 file, which has no mark: a sensible time, and counts that agree.
pub(crate) fn looks_like_v0(head: &[u8]) -> bool {
    let i64_at = |at: usize| Some(i64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
    let u32_at = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
    let (Some(secs), Some(nanos), Some(targets)) = (i64_at(0), i64_at(8), u32_at(16)) else { return false };
    // Up to the year 2242, whichever clock.
    (0..1 << 33).contains(&secs) && (0..1_000_000_000).contains(&nanos) && (1..=65_536).contains(&targets)
}
