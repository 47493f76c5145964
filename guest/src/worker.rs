//! What a processor does to memory: allocate, stamp, check, free. Each has its own blocks; the zone is everybody's.

use crate::console::write_line_in_distress;
use crate::ledger::{Entry, Ledger};
use crate::memory::{self, get, put};
use crate::power::{End, end};
use isotherm_frames::{Block, GetError, Order, OwnedBlock};
use isotherm_guest::job::Job;
use isotherm_guest::stamp::{PAGE, Random, places, stamp};

/// Pages handled between two calls of what else there is to do.
const STRIDE: u64 = 4096;

/// What came of a job: bytes it was done to, or why it went no further.
pub type Outcome = Result<u64, GetError>;

/// A moment between two pieces of work. Processor 0 serves the host in it.
pub enum Moment {
    /// In the middle of something.
    Stride,
    /// At the end of a round: memory was freed that is now to be reported.
    Round(u64),
}

/// A processor's blocks.
#[derive(Debug)]
pub struct Worker {
    cpu: usize,
    ledger: Ledger,
    generation: u64,
    random: Random,
}

impl Worker {
    /// Without any.
    pub const fn new(cpu: usize) -> Self {
        Self { cpu, ledger: Ledger::new(cpu), generation: 0, random: Random::new(cpu as u64) }
    }

    /// Does it; calls `between` now and then.
    ///
    /// # Errors
    /// There is no memory. What was allocated before stays.
    pub fn work(&mut self, job: Job, between: &mut dyn FnMut(Moment)) -> Outcome {
        match job {
            Job::Alloc { bytes, order } => self.alloc(bytes, order),
            Job::Touch => Ok(self.each(between, |worker, index, mut entry| {
                worker.generation += 1;
                entry.generation = worker.generation;
                stamp_block(entry);
                worker.ledger.set(index, entry);
            })),
            Job::Check => Ok(self.each(between, |_, _, entry| check_block(entry))),
            Job::Free { bytes } => Ok(self.free_down_to(0, bytes)),
            Job::Rounds { rounds, bytes } => self.rounds(rounds, bytes, between),
            Job::Memhog { bytes } => self.memhog(bytes, between),
            Job::Spoil => {
                if let Some(last) = self.ledger.len().checked_sub(1) {
                    let address = self.ledger.get(last).block.address();
                    // SAFETY: the block is this worker's. That its stamp is lost is the purpose.
                    unsafe { memory::write(address, 0) };
                }
                Ok(0)
            }
        }
    }

    /// Bytes in all blocks.
    pub fn live(&self) -> u64 {
        (0..self.ledger.len()).map(|index| self.ledger.get(index).block.bytes()).sum()
    }

    fn alloc(&mut self, bytes: u64, order: Order) -> Outcome {
        let mut done = 0;
        while done < bytes {
            self.take(order)?;
            done += order.bytes();
        }
        Ok(done)
    }

    fn take(&mut self, order: Order) -> Result<Block, GetError> {
        let block = get(self.cpu, order)?;
        if let Err(error) = self.ledger.push(Entry { block: *block, generation: 0 }) {
            put(self.cpu, block);
            return Err(error);
        }
        Ok(block.into_block())
    }

    /// Frees a block that was taken off the ledger.
    fn free(&self, entry: Entry) {
        // SAFETY: the ledger names this worker's blocks, each once.
        put(self.cpu, unsafe { OwnedBlock::new(entry.block) });
    }

    /// Frees the youngest blocks above entry `base` until `bytes` are free.
    fn free_down_to(&mut self, base: u64, bytes: u64) -> u64 {
        let mut done = 0;
        while done < bytes && self.ledger.len() > base {
            let Some(entry) = self.ledger.pop() else { break };
            self.free(entry);
            done += entry.block.bytes();
        }
        done
    }

