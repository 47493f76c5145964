//! Encodes groups on other threads, and hands them back in the order they came.

use super::GROUP_ROWS;
use super::columns::Columns;
use super::group::Group;
use super::pages::Chunk;
use isotherm_damon::RegionSnapshot;
use parquet::errors::{ParquetError, Result};
use parquet::schema::types::SchemaDescPtr;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Threads that encode, beside the one that reads.
const THREADS: usize = 2;

/// Groups on their way at a time: one a thread, and one that waits. Each takes some 20 MB.
const UNDERWAY: usize = THREADS + 1;

/// Rows of them together, at most, unless one alone has more: groups of the usual size never come to that.
const MOST_ROWS: usize = (UNDERWAY + 1) * GROUP_ROWS;

type Encoded = Result<Vec<Chunk>>;
/// The memory of its rows comes back with a group.
type Answer = (Encoded, Vec<RegionSnapshot>);
type Job = (Group, SyncSender<Answer>);

/// The threads.
pub(super) struct Pool {
    jobs: Option<SyncSender<Job>>,
    threads: Vec<JoinHandle<()>>,
    /// Their rows, and where they come back.
    underway: VecDeque<(usize, Receiver<Answer>)>,
    room: Vec<Vec<RegionSnapshot>>,
}

impl Pool {
    pub(super) fn new(schema: &SchemaDescPtr) -> Result<Self> {
        let (jobs, queue) = sync_channel::<Job>(UNDERWAY);
        let queue = Arc::new(Mutex::new(queue));
        let threads = (0..THREADS).map(|_| {
            let queue = Arc::clone(&queue);
            let mut columns = Columns::new(schema.clone())?;
            std::thread::Builder::new().name("parquet".to_owned()).spawn(move || {
                loop {
                    let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((mut group, answer)) = job else { return };
                    let encoded = columns.encode(&group);
                    group.regions.clear();
                    // Nobody waits when writing was given up.
                    let _ = answer.send((encoded, group.regions));
                }
            })
        });
        let threads: std::io::Result<Vec<JoinHandle<()>>> = threads.collect();
        let threads = threads.map_err(|e| ParquetError::External(Box::new(e)))?;
        Ok(Self { jobs: Some(jobs), threads, underway: VecDeque::new(), room: Vec::new() })
    }

    /// Gives a group to be encoded, and takes those that are, while there are too many under way.
    pub(super) fn submit(&mut self, group: Group) -> Vec<Encoded> {
        let rows = group.regions.len();
        let mut done = Vec::new();
        while self.underway.len() >= UNDERWAY || self.rows() + rows > MOST_ROWS {
            match self.next() {
                Some(encoded) => done.push(encoded),
                None => break,
            }
        }
        let (answer, encoded) = sync_channel(1);
        if let Some(jobs) = &self.jobs {
            // Fails when all threads are gone; the answer will not come then, which `next` reports.
            let _ = jobs.send((group, answer));
        }
        self.underway.push_back((rows, encoded));
        done
    }

    fn rows(&self) -> usize {
        self.underway.iter().map(|(rows, _)| rows).sum()
    }

    /// The next group that was given, encoded; `None` when there is none.
    pub(super) fn next(&mut self) -> Option<Encoded> {
        let (_, answer) = self.underway.pop_front()?;
        let Ok((encoded, room)) = answer.recv() else {
            return Some(Err(ParquetError::General("a thread that encodes has ended".to_owned())));
        };
        if room.capacity() <= 2 * GROUP_ROWS {
            self.room.push(room);
        }
        Some(encoded)
    }

    /// Room for so many rows: what is new comes page by page from the kernel, which takes longer than to fill it.
    pub(super) fn room(&mut self, rows: usize) -> Vec<RegionSnapshot> {
        self.room.pop().unwrap_or_else(|| Vec::with_capacity(rows))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.jobs = None;
        self.underway.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
