//! The model machine: spaces of `isotherm-mm` in ordinary memory, on which a plan runs in virtual time.

use super::monitor::Watcher;
use super::prices::{COPY, FAULT, FLUSH, MARK, SWAP_IN, TOUCH, WALK, WALK_HUGE, ZERO};
use super::tlb::Tlb;
use isotherm_damon::{MonitorError, TargetId};
use isotherm_maple::Global;
use isotherm_mm::{
    Access, AddressSpace, Advice, Config, FaultError, Folios, MapFlags, MapRequest, Object, ObjectId,
    Objects, Paged, Platform, Prot, Shmem, Source, System,
};
use isotherm_page::Frame;
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::{Level, Mapping, X86_64};
use isotherm_rcu::Epoch;
use isotherm_workloads::AreaPlan;
use isotherm_workloads::truth::Page;
use serde::Serialize;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};

const PAGE: u64 = isotherm_mm::PAGE_SIZE;
const HUGE: u64 = 2 << 20;
/// Where areas lie, from here on upwards.
const AREAS: u64 = 0x7f00_0000_0000;
/// A heap and a stack that nobody uses after they were written once: address and pages.
const BESIDE: [(u64, u64); 2] = [(0x5500_0000_0000, 40), (0x7fff_0000_0000, 33)];
/// How often what is resident is looked at, and how often huge pages are counted: once in so many of these.
const LOOK_NS: u64 = 100_000_000;
const COUNT_EVERY: u64 = 10;
/// The scanner that makes huge pages looks at so many blocks of 2 MiB each [`LOOK_NS`]. Linux' looks at 8 in 10 s, and would not be
/// through with a pattern of half a minute.
const SCANNED: usize = 8;
/// Missing pages that it makes zeros: Linux' default of `max_ptes_none`.
const MAX_NONE: u64 = 511;

/// Why a run ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation failed.
    #[error("the model machine: {0}")]
    Mm(#[from] isotherm_mm::Error),
    /// A page fault failed.
    #[error("the model machine: a fault at {0:#x}: {1}")]
    Fault(u64, FaultError),
    /// A page does not hold what was written to it.
    #[error("the model machine: {0:#x} holds {1:#x}, which nobody wrote there")]
    Lost(u64, u64),
    /// The monitor cannot be set up.
    #[error(transparent)]
    Monitor(#[from] MonitorError),
    /// Its schemes are none.
    #[error("{0}")]
    Schemes(String),
    /// The record cannot be judged.
    #[error(transparent)]
    Judge(#[from] crate::accuracy::AccuracyError),
    /// It is to end.
    #[error(transparent)]
    Interrupted(#[from] crate::Interrupted),
}

/// Shared memory by its number.
#[derive(Default)]
pub struct Shared<'m>(RwLock<Vec<Arc<Segment<'m>>>>);

type Segment<'m> = Object<'m, X86_64, HostMachine, Shmem, RwLock<()>>;

impl<'m> Shared<'m> {
    fn add(&self, machine: &'m HostMachine, pages: u64) -> Option<ObjectId> {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.push(Arc::new(Object::new(machine, Shmem, RwLock::new(()), pages)));
        ObjectId::new(all.len() as u64)
    }
}

impl<'m> Objects<'m, X86_64, HostMachine> for Shared<'m> {
    type Backing = Shmem;
    type Lock = RwLock<()>;

    fn get(&self, id: ObjectId) -> Option<impl Deref<Target = Segment<'m>>> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.get(usize::try_from(id.get() - 1).ok()?).cloned()
    }
}

/// What spaces of the model machine stand on.
pub struct Process<'m>(PhantomData<&'m HostMachine>);

impl<'m> Platform for Process<'m> {
    type Rcu = Epoch;
    type Lock = RwLock<()>;
    type Contents = Paged<'m, X86_64, HostMachine, Arc<Shared<'m>>>;
    type Alloc = Global;
}

/// An address space of it.
pub type Space<'m> = AddressSpace<Process<'m>>;

/// How often what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Events {
    /// Faults that brought zeros, or a page of shared memory.
    pub zero: u64,
    /// Those of them that brought a huge page.
    pub huge: u64,
    /// Faults that copied a page or made it writable.
    pub copy: u64,
    /// Faults that brought a page back from swap: refaults.
    pub refaults: u64,
    /// Walks of the processor, as the TLB did not have the translation.
    pub walks: u64,
    /// Accessed and Dirty bits that it set.
    pub marks: u64,
    /// Flushes of its TLB.
    pub flushes: u64,
}

