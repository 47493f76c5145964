use crate::{Mobility, Order};

/// What is known of an allocated block, in the byte of its first frame; the bytes of all other frames are [`Tag::NONE`].
pub struct Tag;

impl Tag {
    /// No allocated block begins here.
    pub const NONE: u8 = 0;
    const ALLOCATED: u8 = 0x80;
    const MOBILITY: u8 = 0x10;
    const ORDER: u8 = 0x0f;

    #[inline]
    pub const fn of(order: Order, mobility: Mobility) -> u8 {
        Self::ALLOCATED | (mobility as u8 * Self::MOBILITY) | order.get()
    }

    /// The mobility of the block that begins here, if one of that order does.
    #[inline]
    pub const fn mobility(tag: u8, order: Order) -> Option<Mobility> {
        if tag & !Self::MOBILITY != Self::ALLOCATED | order.get() {
            return None;
        }
        Some(if tag & Self::MOBILITY == 0 { Mobility::Movable } else { Mobility::Unmovable })
    }

    /// The order of the block that begins here, if one does.
    pub const fn order(tag: u8) -> Option<Order> {
        if tag & Self::ALLOCATED == 0 { None } else { Order::new(tag & Self::ORDER) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_says_one_thing() {
        let mut known = std::vec![None; 256];
        for order in Order::all() {
            for mobility in [Mobility::Movable, Mobility::Unmovable] {
                let slot = &mut known[usize::from(Tag::of(order, mobility))];
                assert_eq!(slot.replace((order, mobility)), None);
            }
        }
        for tag in 0..=u8::MAX {
            for order in Order::all() {
                let expected = known[usize::from(tag)].filter(|known| known.0 == order);
                assert_eq!(Tag::mobility(tag, order), expected.map(|known| known.1), "{tag:x}");
            }
            if let Some((order, _)) = known[usize::from(tag)] {
                assert_eq!(Tag::order(tag), Some(order));
            }
        }
        assert_eq!(Tag::order(Tag::NONE), None);
    }
}
