//! Numbers the different values of a column.

/// Something to be numbered.
pub(super) trait Key: Copy + Eq {
    /// Well mixed in its high bits.
    fn hash(self) -> u64;

    /// A place of its own below [`SMALL`], if it has one.
    fn small(self) -> Option<usize>;
}

/// Values below that are looked up directly: ages, shares. A guess: 64 kB.
const SMALL: usize = 1 << 14;

impl Key for u64 {
    fn hash(self) -> u64 {
        // Fibonacci hashing (Knuth, TAOCP 3, 6.4); the fold brings the low zero bits of addresses to use.
        (self ^ (self >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn small(self) -> Option<usize> {
        (self < SMALL as u64).then_some(self as usize)
    }
}

impl Key for u128 {
    fn hash(self) -> u64 {
        ((self >> 64) as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_add(self as u64).hash()
    }

    fn small(self) -> Option<usize> {
        None
    }
}

/// The values of a group, each once, in the order they came.
#[derive(Debug)]
pub(super) struct Interner<K> {
    keys: Vec<K>,
    /// Number of a key plus one, at its hash or past it; 0: free. A power of two of them, at least twice the keys.
    slots: Vec<u32>,
    /// The same of small ones, at their place.
    small: Vec<u32>,
    last: Option<(K, u32)>,
}

impl<K: Key> Interner<K> {
    pub(super) fn new() -> Self {
        Self { keys: Vec::new(), slots: vec![0; 1 << 10], small: Vec::new(), last: None }
    }

    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.slots.fill(0);
        self.small.clear();
        self.last = None;
    }

    pub(super) fn keys(&self) -> &[K] {
        &self.keys
    }

    /// The number of a value.
    pub(super) fn number(&mut self, key: K) -> u32 {
        // Neighbours are alike more often than not.
        if let Some((last, number)) = self.last
            && last == key
        {
            return number;
        }
        if let Some(place) = key.small() {
            if self.small.is_empty() {
                self.small.resize(SMALL, 0);
            }
            let number = match self.small[place].checked_sub(1) {
                Some(number) => number,
                None => {
                    self.keys.push(key);
                    self.small[place] = self.keys.len() as u32;
                    self.small[place] - 1
                }
            };
            self.last = Some((key, number));
            return number;
        }
        let mask = self.slots.len() - 1;
        let mut at = (key.hash() >> 32) as usize & mask;
        let number = loop {
            match self.slots[at].checked_sub(1) {
                Some(number) if self.keys[number as usize] == key => break number,
                Some(_) => at = (at + 1) & mask,
                None => break self.insert(at, key),
            }
        };
        self.last = Some((key, number));
        number
    }

    /// The value that came last was this one, which has this number.
    pub(super) fn was(&mut self, key: K, number: u32) {
        self.last = Some((key, number));
    }

    fn insert(&mut self, at: usize, key: K) -> u32 {
        self.keys.push(key);
        let number = self.keys.len() as u32;
        self.slots[at] = number;
        if self.keys.len() * 2 > self.slots.len() {
            let len = self.slots.len() * 4;
            self.slots.clear();
            self.slots.resize(len, 0);
            for (key, number) in self.keys.iter().zip(1..).filter(|(key, _)| key.small().is_none()) {
                let mut at = (key.hash() >> 32) as usize & (len - 1);
                while self.slots[at] != 0 {
                    at = (at + 1) & (len - 1);
                }
                self.slots[at] = number;
            }
        }
        number - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn equal_values_have_one_number_and_numbers_follow_each_other() {
        let mut interner = Interner::new();
        for round in 0..2_u64 {
            interner.clear();
            let mut naive: HashMap<u64, u32> = HashMap::new();
            for i in 0..20_000_u64 {
                // Small ones among them.
                let key = ((i * i + round) % 7001) << (12 * (i % 3 / 2));
                let next = naive.len() as u32;
                assert_eq!(interner.number(key), *naive.entry(key).or_insert(next));
                assert_eq!(interner.keys()[naive[&key] as usize], key);
            }
            assert_eq!(interner.keys().len(), naive.len());
        }
    }
}
