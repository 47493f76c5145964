//! Reads a recording ahead of whom it is for: decoding is a third of what a report takes, and there mostly is another processor.
//!
//! ```text
//! thread:  decode into a batch ---- full (one waits) ---> reader: hands out item by item
//!                 ^------------------- used (empty) ----------------|
//! ```
//! There are [`BATCHES`] batches, so the thread is ahead by two at most; of large snapshots there is one at a time. It ends when
//! nobody reads on. Short recordings, and those that begin with snapshots so large that each takes megabytes, are read without it.

use super::reader::Reader;
use crate::{Error, Format, Item, ItemReader, Warning};
use std::io::Read;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

/// Items handed out before a thread is started: many look at the beginning alone. A guess, as the numbers below.
const BEGINNING: u32 = 64;
/// One that is read, one that waits, one that is filled.
const BATCHES: usize = 3;
/// Items of a batch, and regions and mappings: half a megabyte, so that what one processor has written is still in a cache that both
/// share when the other reads it.
const ITEMS: usize = 64;
const REGIONS: usize = 1 << 13;
/// A batch of more is the only one, for as long as it is read.
const LARGE: usize = 1 << 16;

/// What was read: items, the first `len` of which count; the others are memory to use again.
#[derive(Default)]
struct Batch {
    items: Vec<Item>,
    len: usize,
    regions: usize,
}

enum Message {
    Batch(Batch),
    Failed(Error, Vec<Warning>),
    End(Vec<Warning>),
}

/// A reader that reads ahead.
pub(crate) struct Ahead<R: Read> {
    /// Until the thread has it, and where there is none to be had.
    reader: Option<Reader<R>>,
    handed_out: u32,
    /// It has snapshots of which two take much memory.
    stays: bool,
    file: String,
    thread: Option<Thread>,
    batch: Batch,
    at: usize,
    ended: bool,
    warnings: Vec<Warning>,
}

struct Thread {
    full: Receiver<Message>,
    used: Sender<Batch>,
}

impl<R: Read + Send + 'static> Ahead<R> {
    /// `file`: what it is called in messages.
    pub(crate) fn new(reader: Reader<R>, file: impl Into<String>) -> Self {
        Self {
            reader: Some(reader),
            handed_out: 0,
            stays: false,
            file: file.into(),
            thread: None,
            batch: Batch::default(),
            at: 0,
            ended: false,
            warnings: Vec::new(),
        }
    }

    fn start(&mut self) {
        if thread::available_parallelism().is_ok_and(|processors| processors.get() == 1) {
            return;
        }
        let Some(reader) = self.reader.take() else { return };
        let (to, full) = sync_channel(1);
        let (used, back) = channel();
        // The reader comes back where the system grants no thread.
        let (give, take) = sync_channel(1);
        let work = move || {
            if let Ok(reader) = take.recv() {
                read(reader, &to, &back);
            }
        };
        match thread::Builder::new().name("reader".to_owned()).spawn(work) {
            Ok(_) => {
                let _ = give.send(reader);
                self.thread = Some(Thread { full, used });
            }
            Err(_) => self.reader = Some(reader),
        }
    }
}

/// Fills batches until the end, or until nobody wants them.
fn read<R: Read + Send>(mut reader: Reader<R>, to: &SyncSender<Message>, back: &Receiver<Batch>) {
    let (mut free, mut underway, mut large) = (Vec::new(), 0, false);
    loop {
        while underway == BATCHES || large && underway > 0 {
            let Ok(used) = back.recv() else { return };
            free.push(used);
            underway -= 1;
        }
        let mut batch: Batch = free.pop().unwrap_or_default();
        let end = batch.fill(&mut reader);
        large = batch.regions > LARGE;
        if batch.len > 0 && to.send(Message::Batch(batch)).is_err() {
            return;
        }
        underway += 1;
        if let Some(end) = end {
            // Nobody may want it.
            let _ = to.send(end);
            return;
        }
    }
}

