use super::*;
use crate::frames::{FrameFlags, flag};
use crate::pagemap::Entry;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

const PAGE: u64 = 4096;
const TARGET: TargetId = TargetId(1);

/// Memory as the kernel would keep it: folios, which of them were accessed, and which are marked idle.
#[derive(Default)]
struct Model {
    /// Order of the folio at each head.
    folios: BTreeMap<u64, u32>,
    off_lru: BTreeSet<u64>,
    hugetlb: BTreeSet<u64>,
    accessed: BTreeSet<u64>,
    idle: BTreeSet<u64>,
}

impl Model {
    fn head(&self, pfn: u64) -> Option<(u64, u32)> {
        let (&head, &order) = self.folios.range(..=pfn).next_back()?;
        (pfn < head + (1 << order)).then_some((head, order))
    }
}

impl FrameFlags for Model {
    fn flags(&mut self, pfns: &[u64], found: &mut Vec<Option<u64>>) {
        found.clear();
        found.extend(pfns.iter().map(|pfn| Some(self.flags_of(*pfn))));
    }
}

impl Model {
    fn flags_of(&self, pfn: u64) -> u64 {
        let Some((head, order)) = self.head(pfn) else { return 0 };
        let mut flags = match (order, pfn == head) {
            (0, _) => 0,
            (_, true) => flag::COMPOUND_HEAD,
            (_, false) => flag::COMPOUND_TAIL,
        };
        // The kernel shows the flags of LRU and hugetlb for tails too, on some versions: only heads count.
        if !self.off_lru.contains(&head) {
            flags |= flag::LRU;
        }
        if self.hugetlb.contains(&head) {
            flags |= flag::HUGETLB;
        }
        flags
    }
}

impl Frames for Model {
    fn mark_idle(&mut self, first: u64, words: &[u64]) -> io::Result<()> {
        for (i, word) in words.iter().enumerate() {
            for bit in (0..64).filter(|bit| word & (1 << bit) != 0) {
                let pfn = (first + i as u64) * 64 + bit;
                if self.folios.contains_key(&pfn) && !self.off_lru.contains(&pfn) {
                    self.accessed.remove(&pfn);
                    self.idle.insert(pfn);
                }
            }
        }
        Ok(())
    }

    fn read_idle(&mut self, first: u64, words: &mut [u64]) -> io::Result<()> {
        for (i, word) in words.iter_mut().enumerate() {
            *word = 0;
            for bit in 0..64 {
                let pfn = (first + i as u64) * 64 + bit;
                if self.accessed.remove(&pfn) {
                    self.idle.remove(&pfn);
                }
                *word |= u64::from(self.idle.contains(&pfn)) << bit;
            }
        }
        Ok(())
    }
}

/// A page map of `entries`, page by page from address 0.
fn pagemap(entries: &[u64]) -> Pagemap {
    let mut file = tempfile::tempfile().unwrap();
    for entry in entries {
        file.write_all(&entry.to_ne_bytes()).unwrap();
    }
    Pagemap::of_file(file)
}

fn target(entries: &[u64]) -> Target {
    Target {
        id: TARGET,
        process: None,
        pagemap: pagemap(entries),
        ranges: Vec::new(),
        changed: false,
        execed: false,
    }
}

fn tracking<F: Frames>(frames: F, entries: &[u64]) -> Tracking<F> {
    let mut tracking = Tracking::new(frames);
    tracking.page_size = PAGE;
    tracking.targets.push(target(entries));
    tracking
}

fn present(pfn: u64) -> u64 {
    Entry::PRESENT | pfn
}

fn checks(pages: impl IntoIterator<Item = u64>) -> Vec<Check> {
    pages.into_iter().map(|page| Check::new(TARGET, page * PAGE)).collect()
}

fn seen(checks: &[Check]) -> Vec<Seen> {
    checks.iter().map(|c| c.seen).collect()
}

