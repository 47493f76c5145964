//! What processors do to memory together: each its share.

use isotherm_frames::Order;

/// A job. Bytes are those of all processors when it is given, and of one when it has been [shared](Job::share) out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// `alloc SIZE [ORDER]`: allocate, rounded up to whole blocks; not yet touched.
    Alloc {
        /// How much.
        bytes: u64,
        /// Blocks of which order.
        order: Order,
    },
    /// `touch`: stamp every live page, with a new generation.
    Touch,
    /// `check`: read every live page's stamps.
    Check,
    /// `free SIZE|all`: free at least so much of what is live, the youngest first.
    Free {
        /// How much; `u64::MAX` for everything.
        bytes: u64,
    },
    /// `rounds N [SIZE]`: rounds of allocate, stamp, check, free, report.
    Rounds {
        /// How many.
        rounds: u64,
        /// How much is live at the most.
        bytes: u64,
    },
    /// `memhog SIZE`: allocate, write every byte, free.
    Memhog {
        /// How much.
        bytes: u64,
    },
    /// Overwrite a page behind the books' back.
    Spoil,
}

impl Job {
    /// Bytes that it needs free.
    #[must_use]
    pub const fn needs(self) -> u64 {
        match self {
            Self::Alloc { bytes, .. } | Self::Rounds { bytes, .. } | Self::Memhog { bytes } => bytes,
            Self::Touch | Self::Check | Self::Free { .. } | Self::Spoil => 0,
        }
    }

    /// The part of processor `cpu` of `cpus`; processor 0 gets what does not divide.
    #[must_use]
    pub const fn share(mut self, cpus: u64, cpu: usize) -> Self {
        if let Self::Alloc { bytes, .. }
        | Self::Rounds { bytes, .. }
        | Self::Memhog { bytes }
        | Self::Free { bytes } = &mut self
        {
            let part = *bytes / cpus;
            *bytes = if cpu == 0 { *bytes - part * (cpus - 1) } else { part };
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for bytes in [0, 1, 5, 4096, (1 << 30) + 3, u64::MAX] {
            for cpus in 1..=8 {
                let share = |cpu| match (Job::Free { bytes }).share(cpus, cpu) {
                    Job::Free { bytes } => bytes,
                    other => panic!("{other:?}"),
                };
                let all: u64 = (0..cpus as usize).map(share).sum();
                assert_eq!(all, bytes, "{cpus} processors");
                assert!(share(0) - share(cpus as usize - 1) < cpus, "{cpus} processors");
            }
        }
    }

    #[test]
    fn what_is_done_to_live_pages_needs_no_memory() {
        assert_eq!(Job::Touch.needs(), 0);
        assert_eq!(Job::Free { bytes: u64::MAX }.needs(), 0);
        assert_eq!(Job::Memhog { bytes: 7 }.share(2, 0).needs(), 4);
    }
}