impl Batch {
    /// Fills it with what comes next; and what comes behind that, if it is the end.
    fn fill<R: Read + Send>(&mut self, reader: &mut Reader<R>) -> Option<Message> {
        if self.room() > 4 * self.regions.max(REGIONS) {
            // Snapshots of many sizes have been in each place.
            self.items.clear();
        }
        for item in &mut self.items {
            if !matches!(item, Item::Snapshot(_)) {
                *item = Item::Snapshot(Default::default());
            }
        }
        (self.len, self.regions) = (0, 0);
        while self.len < ITEMS && self.regions < REGIONS {
            match reader.next_ref() {
                Ok(Some(Item::Snapshot(snapshot))) => {
                    self.regions += snapshot.nr_regions();
                    if let Item::Snapshot(place) = self.place() {
                        reader.swap_snapshot(place);
                    }
                }
                Ok(Some(item)) => {
                    self.regions += if let Item::Mappings(mappings) = item { mappings.maps.len() } else { 0 };
                    *self.place() = item.clone();
                }
                Ok(None) => return Some(Message::End(reader.warnings().to_vec())),
                Err(error) => return Some(Message::Failed(error, reader.warnings().to_vec())),
            }
        }
        None
    }

    /// Regions that its memory has room for.
    fn room(&self) -> usize {
        let snapshots =
            self.items.iter().filter_map(|i| if let Item::Snapshot(s) = i { Some(s) } else { None });
        snapshots.flat_map(|s| &s.targets).map(|t| t.regions.capacity()).sum()
    }

    /// The place of the next item, with a snapshot in it.
    fn place(&mut self) -> &mut Item {
        if self.len == self.items.len() {
            self.items.push(Item::Snapshot(Default::default()));
        }
        self.len += 1;
        let last = self.len - 1;
        &mut self.items[last]
    }
}

