//! The rules of layout against Linux itself: random sequences of system calls, made by a process and on the crate. After each
//! call the results, the mappings of `/proc/self/maps` and the counts of `/proc/self/statm` are the same; at the end the
//! flags of `/proc/self/smaps` too.
//!
//! `ISOTHERM_MM_SEQUENCES=10000` runs so many; `ISOTHERM_MM_SEED` begins elsewhere. A failure names the seed of its
//! sequence.
#![cfg(all(target_os = "linux", target_arch = "x86_64", not(loom), not(miri)))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod child;
mod ops;

use std::num::NonZeroU64;
use std::sync::RwLock;

use child::{GUARD, LOWEST, Report, Setup, TASK_END};
use isotherm_mm::*;
use isotherm_rcu::Epoch;
use ops::*;

const OPS: usize = 40;
/// There if the kernel aligns large mappings to huge pages.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage";
const ROOM: usize = 16 << 20;
/// Before the text: the report, and the calls, which may not lie on the heap, as the process gives that up.
const BEFORE: usize = 16 << 10;

/// What the tests of a run share.
struct World {
    report: *mut Report,
    text: *mut u8,
    files: [i32; 2],
    filler: i32,
    zeros: i32,
    arena: u64,
    heap: u64,
}

fn memfd(name: &std::ffi::CStr, size: i64) -> i32 {
    // SAFETY: makes a file of our own.
    unsafe {
        let fd = libc::memfd_create(name.as_ptr(), 0);
        assert!(fd >= 0 && libc::ftruncate(fd, size) == 0, "memfd");
        fd
    }
}

/// The address at which the heap of this process begins: field 47 of its `stat`.
fn heap_start() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit_once(')').unwrap().1;
    fields.split_whitespace().nth(44).unwrap().parse().unwrap()
}