#[test]
fn what_is_accessed_after_preparing_is_seen_and_stays_seen() {
    let folios = (100..110).map(|pfn| (pfn, 0)).collect();
    let entries: Vec<u64> = (100..110).map(present).collect();
    let mut idle = tracking(Model { folios, ..Model::default() }, &entries);
    let mut batch = checks(0..10);
    idle.check(&mut batch);
    assert_eq!(seen(&batch), [Seen::Accessed; 10], "never prepared counts as accessed");
    idle.prepare(&mut batch);
    assert_eq!(seen(&batch), [Seen::Idle; 10]);
    idle.frames.accessed.insert(103);
    for _ in 0..2 {
        idle.check(&mut batch);
        let expected: Vec<Seen> = (0..10).map(|i| if i == 3 { Seen::Accessed } else { Seen::Idle }).collect();
        assert_eq!(seen(&batch), expected);
    }
    assert_eq!(idle.cleared, 10);
    assert!(batch.iter().all(|c| c.unit == PAGE));
}

#[test]
fn what_has_no_frame_or_is_not_tracked_says_so() {
    let frames = Model {
        folios: [(200, 0), (1024, 9), (300, 0)].into(),
        hugetlb: [1024].into(),
        off_lru: [300].into(),
        ..Model::default()
    };
    let entries = [0, 1 << 62 | 77, present(1024 + 5), present(300), present(200)];
    let mut idle = tracking(frames, &entries);
    let mut batch = checks([0, 1, 2, 3, 4, 1_000_000]);
    let expected = [Seen::Absent, Seen::Absent, Seen::Blind, Seen::Blind, Seen::Idle, Seen::Absent];
    idle.prepare(&mut batch);
    assert_eq!(seen(&batch), expected);
    idle.check(&mut batch);
    assert_eq!(seen(&batch), expected);
    assert_eq!((idle.untracked, idle.looked_at), (4, 6));
    let mut stranger = [Check::new(TargetId(9), 0)];
    idle.check(&mut stranger);
    assert_eq!(stranger[0].seen, Seen::Absent);
}

#[test]
fn hidden_frame_numbers_are_an_error_and_not_silence() {
    let mut idle = tracking(Model::default(), &[present(0)]);
    let mut batch = checks([0]);
    idle.check(&mut batch);
    assert_eq!(batch[0].seen, Seen::Blind);
    assert_eq!(idle.error.unwrap().kind(), io::ErrorKind::PermissionDenied);
}

#[test]
fn a_folio_is_one_unit_whichever_of_its_pages_is_looked_at() {
    // A huge page of 512 frames between two of 4, mapped from page 512 on.
    let frames = Model { folios: [(1020, 2), (1024, 9), (1536, 2)].into(), ..Model::default() };
    let mut entries = vec![0; 512];
    entries.extend((1024..1536).map(present));
    let mut idle = tracking(frames, &entries);
    let mut batch = checks([512, 700, 1023]);
    idle.prepare(&mut batch);
    assert_eq!(idle.cleared, 1);
    assert_eq!(idle.frames.idle, [1024].into());
    assert!(batch.iter().all(|c| c.unit == 512 * PAGE));
    idle.frames.accessed.insert(1024);
    idle.check(&mut batch);
    assert_eq!(seen(&batch), [Seen::Accessed; 3]);
}

#[test]
fn a_unit_never_reaches_past_what_shares_the_flag() {
    let folio = Folio { head: 1024, order: 9, flags: 0 };
    assert_eq!(unit(512, 1024, folio), 512);
    // Mapped askew by one page, by two, and by 64.
    assert_eq!(unit(513, 1024, folio), 1);
    assert_eq!(unit(514, 1024, folio), 2);
    assert_eq!(unit(512 + 64, 1024, folio), 64);
    assert_eq!(unit(7, 7, Folio { head: 7, order: 0, flags: 0 }), 1);
}

