//! System calls: random ones, made on a process and on the crate.

use std::num::NonZeroU64;
use std::sync::RwLock;

use isotherm_maple::Global;
use isotherm_mm::*;
use isotherm_rcu::Epoch;

pub const PAGE: u64 = 4096;
pub const ARENA: u64 = 8 << 20;
/// Bytes that are left free behind the heap, beyond the guard gap that `brk` keeps.
pub const HEAP: u64 = 64 * PAGE;
/// Files that are mapped.
pub const FILES: u64 = 2;
/// The identity of the first piece of shared memory.
const SHARED: u64 = 1000;

#[derive(Clone, Copy, Debug)]
pub enum Op {
    Mmap {
        address: u64,
        length: u64,
        prot: i32,
        flags: i32,
        file: Option<u64>,
        offset: i64,
    },
    Munmap {
        address: u64,
        length: u64,
    },
    Mprotect {
        address: u64,
        length: u64,
        prot: i32,
    },
    Mremap {
        address: u64,
        old: u64,
        new: u64,
        flags: i32,
        to: u64,
    },
    Madvise {
        address: u64,
        length: u64,
        advice: i32,
    },
    /// `mlock2(MLOCK_ONFAULT)`, which faults nothing in.
    Mlock {
        address: u64,
        length: u64,
    },
    Munlock {
        address: u64,
        length: u64,
    },
    Msync {
        address: u64,
        length: u64,
        flags: i32,
    },
    /// Writes a byte, by a system call, so that it fails with `EFAULT` where it may not.
    Touch {
        address: u64,
    },
    /// Relative to where the heap begins.
    Brk {
        offset: u64,
    },
    /// The child goes on, and the parent waits for it.
    Fork,
}

/// A generator of numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// Addresses in the middle of the arena, so few that mappings meet; sometimes elsewhere.
fn address(random: &mut Random, arena: u64) -> u64 {
    let page = match random.below(20) {
        0 => random.below(ARENA / PAGE),
        1 => ARENA / PAGE - 1 - random.below(40),
        2 => ARENA / 2 / PAGE + 256 + random.below(40),
        _ => ARENA / 2 / PAGE + random.below(40),
    };
    let odd = if random.chance(2) { 1 + random.below(PAGE - 1) } else { 0 };
    arena + page * PAGE + odd
}

/// A length of what begins at `at`. What reaches out of the arena would tear the process apart, so only lengths do that are
/// refused whatever the call.
fn length(random: &mut Random, arena: u64, at: u64) -> u64 {
    let length = match random.below(40) {
        0 => 0,
        1 => random.below(3 * PAGE),
        2 => 2 << 20,
        3 => return u64::MAX - random.below(2 * PAGE),
        4 => (1 + random.below(600)) * PAGE,
        _ => (1 + random.below(8)) * PAGE,
    };
    length.min((arena + ARENA).saturating_sub(at))
}

fn prot(random: &mut Random) -> i32 {
    random.pick(&[0, 1, 3, 3, 3, 3, 5, 7])
}

pub fn random_op(random: &mut Random, arena: u64) -> Op {
    let at = address(random, arena);
    let len = length(random, arena, at);
    match random.below(100) {
        0..30 => mmap(random, at, len),
        30..42 => Op::Munmap { address: at, length: len },
        42..57 => Op::Mprotect { address: at, length: len, prot: prot(random) },
        57..72 => mremap(random, arena, at, len),
        72..82 => {
            let advice = random.pick(&[0, 1, 2, 10, 11, 14, 15, 16, 17, 18, 19, 4, 4, 8, 8, 999]);
            Op::Madvise { address: at, length: len, advice }
        }
        82..85 => Op::Mlock { address: at, length: len },
        85..87 => Op::Munlock { address: at, length: len },
        87..89 => Op::Msync { address: at, length: len, flags: random.below(9) as i32 },
        89..96 => Op::Touch { address: at },
        96 => Op::Fork,
        _ => {
            let offset = random.below(HEAP / PAGE + 8) * PAGE;
            Op::Brk { offset: if random.chance(30) { offset + random.below(PAGE) } else { offset } }
        }
    }
}

