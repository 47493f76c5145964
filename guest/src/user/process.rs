//! Processes and threads, and what their calls do.

use super::context::{Context, Trap};
use super::platform::{Files, Lock, RCU, SHARED, Space, TEXT};
use super::programs::{Program, SHARED_PAGES, call, text};
use super::world::World;
use crate::memory;
use crate::mmu::hardware::Hardware;
use crate::mmu::process::{self, KernelPart};
use alloc::sync::Arc;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};
use isotherm_mm::{Access, Config, Error, FaultError, MapFlags, MapRequest, Paged, Prot, Source};
use isotherm_pagetable::{Format, TABLE_BITS};

const PAGE: u64 = isotherm_mm::PAGE_SIZE;
/// Pages of a stack at first: it grows.
const STACK: u64 = 1;
/// Traps after which another program has its turn.
const TURN: u32 = 16;
/// What a failed call returns.
const FAILED: u64 = u64::MAX;

/// An address space with this program in its root's first entry.
pub struct Process<F: Format + 'static> {
    // Goes first: what is below it is not the space's.
    kernel: KernelPart,
    space: Space<F>,
    /// Its number.
    pub id: u64,
}

impl<F: Format> Deref for Process<F> {
    type Target = Space<F>;

    fn deref(&self) -> &Space<F> {
        &self.space
    }
}

/// The first address of what users have: the second entry of the root.
const fn first<F: Format>() -> u64 {
    1 << (F::ROOT as u32 * TABLE_BITS + 12)
}

const fn config<F: Format>() -> Config {
    let first = first::<F>();
    // A GiB is enough for all, in which the heap is not used.
    let end = first + (1 << 30);
    Config {
        lowest: first,
        end,
        top_down_base: end - (64 << 20),
        bottom_up_base: first + (256 << 20),
        heap: first + (128 << 20),
        ..Config::X86_64
    }
}

impl<F: Format + 'static> Process<F> {
    fn contents(world: &World<F>) -> Result<Paged<'static, F, Hardware, Arc<Files<F>>>, Error> {
        let tables = process::tables::<F>(1).map_err(|_| Error::NoMemory)?;
        Paged::with_tables(tables, world.zero, Arc::clone(&world.files))?.into_system(&world.system)
    }

    fn with_space(world: &World<F>, space: Space<F>) -> Arc<Self> {
        let kernel = KernelPart::of(space.contents().id().root.address());
        let process = Arc::new(Self { kernel, space, id: world.next_number() });
        world.watch(&process);
        process
    }

    /// A new one, with the text and a stack; and the end of that.
    fn new(world: &World<F>) -> Result<(Arc<Self>, u64), Error> {
        let space = Space::new(&RCU, Lock::new(), Self::contents(world)?, config::<F>());
        let (_, bytes) = text();
        let source = Source::Object { id: TEXT, offset: 0, rights: Prot::READ | Prot::EXEC };
        let code = MapRequest { source, ..MapRequest::anonymous(bytes, Prot::READ | Prot::EXEC) };
        space.mmap(&code.at(first::<F>()))?;
        let stack = MapRequest::anonymous(STACK * PAGE, Prot::READ | Prot::WRITE);
        let flags = MapFlags::GROWSDOWN | MapFlags::STACK;
        let end = config::<F>().end;
        space.mmap(&MapRequest { flags, ..stack }.at(end - STACK * PAGE))?;
        Ok((Self::with_space(world, space), end))
    }

    fn fork(&self, world: &World<F>) -> Result<Arc<Self>, Error> {
        let space = self.space.fork(Lock::new(), Self::contents(world)?)?;
        Ok(Self::with_space(world, space))
    }

    /// Loads it on this processor.
    fn load(&self) {
        self.kernel.load(self.space.contents().id().context);
    }
}

/// What comes after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another turn, some time.
    Again,
    /// Nothing.
    Over,
}

/// A thread.
pub struct Thread<F: Format + 'static> {
    process: Arc<Process<F>>,
    context: Context,
    program: Program,
    /// Threads of children that its process forked and that have not ended.
    children: Arc<AtomicU64>,
    /// Those of its parent.
    siblings: Option<Arc<AtomicU64>>,
}