/// What was resident, on average over the time from [`ready`](isotherm_workloads::Machine::ready) on, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Resident {
    /// Resident sets of all processes together.
    pub rss: f64,
    /// In huge pages.
    pub huge: f64,
    /// In swap.
    pub swap: f64,
}

/// What is made of a plan's memory.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Pages that the plan asks for.
    pub page: Page,
    /// Which VMAs get huge pages.
    pub folios: Folios,
}

/// Makes the monitor, which begins at a time.
pub type Begin<'m, 'w> = Box<dyn FnOnce(u64) -> Result<Watcher<'m>, MonitorError> + 'w>;

/// A machine on which a plan runs.
pub struct Model<'m, 'w> {
    machine: &'m HostMachine,
    system: System<'m, X86_64, HostMachine>,
    zero: Frame,
    shared: Arc<Shared<'m>>,
    policy: Policy,
    spaces: BTreeMap<usize, Arc<Space<'m>>>,
    /// First address of each area.
    areas: BTreeMap<usize, u64>,
    next_area: u64,
    tlbs: Vec<Tlb>,
    /// Time that flushes took of each thread and is not accounted for yet.
    held_up: Vec<u64>,
    /// What each thread touched last, and when: page, generation, process, and whether it wrote.
    last: Vec<(u64, u64, usize, bool)>,
    /// How often something else than the program's accesses happened.
    generation: u64,
    /// From where on the scanner goes on, by process.
    scanned: BTreeMap<usize, u64>,
    watcher: Option<Watcher<'m>>,
    start_watching: Option<Begin<'m, 'w>>,
    stop: &'w dyn Fn() -> bool,
    /// When the machine looks next, and since when it does.
    look_at: Option<u64>,
    looks: u64,
    counts: u64,
    sums: Resident,
    events: Events,
    failed: Option<Error>,
}

impl<'m, 'w> Model<'m, 'w> {
    /// A machine without processes but the first. `watcher` makes the monitor once the plan's memory is there, if any is to be.
    pub fn new(
        machine: &'m HostMachine,
        system: System<'m, X86_64, HostMachine>,
        zero: Frame,
        policy: Policy,
        (threads, watcher): (usize, Option<Begin<'m, 'w>>),
        stop: &'w dyn Fn() -> bool,
    ) -> Result<Self, Error> {
        let shared = Arc::new(Shared::default());
        let contents = Paged::in_system(&system, 1, zero, Arc::clone(&shared))?.with_folios(policy.folios);
        let space = Space::new(Epoch, RwLock::new(()), contents, Config::X86_64);
        for (address, pages) in BESIDE {
            space.mmap(&MapRequest::anonymous(pages * PAGE, Prot::READ | Prot::WRITE).at(address))?;
            space.populate(address, pages * PAGE, Access::Write).map_err(|why| Error::Fault(address, why))?;
        }
        Ok(Self {
            machine,
            system,
            zero,
            shared,
            policy,
            spaces: BTreeMap::from([(0, Arc::new(space))]),
            areas: BTreeMap::new(),
            next_area: AREAS,
            tlbs: (0..threads.max(1)).map(|_| Tlb::new()).collect(),
            held_up: vec![0; threads.max(1)],
            last: vec![(u64::MAX, 0, 0, false); threads.max(1)],
            generation: 0,
            scanned: BTreeMap::new(),
            watcher: None,
            start_watching: watcher,
            stop,
            look_at: None,
            looks: 0,
            counts: 0,
            sums: Resident::default(),
            events: Events::default(),
            failed: None,
        })
    }

    /// What happened, what was resident, and the monitor.
    pub fn finish(mut self) -> (Events, Resident, Option<Watcher<'m>>) {
        let (looks, counts) = (self.looks.max(1) as f64, self.counts.max(1) as f64);
        let Resident { rss, huge, swap } = self.sums;
        (
            self.events,
            Resident { rss: rss / looks, huge: huge / counts, swap: swap / looks },
            self.watcher.take(),
        )
    }