fn mmap(random: &mut Random, at: u64, length: u64) -> Op {
    let file = random.chance(25).then(|| random.below(FILES));
    // Offsets that continue where a neighbour ends, mostly.
    let page = (at % ARENA) / PAGE;
    let offset = if file.is_none() {
        0
    } else if random.chance(60) {
        (page * PAGE) as i64
    } else {
        (random.below(40) * PAGE + u64::from(random.chance(5))) as i64
    };
    let mut flags = if random.chance(15) { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    if random.chance(1) {
        flags = 0;
    }
    if file.is_none() {
        flags |= libc::MAP_ANONYMOUS;
    }
    let mut address = at;
    match random.below(10) {
        0..5 => flags |= libc::MAP_FIXED,
        5 => flags |= libc::MAP_FIXED_NOREPLACE,
        6..8 => {}
        _ => address = 0,
    }
    let huge = [2 << 20, 4 << 20, 3 << 20, ARENA, ARENA + PAGE, 1 << 47, 0x7fff_ffff_f000];
    let length = if address == 0 && random.chance(40) { random.pick(&huge) } else { length };
    for (percent, flag) in [(8, libc::MAP_GROWSDOWN), (5, libc::MAP_NORESERVE), (5, libc::MAP_STACK)] {
        if random.chance(percent) {
            flags |= flag;
        }
    }
    Op::Mmap { address, length, prot: prot(random), flags, file, offset }
}

fn mremap(random: &mut Random, arena: u64, at: u64, old: u64) -> Op {
    let flags = random.pick(&[0, 1, 1, 1, 3, 3, 3, 5, 5, 7, 2, 4, 8]);
    let to = if flags & 6 == 4 && random.chance(50) { 0 } else { address(random, arena) };
    let new = if random.chance(40) { old } else { length(random, arena, to.max(at)) };
    let new = if flags & 2 == 2 { new.min(arena + ARENA - to) } else { new };
    Op::Mremap { address: at, old, new, flags, to }
}

/// What the crate stands on here: layouts alone.
pub struct Layout;

impl Platform for Layout {
    type Rcu = Epoch;
    type Lock = RwLock<()>;
    type Contents = ();
    type Alloc = Global;
}

pub type Space = AddressSpace<Layout>;

/// The crate's side.
pub struct Model {
    pub space: Space,
    pub heap: u64,
    /// Pieces of shared memory: their pages.
    pub shared: Vec<u64>,
}

impl Model {
    /// Does the same to the crate; the number that the system call would return.
    pub fn apply(&mut self, op: &Op) -> i64 {
        match self.result(op) {
            Ok(value) => value as i64,
            Err(error) => -i64::from(error.errno()),
        }
    }

    fn result(&mut self, op: &Op) -> Result<u64, Error> {
        let space = &self.space;
        match *op {
            Op::Mmap { address, length, prot, flags, file, offset } => {
                if !matches!(flags & 3, libc::MAP_SHARED | libc::MAP_PRIVATE) {
                    // The crate has no such flag to get wrong, but all else is looked at before it.
                    return self.mmap(address, length, prot, flags | libc::MAP_PRIVATE, file, offset, true);
                }
                self.mmap(address, length, prot, flags, file, offset, false)
            }
            Op::Munmap { address, length } => space.munmap(address, length).map(|()| 0),
            Op::Mprotect { address, length, prot } => {
                let prot = Prot::from_bits_truncate(prot as u64);
                space.mprotect(address, length, prot).map(|()| 0)
            }
            Op::Mremap { address, old, new, flags, to } => {
                let flags = RemapFlags::from_bits(flags as u32).ok_or(Error::Invalid)?;
                space.mremap(address, old, new, flags, to)
            }
            Op::Madvise { address, length, advice: libc::MADV_DONTNEED } => {
                space.discard(address, length).map(|()| 0)
            }
            Op::Madvise { address, length, advice: libc::MADV_FREE } => {
                space.lazy_free(address, length).map(|()| 0)
            }
            Op::Madvise { address, length, advice } => {
                let advice = match advice {
                    libc::MADV_NORMAL => Advice::Normal,
                    libc::MADV_RANDOM => Advice::Random,
                    libc::MADV_SEQUENTIAL => Advice::Sequential,
                    libc::MADV_DONTFORK => Advice::DontFork,
                    libc::MADV_DOFORK => Advice::DoFork,
                    libc::MADV_HUGEPAGE => Advice::HugePage,
                    libc::MADV_NOHUGEPAGE => Advice::NoHugePage,
                    libc::MADV_DONTDUMP => Advice::DontDump,
                    libc::MADV_DODUMP => Advice::DoDump,
                    libc::MADV_WIPEONFORK => Advice::WipeOnFork,
                    libc::MADV_KEEPONFORK => Advice::KeepOnFork,
                    _ => return Err(Error::Invalid),
                };
                space.madvise(address, length, advice).map(|()| 0)
            }
            Op::Mlock { address, length } => space.mlock(address, length, true).map(|()| 0),
            Op::Munlock { address, length } => space.munlock(address, length).map(|()| 0),
            Op::Msync { address, length, flags } => {
                let flags = MsyncFlags::from_bits(flags as u32).ok_or(Error::Invalid)?;
                space.msync(address, length, flags).map(|()| 0)
            }
            Op::Touch { address } => self.touch(address),
            Op::Brk { offset } => Ok(space.brk(self.heap + offset)),
            Op::Fork => {
                self.space = space.fork(RwLock::new(()), ())?;
                Ok(0)
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "as the system call")]
    fn mmap(
        &mut self,
        address: u64,
        length: u64,
        prot: i32,
        raw: i32,
        file: Option<u64>,
        offset: i64,
        no_type: bool,
    ) -> Result<u64, Error> {
        let mut flags = MapFlags::empty();
        for (bit, flag) in [
            (libc::MAP_FIXED, MapFlags::FIXED),
            (libc::MAP_FIXED_NOREPLACE, MapFlags::FIXED_NOREPLACE),
            (libc::MAP_GROWSDOWN, MapFlags::GROWSDOWN),
            (libc::MAP_NORESERVE, MapFlags::NORESERVE),
            (libc::MAP_STACK, MapFlags::STACK),
        ] {
            flags.set(flag, raw & bit == bit);
        }
        let shared = raw & 3 == libc::MAP_SHARED;
        flags.set(MapFlags::SHARED, shared);
        let source = match file {
            Some(file) => Source::Object {
                id: NonZeroU64::new(1 + file).unwrap(),
                offset: offset as u64,
                rights: Prot::all(),
            },
            None if shared => {
                self.shared.push(length.div_ceil(PAGE));
                let id = NonZeroU64::new(SHARED + self.shared.len() as u64 - 1).unwrap();
                Source::Object { id, offset: 0, rights: Prot::all() }
            }
            None => Source::Anonymous,
        };
        let prot = Prot::from_bits_truncate(prot as u64);
        let request = MapRequest { address, length, prot, flags, source };
        if no_type {
            // It fails, later than what is refused for other reasons: found by a request that is refused last of all.
            let bad = MapRequest {
                flags: flags | MapFlags::SHARED | MapFlags::GROWSDOWN,
                source: Source::Object { id: NonZeroU64::MAX, offset: offset as u64, rights: Prot::all() },
                ..request
            };
            return self.space.mmap(&bad);
        }
        self.space.mmap(&request)
    }

    fn touch(&self, address: u64) -> Result<u64, Error> {
        if self.space.find(address).is_none() {
            self.space.grow_stack(address).map_err(|_| Error::BadAddress)?;
        }
        let vma = self.space.find(address).ok_or(Error::BadAddress)?;
        if !vma.flags.contains(VmFlags::WRITE) {
            return Err(Error::BadAddress);
        }
        if let Some((id, pages)) = vma.object
            && let Some(size) = id.get().checked_sub(SHARED).and_then(|n| self.shared.get(n as usize))
            && pages + (address - vma.start) / PAGE >= *size
        {
            // A mapping that was grown reaches over the end of what it maps.
            return Err(Error::BadAddress);
        }
        if !vma.flags.contains(VmFlags::SHARED) {
            self.space.prepare_anon(address)?;
        }
        Ok(1)
    }
}
