//! Lists of mappings as numbers (since 1.4).
//!
//! As JSON a mapping takes some 120 bytes, most of them its name and its members' names, and to write that, and to compress it,
//! took a recording of a hundred processes a quarter of its CPU time. Here it takes ten: what mappings have in common stands once
//! in the list, and an address by its distance from the one before.
//! ```text
//! list    := count, nr_objects, object*, mapping*
//! object  := length name, device major, device minor, inode
//! mapping := s start - previous end, s end - start, perms, object, offset
//! perms   := 1 read + 2 write + 4 execute + 8 shared, or 16 length text
//! ```

use super::varint::{Cursor, put, put_signed};
use crate::Mapping;
use crate::model::PERMS;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// In place of the bits of [`PERMS`]: text follows.
const OTHER_PERMS: u8 = 16;

/// Least bytes of a mapping, and of an object.
const LEAST: usize = 4;

/// Appends a list.
pub(super) fn pack(out: &mut Vec<u8>, maps: &[Mapping]) {
    let mut objects: Vec<&Mapping> = Vec::new();
    let mut known: HashMap<(&str, (u32, u32), u64), u64> = HashMap::with_capacity(maps.len().min(64));
    let mut body = Vec::with_capacity(12 * maps.len());
    let (mut end, mut last) = (0_u64, (None, 0));
    for mapping in maps {
        let of = (&*mapping.name, mapping.device, mapping.inode);
        // Neighbours are often of one file.
        if last.0 != Some(of) {
            let number = *known.entry(of).or_insert_with(|| {
                objects.push(mapping);
                objects.len() as u64 - 1
            });
            last = (Some(of), number);
        }
        put_signed(&mut body, mapping.start.wrapping_sub(end) as i64);
        put_signed(&mut body, mapping.end.wrapping_sub(mapping.start) as i64);
        end = mapping.end;
        match PERMS.iter().position(|perms| *perms == mapping.perms) {
            Some(bits) => body.push(bits as u8),
            None => {
                body.push(OTHER_PERMS);
                put(&mut body, mapping.perms.len() as u64);
                body.extend_from_slice(mapping.perms.as_bytes());
            }
        }
        put(&mut body, last.1);
        put(&mut body, mapping.offset);
    }
    put(out, maps.len() as u64);
    put(out, objects.len() as u64);
    for Mapping { name, device: (major, minor), inode, .. } in objects {
        put(out, name.len() as u64);
        out.extend_from_slice(name.as_bytes());
        [u64::from(*major), u64::from(*minor), *inode].into_iter().for_each(|number| put(out, number));
    }
    out.extend_from_slice(&body);
}

/// How many mappings a list says that it has.
pub(super) fn count(list: &[u8]) -> Option<u64> {
    Cursor::new(list).uint()
}

/// Reads a list; `None` if it is none. Takes memory in proportion to its mappings, which are no more than a fourth of its bytes.
pub(super) fn unpack(list: &[u8]) -> Option<Vec<Mapping>> {
    let mut cursor = Cursor::new(list);
    let (count, nr_objects) = (number(&mut cursor)?, number(&mut cursor)?);
    // Each is some mapping's.
    if nr_objects > count {
        return None;
    }
    let mut objects: Vec<(Arc<str>, (u32, u32), u64)> =
        Vec::with_capacity(nr_objects.min(cursor.len() / LEAST));
    for _ in 0..nr_objects {
        let length = number(&mut cursor)?;
        let name = std::str::from_utf8(cursor.bytes(length)?).ok()?.into();
        let device = (u32::try_from(cursor.uint()?).ok()?, u32::try_from(cursor.uint()?).ok()?);
        objects.push((name, device, cursor.uint()?));
    }
    let mut maps = Vec::with_capacity(count.min(cursor.len() / LEAST));
    let mut last = 0_u64;
    for _ in 0..count {
        let start = last.wrapping_add(cursor.int()? as u64);
        let end = start.wrapping_add(cursor.int()? as u64);
        last = end;
        let perms = match cursor.byte()? {
            OTHER_PERMS => {
                let length = number(&mut cursor)?;
                let text = std::str::from_utf8(cursor.bytes(length)?).ok()?;
                Cow::Owned(text.chars().take(4).collect())
            }
            bits => Cow::Borrowed(*PERMS.get(usize::from(bits))?),
        };
        let (name, device, inode) = objects.get(number(&mut cursor)?)?;
        let (name, device, inode) = (Arc::clone(name), *device, *inode);
        maps.push(Mapping { start, end, perms, name, device, inode, offset: cursor.uint()? });
    }
    cursor.is_empty().then_some(maps)
}

fn number(cursor: &mut Cursor<'_>) -> Option<usize> {
    usize::try_from(cursor.uint()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mapping() -> impl Strategy<Value = Mapping> {
        let name = prop_oneof!["", "\\[heap\\]", "/lib/[ab]\\.so", "/[^\u{0}]{0,20}"];
        let perms = prop_oneof![
            (0..16_usize).prop_map(|bits| Cow::Borrowed(PERMS[bits])),
            Just(Cow::Borrowed("")),
            Just(Cow::Borrowed("rwé?")),
        ];
        let address = (any::<u64>(), 0..64_u32).prop_map(|(address, shift)| address >> shift);
        (address.clone(), address.clone(), perms, name, any::<(u32, u32)>(), any::<u64>(), address).prop_map(
            |(start, end, perms, name, device, inode, offset)| Mapping {
                start,
                end,
                perms,
                name: name.into(),
                device,
                inode,
                offset,
            },
        )
    }

    proptest! {
        #[test]
        fn lists_come_back(maps in prop::collection::vec(mapping(), 0..20)) {
            let mut list = Vec::new();
            pack(&mut list, &maps);
            prop_assert_eq!(count(&list), Some(maps.len() as u64));
            prop_assert_eq!(unpack(&list), Some(maps));
            list.push(0);
            prop_assert_eq!(unpack(&list), None);
        }

        #[test]
        fn rubbish_takes_no_memory_by_what_it_says(
            maps in prop::collection::vec(mapping(), 0..5), at in 0..200_usize, bytes in prop::collection::vec(any::<u8>(), 0..12),
        ) {
            let mut list = Vec::new();
            pack(&mut list, &maps);
            let at = at.min(list.len());
            let end = (at + bytes.len()).min(list.len());
            list.splice(at..end, bytes);
            if let Some(read) = unpack(&list) {
                prop_assert!(read.len() <= list.len() / LEAST);
            }
            let mut many_objects = vec![0, 100];
            many_objects.extend([0; 400]);
            prop_assert_eq!(unpack(&many_objects), None);
            let mut lie = Vec::new();
            put(&mut lie, u64::MAX);
            put(&mut lie, u64::MAX >> 1);
            lie.extend_from_slice(&list);
            prop_assert_eq!(unpack(&lie), None);
        }
    }

    #[test]
    fn a_mapping_takes_some_ten_bytes_and_a_name_stands_once() {
        let maps: Vec<Mapping> = (0..1000_u64)
            .map(|at| Mapping {
                start: 0x7f00_0000_0000 + at * 0x5000,
                end: 0x7f00_0000_4000 + at * 0x5000,
                perms: "r-xp".into(),
                name: "/usr/lib/x86_64-linux-gnu/libc.so.6".into(),
                inode: 123_456,
                offset: at << 12,
                ..Mapping::default()
            })
            .collect();
        let mut list = Vec::new();
        pack(&mut list, &maps);
        assert!(list.len() < 12 * maps.len(), "{}", list.len());
    }
}
