//! What is done to a guest, and what must be seen from outside meanwhile.

use isotherm_qemu::{Error, Guest, Reply, Resident};
use serde::Serialize;
use std::time::{Duration, Instant};

/// The resident set must fall this fast (issue and README: "within 3 s of the free").
const IN_TIME: Duration = Duration::from_secs(3);
/// How long is watched, to tell late from never.
const WATCHED: Duration = Duration::from_secs(20);
/// How often is looked.
const GLANCE: Duration = Duration::from_millis(100);
/// How long the guest may work without a word.
const PATIENCE: Duration = Duration::from_secs(300);
/// What the whole process may have resident beyond the tenth part more than the guest uses.
const SLACK: u64 = 32 << 20;
const MIB: u64 = 1 << 20;

/// What was done and seen. Memory in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// What was done.
    pub name: String,
    /// Memory that the guest really uses at the end: neither free nor in the balloon.
    pub uses: u64,
    /// What QEMU had resident at the end.
    pub resident: Resident,
    /// What was allowed, where it had to fall.
    pub allowed: Option<u64>,
    /// How long it took to fall below that, where it did.
    pub seconds: Option<f64>,
    /// Whether what had to be seen was seen.
    pub ok: bool,
    /// What the guest said, or what was wrong.
    pub note: String,
}

impl Step {
    /// In a few words.
    pub fn verdict(&self) -> String {
        let ok = if self.ok { "ok" } else { "NOT OK" };
        if self.note.is_empty() { ok.to_owned() } else { format!("{ok}: {}", self.note) }
    }
}

/// The bar: within a tenth and 32 MiB of what the guest really uses.
fn allowed(uses: u64) -> u64 {
    uses + uses / 10 + SLACK
}

struct Steps<'a> {
    guest: &'a mut Guest,
    memory: u64,
    done: &'a mut dyn FnMut(Step),
}

/// Takes `guest`, freshly booted with `memory` bytes, through all steps; tells each as soon as it is done.
///
/// # Errors
/// The guest ends, refuses or falls silent, or the caller interrupts. A step that is not ok is no error.
pub fn run(guest: &mut Guest, memory: u64, rounds: u64, done: &mut dyn FnMut(Step)) -> Result<(), Error> {
    let mut steps = Steps { guest, memory, done };
    let half = memory / 2 / MIB;
    let quarter = memory / 4 / MIB;

    steps.still("booted")?;
    // A base that stays, so that what falls is told from what everything falls to.
    steps.ask(&format!("alloc {quarter}M"))?;
    steps.ask("touch")?;

    steps.grow(&format!("{half} MiB of order 9 touched"), &format!("alloc {half}M"))?;
    steps.fall("half of them is freed", &[&format!("free {}M", half / 2)])?;
    steps.fall("the rest is freed", &[&format!("free {}M", half / 2)])?;
    // All of these are freed: of some, what the other processor has left in between would be in pieces, and not reported.
    steps.grow(&format!("{half} MiB of order 0 touched"), &format!("alloc {half}M 0"))?;
    steps.fall("they are freed", &[&format!("free {half}M")])?;

    steps.ask("report off")?;
    steps.grow("without reporting: the same touched", &format!("alloc {half}M"))?;
    steps.stay("without reporting: freed", &format!("free {half}M"))?;
    steps.fall("reporting again", &["report on"])?;

    steps.rounds(rounds, quarter)?;

    steps.balloon()?;
    steps.statistics()?;
    steps.paging()?;
    steps.fall_to_nothing("everything is freed", &["check", "free all"])
}

