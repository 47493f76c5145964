//! What a guest can do wrong, counted by kind.

use std::fmt;

/// A mistake, or an attack, of the guest. The device passes over what is wrong and goes on; none of these does harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The index of the available ring is ahead by more than the ring's size: nothing is taken from the queue.
    AvailIndex,
    /// The queue's rings do not lie in guest memory (any more).
    QueueMemory,
    /// The first descriptor of a chain is outside the table: the chain cannot be returned.
    HeadOutOfRange,
    /// A chain points outside its table, to unreadable memory, is longer than 4 GiB, or is nested in indirect tables.
    BrokenChain,
    /// A chain has more descriptors than the queue, as one that is a loop.
    ChainTooLong,
    /// A buffer that the device is to read is writable, or the other way round.
    WrongDirection,
    /// A buffer of no bytes.
    ZeroLength,
    /// A length that is not a multiple of the size of what is in it.
    OddLength,
    /// More bytes than any driver has reason to send.
    Overlong,
    /// An address that is not guest memory.
    OutOfRange,
    /// A reported range that holds no whole page of the host.
    Unaligned,
    /// A page that is in the balloon was put there again.
    InflatedTwice,
    /// A page was taken out of the balloon that is not in it.
    NotInBalloon,
    /// A command id of hinting that is not, or no longer, asked for.
    StaleCommand,
    /// A second statistics buffer while the device keeps one.
    ExtraStatsBuffer,
    /// A write to a field of the configuration that the driver may not write, or not now.
    ConfigWrite,
    /// The host refused to take the memory.
    Host,
}

impl Fault {
    /// All kinds.
    pub const ALL: [Self; 17] = [
        Self::AvailIndex,
        Self::QueueMemory,
        Self::HeadOutOfRange,
        Self::BrokenChain,
        Self::ChainTooLong,
        Self::WrongDirection,
        Self::ZeroLength,
        Self::OddLength,
        Self::Overlong,
        Self::OutOfRange,
        Self::Unaligned,
        Self::InflatedTwice,
        Self::NotInBalloon,
        Self::StaleCommand,
        Self::ExtraStatsBuffer,
        Self::ConfigWrite,
        Self::Host,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AvailIndex => "index of the available ring out of range",
            Self::QueueMemory => "rings outside guest memory",
            Self::HeadOutOfRange => "head of a chain outside the descriptor table",
            Self::BrokenChain => "broken descriptor chain",
            Self::ChainTooLong => "descriptor chain longer than the queue",
            Self::WrongDirection => "buffer of the wrong direction",
            Self::ZeroLength => "buffer of no bytes",
            Self::OddLength => "buffer that ends within an entry",
            Self::Overlong => "request too long",
            Self::OutOfRange => "address outside guest memory",
            Self::Unaligned => "range without a whole host page",
            Self::InflatedTwice => "page already in the balloon",
            Self::NotInBalloon => "page not in the balloon",
            Self::StaleCommand => "unknown command id of hinting",
            Self::ExtraStatsBuffer => "second statistics buffer",
            Self::ConfigWrite => "write to a read-only field of the configuration",
            Self::Host => "host refused to take memory",
        })
    }
}

/// How often each kind of [`Fault`] occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults([u64; Fault::ALL.len()]);

impl Faults {
    /// How often this kind occurred.
    pub fn count(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }

    /// How many there were of all kinds.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, &count| sum.saturating_add(count))
    }

    /// The kinds that occurred.
    pub fn iter(&self) -> impl Iterator<Item = (Fault, u64)> + '_ {
        Fault::ALL.into_iter().map(|fault| (fault, self.count(fault))).filter(|&(_, count)| count > 0)
    }

    /// Counts one. A guest can cause as many as it likes, so only the 1st, 2nd, 4th, 8th ... of a kind is logged.
    pub(super) fn add(&mut self, fault: Fault, detail: fmt::Arguments<'_>) {
        let count = &mut self.0[fault as usize];
        *count = count.saturating_add(1);
        if count.is_power_of_two() {
            log::warn!("balloon: {fault}: {detail} (number {count} of its kind)");
        }
    }
}
