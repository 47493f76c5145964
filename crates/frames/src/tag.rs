use crate::{Mobility, Order};

/// The lock under which an allocated block is freed: whoever clears its tag holds it, so of two CPUs that free the block at
/// once the second finds the tag cleared. It is the lock that most likely is taken anyway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// The zone's.
    Zone,
    /// That of the cache it was allocated from.
    Cache(usize),
}

/// What is known of an allocated block, in two bytes of its first frame; those of all other frames are [`Tag::NONE`].
///
/// | bits | |
/// |---|---|
/// | 15 | an allocated block begins here |
/// | 5..15 | home: 0 for the zone, else the index of the cache plus one |
/// | 4 | unmovable |
/// | 0..4 | order |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag(pub u16);

/// How many caches there can be: what the bits of the home allow.
pub const MOST_CACHES: usize = 1023;

impl Tag {
    /// No allocated block begins here.
    pub const NONE: Self = Self(0);
    const ALLOCATED: u16 = 1 << 15;
    const HOME_SHIFT: u32 = 5;
    const HOME: u16 = 0x3ff << Self::HOME_SHIFT;
    const UNMOVABLE: u16 = 1 << 4;
    const ORDER: u16 = 0x0f;

    #[inline]
    pub const fn of(order: Order, mobility: Mobility, home: Home) -> Self {
        let home = match home {
            Home::Zone => 0,
            Home::Cache(cache) => cache as u16 + 1,
        };
        let mobility = mobility as u16 * Self::UNMOVABLE;
        Self(Self::ALLOCATED | home << Self::HOME_SHIFT | mobility | order.get() as u16)
    }

    /// Whether a block of that order begins here, and its home is the cache of that index, which is below [`MOST_CACHES`].
    #[inline]
    pub const fn is_of_cache(self, order: Order, cache: usize) -> bool {
        let home = (cache as u16).wrapping_add(1) << Self::HOME_SHIFT;
        self.0 & !Self::UNMOVABLE == Self::ALLOCATED | home | order.get() as u16
    }

    /// The mobility of the block that begins here, if one does.
    #[inline]
    pub const fn mobility(self) -> Mobility {
        if self.0 & Self::UNMOVABLE == 0 { Mobility::Movable } else { Mobility::Unmovable }
    }

    /// The lock under which it is cleared.
    #[inline]
    pub const fn home(self) -> Home {
        match (self.0 & Self::HOME) >> Self::HOME_SHIFT {
            0 => Home::Zone,
            cache => Home::Cache(cache as usize - 1),
        }
    }

    /// The order of the block that begins here, if one does.
    pub const fn order(self) -> Option<Order> {
        if self.0 & Self::ALLOCATED == 0 { None } else { Order::new((self.0 & Self::ORDER) as u8) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "safe code, and exhaustive")]
    fn every_pair_of_bytes_says_one_thing() {
        let mut known = std::vec![None; 1 << 16];
        let homes = (0..MOST_CACHES).map(Home::Cache).chain([Home::Zone]);
        for home in homes {
            for order in Order::all() {
                for mobility in [Mobility::Movable, Mobility::Unmovable] {
                    let tag = Tag::of(order, mobility, home);
                    assert_eq!(known[usize::from(tag.0)].replace((order, mobility, home)), None);
                }
            }
        }
        for tag in (0..=u16::MAX).map(Tag) {
            let said = known[usize::from(tag.0)];
            assert!(said.is_none_or(|(order, mobility, home)| {
                (tag.order(), tag.mobility(), tag.home()) == (Some(order), mobility, home)
            }));
            for order in Order::all() {
                for cache in [0, 1, 2, 511, MOST_CACHES - 1] {
                    let is = said.is_some_and(|(at, _, home)| (at, home) == (order, Home::Cache(cache)));
                    assert_eq!(tag.is_of_cache(order, cache), is, "{tag:x?}, {order}, {cache}");
                }
            }
        }
        assert_eq!(Tag::NONE.order(), None);
    }
}
