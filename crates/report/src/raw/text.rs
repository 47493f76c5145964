//! Lines of text, fast.
//!
//! A recording of millions of regions becomes gigabytes of text, so what is formatted anew for each region is little: the
//! times are those of the snapshot. Digits are made eight at a time, in a register. Those of rates are the ones that the standard
//! library prints, which is asked only where a rounding is close.
//!
//! Each field is copied with the room that it lies in ([`Text`]), whatever stands behind its end; the next field covers that.
//! A copy whose length the compiler knows is a move or two, any other is a call, and calls were most of the work.

use super::chunk::{CHUNK, Chunk, MORE, TakeChunk};
use crate::rate::{BP, RateScale};
use isotherm_damon::RegionSnapshot;
use std::io::{self, Write};

/// Two times of at most 19 characters, a target of 20, and spaces.
const HEAD: usize = 64;
/// More than the longest line and what is copied behind its last field.
const LINE: usize = MORE;

/// Formats the regions of a snapshot.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    /// Times, and behind them the target.
    head: Text<HEAD>,
    times: usize,
    /// The highest count, with spaces.
    max: Text<16>,
    scale: Option<RateScale>,
}

impl Lines {
    /// Lines of a snapshot from here on: its times in seconds, the highest possible count, what counts are worth.
    pub fn begin(&mut self, from: f64, to: f64, max_nr_accesses: u32, scale: RateScale) {
        self.head.len = 0;
        // It fits.
        let _ = write!(self.head, "{from:.6} {to:.6} ");
        self.times = self.head.len;
        self.max = Text::default();
        let _ = write!(self.max, " {max_nr_accesses} ");
        self.scale = Some(scale);
    }

    /// Writes the regions of a target, a line each.
    pub fn target(
        &mut self,
        id: u64,
        regions: &[RegionSnapshot],
        chunk: &mut Chunk,
        out: &mut impl TakeChunk,
    ) -> io::Result<()> {
        self.head.len = self.times;
        let _ = write!(self.head, "{id} ");
        // A region mostly begins where the one before ended.
        let mut end = Address::of(0);
        for r in regions {
            if chunk.len >= CHUNK {
                out.take_chunk(chunk)?;
            }
            let mut line = Line { room: &mut chunk.room[chunk.len..][..LINE], len: 0 };
            line.whole(&self.head);
            let start = if r.range.start == end.value { end } else { Address::of(r.range.start) };
            end = Address::of(r.range.end);
            line.address(start);
            line.address(end);
            line.number(r.range.size());
            line.word(*b" ", 1);
            line.number(u64::from(r.nr_accesses));
            line.whole(&self.max);
            match self.scale {
                Some(scale) if !r.is_unknown() => line.rate(scale.hz(r)),
                _ => line.word(*b"? ", 2),
            }
            line.number(u64::from(r.age));
            // Most regions could be observed whole, by a backend that counts, and it is not known what is resident.
            if r.seen_bp == 10_000 && r.exposure == RegionSnapshot::COUNTED && r.resident.is_none() {
                line.word(*b" 1.0000 - -\n", 12);
            } else {
                line.observed(r);
            }
            chunk.len += line.len;
        }
        Ok(())
    }
}

/// A line in the making.
struct Line<'a> {
    room: &'a mut [u8],
    len: usize,
}

