use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Folios by their first frame: order, and flags. Other frames are of nothing.
#[derive(Clone, Debug, Default)]
struct Memory(BTreeMap<u64, (u32, u64)>);

impl Memory {
    fn folio(&self, pfn: u64) -> Option<Folio> {
        let (&head, &(order, flags)) = self.0.range(..=pfn).next_back()?;
        Some(Folio { head, order, flags }).filter(|folio| folio.contains(pfn))
    }
}

impl FrameFlags for Memory {
    fn flags(&mut self, pfns: &[u64], found: &mut Vec<Option<u64>>) {
        found.clear();
        found.extend(pfns.iter().map(|pfn| match self.folio(*pfn) {
            None => Some(flag::NOPAGE),
            Some(folio) if !folio.is_large() => Some(folio.flags),
            Some(folio) if folio.head == *pfn => Some(folio.flags | flag::COMPOUND_HEAD),
            Some(_) => Some(flag::COMPOUND_TAIL),
        }));
    }
}

fn memory() -> impl Strategy<Value = Memory> {
    let flags = prop_oneof![Just(0), Just(flag::LRU), Just(flag::UNEVICTABLE), Just(flag::HUGETLB)];
    proptest::collection::vec((0..=MAX_ORDER, flags, 0..3_u64), 0..40).prop_map(|parts| {
        let (mut memory, mut next) = (Memory::default(), 0_u64);
        for (order, flags, gap) in parts {
            let head = (next + gap).next_multiple_of(1 << order);
            memory.0.insert(head, (order, flags));
            next = head + (1 << order);
        }
        memory
    })
}

proptest! {
    #[test]
    fn each_frame_finds_its_folio(
        mut memory in memory(),
        runs in proptest::collection::vec((0..200_000_u64, 1..40_u64, 1..3_u64), 0..20),
    ) {
        // Runs of neighbours, of every second frame, and from all over.
        let pfns: Vec<u64> = runs.iter().flat_map(|(start, count, step)| (0..*count).map(move |i| start + i * step)).collect();
        let mut found = Vec::new();
        folios(&mut memory, &pfns, &mut found);
        prop_assert_eq!(found.len(), pfns.len());
        for (pfn, found) in pfns.iter().zip(found) {
            let mut want = memory.folio(*pfn).unwrap_or(Folio { head: *pfn, order: 0, flags: flag::NOPAGE });
            if want.is_large() {
                want.flags |= flag::COMPOUND_HEAD;
            }
            prop_assert_eq!(found, Some(want));
        }
    }
}
