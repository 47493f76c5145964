//! Variable-length integers: seven bits a byte, low bits first, the high bit says that more follow.

/// Appends `value`.
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a difference: small ones of either sign take one byte.
pub(super) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, zigzag(value));
}

/// 0, -1, 1, -2 ... to 0, 1, 2, 3 ...
pub(super) const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
pub(super) const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Reads through a slice. `None` from any method: the slice ends too soon or holds no such number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// Bytes not read yet.
    pub(super) const fn len(&self) -> usize {
        self.rest.len()
    }

    /// Whether everything was read.
    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline(always)]
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    pub(super) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(head)
    }

    #[inline(always)]
    pub(super) fn uint(&mut self) -> Option<u64> {
        // One and two bytes cover nearly everything a recording holds.
        match *self.rest {
            [a, ref rest @ ..] if a < 0x80 => {
                self.rest = rest;
                Some(u64::from(a))
            }
            [a, b, ref rest @ ..] if b < 0x80 => {
                self.rest = rest;
                Some(u64::from(a & 0x7f) | u64::from(b) << 7)
            }
            _ => self.long_uint(),
        }
    }

    #[cold]
    fn long_uint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    #[inline(always)]
    pub(super) fn int(&mut self) -> Option<i64> {
        self.uint().map(unzigzag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(values in prop::collection::vec((any::<u64>(), 0_u32..64), 0..50)) {
            let values: Vec<u64> = values.into_iter().map(|(v, shift)| v >> shift).collect();
            let mut out = Vec::new();
            for &v in &values {
                put(&mut out, v);
                put_signed(&mut out, v as i64);
            }
            let mut cursor = Cursor::new(&out);
            for &v in &values {
                prop_assert_eq!(cursor.uint(), Some(v));
                prop_assert_eq!(cursor.int(), Some(v as i64));
            }
            prop_assert!(cursor.is_empty());
            prop_assert_eq!(cursor.uint(), None);
        }
    }

    #[test]
    fn more_than_64_bits_is_no_number() {
        assert_eq!(Cursor::new(&[0xff; 11]).uint(), None);
        assert_eq!(Cursor::new(&[0x80, 0x80]).uint(), None);
    }
}
