//! What is a recording, and whether anything is in it: for all who replace, rename, keep or delete files. Names say nothing.
//!
//! | question | answered by |
//! |---|---|
//! | is it one of Isotherm's own? | its first bytes: [`is_own`] |
//! | is it one of any format? | its first bytes, or that a snapshot can be read from it: [`is_recording`] |
//! | how much is in it? | reading it: [`nr_snapshots`] |
//! | would anything be lost with it? | reading it; in doubt yes: [`holds_something`] |

use crate::files::read_head;
use crate::{Format, Item, Warning, open};
use std::fs::File;
use std::path::Path;

/// The format that the file at `path` begins like; none where it is no file, cannot be read, or is like none.
fn begins_like(path: &Path) -> Option<Format> {
    if !path.metadata().is_ok_and(|m| m.is_file()) {
        return None;
    }
    let head = File::open(path).and_then(|mut file| read_head(&mut file)).ok()?;
    Format::detect(&head)
}

/// Whether the file at `path` is a recording in Isotherm's own format: no other file begins so by chance.
pub fn is_own(path: &Path) -> bool {
    begins_like(path) == Some(Format::Rec)
}

/// Whether the file at `path` is a recording, by its content. Some formats' first bytes are like no others; others are JSON,
/// compressed data or text like any, and only what can be read as one is one.
pub fn is_recording(path: &Path) -> bool {
    match begins_like(path) {
        Some(Format::Rec | Format::Parquet | Format::RecordV1 | Format::RecordV2) => true,
        Some(_) => nr_snapshots(path, 1) > 0,
        None => false,
    }
}

/// How many snapshots the file at `path` has, counted up to `most`.
pub fn nr_snapshots(path: &Path, most: u64) -> u64 {
    let Ok(mut reader) = open(path) else { return 0 };
    let mut count = 0;
    while count < most {
        match reader.next_ref() {
            Ok(Some(Item::Snapshot(_))) => count += 1,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => break,
        }
    }
    count
}

/// Whether `path` is a recording with a region in it, or something that may be one for all that can be told: of a newer version,
/// or damaged.
pub fn holds_something(path: &Path) -> bool {
    if !path.metadata().is_ok_and(|m| m.is_file() && m.len() > 0) {
        return false;
    }
    let Ok(mut reader) = open(path) else { return true };
    loop {
        match reader.next_ref() {
            Ok(Some(Item::Snapshot(snapshot))) if snapshot.nr_regions() > 0 => return true,
            Ok(Some(_)) => {}
            // What is damaged may be mended.
            Ok(None) => {
                let is_damage = |w: &Warning| {
                    matches!(w, Warning::Damaged { .. } | Warning::Missing { .. } | Warning::HeaderLost)
                };
                return reader.warnings().iter().any(is_damage);
            }
            Err(_) => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ItemReader;
    use crate::create;
    use crate::synthetic::{Shape, Synthetic};

    #[test]
    fn what_is_a_recording_is_told_by_what_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        for (name, content) in [
            ("isotherm.rec", &b""[..]),
            ("notes.rec", b"to do: buy milk"),
            ("package.json", b"{\"name\": \"shop\"}"),
            ("list.json", b"[1, 2, 3]"),
            ("page.html", b"<!doctype html><title>x</title>"),
            ("data.z", b"\x78\x9c\x03\x00\x00\x00\x00\x01"),
        ] {
            let path = file(name, content);
            assert!(!is_recording(&path) && !is_own(&path) && nr_snapshots(&path, 1) == 0, "{name}");
        }
        for path in [dir.path(), Path::new("/dev/null"), &dir.path().join("nothing")] {
            assert!(!is_recording(path) && !is_own(path) && !holds_something(path), "{path:?}");
        }
        for format in Format::ALL {
            let path = dir.path().join(format!("{format}.txt"));
            let mut writer = create(&path, format).unwrap();
            let mut reader = Synthetic::new(Shape { nr_regions: 100, ..Shape::default() });
            while let Some(item) = reader.next_ref().unwrap() {
                writer.write(item).unwrap();
            }
            writer.finish().unwrap();
            assert!(is_recording(&path) && holds_something(&path), "{format}");
            assert_eq!(is_own(&path), format == Format::Rec, "{format}");
            let all = nr_snapshots(&path, u64::MAX);
            assert!(all > 1 && nr_snapshots(&path, all - 1) == all - 1, "{format}");
        }
    }
}
