//! The kernel's own type information: offsets of fields, sizes of structs, values of enumerators, by name.
//!
//! The format is BTF (Documentation/bpf/btf.rst): a header, then types one after the other, then strings that end in a
//! zero byte. A type's number is its place in that row, from 1 on. The kernel has some 150,000 in 5 MB. Only the few
//! wanted ones are ever looked into, so one pass notes where each type begins and which ones bear a wanted name.

use super::walk::WalkError;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io::{self, Read};
use std::ops::Deref;
use std::ptr::NonNull;

/// Where the running kernel has it.
const PATH: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;

/// Bytes that every type begins with: name, kind and number of members, size or another type.
const FIXED: usize = 12;

/// Where each of 150,000 types begins would take 600 kB, which are touched for the first time; a few are looked up.
const EVERY: usize = 64;

/// Structs within structs are followed no deeper.
const DEPTH: u32 = 8;

mod kind {
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const ENUM64: u32 = 19;
}

/// The bytes of a file: mapped, or read where it cannot be.
enum Bytes {
    Read(Vec<u8>),
    Mapped { at: NonNull<u8>, len: usize },
}

impl Bytes {
    fn of(path: &str) -> io::Result<Self> {
        let file = std::fs::File::open(path)?;
        let len = file.metadata()?.len() as usize;
        // Type information can be mapped from Linux 6.16 on. Reading it takes a call for every 4 KiB.
        // SAFETY: a new mapping at an address of the kernel's choice. The kernel never changes its type information.
        let mapped = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) };
        if let Some(at) = mapped.ok().and_then(|at| NonNull::new(at.cast())) {
            return Ok(Self::Mapped { at, len });
        }
        let mut bytes = Vec::with_capacity(len);
        (&file).read_to_end(&mut bytes)?;
        Ok(Self::Read(bytes))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Read(bytes) => bytes,
            // SAFETY: mapped with this length until drop, and never written to.
            Self::Mapped { at, len } => unsafe { std::slice::from_raw_parts(at.as_ptr(), *len) },
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Self::Mapped { at, len } = self {
            // SAFETY: mapped with this length in `of`, and no reference to it is left.
            if let Err(error) = unsafe { munmap(at.as_ptr().cast(), *len) } {
                debug_assert!(false, "munmap: {error}");
            }
        }
    }
}

/// Type information, and which types in it were asked for.
pub struct Types {
    bytes: Bytes,
    /// Where every [`EVERY`]th type begins, from the first on, which has number 1.
    starts: Vec<u32>,
    /// How many types there are.
    count: usize,
    /// Where the strings begin.
    strings: usize,
    /// Numbers of the structs and enums of the names asked for, in that order.
    named: Vec<(String, Vec<u32>)>,
}

/// A struct, union or enum.
#[derive(Clone, Copy)]
struct Type {
    at: usize,
    kind: u32,
    members: usize,
    /// Offsets of members hold the sizes of bit fields as well.
    has_bit_fields: bool,
    size: u32,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

/// Bytes of a type of that kind beyond the fixed ones. `None`: a kind of which that is not known.
fn more(kind: u32, members: usize) -> Option<usize> {
    match kind {
        // Pointer, forward, typedef, volatile, const, restrict, function, float, type tag.
        2 | 7..=12 | 16 | 18 => Some(0),
        // Integer, variable, declaration tag.
        1 | 14 | 17 => Some(4),
        // Array.
        3 => Some(12),
        // Section.
        kind::STRUCT | kind::UNION | kind::ENUM64 | 15 => members.checked_mul(12),
        // Prototype.
        kind::ENUM | 13 => members.checked_mul(8),
        _ => None,
    }
}

impl Types {
    /// The running kernel's, with the structs and enums named in `wanted`.
    ///
    /// # Errors
    /// [`WalkError::NoBtf`] when the kernel has none, or it cannot be read.
    pub fn of_kernel(wanted: &[&str]) -> Result<Self, WalkError> {
        let bytes = Bytes::of(PATH).map_err(|e| WalkError::NoBtf(e.to_string()))?;
        Self::parse(bytes, wanted).ok_or_else(|| WalkError::NoBtf("it is in no format known".to_owned()))
    }