    fn space(&self, process: usize) -> Result<&Arc<Space<'m>>, Error> {
        self.spaces.get(&process).ok_or(Error::Mm(isotherm_mm::Error::Invalid))
    }

    /// What the machine does beside the program each [`LOOK_NS`]: it looks at what is resident, and makes huge pages.
    fn look(&mut self) -> Result<(), Error> {
        let counted = self.looks.is_multiple_of(COUNT_EVERY);
        self.looks += 1;
        self.counts += u64::from(counted);
        for (process, space) in &self.spaces {
            let rss = space.contents().rss();
            self.sums.rss += (rss.total() * PAGE) as f64;
            self.sums.swap += (rss.swap * PAGE) as f64;
            if counted {
                let mut pages = 0;
                space.contents().mappings(0..space.config().end, |run| {
                    let huge = matches!(run.mapping, Mapping::Page { level, .. } if level != Level::Pte);
                    pages += if huge { run.pages } else { 0 };
                })?;
                self.sums.huge += (pages * PAGE) as f64;
            }
            let from = self.scanned.entry(*process).or_insert(0);
            // Without a folio it goes on from there.
            if let Ok((next, _)) = space.collapse_step(*from, SCANNED, MAX_NONE) {
                *from = next;
            }
        }
        Ok(())
    }

    /// Something else ran: its flushes hold the program up, and pages are not as young as they were.
    fn elsewhere(&mut self, syncs_before: u64) {
        self.generation += 1;
        let syncs = self.machine.counts().tlb_syncs - syncs_before;
        if syncs > 0 {
            self.events.flushes += syncs;
            self.held_up.iter_mut().for_each(|time| *time += syncs * FLUSH);
            self.tlbs.iter_mut().for_each(Tlb::flush);
        }
    }

    /// An access of a program, through its page tables and by faults; how long it takes.
    fn access(&mut self, process: usize, thread: usize, address: u64, write: bool) -> Result<u64, Error> {
        let space = self.space(process)?;
        let kind = if write { Access::Write } else { Access::Read };
        let (mut ns, mut events, mut found) = (TOUCH, Events::default(), None);
        let huge = loop {
            match space.contents().mapping(address) {
                Mapping::Page { level, attributes, .. }
                    if !attributes.no_access && (attributes.write || !write) =>
                {
                    let huge = level != Level::Pte;
                    let marked = attributes.young && (attributes.dirty || !write);
                    if let Some(before) = found {
                        ns += filled(before, huge, &mut events);
                    } else if !marked {
                        ns += MARK;
                        events.marks += 1;
                    }
                    if (found.is_some() || !marked)
                        && let Ok(frame) = space.contents().access(address, kind)
                    {
                        check(self.machine, frame, address & !(PAGE - 1), write)?;
                    }
                    break huge;
                }
                before => {
                    found.get_or_insert(before);
                    space.fault(address, kind).map_err(|why| Error::Fault(address, why))?;
                }
            }
        };
        if self.tlbs.get_mut(thread).is_some_and(|tlb| !tlb.use_page(address, huge)) {
            ns += if huge { WALK_HUGE } else { WALK };
            events.walks += 1;
        }
        self.events.add(&events);
        Ok(ns)
    }
}

/// What a fault took that found the page like this, and what it was.
fn filled(before: Mapping, huge: bool, events: &mut Events) -> u64 {
    let (count, ns) = match before {
        Mapping::None if huge => {
            events.huge += 1;
            (&mut events.zero, ZERO * (HUGE / PAGE))
        }
        Mapping::None => (&mut events.zero, ZERO),
        Mapping::SwapEntry(_) => (&mut events.refaults, SWAP_IN),
        Mapping::Page { .. } => (&mut events.copy, COPY),
    };
    *count += 1;
    FAULT + ns
}

/// A page has zeros, or what is written to it here: its address.
fn check(machine: &HostMachine, frame: Frame, page: u64, write: bool) -> Result<(), Error> {
    let held = machine.read(frame.address()).unwrap_or(0);
    if held != 0 && held != page | 1 {
        return Err(Error::Lost(page, held));
    }
    if write {
        machine.write(frame.address(), page | 1);
    }
    Ok(())
}

impl Events {
    fn add(&mut self, other: &Self) {
        self.zero += other.zero;
        self.huge += other.huge;
        self.copy += other.copy;
        self.refaults += other.refaults;
        self.walks += other.walks;
        self.marks += other.marks;
        self.flushes += other.flushes;
    }
}

/// The target of a process: its number in the truth.
const fn target(process: usize) -> TargetId {
    TargetId(process as u64 + 1)
}

impl isotherm_workloads::Machine for Model<'_, '_> {
    type Error = Error;

