//! Which kinds of pages a folio is of: what filters of the operations go by.

use crate::frames::{Folio, flag};
use crate::maps::MapList;
use crate::pagemap::read_word;
use crate::pte::Inspected;
use crate::targets::Cgroup;
use isotherm_damon::PAGE_SIZE;
use isotherm_damon::schemes::{OpsFilter, PageKind, passes};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

/// Evaluates filters.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    /// `/proc/kpagecgroup`: the inode of each frame's memory cgroup.
    owners: Option<Option<File>>,
    /// Inodes of cgroups by their paths; `None`: there is none.
    groups: HashMap<String, Option<u64>>,
}

impl Kinds {
    /// Cgroups come and go: those known are looked up again.
    pub(super) fn forget_groups(&mut self) {
        self.groups.clear();
    }

    /// Whether pages of one folio, which begin at `addr`, pass `filters`.
    pub(super) fn pass(
        &mut self,
        filters: &[OpsFilter],
        addr: u64,
        pages: &[Inspected],
        folio: Option<&Folio>,
        maps: &MapList,
    ) -> bool {
        if filters.is_empty() {
            return true;
        }
        let Some(first) = pages.first() else { return false };
        let mut is_unknown = false;
        let passes = passes(filters, |kind| match kind {
            PageKind::Anon => !first.file,
            PageKind::Active => folio.is_some_and(|folio| folio.flags & flag::ACTIVE != 0),
            PageKind::Young => pages.iter().any(|page| page.young == Some(true)),
            PageKind::HugepageSize { min, max } => {
                let size = folio.map_or(PAGE_SIZE, |folio| folio.frames() * PAGE_SIZE);
                (*min..=*max).contains(&size)
            }
            PageKind::Memcg(path) => {
                let head = folio.map_or(first.pfn, |folio| folio.head);
                let owner = self.owner(head);
                // What is perhaps of a group that is rejected is left alone.
                is_unknown |= owner.is_none();
                self.group(path).is_some_and(|group| owner == Some(group))
            }
            PageKind::File(pattern) => maps
                .find(addr)
                .is_some_and(|m| m.inode != 0 && matches(pattern.as_bytes(), m.name.as_bytes())),
            // What a process has in its page table is mapped; kinds that are new match nothing.
            _ => false,
        });
        passes && !is_unknown
    }

    fn owner(&mut self, pfn: u64) -> Option<u64> {
        let file = self.owners.get_or_insert_with(|| File::open("/proc/kpagecgroup").ok());
        read_word(file.as_ref()?, pfn)
    }

    fn group(&mut self, path: &str) -> Option<u64> {
        if let Some(known) = self.groups.get(path) {
            return *known;
        }
        // Pages are charged to groups of the hierarchy that has the memory controller.
        let group = Cgroup::find_with(path, "memory.stat").ok();
        let inode = group.and_then(|group| std::fs::metadata(group.directory()).ok()).map(|m| m.ino());
        self.groups.insert(path.to_owned(), inode);
        inode
    }
}

/// Whether `name` matches a shell's pattern: `*` stands for any characters, `/` too, `?` for one.
pub(crate) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where the last star was, and how far its part of the name goes as yet.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == b'?' || name.get(n) == Some(c) => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, end)) => {
                    star = Some((at, end + 1));
                    (p, n) = (at + 1, end + 1);
                }
                None => return false,
            },
        }
    }
    pattern.get(p..).is_none_or(|rest| rest.iter().all(|c| *c == b'*'))
}

#[cfg(test)]
mod tests {
    use super::matches;
    use proptest::prelude::*;

    #[test]
    fn patterns_are_those_of_a_shell() {
        let cases: [(&str, &str, bool); 9] = [
            ("*", "", true),
            ("/usr/lib/*.so*", "/usr/lib/x86/libc.so.6", true),
            ("/usr/lib/*.so", "/usr/lib/libc.so.6", false),
            ("*data*", "/var/data/x", true),
            ("?", "", false),
            ("a?c", "abc", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("", "a", false),
        ];
        for (pattern, name, want) in cases {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), want, "{pattern} {name}");
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_the_naive_one(pattern in "[ab*?]{0,8}", name in "[ab]{0,8}") {
            fn naive(p: &[u8], n: &[u8]) -> bool {
                match p.split_first() {
                    None => n.is_empty(),
                    Some((b'*', rest)) => (0..=n.len()).any(|at| naive(rest, &n[at..])),
                    Some((c, rest)) => {
                        n.first().is_some_and(|f| *c == b'?' || f == c) && naive(rest, &n[1..])
                    }
                }
            }
            let (p, n) = (pattern.as_bytes(), name.as_bytes());
            prop_assert_eq!(matches(p, n), naive(p, n));
        }
    }
}