    fn parse(bytes: Bytes, wanted: &[&str]) -> Option<Self> {
        let word = |at| u32_at(&bytes, at).map(|word| word as usize);
        if bytes.first_chunk().map(|magic| u16::from_ne_bytes(*magic)) != Some(MAGIC) {
            return None;
        }
        let (header, types, length) = (word(4)?, word(8)?, word(12)?);
        let strings = header.checked_add(word(16)?)?;
        let mut at = header.checked_add(types)?;
        let end = at.checked_add(length)?;
        // Some 26 bytes a type.
        let mut starts = Vec::with_capacity(length.min(bytes.len()) / 20 / EVERY);
        let mut count = 0_usize;
        let mut named: Vec<(String, Vec<u32>)> =
            wanted.iter().map(|name| ((*name).to_owned(), Vec::new())).collect();
        // Most names differ in their first four bytes.
        let beginning = |name: &&str| u32_at(&[name.as_bytes(), b"\0"].concat(), 0);
        let beginnings: Vec<u32> = wanted.iter().filter_map(beginning).collect();
        let short = beginnings.len() < wanted.len();
        while at < end {
            let info = u32_at(&bytes, at + 4)?;
            let (kind, members) = (info >> 24 & 0x7f, (info & 0xff_ffff) as usize);
            if count.is_multiple_of(EVERY) {
                starts.push(at as u32);
            }
            count += 1;
            let begins_like_one = || {
                let name = strings.checked_add(word(at)?)?;
                Some(u32_at(&bytes, name).is_none_or(|beginning| beginnings.contains(&beginning)))
            };
            if matches!(kind, kind::STRUCT | kind::ENUM | kind::ENUM64) && (short || begins_like_one()?) {
                let name = bytes.get(strings.checked_add(word(at)?)?..)?;
                let is =
                    |wanted: &str| name.starts_with(wanted.as_bytes()) && name.get(wanted.len()) == Some(&0);
                if let Some((_, numbers)) = named.iter_mut().find(|(wanted, _)| is(wanted)) {
                    numbers.push(count as u32);
                }
            }
            at = at.checked_add(FIXED)?.checked_add(more(kind, members)?)?;
        }
        // The last type is whole, so all of them lie within what there is.
        (at == end && end <= bytes.len()).then_some(Self { bytes, starts, count, strings, named })
    }

    /// Offset in bytes of a field of a struct, also of one in an unnamed struct or union within it. `None` when there is no
    /// such field, when it is a bit field, and when structs of that name differ in it.
    pub fn offset(&self, name: &str, field: &str) -> Option<u32> {
        let bits = self.agreed(name, |of| self.field(of, field, 0))?;
        (bits % 8 == 0).then_some(bits / 8)
    }

    /// Size of a struct in bytes.
    pub fn size(&self, name: &str) -> Option<u32> {
        self.agreed(name, |of| (of.kind == kind::STRUCT).then_some(of.size))
    }

    /// Value of an enumerator, its lower half.
    pub fn number(&self, name: &str, enumerator: &str) -> Option<u32> {
        self.agreed(name, |of| {
            let step = match of.kind {
                kind::ENUM => 8,
                kind::ENUM64 => 12,
                _ => return None,
            };
            let mut members = (0..of.members).map(|i| of.at + FIXED + i * step);
            u32_at(&self.bytes, members.find(|at| self.is_named(*at, enumerator))? + 4)
        })
    }

    /// What all types of that name say that say anything. (There may be several: those of a file of its own.)
    fn agreed(&self, name: &str, says: impl Fn(Type) -> Option<u32>) -> Option<u32> {
        let (_, numbers) = self.named.iter().find(|(wanted, _)| wanted == name)?;
        let mut said = numbers.iter().filter_map(|number| says(self.at(*number)?));
        let first = said.next()?;
        said.all(|other| other == first).then_some(first)
    }

    fn at(&self, number: u32) -> Option<Type> {
        let index = (number as usize).checked_sub(1).filter(|index| *index < self.count)?;
        let mut at = *self.starts.get(index / EVERY)? as usize;
        for _ in 0..index % EVERY {
            let info = u32_at(&self.bytes, at + 4)?;
            at = at.checked_add(FIXED)?.checked_add(more(info >> 24 & 0x7f, (info & 0xff_ffff) as usize)?)?;
        }
        let info = u32_at(&self.bytes, at + 4)?;
        Some(Type {
            at,
            kind: info >> 24 & 0x7f,
            members: (info & 0xff_ffff) as usize,
            has_bit_fields: info >> 31 != 0,
            size: u32_at(&self.bytes, at + 8)?,
        })
    }

    /// Whether the name whose offset stands at `at` is `name`.
    fn is_named(&self, at: usize, name: &str) -> bool {
        let start = u32_at(&self.bytes, at).and_then(|offset| self.strings.checked_add(offset as usize));
        let found = start.and_then(|start| self.bytes.get(start..));
        found.is_some_and(|found| found.starts_with(name.as_bytes()) && found.get(name.len()) == Some(&0))
    }

    /// Offset of a field, bits.
    fn field(&self, of: Type, field: &str, depth: u32) -> Option<u32> {
        if !matches!(of.kind, kind::STRUCT | kind::UNION) || depth > DEPTH {
            return None;
        }
        (0..of.members).map(|i| of.at + FIXED + i * 12).find_map(|at| {
            let raw = u32_at(&self.bytes, at + 8)?;
            let (bits, is_bit_field) =
                if of.has_bit_fields { (raw & 0xff_ffff, raw >> 24 != 0) } else { (raw, false) };
            if self.is_named(at, field) {
                return (!is_bit_field).then_some(bits);
            }
            if !self.is_named(at, "") {
                return None;
            }
            let within = self.at(u32_at(&self.bytes, at + 4)?)?;
            self.field(within, field, depth + 1)?.checked_add(bits)
        })
    }
}

#[cfg(test)]
mod tests;
