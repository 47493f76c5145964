//! Lines of text, fast.
//!
//! A recording of millions of regions becomes gigabytes of text, so what is formatted anew for each region is little: the
//! times are those of the snapshot, the end of a region is the start of the next, and rates repeat. Rates are printed by
//! the standard library, once for each count that occurs, so that their digits are exactly its own.

use crate::rate::{BP, RateScale};
use isotherm_damon::RegionSnapshot;
use std::io::{self, Write};

/// Counts whose rates are remembered; a power of two.
const REMEMBERED: usize = 4096;
/// Text that is handed on at once.
const CHUNK: usize = 64 << 10;

/// Formats the regions of a snapshot.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    out: Vec<u8>,
    /// Times, and behind them the target.
    head: Vec<u8>,
    times: usize,
    max: Vec<u8>,
    rates: Rates,
}

impl Lines {
    /// Lines of a snapshot from here on: its times in seconds, the highest possible count, what counts are worth.
    pub fn begin(&mut self, from: f64, to: f64, max_nr_accesses: u32, scale: RateScale) {
        self.head.clear();
        // Writing to memory cannot fail.
        let _ = write!(self.head, "{from:.6} {to:.6} ");
        self.times = self.head.len();
        self.max.clear();
        let _ = write!(self.max, " {max_nr_accesses} ");
        self.rates.begin(scale);
    }

    /// Writes the regions of a target, a line each.
    pub fn target(&mut self, id: u64, regions: &[RegionSnapshot], out: &mut impl Write) -> io::Result<()> {
        self.head.truncate(self.times);
        let _ = write!(self.head, "{id} ");
        let mut decimal = itoa::Buffer::new();
        let mut end = Address::default();
        for r in regions {
            let text = &mut self.out;
            text.extend_from_slice(&self.head);
            let start = if r.range.start == end.value { end } else { Address::new(r.range.start) };
            text.extend_from_slice(start.text());
            end = Address::new(r.range.end);
            text.extend_from_slice(end.text());
            text.extend_from_slice(decimal.format(r.range.size()).as_bytes());
            text.push(b' ');
            text.extend_from_slice(decimal.format(r.nr_accesses).as_bytes());
            text.extend_from_slice(&self.max);
            match r.is_unknown() {
                true => text.extend_from_slice(b"? "),
                false => self.rates.put(r, text),
            }
            text.extend_from_slice(decimal.format(r.age).as_bytes());
            // Most regions could be observed whole, by a backend that counts, and it is not known what is resident.
            if r.seen_bp == 10_000 && r.exposure == RegionSnapshot::COUNTED && r.resident.is_none() {
                text.extend_from_slice(b" 1.0000 - -\n");
            } else {
                let _ = write!(text, " {:.4}", f64::from(r.seen_bp) / BP);
                let exposure = (r.exposure != RegionSnapshot::COUNTED).then_some(u64::from(r.exposure));
                for value in [exposure, r.resident] {
                    text.push(b' ');
                    match value {
                        Some(value) => text.extend_from_slice(decimal.format(value).as_bytes()),
                        None => text.push(b'-'),
                    }
                }
                text.push(b'\n');
            }
            if text.len() >= CHUNK {
                out.write_all(text)?;
                text.clear();
            }
        }
        out.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }
}

/// An address with a space behind it: `0x7f1200000000 `.
#[derive(Clone, Copy, Debug)]
struct Address {
    value: u64,
    text: [u8; 20],
    from: usize,
}

/// No address: the text of 0 is made when it is needed.
impl Default for Address {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Address {
    fn new(value: u64) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [b' '; 20];
        let mut from = text.len() - 1;
        let mut rest = value;
        loop {
            from -= 1;
            text[from] = DIGITS[(rest & 15) as usize];
            rest >>= 4;
            if rest == 0 {
                break;
            }
        }
        text[from - 1] = b'x';
        text[from - 2] = b'0';
        Self { value, text, from: from - 2 }
    }

    fn text(&self) -> &[u8] {
        &self.text[self.from..]
    }
}

/// The texts of rates by accesses, as long as the scale stays the same.
#[derive(Clone, Debug, Default)]
struct Rates {
    scale: Option<RateScale>,
    known: Vec<Rate>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    bp: u64,
    /// 0: nothing is remembered here.
    len: u8,
    text: [u8; 19],
}

