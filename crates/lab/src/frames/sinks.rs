//! What it costs to give memory back to the system, and to take it again.

use super::{Error, Setup};
use crate::{Estimate, Watch};
use isotherm_arena::{Arena, GiveBack, Order, Settings};
use serde::Serialize;
use std::time::Instant;

/// Blocks of 2 MiB given and taken at a time.
const BLOCKS: usize = 32;

/// One way to give memory back. Times are of 2 MiB, in ns.
#[derive(Clone, Debug, Serialize)]
pub struct Sink {
    /// Its name: the system call's.
    pub name: &'static str,
    /// To allocate and touch memory that was not given back.
    pub keep_ns: Estimate,
    /// To give it back.
    pub give_ns: Estimate,
    /// To allocate and touch it after that.
    pub take_ns: Estimate,
    /// What a round trip costs beside keeping the memory.
    pub round_trip_ns: Estimate,
    /// The share of the memory that stays resident after it was given back, until the system needs it.
    pub stays: f64,
}

impl Sink {
    /// Measures all ways.
    ///
    /// # Errors
    /// Interrupted; no memory.
    pub fn measure(setup: &Setup, watch: &mut Watch<'_>) -> Result<Vec<Self>, Error> {
        let ways = [
            ("MADV_DONTNEED", GiveBack::DontNeed),
            ("MADV_FREE", GiveBack::Free),
            ("hole in a memfd", GiveBack::PunchHole),
        ];
        (watch.progress)("giving 2 MiB back, and taking them again ...");
        let mut arenas = Vec::new();
        for (name, way) in ways {
            let arena = Arena::new(&Settings::new(BLOCKS * Order::HUGE.bytes() as usize, way))?;
            arenas.push((name, arena, Trips::default()));
        }
        // Each trip takes milliseconds, so there may be more of them than there are slices.
        for round in 0..=setup.rounds.saturating_mul(4) {
            for (_, arena, trips) in &mut arenas {
                watch.go_on()?;
                trips.make(arena, round > 0)?;
            }
        }
        Ok(arenas.into_iter().filter_map(|(name, _, trips)| trips.judge(name)).collect())
    }
}

#[derive(Default)]
struct Trips {
    keep: Vec<f64>,
    give: Vec<f64>,
    take: Vec<f64>,
    stays: f64,
}

impl Trips {
    /// One trip there and back; the first does not count.
    fn make(&mut self, arena: &Arena, counts: bool) -> Result<(), Error> {
        use_all(arena)?;
        let keep = use_all(arena)?;
        let resident = arena.resident()?;
        let start = Instant::now();
        let given = arena.return_all()?;
        let give = start.elapsed().as_nanos() as f64;
        let stays = arena.resident()?;
        let take = use_all(arena)?;
        if counts && given > 0 {
            self.keep.push(keep);
            self.give.push(give / (given as f64 / Order::HUGE.bytes() as f64));
            self.take.push(take);
            self.stays = stays as f64 / resident as f64;
        }
        Ok(())
    }

    fn judge(&self, name: &'static str) -> Option<Sink> {
        let trips = self.keep.iter().zip(&self.give).zip(&self.take);
        let round_trips: Vec<f64> = trips.map(|((keep, give), take)| give + take - keep).collect();
        Some(Sink {
            name,
            keep_ns: Estimate::of(&self.keep)?,
            give_ns: Estimate::of(&self.give)?,
            take_ns: Estimate::of(&self.take)?,
            round_trip_ns: Estimate::of(&round_trips)?,
            stays: self.stays,
        })
    }
}

/// Allocates all, touches each page and frees all: ns a block.
fn use_all(arena: &Arena) -> Result<f64, Error> {
    let start = Instant::now();
    let mut blocks = Vec::with_capacity(BLOCKS);
    for _ in 0..BLOCKS {
        let mut block = arena.allocate(Order::HUGE)?;
        block.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        blocks.push(block);
    }
    drop(blocks);
    Ok(start.elapsed().as_nanos() as f64 / BLOCKS as f64)
}

/// Which way to choose, by what was measured.
#[must_use]
pub fn conclusion(sinks: &[Sink]) -> Option<String> {
    let trip =
        |name: &str| sinks.iter().find(|sink| sink.name == name).map(|sink| sink.round_trip_ns.median / 1e3);
    let (need, free) = (trip("MADV_DONTNEED")?, trip("MADV_FREE")?);
    let hole = trip("hole in a memfd")?;
    let (cheaper, dearer, by) = if free <= need {
        ("MADV_FREE", "MADV_DONTNEED", need - free)
    } else {
        ("MADV_DONTNEED", "MADV_FREE", free - need)
    };
    Some(format!(
        "Memory that is given back and taken again costs {by:.0} us less a 2 MiB block by {cheaper} than by {dearer} \
         ({free:.0} us by MADV_FREE, {need:.0} by MADV_DONTNEED, {hole:.0} by a hole); but by MADV_FREE it stays \
         resident until the system is short, so only the other two show it as free to whoever looks. MADV_DONTNEED \
         for a budget that must hold, MADV_FREE where the host itself balances, a hole for shared memory."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn every_way_is_measured_and_only_one_keeps_memory_resident() {
        let setup = Setup { rounds: 1, slice: Duration::ZERO };
        let mut watch = Watch { stop: Arc::new(|| false), progress: &mut |_| {} };
        let sinks = Sink::measure(&setup, &mut watch).unwrap();
        let stays: Vec<_> = sinks.iter().map(|sink| (sink.name, sink.stays > 0.5)).collect();
        assert_eq!(stays, [("MADV_DONTNEED", false), ("MADV_FREE", true), ("hole in a memfd", false)]);
        assert!(sinks.iter().all(|sink| sink.give_ns.count == 4));
        assert!(conclusion(&sinks).unwrap().contains("MADV_FREE"));
        assert_eq!(conclusion(&sinks[..2]), None);
    }

    #[test]
    fn it_ends_when_asked_to() {
        let setup = Setup { rounds: 1_000_000, slice: Duration::from_secs(3600) };
        let mut watch = Watch { stop: Arc::new(|| true), progress: &mut |_| {} };
        assert!(matches!(Sink::measure(&setup, &mut watch), Err(Error::Interrupted(_))));
    }
}
