//! Randomness from a seed the caller gives.

/// A small, fast generator (xorshift64* by Marsaglia and Vigna); statistical quality is enough for choosing pages,
/// nothing here is secret. The same seed gives the same monitor.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator started from `seed`; any value will do.
    pub const fn new(seed: u64) -> Self {
        // Xorshift's one forbidden state is zero.
        Self(seed ^ 0x9e37_79b9_7f4a_7c15 | 1)
    }

    fn next(&mut self) -> u64 {
        let mut x = self.0;
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.0 = x;
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number in `0..bound`, 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // Lemire's multiplication; its bias of bound / 2^64 is nothing here.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}
