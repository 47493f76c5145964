//! Inflation and deflation: page numbers to the device, blocks from and to the guest's allocator.

use isotherm_frames::{Block, Order, OwnedBlock};
use virtio_drivers::Hal;
use virtio_drivers::transport::Transport;

use super::ledger::Ledger;
use super::memory::{FrameMemory, FrameSource, RequestPage, poison};
use super::queue::Queue;
use super::{Balloon, Error, SMALL, wait};
use crate::Features;
use crate::config::{self, PFNS_MAX};

/// The largest block that goes into the balloon: what one request can name.
const MAX_ORDER: u8 = PFNS_MAX.ilog2() as u8;
/// Page numbers have 32 bits.
const FRAMES_MAX: u64 = 1 << 32;

/// What a call of [`Balloon::step`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The balloon is as large as the host wants, or is left smaller since the guest ran out of memory.
    Done,
    /// A request is with the device: call again when it has answered.
    Waiting,
    /// The source has no frame to spare (or only such as a balloon cannot name): the balloon stays smaller than the host
    /// wants. Call again when there is memory.
    Starved,
}

/// A request that is with the device.
#[derive(Clone, Copy, Debug)]
struct Request {
    token: u16,
    /// Page numbers in it.
    pages: u32,
    /// For a deflation, the number of blocks on top of the ledger that it returns.
    deflated: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Inflation<H: Hal> {
    inflate: Queue<H, SMALL>,
    deflate: Queue<H, SMALL>,
    ledger: Ledger,
    request: Option<Request>,
    actual: u32,
    /// Set when the guest took pages back for lack of memory: the balloon must not take them again at once.
    paused: bool,
}

impl<H: Hal> Inflation<H> {
    pub fn new(inflate: Queue<H, SMALL>, deflate: Queue<H, SMALL>) -> Self {
        Self { inflate, deflate, ledger: Ledger::default(), request: None, actual: 0, paused: false }
    }

    pub fn actual(&self) -> u32 {
        self.actual
    }

    pub fn resume(&mut self) {
        self.paused = false;
    }

    pub fn wants_step(&self, target: u32) -> bool {
        self.request.is_some() || self.actual > target || (self.actual < target && !self.paused)
    }

    pub fn set_interrupts(&mut self, enabled: bool) {
        self.inflate.set_interrupts(enabled);
        self.deflate.set_interrupts(enabled);
    }

    /// Gives everything back without a word to the device, which has been reset.
    pub fn release<M: FrameMemory>(&mut self, memory: &M, value: Option<u32>, source: &mut impl FrameSource) {
        // SAFETY: what comes off the record, and the record's own frames, were the source's and are nobody else's.
        let mut give = |block| give_back(memory, value, source, unsafe { OwnedBlock::new(block) });
        while let Some(block) = self.ledger.pop(memory, &mut give) {
            give(block);
        }
        self.request = None;
        self.actual = 0;
    }

    fn queue(&mut self, request: &Request) -> &mut Queue<H, SMALL> {
        if request.deflated.is_some() { &mut self.deflate } else { &mut self.inflate }
    }
}

fn give_back<M: FrameMemory>(
    memory: &M,
    value: Option<u32>,
    source: &mut impl FrameSource,
    block: OwnedBlock,
) {
    if let Some(value) = value {
        poison(memory, *block, value);
    }
    source.give(block);
}

/// The largest order of which a block has at most `pages` frames.
fn order_within(pages: u32) -> Option<Order> {
    Order::new((pages.checked_ilog2()? as u8).min(MAX_ORDER))
}

/// Writes the numbers of a block's pages behind the `filled` ones.
fn write_pfns<H: Hal>(page: &mut RequestPage<H>, filled: usize, block: Block, wire: impl Fn(u32) -> [u8; 4]) {
    let places = page.bytes_mut()[4 * filled..].chunks_exact_mut(4);
    for (place, frame) in places.zip(block.frame.0..block.frame.0 + block.order.frames()) {
        place.copy_from_slice(&wire(frame as u32));
    }
}

impl<H: Hal, T: Transport, M: FrameMemory> Balloon<H, T, M> {
    /// Moves the balloon towards the size that the host wants, without waiting: takes in the device's answer to the last
    /// request, if it is there, and sends the next, of up to 256 pages.
    ///
    /// Large blocks go in first and small ones come out first. Only whole blocks come out, so the balloon may shrink a
    /// little below the target and grow again.
    ///
    /// # Errors
    /// The device was given up (its frames come back by [`shutdown`](Self::shutdown)), or does not take a request.
    pub fn step(&mut self, source: &mut impl FrameSource) -> Result<Step, Error> {
        self.alive()?;
        if !self.finish_request(source)? {
            return Ok(Step::Waiting);
        }
        let (target, actual) = (self.target, self.inflation.actual);
        if actual > target {
            self.start_deflation(actual - target)
        } else if actual == target || self.inflation.paused {
            Ok(Step::Done)
        } else {
            self.start_inflation(target - actual, source)
        }
    }

    /// Makes the balloon as large as the host wants, waiting for the device: [`step`](Self::step) until there is no more to
    /// do. Returns [`Step::Done`] or [`Step::Starved`].
    ///
    /// # Errors
    /// As `step`, and [`Error::Unresponsive`].
    pub fn settle(&mut self, source: &mut impl FrameSource) -> Result<Step, Error> {
        loop {
            match self.step(source)? {
                Step::Waiting => self.wait_for_request(source)?,
                step => return Ok(step),
            }
        }
    }