impl Line<'_> {
    /// Puts a text that lies in so much room, and lets stand behind it what stands behind it there. For texts that are in a
    /// register: one that is put together in memory, piece by piece, and then copied waits for the pieces.
    #[inline]
    fn word<const ROOM: usize>(&mut self, bytes: [u8; ROOM], len: usize) {
        if let Some(room) = self.room[self.len..].first_chunk_mut() {
            *room = bytes;
        }
        self.len += len;
    }

    #[inline]
    fn whole<const ROOM: usize>(&mut self, text: &Text<ROOM>) {
        self.word(text.bytes, text.len);
    }

    #[inline]
    fn number(&mut self, value: u64) {
        const ROUND: u64 = 100_000_000;
        // Most counts, ages and rates.
        if value < 1000 {
            let [hundreds, tens, ones, digits] = SMALL[value as usize];
            let all = u32::from_le_bytes([hundreds, tens, ones, 0]);
            return self.word((all >> (24 - 8 * u32::from(digits))).to_le_bytes(), usize::from(digits));
        }
        if value >= ROUND {
            self.number(value / ROUND);
            return self.word((eight_digits(value % ROUND) + ZEROS).to_le_bytes(), 8);
        }
        let digits = eight_digits(value);
        // The last digit stays, also of 0.
        let zeros = (digits | 1 << 63).trailing_zeros() / 8;
        self.word(((digits + ZEROS) >> (8 * zeros)).to_le_bytes(), 8 - zeros as usize);
    }

    /// `0x7f1200000000 `.
    #[inline]
    fn address(&mut self, address: Address) {
        self.word(*b"0x", 2);
        self.word(address.digits.to_le_bytes(), address.len);
        self.word(*b" ", 1);
    }

    /// A rate with three digits behind the point, and a space.
    #[inline]
    fn rate(&mut self, hz: f64) {
        let thousandths = hz * 1000.0;
        let near = (thousandths + 0.5) as u64;
        // The product is right to 2^-53, which is less than a ten-thousandth here: further than that from a half it is
        // rounded as the exact value would be.
        if (0.0..1e11).contains(&thousandths) && (thousandths - near as f64).abs() < 0.4999 {
            self.number(near / 1000);
            let [tenths, hundredths, thousandths, _] = SMALL[(near % 1000) as usize];
            self.word([b'.', tenths, hundredths, thousandths, b' ', 0, 0, 0], 5);
            return;
        }
        let mut text = Text::<48>::default();
        let _ = write!(text, "{hz:.3} ");
        self.whole(&text);
    }

    /// What could be observed, as its three columns, and the end of the line.
    fn observed(&mut self, r: &RegionSnapshot) {
        let mut seen = Text::<16>::default();
        let _ = write!(seen, " {:.4}", f64::from(r.seen_bp) / BP);
        self.whole(&seen);
        let exposure = (r.exposure != RegionSnapshot::COUNTED).then_some(u64::from(r.exposure));
        for value in [exposure, r.resident] {
            self.word(*b" ", 1);
            match value {
                Some(value) => self.number(value),
                None => self.word(*b"-", 1),
            }
        }
        self.word(*b"\n", 1);
    }
}

/// An address and its hexadecimal digits, the first in the lowest byte.
#[derive(Clone, Copy)]
struct Address {
    value: u64,
    digits: u128,
    len: usize,
}

impl Address {
    #[inline]
    fn of(value: u64) -> Self {
        let zeros = (value | 1).leading_zeros() / 4;
        let digits =
            u128::from(hexadecimal((value >> 32) as u32)) | u128::from(hexadecimal(value as u32)) << 64;
        Self { value, digits: digits >> (8 * zeros), len: 16 - zeros as usize }
    }
}

/// A short text and the room that it lies in.
#[derive(Clone, Copy, Debug)]
struct Text<const ROOM: usize> {
    bytes: [u8; ROOM],
    len: usize,
}

impl<const ROOM: usize> Default for Text<ROOM> {
    fn default() -> Self {
        Self { bytes: [0; ROOM], len: 0 }
    }
}

impl<const ROOM: usize> Write for Text<ROOM> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = (&mut self.bytes[self.len..]).write(bytes)?;
        self.len += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The three digits of each number below 1000, and how many of them it has: one at least.
const SMALL: [[u8; 4]; 1000] = {
    let mut all = [[0; 4]; 1000];
    let mut value = 0;
    while value < 1000 {
        let digits = if value < 10 { 1 } else { 2 + (value >= 100) as u8 };
        all[value] =
            [b'0' + (value / 100) as u8, b'0' + (value / 10 % 10) as u8, b'0' + (value % 10) as u8, digits];
        value += 1;
    }
    all
};

/// The eight digits of a number below 10^8, as the bytes of a word: the first is the lowest byte. Each step halves what a part
/// holds: four digits, two, one; the factors divide by 100 and by 10.
#[inline]
const fn eight_digits(value: u64) -> u64 {
    let fours = (value / 10_000) | (value % 10_000) << 32;
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let twos = hundreds | ((fours - 100 * hundreds) << 16);
    let tens = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | ((twos - 10 * tens) << 8)
}

/// `0` to `9` for each of [`eight_digits`].
const ZEROS: u64 = 0x3030_3030_3030_3030;

/// The eight hexadecimal digits of a number, as [`eight_digits`].
#[inline]
const fn hexadecimal(value: u32) -> u64 {
    let mut digits = value as u64;
    digits = ((digits << 16) & 0x0000_ffff_0000_0000) | (digits & 0x0000_0000_0000_ffff);
    digits = ((digits << 8) & 0x00ff_0000_00ff_0000) | (digits & 0x0000_00ff_0000_00ff);
    digits = ((digits << 4) & 0x0f00_0f00_0f00_0f00) | (digits & 0x000f_000f_000f_000f);
    let letters = ((digits + 0x0606_0606_0606_0606) >> 4) & 0x0101_0101_0101_0101;
    (digits + ZEROS + letters * (b'a' - b'9' - 1) as u64).swap_bytes()
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
                idle_bp: 0,
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
            let mut chunk = Chunk::default();
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
                    lines.target(id, regions, &mut chunk, &mut out).unwrap();
                    for r in regions {
                        expected += &plain(from, to, id, snapshot.max_nr_accesses, scale, r);
                    }
                }
            }
            out.take_chunk(&mut chunk).unwrap();
            prop_assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
