use super::*;
use crate::pagemap::Pagemap;
use crate::process::Process;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous};
use std::time::{Duration, Instant};

const HUGE: usize = 2 << 20;

/// 8 MiB of this process's own: small pages, huge ones, locked ones, zero pages.
fn memory() -> Vec<(u64, usize)> {
    let map = |prot, advice| {
        // SAFETY: a new mapping at an address of the kernel's choice, never unmapped.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * HUGE, prot, MapFlags::PRIVATE) }.unwrap();
        let start = (at as u64).next_multiple_of(HUGE as u64);
        // SAFETY: inside the mapping just made; the advice changes no contents.
        unsafe { madvise(start as *mut _, HUGE, advice) }.unwrap();
        start
    };
    let both = ProtFlags::READ | ProtFlags::WRITE;
    let (small, huge, locked) = (
        map(both, Advice::LinuxNoHugepage),
        map(both, Advice::LinuxHugepage),
        map(both, Advice::LinuxNoHugepage),
    );
    let zero = map(ProtFlags::READ, Advice::LinuxNoHugepage);
    for start in [small, huge, locked] {
        for addr in (start..start + HUGE as u64).step_by(4096) {
            // SAFETY: inside a mapping made above, writable.
            unsafe { (addr as *mut u8).write_volatile(1) };
        }
    }
    for addr in (zero..zero + HUGE as u64).step_by(4096) {
        // SAFETY: inside a mapping made above, readable.
        unsafe { (addr as *const u8).read_volatile() };
    }
    // SAFETY: this test's own mapping.
    unsafe { mlock(locked as *mut _, HUGE) }.unwrap();
    vec![(small, 512), (huge, 512), (locked, 512), (zero, 512)]
}

/// Both sources, where there are both.
fn both() -> Option<(StructPages, PageFlagsFile)> {
    let kernel = Types::of_kernel(&[&super::super::walk::TYPES[..], &TYPES].concat());
    let walker = kernel.and_then(|kernel| Ok((Walker::load(&kernel)?, kernel)));
    let (Ok((mut walker, kernel)), Ok(file)) = (walker, std::fs::File::open("/proc/kpageflags")) else {
        println!("skipped: needs root and BPF");
        return None;
    };
    let structs = StructPages::load(&mut walker, &kernel).unwrap();
    if structs.is_none() {
        println!("skipped: this kernel's array of struct page was not found");
    }
    Some((structs?, PageFlagsFile(file)))
}

#[test]
fn a_struct_page_says_what_kpageflags_says() {
    let Some((mut structs, mut file)) = both() else { return };
    let own = Pagemap::open(&Process::open(rustix::process::getpid()).unwrap()).unwrap();
    let mut kinds = [0; 4];
    for (kind, (start, pages)) in memory().into_iter().enumerate() {
        let addrs: Vec<u64> = (0..pages as u64).map(|i| start + i * 4096).collect();
        let mut entries = Vec::new();
        own.entries(&addrs, &mut entries);
        let pfns: Vec<u64> = entries.iter().flatten().filter(|e| e.present()).map(|e| e.pfn()).collect();
        assert!(pfns.len() > 500, "{kind}: {}", pfns.len());
        let (mut here, mut there) = (Vec::new(), Vec::new());
        folios(&mut structs, &pfns, &mut here);
        folios(&mut file, &pfns, &mut there);
        for ((pfn, here), there) in pfns.iter().zip(here).zip(there) {
            let (here, there) = (here.unwrap(), there.unwrap());
            assert_eq!(
                (here.head, here.order),
                (there.head, there.order),
                "frame {pfn:x}, {here:x?} {there:x?}"
            );
            // It may change between the two looks: compaction takes locked pages off their list, too, and puts them back.
            let (mut same, since) = (here.is_unclearable() == there.is_unclearable(), Instant::now());
            while !same && since.elapsed() < Duration::from_secs(10) {
                let (mut here, mut there) = (Vec::new(), Vec::new());
                folios(&mut structs, &[*pfn], &mut here);
                folios(&mut file, &[*pfn], &mut there);
                same = here[0].unwrap().is_unclearable() == there[0].unwrap().is_unclearable();
            }
            assert!(same, "frame {pfn:x}, {here:x?} {there:x?}");
            kinds[kind] += u32::from(
                [!here.is_large(), here.is_large(), here.is_unclearable(), here.is_unclearable()][kind],
            );
        }
    }
    println!("small, large, locked, zero: {kinds:?}");
    assert!(kinds[0] > 500 && kinds[2] > 500 && kinds[3] > 500, "{kinds:?}");
}

/// All frames of the machine: whatever they are used for, sizes of folios agree but for those that change meanwhile.
#[test]
fn all_of_memory_agrees_with_kpageflags() {
    let Some((mut structs, mut file)) = both() else { return };
    let (mut frames, mut differ, mut large) = (0_u64, 0_u64, 0_u64);
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for first in (0..1_u64 << 21).step_by(37 * 512) {
        let pfns: Vec<u64> = (first..first + 512).collect();
        structs.flags(&pfns, &mut here);
        file.flags(&pfns, &mut there);
        for (here, there) in here.iter().zip(&there) {
            let (Some(here), Some(there)) = (here, there) else { continue };
            if there & flag::NOPAGE == 0 {
                let compound = flag::COMPOUND_HEAD | flag::COMPOUND_TAIL;
                frames += 1;
                large += u64::from(there & compound != 0);
                differ += u64::from((here ^ there) & (compound | flag::HUGETLB) != 0);
            }
        }
    }
    println!("{frames} frames, {large} of them in compound pages, {differ} differ");
    assert!(frames > 10_000 && differ * 1000 < frames, "{differ} of {frames} differ");
}