impl<F: Format + 'static> Thread<F> {
    /// A thread at the beginning of a program.
    ///
    /// # Errors
    /// No memory.
    pub fn start(world: &World<F>, program: Program, arguments: [u64; 3]) -> Result<Self, Error> {
        let (process, stack) = world.with_room(|| Process::new(world))?;
        let context = Context::new(first::<F>() + program.entry(), stack, arguments);
        Ok(Self { process, context, program, children: Arc::new(AtomicU64::new(0)), siblings: None })
    }

    /// Lets it run for a while.
    pub fn turn(&mut self, world: &World<F>) -> Next {
        self.process.load();
        let mut next = Next::Again;
        for _ in 0..TURN {
            // SAFETY: the process is loaded; users may access nothing of this program's.
            let done = match unsafe { self.context.enter() } {
                Trap::Fault(address, access) => self.fault(world, address, access),
                Trap::Call => self.call(world),
                Trap::Exception(vector) => {
                    world.fail(format_args!("{:?} raised exception {vector}", self.program));
                    Some(Next::Over)
                }
            };
            RCU.quiescent();
            if let Some(done) = done {
                next = done;
                break;
            }
        }
        process::stop();
        if next == Next::Over
            && let Some(siblings) = &self.siblings
        {
            siblings.fetch_sub(1, Ordering::Release);
        }
        next
    }

    fn fault(&self, world: &World<F>, address: u64, access: Access) -> Option<Next> {
        world.count_fault();
        match self.process.fault(address, access) {
            Ok(()) => None,
            // Others may give some back.
            Err(FaultError::NoMemory) if world.is_patient() => Some(Next::Again),
            Err(why) => {
                let at = self.context.instruction().wrapping_sub(first::<F>());
                world.fail(format_args!(
                    "{:?} at {at:#x} of the text: {access:?} of {address:#x}: {why}",
                    self.program
                ));
                Some(Next::Over)
            }
        }
    }

    /// Does what the program calls for; `Some` if its turn is over.
    fn call(&mut self, world: &World<F>) -> Option<Next> {
        let (number, [a, b, c]) = self.context.call();
        let (result, next) = match number {
            call::EXIT => {
                if a != 0 {
                    let found = self.words(b);
                    world.fail(format_args!("{:?}: {b:#x} holds {found:x?} instead of {c:#x}", self.program));
                }
                return Some(Next::Over);
            }
            call::YIELD => (Ok(0), Some(Next::Again)),
            call::MAP => (world.with_room(|| self.map(a, b == 1)), None),
            call::UNMAP => (world.with_room(|| self.process.munmap(a, b)).map(|()| 0), None),
            call::FORK => (self.fork(world), None),
            call::THREAD => {
                world.add(self.beside(a, b, c));
                (Ok(0), None)
            }
            call::EXEC => match self.exec(world, a, [b, c, 1]) {
                Ok(()) => return None,
                Err(why) => (Err(why), None),
            },
            call::CHILDREN => (Ok(self.children.load(Ordering::Acquire)), None),
            _ => (Err(Error::Invalid), None),
        };
        self.context.set_result(result.unwrap_or(FAILED));
        next
    }

    /// The words that a program writes to a page, if it is there.
    fn words(&self, address: u64) -> Option<[u64; 2]> {
        let frame = self.process.contents().access(address, Access::Read).ok()?;
        // SAFETY: the page may change meanwhile, or be another's by now; this is printed in distress.
        Some([0, PAGE - 8].map(|at| unsafe { memory::read(frame.address() + at) }))
    }

    fn map(&self, bytes: u64, shared: bool) -> Result<u64, Error> {
        let mut request = MapRequest::anonymous(bytes, Prot::READ | Prot::WRITE);
        if shared {
            request.length = SHARED_PAGES * PAGE;
            request.source = Source::Object { id: SHARED, offset: 0, rights: Prot::READ | Prot::WRITE };
            request.flags |= MapFlags::SHARED;
        }
        self.process.mmap(&request)
    }

    fn fork(&self, world: &World<F>) -> Result<u64, Error> {
        let process = world.with_room(|| self.process.fork(world))?;
        let number = process.id;
        let mut context = self.context.clone();
        context.set_result(0);
        self.children.fetch_add(1, Ordering::Relaxed);
        world.count_fork();
        world.add(Self {
            process,
            context,
            program: self.program,
            children: Arc::new(AtomicU64::new(0)),
            siblings: Some(Arc::clone(&self.children)),
        });
        Ok(number)
    }

    /// Another thread of the process, as this one but for where it begins.
    fn beside(&self, entry: u64, stack: u64, argument: u64) -> Self {
        Self {
            process: Arc::clone(&self.process),
            context: self.context.beside(entry, stack, argument),
            program: self.program,
            children: Arc::new(AtomicU64::new(0)),
            siblings: None,
        }
    }

    /// Replaces the process by a program: its space goes as soon as no other thread has it.
    fn exec(&mut self, world: &World<F>, program: u64, arguments: [u64; 3]) -> Result<(), Error> {
        let number = usize::try_from(program).unwrap_or(usize::MAX);
        let program = Program::ALL.get(number).copied().ok_or(Error::Invalid)?;
        let new = Self::start(world, program, arguments)?;
        world.count_exec();
        // The old space is not to be loaded when it ends.
        new.process.load();
        (self.process, self.context, self.program) = (new.process, new.context, new.program);
        Ok(())
    }
}