impl<R: Read + Send + 'static> ItemReader for Ahead<R> {
    fn next_ref(&mut self) -> Result<Option<&Item>, Error> {
        if self.handed_out == BEGINNING && self.thread.is_none() && !self.stays {
            self.start();
        }
        self.handed_out = self.handed_out.saturating_add(1);
        if let Some(reader) = &mut self.reader {
            let item = reader.next_ref()?;
            self.stays |= matches!(item, Some(Item::Snapshot(s)) if s.nr_regions() > LARGE);
            return Ok(item);
        }
        let Some(thread) = self.thread.as_ref().filter(|_| !self.ended) else { return Ok(None) };
        self.at += 1;
        while self.at >= self.batch.len {
            let used = std::mem::take(&mut self.batch);
            if used.len > 0 {
                // It may have ended.
                let _ = thread.used.send(used);
            }
            self.at = 0;
            match thread.full.recv() {
                Ok(Message::Batch(batch)) => self.batch = batch,
                Ok(Message::Failed(error, warnings)) => {
                    (self.ended, self.warnings) = (true, warnings);
                    return Err(error);
                }
                Ok(Message::End(warnings)) => {
                    (self.ended, self.warnings) = (true, warnings);
                    return Ok(None);
                }
                Err(_) => {
                    self.ended = true;
                    let why = std::io::Error::other("the thread that reads it failed");
                    return Err(Error::io("read", &self.file, why));
                }
            }
        }
        Ok(self.batch.items.get(self.at))
    }

    fn format(&self) -> Format {
        Format::Rec
    }

    fn warnings(&self) -> &[Warning] {
        self.reader.as_ref().map_or(&self.warnings, |reader| reader.warnings())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{Shape, Synthetic};
    use crate::{Header, ItemWriter, rec};
    use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
    use std::io::Cursor;

    /// A recording of so many regions.
    fn recorded(nr_regions: u64, max_nr_regions: usize) -> Vec<u8> {
        let mut file = Vec::new();
        let mut writer = rec::Writer::new(&mut file, "x").unwrap();
        let shape = Shape { nr_regions, max_nr_regions, nr_targets: 2, ..Shape::default() };
        let mut made_up = Synthetic::new(shape);
        while let Some(item) = made_up.next_ref().unwrap() {
            writer.write(item).unwrap();
        }
        writer.finish().unwrap();
        drop(writer);
        file
    }

    fn all(mut reader: impl ItemReader) -> (Vec<Item>, Vec<Warning>, bool) {
        let mut items = Vec::new();
        let failed = loop {
            match reader.next_ref() {
                Ok(Some(item)) => items.push(item.clone()),
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        (items, reader.warnings().to_vec(), failed)
    }

    /// Gives an error after so many bytes.
    struct Failing(Cursor<Vec<u8>>);

    impl Read for Failing {
        fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
            match self.0.read(buf)? {
                0 => Err(std::io::Error::other("a bad sector")),
                read => Ok(read),
            }
        }
    }

    #[test]
    fn what_comes_out_is_what_the_reader_itself_gives() {
        for (regions, most) in [(10, 100), (200_000, 1000), (60_000, 20_000)] {
            let whole = recorded(regions, most);
            let mut damaged = whole.clone();
            if let Some(byte) = damaged.get_mut(whole.len() / 2) {
                *byte ^= 0x55;
            }
            let cut = whole[..whole.len() * 2 / 3].to_vec();
            for file in [whole, damaged, cut] {
                let open = || Reader::new(Cursor::new(file.clone()), "x").unwrap();
                assert!(all(Ahead::new(open(), "x")) == all(open()), "{regions} {most}");
                let failing = || Reader::new(Failing(Cursor::new(file.clone())), "x").unwrap();
                let (got, expected) = (all(Ahead::new(failing(), "x")), all(failing()));
                assert!(got.2 && got == expected, "{regions} {most}");
            }
        }
    }

    /// Of so many regions each.
    fn of_sizes(sizes: &[u64]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut writer = rec::Writer::new(&mut file, "x").unwrap();
        writer.write(&Item::Header(Header::default())).unwrap();
        for (n, size) in (0..).zip(sizes) {
            let region = |i| RegionSnapshot {
                range: AddrRange::new(i << 12, (i + 1) << 12),
                age: n,
                ..Default::default()
            };
            let targets = vec![TargetSnapshot::new(TargetId(1), (0..*size).map(region).collect())];
            let (start_ns, end_ns) = (u64::from(n) * 100, u64::from(n + 1) * 100);
            writer.write_snapshot(&Snapshot { start_ns, end_ns, targets, ..Snapshot::default() }).unwrap();
        }
        writer.finish().unwrap();
        drop(writer);
        file
    }

    #[test]
    fn large_snapshots_come_out_too_early_and_late_ones() {
        let large = LARGE as u64 + 10;
        let small = [3; BEGINNING as usize + 20];
        let late = [&small[..], &[large, large, 5, large, 7, large][..], &small[..]].concat();
        let early = [&[2, large][..], &small[..]].concat();
        for (sizes, starts) in [(late, true), (early, false)] {
            let file = of_sizes(&sizes);
            let open = || Reader::new(Cursor::new(file.clone()), "x").unwrap();
            let mut ahead = Ahead::new(open(), "x");
            let mut direct = open();
            while let Some(expected) = direct.next_ref().unwrap() {
                assert!(ahead.next_ref().unwrap() == Some(expected));
            }
            assert!(ahead.next_ref().unwrap().is_none());
            let several = thread::available_parallelism().is_ok_and(|processors| processors.get() > 1);
            assert_eq!(ahead.thread.is_some(), starts && several);
        }
    }

    /// Tells when nobody has it any more.
    struct Told(Cursor<Vec<u8>>, std::sync::mpsc::Sender<()>);

    impl Read for Told {
        fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(buf)
        }
    }

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.1.send(());
        }
    }

    #[test]
    fn the_thread_ends_when_nobody_reads_on() {
        let (gone, is_gone) = channel();
        let told = Told(Cursor::new(recorded(400_000, 1000)), gone);
        let mut reader = Ahead::new(Reader::new(told, "x").unwrap(), "x");
        for _ in 0..BEGINNING + 10 {
            reader.next_ref().unwrap().unwrap();
        }
        assert!(is_gone.try_recv().is_err());
        drop(reader);
        is_gone.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    }
}
