//! Which virtqueue has which index.
//!
//! The text of the specification (virtio 1.3, 5.5.2) gives every queue a fixed index: inflate 0, deflate 1, stats 2,
//! free page 3, reporting 4. Implementations do otherwise: QEMU, Cloud Hypervisor and Firecracker as devices, and Linux
//! as driver, count only the queues that exist, so that without free page hinting the reporting queue of QEMU is
//! number 3. The two ways differ only where a queue in the middle is missing. Here both are understood:
//!
//! - The driver looks which queues exist. It accepts every feature that brings a queue below the last one that it
//!   wants (see [`Numbering::at_or_below`]), so that counting the offered and counting the negotiated queues is the
//!   same.
//! - The device counts, as QEMU does, and takes the fixed indices when the driver has set up those instead.

use crate::Features;

/// What a virtqueue is for, in the order of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Page numbers that the guest gives to the balloon.
    Inflate,
    /// Page numbers that the guest takes back.
    Deflate,
    /// Statistics, when the device asks for them.
    Stats,
    /// Free page hints, during migration.
    FreePage,
    /// Free page reports, at any time.
    Reporting,
}

impl Role {
    /// All roles, by fixed index.
    pub const ALL: [Self; 5] = [Self::Inflate, Self::Deflate, Self::Stats, Self::FreePage, Self::Reporting];

    /// The feature that brings the queue; none for the two that always exist.
    pub const fn feature(self) -> Features {
        match self {
            Self::Inflate | Self::Deflate => Features::empty(),
            Self::Stats => Features::STATS_VQ,
            Self::FreePage => Features::FREE_PAGE_HINT,
            Self::Reporting => Features::REPORTING,
        }
    }
}

/// An assignment of indices to the queues that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbering([Option<u16>; 5]);

impl Numbering {
    /// The indices in the text of the specification.
    pub fn fixed(features: Features) -> Self {
        Self(Role::ALL.map(|role| features.contains(role.feature()).then_some(role as u16)))
    }

    /// The indices when queues that do not exist are not counted.
    pub fn counted(features: Features) -> Self {
        let mut next = 0;
        Self(Role::ALL.map(|role| {
            features.contains(role.feature()).then(|| {
                next += 1;
                next - 1
            })
        }))
    }

    /// The same indices for the queues of these features only.
    #[must_use]
    pub fn only(self, features: Features) -> Self {
        Self(Role::ALL.map(|role| self.index(role).filter(|_| features.contains(role.feature()))))
    }

    /// The fixed indices if `exists` says yes to all of them, else the counted ones if it says yes to those.
    ///
    /// The fixed ones come first because a device that counts has no queue past its last, while one with fixed
    /// indices may well have more than those of the features.
    pub fn find(features: Features, mut exists: impl FnMut(u16) -> bool) -> Option<Self> {
        [Self::fixed(features), Self::counted(features)]
            .into_iter()
            .find(|numbering| numbering.0.iter().flatten().all(|&index| exists(index)))
    }

    /// `wanted`, and of `offered` what brings a queue before the last queue of `wanted`.
    pub fn at_or_below(wanted: Features, offered: Features) -> Features {
        let wanted = wanted & offered;
        let last =
            Role::ALL.into_iter().rfind(|role| wanted.contains(role.feature())).unwrap_or(Role::Deflate);
        Role::ALL
            .into_iter()
            .filter(|&role| role < last)
            .fold(wanted, |features, role| features | (role.feature() & offered))
    }

    /// The index of a queue, if it exists.
    pub fn index(&self, role: Role) -> Option<u16> {
        self.0[role as usize]
    }

    /// What the queue of this index is for.
    pub fn role(&self, index: u16) -> Option<Role> {
        Role::ALL.into_iter().find(|&role| self.index(role) == Some(index))
    }

    /// The queues that exist.
    pub fn queues(&self) -> impl Iterator<Item = (Role, u16)> + '_ {
        Role::ALL.into_iter().filter_map(|role| Some((role, self.index(role)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATS: Features = Features::STATS_VQ;
    const HINT: Features = Features::FREE_PAGE_HINT;
    const REPORT: Features = Features::REPORTING;

    /// (features, index of the last queue when counted, when fixed), the counted ones as QEMU 7.2 and Linux 6.1 have
    /// them.
    const TABLE: [(Features, Role, u16, u16); 7] = [
        (Features::empty(), Role::Deflate, 1, 1),
        (STATS, Role::Stats, 2, 2),
        (STATS.union(REPORT), Role::Reporting, 3, 4),
        (STATS.union(HINT), Role::FreePage, 3, 3),
        (STATS.union(HINT).union(REPORT), Role::Reporting, 4, 4),
        (REPORT, Role::Reporting, 2, 4),
        (HINT.union(REPORT), Role::Reporting, 3, 4),
    ];

    #[test]
    fn indices_are_those_of_qemu_and_of_the_specification() {
        for (features, role, counted, fixed) in TABLE {
            assert_eq!(Numbering::counted(features).index(role), Some(counted), "{features:?}");
            assert_eq!(Numbering::fixed(features).index(role), Some(fixed), "{features:?}");
            assert_eq!(Numbering::counted(features).role(counted), Some(role));
            assert_eq!(Numbering::fixed(features).role(fixed), Some(role));
        }
        assert_eq!(Numbering::counted(STATS).index(Role::Reporting), None);
        assert_eq!(Numbering::counted(STATS).role(3), None);
    }

    #[test]
    fn the_driver_finds_out_which_way_the_device_numbers() {
        for (features, role, counted, fixed) in TABLE {
            let counts = Numbering::find(features, |index| index <= counted).unwrap();
            assert_eq!(counts.index(role), Some(counted), "a device that counts, {features:?}");
            let fixes = Numbering::find(features, |index| Numbering::fixed(features).role(index).is_some());
            assert_eq!(fixes.unwrap().index(role), Some(fixed), "a device with fixed indices, {features:?}");
        }
        assert_eq!(Numbering::find(STATS, |index| index < 2), None, "a device without its statistics queue");
    }

    #[test]
    fn unwanted_queues_below_a_wanted_one_are_accepted_and_others_not() {
        let offered = Features::BALLOON;
        assert_eq!(Numbering::at_or_below(REPORT, offered), STATS | HINT | REPORT);
        assert_eq!(Numbering::at_or_below(STATS, offered), STATS);
        assert_eq!(Numbering::at_or_below(HINT, offered), STATS | HINT);
        assert_eq!(Numbering::at_or_below(Features::empty(), offered), Features::empty());
        assert_eq!(Numbering::at_or_below(REPORT, STATS), Features::empty(), "not offered");
    }
}
