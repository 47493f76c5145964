//! The little of Thrift's compact protocol that Parquet's metadata need. Nothing is allocated: a value is read where it
//! stands or passed over.

/// Structures within structures that are followed; Parquet has some ten.
const MAX_DEPTH: u8 = 32;

/// Types of fields.
pub(super) const TRUE: u8 = 1;
pub(super) const FALSE: u8 = 2;
const BYTE: u8 = 3;
pub(super) const I32: u8 = 5;
pub(super) const I64: u8 = 6;
const DOUBLE: u8 = 7;
pub(super) const BINARY: u8 = 8;
pub(super) const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
pub(super) const STRUCT: u8 = 12;
const I16: u8 = 4;

/// Reads; `None` where the bytes do not make sense.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The number and the type of a field.
pub(super) type Field = (i16, u8);

impl<'a> Thrift<'a> {
    pub(super) const fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// How far it has read.
    pub(super) const fn at(&self) -> usize {
        self.at
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn uint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// A number of any width.
    pub(super) fn int(&mut self) -> Option<i64> {
        let value = self.uint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// A number that is a length or an offset.
    pub(super) fn size(&mut self) -> Option<u64> {
        u64::try_from(self.int()?).ok()
    }

    pub(super) fn binary(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.uint()?).ok()?;
        let end = self.at.checked_add(len)?;
        let value = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(value)
    }

    /// The next field of a structure, `Some(None)` at its end. `last`: the number of the field before, 0 at first.
    pub(super) fn field(&mut self, last: &mut i16) -> Option<Option<Field>> {
        let head = self.byte()?;
        if head == 0 {
            return Some(None);
        }
        let number = match head >> 4 {
            0 => i16::try_from(self.int()?).ok()?,
            delta => last.checked_add(i16::from(delta))?,
        };
        *last = number;
        Some(Some((number, head & 15)))
    }

    /// The length of a list and the type of its elements.
    pub(super) fn list(&mut self) -> Option<(u64, u8)> {
        let head = self.byte()?;
        let len = match head >> 4 {
            15 => self.uint()?,
            short => u64::from(short),
        };
        // An element takes a byte at least.
        (len <= (self.bytes.len() - self.at) as u64).then_some((len, head & 15))
    }

    /// Passes over a value.
    pub(super) fn skip(&mut self, kind: u8) -> Option<()> {
        self.skip_within(kind, 0)
    }

    fn skip_within(&mut self, kind: u8, depth: u8) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match kind {
            TRUE | FALSE => {}
            BYTE => {
                self.byte()?;
            }
            I16 | I32 | I64 => {
                self.uint()?;
            }
            DOUBLE => {
                self.at = self.at.checked_add(8).filter(|&at| at <= self.bytes.len())?;
            }
            BINARY => {
                self.binary()?;
            }
            LIST | SET => {
                let (len, kind) = self.list()?;
                for _ in 0..len {
                    self.skip_element(kind, depth + 1)?;
                }
            }
            MAP => {
                let len = self.uint()?;
                let kinds = if len > 0 { self.byte()? } else { 0 };
                if len > (self.bytes.len() - self.at) as u64 {
                    return None;
                }
                for _ in 0..len {
                    self.skip_element(kinds >> 4, depth + 1)?;
                    self.skip_element(kinds & 15, depth + 1)?;
                }
            }
            STRUCT => {
                let mut last = 0;
                while let Some((_, kind)) = self.field(&mut last)? {
                    self.skip_within(kind, depth + 1)?;
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// In a list, a boolean is a byte of its own.
    fn skip_element(&mut self, kind: u8, depth: u8) -> Option<()> {
        if matches!(kind, TRUE | FALSE) {
            return self.byte().map(|_| ());
        }
        self.skip_within(kind, depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_come_in_order_and_may_be_passed_over() {
        // 1: i32 -3, 2: list of two binaries, 20: true, end.
        let bytes = [0x15, 0x05, 0x19, 0x28, 1, b'a', 2, b'b', b'c', 0x01, 0x28, 0x00];
        let mut thrift = Thrift::new(&bytes, 0);
        let mut last = 0;
        assert_eq!(thrift.field(&mut last), Some(Some((1, I32))));
        assert_eq!(thrift.int(), Some(-3));
        assert_eq!(thrift.field(&mut last), Some(Some((2, LIST))));
        assert_eq!(thrift.skip(LIST), Some(()));
        assert_eq!(thrift.field(&mut last), Some(Some((20, TRUE))));
        assert_eq!(thrift.field(&mut last), Some(None));
        assert_eq!(thrift.field(&mut last), None);
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0..16_u8) {
            let mut thrift = Thrift::new(&bytes, 0);
            let _ = thrift.skip(kind);
            prop_assert!(thrift.at() <= bytes.len());
        }
    }
}
