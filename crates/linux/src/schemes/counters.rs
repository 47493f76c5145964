//! The kernel's own account of what leaves memory and comes back, of all processes: beside what is seen of the targets.

use crate::proc_file::read_text;
use isotherm_damon::PAGE_SIZE;

/// Bytes, since the machine was booted or between two moments (`/proc/vmstat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounters {
    /// Written to swap (`pswpout`), or known there to be all zeros (`swpout_zero`, from Linux 6.12 on).
    pub swapped_out: u64,
    /// Read from swap, read ahead too, or made of zeros again (`pswpin`, `swpin_zero`).
    pub swapped_in: u64,
    /// Pages of files that were reclaimed and needed again soon (`workingset_refault_file`).
    pub file_refaults: u64,
}

impl KernelCounters {
    /// As they stand now; `None` where the file cannot be read.
    pub fn read() -> Option<Self> {
        Self::parse(&read_text("/proc/vmstat").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let bytes = |key: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
            Some(value.trim().parse::<u64>().ok()?.saturating_mul(PAGE_SIZE))
        };
        Some(Self {
            // A kernel without swap has neither.
            swapped_out: bytes("pswpout").unwrap_or(0) + bytes("swpout_zero").unwrap_or(0),
            swapped_in: bytes("pswpin").unwrap_or(0) + bytes("swpin_zero").unwrap_or(0),
            // Before Linux 5.9 there was one counter for both kinds of pages, of files alone.
            file_refaults: bytes("workingset_refault_file").or_else(|| bytes("workingset_refault"))?,
        })
    }

    /// What was counted after `before`.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self {
            swapped_out: self.swapped_out.saturating_sub(before.swapped_out),
            swapped_in: self.swapped_in.saturating_sub(before.swapped_in),
            file_refaults: self.file_refaults.saturating_sub(before.file_refaults),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counters_are_bytes_between_two_moments() {
        let text = "nr_free_pages 5\nworkingset_refault_anon 9\nworkingset_refault_file 3\npswpin 1\npswpout 4\nswpout_zero 3\n";
        let counted = KernelCounters::parse(text).unwrap();
        let pages = |swapped_out, swapped_in, file_refaults| KernelCounters {
            swapped_out: swapped_out * PAGE_SIZE,
            swapped_in: swapped_in * PAGE_SIZE,
            file_refaults: file_refaults * PAGE_SIZE,
        };
        assert_eq!(counted, pages(7, 1, 3));
        assert_eq!(counted.since(pages(2, 1, 0)), pages(5, 0, 3));
        // 5.8, and a kernel without swap.
        assert_eq!(KernelCounters::parse("workingset_refault 4\n"), Some(pages(0, 0, 4)));
        assert_eq!(KernelCounters::parse("pswpin x\n"), None);
    }

    #[test]
    fn this_machine_has_them() {
        assert!(KernelCounters::read().is_some());
    }
}