    /// Takes at least `pages` pages out of the balloon because the guest is out of memory, and returns how many came out;
    /// fewer if there were fewer. Waits for the device.
    ///
    /// The balloon then stays as it is until the host sets a target anew.
    ///
    /// # Errors
    /// [`Error::NotNegotiated`] if the host did not agree to `DEFLATE_ON_OOM`; otherwise as [`settle`](Self::settle).
    pub fn deflate_on_oom(&mut self, pages: u32, source: &mut impl FrameSource) -> Result<u32, Error> {
        self.alive()?;
        if !self.features.contains(Features::DEFLATE_ON_OOM) {
            return Err(Error::NotNegotiated(Features::DEFLATE_ON_OOM));
        }
        self.wait_for_request(source)?;
        let before = self.inflation.actual;
        let goal = before.saturating_sub(pages);
        self.inflation.paused = true;
        while self.inflation.actual > goal {
            if self.start_deflation(self.inflation.actual - goal)? != Step::Waiting {
                break;
            }
            self.wait_for_request(source)?;
        }
        Ok(before - self.inflation.actual)
    }

    fn wait_for_request(&mut self, source: &mut impl FrameSource) -> Result<(), Error> {
        let Some(request) = self.inflation.request else { return Ok(()) };
        let role = self.inflation.queue(&request).role();
        let relax = self.relax;
        let waited = wait(role, relax, || self.finish_request(source));
        self.check(waited)
    }

    /// Takes in the device's answer; `false` if it is still to come.
    fn finish_request(&mut self, source: &mut impl FrameSource) -> Result<bool, Error> {
        let Some(request) = self.inflation.request else { return Ok(true) };
        let queue = self.inflation.queue(&request);
        let returned = queue.returned(|token| token == request.token);
        if self.check(returned)?.is_none() {
            return Ok(false);
        }
        let numbers = &self.requests.bytes()[..4 * request.pages as usize];
        let queue = self.inflation.queue(&request);
        // SAFETY: these are the bytes that the device was given, and the token is taken back once.
        let taken = unsafe { queue.take(request.token, &[numbers], &mut []) };
        self.check(taken)?;
        self.inflation.request = None;
        match request.deflated {
            None => self.inflation.actual += request.pages,
            Some(blocks) => {
                self.inflation.actual -= request.pages;
                for _ in 0..blocks {
                    let mut give = |block| {
                        // SAFETY: as in `release`.
                        let block = unsafe { OwnedBlock::new(block) };
                        give_back(&self.memory, self.poison, source, block);
                    };
                    if let Some(block) = self.inflation.ledger.pop(&self.memory, &mut give) {
                        give(block);
                    }
                }
            }
        }
        self.write_config(config::ACTUAL, self.inflation.actual)?;
        Ok(true)
    }

    /// Sends the page numbers of free blocks, `pages` at most.
    fn start_inflation(&mut self, pages: u32, source: &mut impl FrameSource) -> Result<Step, Error> {
        let legacy = self.is_legacy();
        let wire = |value: u32| if legacy { value.to_ne_bytes() } else { value.to_le_bytes() };
        let pages = pages.min(PFNS_MAX as u32);
        let mut filled = 0;
        while let Some(max) = order_within(pages - filled) {
            if !self.inflation.ledger.reserve(&self.memory, source) {
                break;
            }
            let Some(block) = source.take(max) else { break };
            let fits = block.order <= max
                && block.is_aligned()
                && block.frame.0.checked_add(block.order.frames()).is_some_and(|end| end <= FRAMES_MAX);
            if !fits || self.inflation.ledger.push(&self.memory, *block).is_none() {
                source.give(block);
                break;
            }
            let block = block.into_block();
            write_pfns(&mut self.requests, filled as usize, block, wire);
            filled += block.order.frames() as u32;
        }
        self.inflation.ledger.trim(&self.memory, source);
        self.send(filled, None)
    }

    /// Sends the page numbers of the last blocks, enough for `pages`.
    fn start_deflation(&mut self, pages: u32) -> Result<Step, Error> {
        let legacy = self.is_legacy();
        let wire = |value: u32| if legacy { value.to_ne_bytes() } else { value.to_le_bytes() };
        let (mut filled, mut blocks) = (0, 0);
        for block in self.inflation.ledger.iter(&self.memory) {
            let frames = block.order.frames() as u32;
            if filled >= pages || filled + frames > PFNS_MAX as u32 {
                break;
            }
            write_pfns(&mut self.requests, filled as usize, block, wire);
            filled += frames;
            blocks += 1;
        }
        self.send(filled, Some(blocks))
    }

    fn send(&mut self, pages: u32, deflated: Option<u32>) -> Result<Step, Error> {
        if pages == 0 {
            return Ok(if deflated.is_some() { Step::Done } else { Step::Starved });
        }
        let mut request = Request { token: 0, pages, deflated };
        let numbers = &self.requests.bytes()[..4 * pages as usize];
        let queue = self.inflation.queue(&request);
        // SAFETY: the request page outlives the queue's use, and no other request is written before this one is back.
        request.token = unsafe { queue.add(&[numbers], &mut []) }?;
        queue.notify(&mut self.transport);
        self.inflation.request = Some(request);
        Ok(Step::Waiting)
    }
}