impl World {
    fn new() -> World {
        let map = |length: u64, prot, flags| {
            // SAFETY: new memory.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), length as usize, prot, flags, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            at
        };
        let shared = map(ROOM as u64, 3, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let free = map(ARENA, 0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        World {
            report: shared.cast(),
            // SAFETY: within the mapping.
            text: unsafe { shared.cast::<u8>().add(BEFORE) },
            files: [memfd(c"one", 64 << 20), memfd(c"two", 64 << 20)],
            filler: memfd(c"filler", 0),
            // SAFETY: opens a device.
            zeros: unsafe { libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY) },
            arena: free as u64,
            heap: heap_start(),
        }
    }

    /// What the system says of the calls.
    fn linux(&self, ops: &[Op], limit: Option<u64>) -> String {
        // SAFETY: nobody else uses the report.
        unsafe { self.report.write(Report { len: 0, ready: 0 }) };
        assert!(size_of::<Report>() + size_of_val(ops) <= BEFORE, "too many calls");
        // SAFETY: there is room, and nobody else uses it.
        let ops = unsafe {
            let to = self.report.add(1).cast::<Op>();
            to.copy_from_nonoverlapping(ops.as_ptr(), ops.len());
            std::slice::from_raw_parts(to, ops.len())
        };
        // SAFETY: the child makes system calls alone, and ends.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork");
        if pid == 0 {
            // SAFETY: the arena is the child's; nothing is there.
            unsafe { libc::munmap(self.arena as *mut _, ARENA as usize) };
            child::run(&Setup {
                ops,
                report: self.report,
                text: self.text,
                room: ROOM - BEFORE,
                files: self.files,
                filler: self.filler,
                zeros: self.zeros,
                arena: self.arena,
                heap: self.heap,
                limit,
            });
        }
        let mut status = 0;
        // SAFETY: it is our child.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        // SAFETY: the child has ended.
        let report = unsafe { self.report.read() };
        assert!(status == 0 && report.ready == 1, "the process failed: {status:#x}");
        // SAFETY: so much was written.
        let text = unsafe { std::slice::from_raw_parts(self.text, report.len as usize) };
        String::from_utf8_lossy(text).into_owned()
    }

    /// The crate's space as the process begins: all is taken but the arena and what lies behind the heap.
    fn model(&self, limit: Option<u64>) -> Model {
        let heap_end = self.heap.next_multiple_of(PAGE) + HEAP + GUARD;
        let taken = TASK_END - LOWEST - ARENA - (heap_end - (self.heap & !(PAGE - 1)));
        let address_space = limit.map_or(u64::MAX, |pages| taken + pages * PAGE);
        let config = Config {
            limits: Limits { address_space, ..Config::X86_64.limits },
            lowest: LOWEST,
            end: TASK_END,
            top_down_base: self.arena + ARENA,
            bottom_up_base: (TASK_END / 3).next_multiple_of(PAGE),
            heap: self.heap,
            huge_page: if std::path::Path::new(HUGE_PAGES).exists() { 2 << 20 } else { 0 },
            ..Config::X86_64
        };
        let space = Space::new(Epoch, RwLock::new(()), (), config);
        let filler =
            [(LOWEST, self.heap & !(PAGE - 1)), (heap_end, self.arena), (self.arena + ARENA, TASK_END)];
        for (n, (start, end)) in (1..).zip(filler) {
            let id = NonZeroU64::new(u64::MAX - n).unwrap();
            let source = Source::Object { id, offset: 0, rights: Prot::all() };
            let request =
                MapRequest { source, ..MapRequest::anonymous(end - start, Prot::empty()).at(start) };
            space.mmap(&request).unwrap();
        }
        Model { space, heap: self.heap, shared: Vec::new() }
    }

    /// Whether the line is of the arena or the heap.
    fn is_ours(&self, start: u64) -> bool {
        let heap = self.heap & !(PAGE - 1);
        let heap_end = self.heap.next_multiple_of(PAGE) + HEAP + GUARD;
        (self.arena..self.arena + ARENA).contains(&start) || (heap..heap_end).contains(&start)
    }
}

/// A line of `maps` in the arena: range, permissions, and of files and shared memory the name and offset.
fn line(text: &str) -> Option<(u64, String)> {
    let mut fields = text.split_whitespace();
    let (range, perms, offset) = (fields.next()?, fields.next()?, fields.next()?);
    let (start, _) = range.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let name = fields.nth(2).filter(|name| !name.starts_with('['));
    let object = name.map(|name| {
        // All shared memory has one name.
        format!(" {name} {:#x}", u64::from_str_radix(offset, 16).unwrap())
    });
    Some((start, format!("{range} {perms}{}", object.unwrap_or_default())))
}

fn model_line(vma: &VmaInfo) -> String {
    let flag = |flag, c| if vma.flags.contains(flag) { c } else { '-' };
    let shared = if vma.flags.contains(VmFlags::MAY_SHARE) { 's' } else { 'p' };
    let object = vma.object.map(|(id, pages)| {
        let name = match id.get() {
            1 => "/memfd:one",
            2 => "/memfd:two",
            _ => "/dev/zero",
        };
        format!(" {name} {:#x}", pages * PAGE)
    });
    format!(
        "{:x}-{:x} {}{}{}{shared}{}",
        vma.start,
        vma.end,
        flag(VmFlags::READ, 'r'),
        flag(VmFlags::WRITE, 'w'),
        flag(VmFlags::EXEC, 'x'),
        object.unwrap_or_default()
    )
}

/// `VmFlags:` of smaps, of those that the crate has.
fn model_flags(flags: VmFlags) -> Vec<&'static str> {
    let names = [
        (VmFlags::READ, "rd"),
        (VmFlags::WRITE, "wr"),
        (VmFlags::EXEC, "ex"),
        (VmFlags::SHARED, "sh"),
        (VmFlags::MAY_READ, "mr"),
        (VmFlags::MAY_WRITE, "mw"),
        (VmFlags::MAY_EXEC, "me"),
        (VmFlags::MAY_SHARE, "ms"),
        (VmFlags::GROWSDOWN, "gd"),
        (VmFlags::LOCKED, "lo"),
        (VmFlags::SEQ_READ, "sr"),
        (VmFlags::RAND_READ, "rr"),
        (VmFlags::DONTCOPY, "dc"),
        (VmFlags::LOCKONFAULT, "lf"),
        (VmFlags::ACCOUNT, "ac"),
        (VmFlags::NORESERVE, "nr"),
        (VmFlags::WIPEONFORK, "wf"),
        (VmFlags::DONTDUMP, "dd"),
        (VmFlags::HUGEPAGE, "hg"),
        (VmFlags::NOHUGEPAGE, "nh"),
    ];
    names.iter().filter(|(flag, _)| flags.contains(*flag)).map(|&(_, name)| name).collect()
}

/// What the process said after a call.
struct Snapshot<'t> {
    total: u64,
    data: u64,
    maps: Vec<&'t str>,
}

fn snapshot<'t>(lines: &mut std::iter::Peekable<std::str::Lines<'t>>) -> Snapshot<'t> {
    let statm: Vec<u64> = lines.next().unwrap().split(' ').map(|n| n.parse().unwrap()).collect();
    let mut maps = Vec::new();
    while let Some(line) = lines.next_if(|line| !line.starts_with(['=', '+'])) {
        maps.push(line);
    }
    Snapshot { total: statm[0], data: statm[5], maps }
}