    fn fork(&mut self, process: usize) -> Result<(), Error> {
        let asid = u16::try_from(process + 1).unwrap_or(u16::MAX);
        let contents = Paged::in_system(&self.system, asid, self.zero, Arc::clone(&self.shared))?;
        let contents = contents.with_folios(self.policy.folios);
        let child = Arc::new(self.space(0)?.fork(RwLock::new(()), contents)?);
        if let Some(watcher) = &mut self.watcher {
            watcher.add(target(process), &child)?;
        }
        self.spaces.insert(process, child);
        self.generation += 1;
        Ok(())
    }

    fn exit(&mut self, process: usize) {
        if let Some(watcher) = &mut self.watcher {
            watcher.remove(target(process));
        }
        self.spaces.remove(&process);
        self.scanned.remove(&process);
    }

    fn map(&mut self, index: usize, area: &AreaPlan) -> Result<u64, Error> {
        let start = self.next_area;
        self.next_area = (start + area.max_size + PAGE).next_multiple_of(HUGE);
        self.areas.insert(index, start);
        let mut request = MapRequest::anonymous(area.size, Prot::READ | Prot::WRITE).at(start);
        if area.shared {
            let id = self.shared.add(self.machine, area.max_size / PAGE);
            let id = id.ok_or(Error::Mm(isotherm_mm::Error::NoMemory))?;
            request.source = Source::Object { id, offset: 0, rights: Prot::READ | Prot::WRITE };
            request.flags |= MapFlags::SHARED;
        }
        let space = self.space(area.process)?;
        space.mmap(&request)?;
        if self.policy.page == Page::Huge && !area.shared {
            space.madvise(start, area.size, Advice::HugePage)?;
        }
        Ok(start)
    }

    fn resize(&mut self, index: usize, old: u64, new: u64) -> Result<(), Error> {
        let (start, space) = (self.areas.get(&index).copied().unwrap_or(0), self.space(0)?);
        if new > old {
            let more = MapRequest::anonymous(new - old, Prot::READ | Prot::WRITE).at(start + old);
            space.mmap(&more)?;
            if self.policy.page == Page::Huge {
                space.madvise(start + old, new - old, Advice::HugePage)?;
            }
        } else if new < old {
            space.munmap(start + new, old - new)?;
        }
        self.generation += 1;
        Ok(())
    }

    fn discard(&mut self, index: usize, size: u64) -> Result<(), Error> {
        let start = self.areas.get(&index).copied().unwrap_or(0);
        self.space(0)?.discard(start, size)?;
        self.generation += 1;
        Ok(())
    }

    #[inline]
    fn touch(&mut self, process: usize, thread: usize, address: u64, write: bool) -> u64 {
        // Most touches are of the page that the thread touched before, and nothing has happened since.
        let this = (address / PAGE, self.generation, process, write);
        if let Some(last) = self.last.get_mut(thread) {
            if *last == this {
                return TOUCH;
            }
            *last = this;
        }
        let took = self.access(process, thread, address, write).unwrap_or_else(|why| {
            self.failed.get_or_insert(why);
            TOUCH
        });
        took + self.held_up.get_mut(thread).map_or(0, std::mem::take)
    }

    fn ready(&mut self, now_ns: u64) -> Result<(), Error> {
        self.look_at = Some(now_ns);
        if let Some(start) = self.start_watching.take() {
            let mut watcher = start(now_ns)?;
            for (process, space) in &self.spaces {
                watcher.add(target(*process), space)?;
            }
            self.watcher = Some(watcher);
        }
        Ok(())
    }

    fn pass(&mut self, now_ns: u64) -> Result<(), Error> {
        if let Some(why) = self.failed.take() {
            return Err(why);
        }
        if (self.stop)() {
            return Err(crate::Interrupted.into());
        }
        loop {
            let tick = self.watcher.as_ref().map(Watcher::due_ns).filter(|at| *at <= now_ns);
            let look = self.look_at.filter(|at| *at <= now_ns);
            let syncs = self.machine.counts().tlb_syncs;
            match (tick, look) {
                (None, None) => return Ok(()),
                (Some(tick), look) if look.is_none_or(|look| tick <= look) => {
                    if let Some(watcher) = &mut self.watcher {
                        watcher.run();
                    }
                }
                (_, look) => {
                    self.look()?;
                    self.look_at = look.map(|at| at + LOOK_NS);
                }
            }
            self.elsewhere(syncs);
        }
    }
}