impl Steps<'_> {
    fn ask(&mut self, command: &str) -> Result<Reply, Error> {
        self.guest.ask(command, PATIENCE)
    }

    /// What the guest really uses, by its own account.
    fn uses(&mut self) -> Result<u64, Error> {
        let stats = self.ask("stats")?;
        Ok(self.memory.saturating_sub(stats.get("free")?).saturating_sub(stats.get("balloon")?))
    }

    fn step(&mut self, name: &str, ok: bool, note: String) -> Result<(), Error> {
        let (uses, resident) = (self.uses()?, self.guest.resident()?);
        (self.done)(Step { name: name.to_owned(), uses, resident, allowed: None, seconds: None, ok, note });
        Ok(())
    }

    fn still(&mut self, name: &str) -> Result<(), Error> {
        self.step(name, true, String::new())
    }

    /// Allocates and touches: what the guest uses must be there.
    fn grow(&mut self, name: &str, alloc: &str) -> Result<(), Error> {
        self.ask(alloc)?;
        self.ask("touch")?;
        let (uses, resident) = (self.uses()?, self.guest.resident()?);
        let live = self.ask("stats")?.get("live")?;
        let ok = resident.ram >= live;
        let note = if ok { String::new() } else { "less is resident than was touched".into() };
        (self.done)(Step { name: name.to_owned(), uses, resident, allowed: None, seconds: None, ok, note });
        Ok(())
    }

    /// Gives the commands; from the last one's answer on, the resident set must fall in time: that of the whole process,
    /// QEMU's own part in it. What is still live must hold what was written to it.
    fn fall(&mut self, name: &str, commands: &[&str]) -> Result<(), Error> {
        self.fall_by(name, commands, |resident| resident.whole)
    }

    /// The same where the guest uses next to nothing, and QEMU's own part would be all there is to see.
    fn fall_to_nothing(&mut self, name: &str, commands: &[&str]) -> Result<(), Error> {
        self.fall_by(&format!("{name} (RAM alone)"), commands, |resident| resident.ram)
    }

    fn fall_by(&mut self, name: &str, commands: &[&str], part: fn(Resident) -> u64) -> Result<(), Error> {
        let mut said = String::new();
        for command in commands {
            said = self.ask(command)?.text;
        }
        let from = Instant::now();
        let uses = self.uses()?;
        let (resident, seconds) = self.watch(from, |resident| part(resident) <= allowed(uses))?;
        self.ask("check")?;
        let ok = seconds.is_some_and(|s| s <= IN_TIME.as_secs_f64());
        let note = if ok {
            String::new()
        } else {
            format!("too much is resident, or too late; the guest said {said}")
        };
        let allowed = Some(allowed(uses));
        (self.done)(Step { name: name.to_owned(), uses, resident, allowed, seconds, ok, note });
        Ok(())
    }

    /// Rounds of allocate, stamp, check, free and report: nothing may be lost, and it must all have been reported, round
    /// by round.
    fn rounds(&mut self, rounds: u64, live: u64) -> Result<(), Error> {
        let (before, from) = (self.ask("stats")?, Instant::now());
        self.ask(&format!("rounds {rounds} {live}M"))?;
        let took = from.elapsed().as_secs_f64();
        let after = self.ask("stats")?;
        let batches = after.get("batches")?.saturating_sub(before.get("batches")?);
        let bytes = after.get("reported")?.saturating_sub(before.get("reported")?);
        let note = format!(
            "{took:.0} s, {:.1} GiB reported in {batches} batches",
            bytes as f64 / f64::from(1 << 30)
        );
        self.step(&format!("{rounds} rounds with up to {live} MiB live"), batches >= rounds, note)?;
        self.fall("all of it freed", &["check"])
    }

    /// The processor walks page tables; all frames are back then.
    fn paging(&mut self) -> Result<(), Error> {
        let before = self.ask("stats")?.get("free")?;
        let found = self.ask("paging")?;
        let after = self.ask("stats")?.get("free")?;
        let note = format!(
            "{} levels, {} accesses, {} faults, {} copies, {} flushes of another processor",
            found.get("levels")?,
            found.get("touches")?,
            found.get("faults")?,
            found.get("copied")?,
            found.get("shootdowns")?
        );
        self.step("page tables walked by the processor", before == after, note)
    }

    /// Nothing must fall for as long as it would otherwise have taken.
    fn stay(&mut self, name: &str, command: &str) -> Result<(), Error> {
        let before = self.guest.resident()?;
        self.ask(command)?;
        self.guest.wait(IN_TIME)?;
        let after = self.guest.resident()?;
        let ok = after.ram >= before.ram - before.ram / 20;
        let note = if ok { "stays, as it should" } else { "fell although nothing was reported" };
        self.step(name, ok, note.into())
    }

    /// Inflates to half of the RAM and deflates again, from QEMU's side.
    fn balloon(&mut self) -> Result<(), Error> {
        let (full, target) = (self.memory, self.memory / 2);
        self.ask("report off")?;
        for (name, size) in [("balloon inflated to half of the RAM", target), ("balloon deflated", full)] {
            let from = Instant::now();
            self.guest.monitor().set_balloon(size)?;
            let mut actual = 0;
            while from.elapsed() < WATCHED {
                actual = self.guest.monitor().balloon()?;
                if actual == size {
                    break;
                }
                self.guest.wait(GLANCE)?;
            }
            self.ask("check")?;
            let (seconds, uses) = (from.elapsed().as_secs_f64(), self.uses()?);
            let resident = self.watch(Instant::now(), |resident| resident.whole <= allowed(uses))?.0;
            let told = self.ask("stats")?.get("balloon")?;
            let ok = actual == size && told == full - size && resident.whole <= allowed(uses);
            let note = format!("QEMU says {} MiB left, the guest {} MiB in it", actual / MIB, told / MIB);
            let (allowed, seconds) = (Some(allowed(uses)), Some(seconds));
            (self.done)(Step { name: name.into(), uses, resident, allowed, seconds, ok, note });
        }
        self.ask("report on")?;
        Ok(())
    }

    /// What the guest tells QEMU must be what it tells here.
    fn statistics(&mut self) -> Result<(), Error> {
        self.guest.monitor().poll_stats(1)?;
        let from = Instant::now();
        // What QEMU gets at first is older than its question: the guest's driver hands out a buffer beforehand.
        let (mut told, mut ok) = (self.guest.monitor().stats()?, false);
        while !ok && from.elapsed() < WATCHED {
            self.guest.wait(GLANCE)?;
            told = self.guest.monitor().stats()?;
            let stats = self.ask("stats")?;
            let (free, ram) = (stats.get("free")?, stats.get("ram")?);
            ok = told.updated != 0
                && told.total == Some(ram)
                && told.free.is_some_and(|t| t.abs_diff(free) <= MIB);
        }
        self.guest.monitor().poll_stats(0)?;
        let mib = |bytes: Option<u64>| bytes.map_or_else(|| "nothing".into(), |b| format!("{} MiB", b / MIB));
        let note = format!("QEMU was told {} free of {}", mib(told.free), mib(told.total));
        self.step("statistics asked for by QEMU", ok, note)
    }

    /// Looks until `seen`; when it was, or `None`.
    fn watch(
        &mut self,
        from: Instant,
        seen: impl Fn(Resident) -> bool,
    ) -> Result<(Resident, Option<f64>), Error> {
        loop {
            let resident = self.guest.resident()?;
            let passed = from.elapsed();
            if seen(resident) {
                return Ok((resident, Some(passed.as_secs_f64())));
            }
            if passed > WATCHED {
                return Ok((resident, None));
            }
            self.guest.wait(GLANCE)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_and_32_mib_more_than_used_are_allowed() {
        assert_eq!(allowed(0), 32 * MIB);
        assert_eq!(allowed(1000 * MIB), 1132 * MIB);
    }
}