    fn each(&mut self, between: &mut dyn FnMut(Moment), mut act: impl FnMut(&mut Self, u64, Entry)) -> u64 {
        let (mut bytes, mut pages) = (0, 0);
        for index in 0..self.ledger.len() {
            let entry = self.ledger.get(index);
            act(self, index, entry);
            bytes += entry.block.bytes();
            pages += entry.block.order.frames();
            if pages >= STRIDE {
                pages = 0;
                between(Moment::Stride);
            }
        }
        bytes
    }

    /// Blocks of all orders come and go above those that are live already; what is live is checked in every round.
    fn rounds(&mut self, rounds: u64, bytes: u64, between: &mut dyn FnMut(Moment)) -> Outcome {
        let base = self.ledger.len();
        let mut live = 0;
        let mut outcome = Ok(());
        for round in 0..rounds {
            while live < bytes {
                // Small blocks more often, or large ones would be all there is.
                let order = self.random.below(11).min(self.random.below(14)) as u8;
                let order = Order::new(order).unwrap_or(Order::BASE);
                outcome = self.take(order).map(drop);
                if outcome.is_err() {
                    break;
                }
                live += order.bytes();
                self.generation += 1;
                let index = self.ledger.len() - 1;
                let entry = Entry { generation: self.generation, ..self.ledger.get(index) };
                stamp_block(entry);
                self.ledger.set(index, entry);
            }
            for index in base..self.ledger.len() {
                check_block(self.ledger.get(index));
            }
            if outcome.is_err() {
                break;
            }
            // From a little to all but a little of it goes.
            let keep = self.random.below(bytes + 1);
            while live > keep {
                let index = base + self.random.below(self.ledger.len() - base);
                let Some(entry) = self.ledger.swap_remove(index) else { break };
                check_block(entry);
                self.free(entry);
                live -= entry.block.bytes();
            }
            between(Moment::Round(round));
        }
        self.each(between, |_, _, entry| check_block(entry));
        self.free_down_to(base, u64::MAX);
        outcome.map(|()| bytes)
    }

    fn memhog(&mut self, bytes: u64, between: &mut dyn FnMut(Moment)) -> Outcome {
        let base = self.ledger.len();
        let mut done = 0;
        let mut outcome = Ok(());
        while done < bytes {
            match self.take(Order::HUGE) {
                Ok(block) => {
                    fill(block);
                    done += block.bytes();
                    between(Moment::Stride);
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        self.free_down_to(base, u64::MAX);
        outcome.map(|()| done)
    }
}

/// Writes every byte.
fn fill(block: Block) {
    let mut address = block.address();
    let end = address + block.bytes();
    while address < end {
        for word in 0..16 {
            // SAFETY: inside the block, which is the caller's; blocks are multiples of 128 bytes.
            unsafe { memory::write(address + 8 * word, u64::MAX) };
        }
        address += 128;
    }
}

fn pages(block: Block) -> impl Iterator<Item = u64> {
    (0..block.order.frames()).map(move |page| block.address() + page * PAGE)
}

fn stamp_block(entry: Entry) {
    for page in pages(entry.block) {
        for address in places(entry.generation).map(|place| page + place) {
            // SAFETY: inside the block, which is the caller's.
            unsafe { memory::write(address, stamp(address, entry.generation)) };
        }
    }
}

/// Ends the run if any page of the block does not hold its stamps. A block that was not stamped holds anything.
fn check_block(entry: Entry) {
    if entry.generation == 0 {
        return;
    }
    for page in pages(entry.block) {
        for address in places(entry.generation).map(|place| page + place) {
            // SAFETY: as in `stamp_block`.
            let found = unsafe { memory::read(address) };
            let expected = stamp(address, entry.generation);
            if found != expected {
                write_line_in_distress(format_args!(
                    "lost: {address:#x} in {} holds {found:#x} instead of {expected:#x} (generation {})",
                    entry.block, entry.generation
                ));
                end(End::Lost);
            }
        }
    }
}