impl Rates {
    fn begin(&mut self, scale: RateScale) {
        if self.scale != Some(scale) {
            self.scale = Some(scale);
            self.known.clear();
            self.known.resize(REMEMBERED, Rate::default());
        }
    }

    /// Appends the rate of `region` and a space.
    fn put(&mut self, region: &RegionSnapshot, out: &mut Vec<u8>) {
        let bp = region.accesses_bp();
        // Whole accesses are multiples of 10,000: an odd factor spreads them.
        let slot = ((bp as u32).wrapping_mul(0x9e37_79b1) >> 20) as usize % REMEMBERED;
        if let Some(known) = self.known.get(slot)
            && known.bp == bp
            && known.len > 0
        {
            out.extend_from_slice(&known.text[..usize::from(known.len)]);
            return;
        }
        let from = out.len();
        if let Some(scale) = self.scale {
            let _ = write!(out, "{:.3} ", scale.hz(region));
        }
        let text = &out[from..];
        if let Some(slot) = self.known.get_mut(slot)
            && let Some(room) = slot.text.get_mut(..text.len())
        {
            room.copy_from_slice(text);
            (slot.bp, slot.len) = (bp, text.len() as u8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::recorded_ns;
    use isotherm_damon::{AddrRange, Snapshot};
    use proptest::prelude::*;

    /// A line as the standard library formats it.
    fn plain(from: f64, to: f64, id: u64, max: u32, scale: RateScale, r: &RegionSnapshot) -> String {
        let known = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |v| v.to_string());
        let rate = if r.is_unknown() { "?".to_owned() } else { format!("{:.3}", scale.hz(r)) };
        let exposure = (r.exposure != RegionSnapshot::COUNTED).then_some(u64::from(r.exposure));
        format!(
            "{from:.6} {to:.6} {id} {:#x} {:#x} {} {} {max} {rate} {} {:.4} {} {}\n",
            r.range.start,
            r.range.end,
            r.range.size(),
            r.nr_accesses,
            r.age,
            f64::from(r.seen_bp) / 10_000.0,
            known(exposure),
            known(r.resident),
        )
    }

    fn any_region() -> impl Strategy<Value = RegionSnapshot> {
        let addr = || prop_oneof![0..40_u64, any::<u64>()];
        let bp = prop_oneof![(0..21_u32).prop_map(|n| n * 10_000), 0..200_000_u32, any::<u32>()];
        let seen = prop_oneof![Just(10_000_u16), Just(0), any::<u16>()];
        let exposure = prop_oneof![Just(RegionSnapshot::COUNTED), any::<u32>()];
        let resident = proptest::option::of(any::<u64>());
        (addr(), addr(), bp, any::<u32>(), seen, exposure, resident).prop_map(
            |(a, b, bp, age, seen_bp, exposure, resident)| RegionSnapshot {
                range: AddrRange::new(a.min(b), a.max(b)),
                nr_accesses: bp / 10_000,
                nr_accesses_bp: bp,
                age,
                seen_bp,
                exposure,
                resident,
            },
        )
    }

    proptest! {
        /// Byte by byte what the standard library prints.
        #[test]
        fn lines_are_as_they_always_were(
            snapshots in prop::collection::vec(
                (0..1_u64 << 60, 1..1_u64 << 40, 0..3_u64, 0..3_u32, prop::collection::vec(any_region(), 0..30)),
                1..6,
            ),
        ) {
            let (mut lines, mut out, mut expected) = (Lines::default(), Vec::new(), String::new());
            for (start_ns, length, sample, max, regions) in &snapshots {
                let snapshot = Snapshot {
                    start_ns: *start_ns,
                    end_ns: start_ns + length,
                    sample_ns: sample * 4_999_999,
                    max_nr_accesses: max * 10,
                    targets: Vec::new(),
                };
                let scale = RateScale::of(&snapshot);
                let (from, to) = recorded_ns(&snapshot);
                let (from, to) = (from as f64 / 1e9, to as f64 / 1e9);
                lines.begin(from, to, snapshot.max_nr_accesses, scale);
                for id in [7, u64::MAX] {
                    lines.target(id, regions, &mut out).unwrap();
                    for r in regions {
                        expected += &plain(from, to, id, snapshot.max_nr_accesses, scale, r);
                    }
                }
            }
            prop_assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