/// The one difference. A fixed mapping that does not fit the limits is refused by Linux after the VMAs at its ends were split,
/// which stay split (6.12 and later); the crate looks at the limits first and changes nothing. What is mapped is the same, and
/// the sequence ends there, as later merges differ.
fn may_leave_splits(op: &Op, result: i64) -> bool {
    let fixed = matches!(op, Op::Mmap { flags, .. } if flags & libc::MAP_FIXED != 0);
    fixed && result == -i64::from(libc::ENOMEM)
}

/// Lines of maps, those joined that adjoin and are alike but for the offset.
fn joined(lines: &[String]) -> Vec<(String, String, Vec<String>)> {
    let mut all: Vec<(String, String, Vec<String>)> = Vec::new();
    for line in lines {
        let mut fields = line.split(' ');
        let (start, end) = fields.next().unwrap().split_once('-').unwrap();
        let kind: Vec<String> = fields.take(2).map(str::to_owned).collect();
        match all.last_mut() {
            Some(last) if last.1 == start && last.2 == kind => last.1 = end.to_owned(),
            _ => all.push((start.to_owned(), end.to_owned(), kind)),
        }
    }
    all
}

fn compare(world: &World, seed: u64) {
    let mut random = Random(seed);
    let ops: Vec<Op> = (0..OPS).map(|_| random_op(&mut random, world.arena)).collect();
    let limit = random.chance(20).then(|| random.below(200));
    let text = world.linux(&ops, limit);
    let mut model = world.model(limit);
    let before = model.space.usage();
    let mut lines = text.lines().peekable();
    let first = snapshot(&mut lines);
    let mut history = String::new();
    for op in &ops {
        let linux: i64 = lines.next().unwrap().strip_prefix("= ").unwrap().parse().unwrap();
        let ours = model.apply(op);
        let now = snapshot(&mut lines);
        history += &format!("{op:x?} -> {linux:x}\n");
        let expected: Vec<String> = now
            .maps
            .iter()
            .filter_map(|text| line(text))
            .filter(|(start, _)| world.is_ours(*start))
            .map(|(_, line)| line)
            .collect();
        let mut found = Vec::new();
        model.space.for_each(0..TASK_END, |vma| {
            if world.is_ours(vma.start) {
                found.push(model_line(&vma));
            }
        });
        let context = || {
            format!("seed {seed}, limit {limit:?}, arena {:x}, heap {:x}\n{history}", world.arena, world.heap)
        };
        assert_eq!(ours, linux, "result (ours, Linux): {}\nLinux: {expected:#?}", context());
        if found != expected && may_leave_splits(op, linux) {
            assert_eq!(joined(&found), joined(&expected), "mappings, joined (ours, Linux): {}", context());
            return;
        }
        assert_eq!(found, expected, "mappings (ours, Linux): {}", context());
        let usage = model.space.usage();
        let change = (usage.total - before.total, usage.data + usage.stack - before.data - before.stack);
        let linux = (now.total - first.total, now.data - first.data);
        assert_eq!(change, linux, "total and data (ours, Linux): {}", context());
    }
    assert_eq!(lines.next(), Some("+"));
    let mut current = None;
    for text in lines {
        if let Some(names) = text.strip_prefix("VmFlags: ") {
            let Some(start) = current else { continue };
            let vma = model.space.find(start).unwrap();
            let known = model_flags(VmFlags::all());
            let linux: Vec<&str> = names.split_whitespace().filter(|name| known.contains(name)).collect();
            let ours = model_flags(vma.flags);
            assert_eq!(ours, linux, "flags at {start:x} (ours, Linux): seed {seed}\n{history}");
        } else if !text.contains("kB")
            && let Some((start, _)) = line(text)
        {
            current = Some(start).filter(|&start| world.is_ours(start));
        }
    }
}

/// Why the comparison cannot be made here.
fn unlike() -> Option<String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let mut numbers = release.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    let version = (numbers.next()?, numbers.next()?);
    if version < (6, 18) {
        return Some(format!("the rules of layout are those of Linux 6.18, and this is {}", release.trim()));
    }
    let low: u64 = std::fs::read_to_string("/proc/sys/vm/mmap_min_addr").ok()?.trim().parse().ok()?;
    (low > LOWEST).then(|| format!("vm.mmap_min_addr is {low}, and the test maps from {LOWEST} on"))
}

#[test]
fn random_sequences_leave_the_mappings_that_linux_leaves() {
    if let Some(why) = unlike() {
        println!("skipped: {why}");
        return;
    }
    let number = |name, default| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (sequences, seed): (u64, u64) = (number("ISOTHERM_MM_SEQUENCES", 300), number("ISOTHERM_MM_SEED", 0));
    let world = World::new();
    for n in seed..seed + sequences {
        compare(&world, n);
    }
}