#[test]
fn bits_stand_where_the_kernel_looks_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let (kpageflags, bitmap) = (dir.path().join("kpageflags"), dir.path().join("bitmap"));
    let mut file = File::create(&kpageflags).unwrap();
    for pfn in [129, 191, 192, 4000] {
        file.seek(SeekFrom::Start(pfn * 8)).unwrap();
        file.write_all(&flag::LRU.to_ne_bytes()).unwrap();
    }
    std::fs::write(&bitmap, [0; 8 * 64]).unwrap();
    let frames = KernelFrames::open(&kpageflags, &bitmap).unwrap();
    let mut idle = tracking(frames, &[present(4000), present(192), present(129), present(191)]);
    let mut batch = checks(0..4);
    idle.prepare(&mut batch);
    assert_eq!(seen(&batch), [Seen::Idle; 4]);
    let bytes = std::fs::read(&bitmap).unwrap();
    let words: Vec<u64> = bytes.chunks_exact(8).map(|b| u64::from_ne_bytes(b.try_into().unwrap())).collect();
    let set: Vec<(usize, u64)> = words.iter().copied().enumerate().filter(|(_, w)| *w != 0).collect();
    assert_eq!(set, [(2, 1 << 1 | 1 << 63), (3, 1), (62, 1 << 32)]);
    idle.check(&mut batch);
    assert_eq!(seen(&batch), [Seen::Idle; 4]);

    // The bitmap ends before a frame that the page map names: hot-removed memory.
    std::fs::write(&bitmap, [0; 8 * 3]).unwrap();
    idle.check(&mut batch);
    assert_eq!(seen(&batch)[0], Seen::Blind);
    assert!(idle.error.is_none(), "the other frames can still be seen");
}

#[test]
fn a_kernel_without_the_bitmap_names_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let paths = IdlePaths { bitmap: dir.path().join("none"), kpageflags: "/proc/kpageflags".into() };
    let error = Idle::open(&paths).unwrap_err().to_string();
    assert!(error.contains("CONFIG_IDLE_PAGE_TRACKING"), "{error}");
}

proptest! {
    /// Against the plainest model there is: a folio is idle from its last preparing to its next access.
    #[test]
    fn checks_agree_with_what_was_done(
        orders in proptest::collection::vec(0_u32..4, 1..30),
        steps in proptest::collection::vec((0_u8..3, proptest::collection::vec(0_usize..200, 1..20)), 1..20),
    ) {
        let mut frames = Model::default();
        let mut entries = Vec::new();
        let mut head_of_page = Vec::new();
        let mut pfn = 64_u64;
        for order in orders {
            pfn = pfn.next_multiple_of(1 << order);
            frames.folios.insert(pfn, order);
            for tail in 0..1 << order {
                entries.push(present(pfn + tail));
                head_of_page.push((pfn, order));
            }
            pfn += 1 << order;
        }
        let mut idle = tracking(frames, &entries);
        let mut prepared: BTreeSet<u64> = BTreeSet::new();
        for (what, pages) in steps {
            let pages: Vec<u64> = pages.iter().map(|page| (page % entries.len()) as u64).collect();
            let heads = pages.iter().map(|&page| head_of_page[page as usize].0);
            let mut batch = checks(pages.iter().copied());
            match what {
                0 => {
                    idle.prepare(&mut batch);
                    prop_assert!(batch.iter().all(|c| c.seen == Seen::Idle));
                    prepared.extend(heads);
                }
                1 => for head in heads {
                    idle.frames.accessed.insert(head);
                    prepared.remove(&head);
                },
                _ => {
                    idle.check(&mut batch);
                    for (check, head) in batch.iter().zip(heads) {
                        let expected = if prepared.contains(&head) { Seen::Idle } else { Seen::Accessed };
                        prop_assert_eq!(check.seen, expected);
                        let order = idle.frames.folios[&head];
                        prop_assert!(check.unit.is_power_of_two() && check.unit <= PAGE << order);
                    }
                }
            }
        }
    }
}
