//! Plans carried out in virtual time, on a machine of the caller's: the same streams by the same schedules as in [`run`](crate::run()),
//! and the same truth about them.
//!
//! Each thread of the plan has a CPU of its own. Its time goes on by what the machine says that a touch takes; a thread that
//! has nothing to do waits until something is due. So the same plan on the same machine is the same run.

use crate::Touch;
use crate::lines::workload_line;
use crate::plan::{AreaPlan, LINE, PhasePlan, Plan};
use crate::ranges::of_phase;
use crate::rng::Rng;
use crate::truth::{AreaLine, EndLine, PhaseLine, ProcessLine, Truth, WorkLine};
use crate::worker::{Ground, Job, Runner, Tally};
use std::collections::BTreeMap;

/// What a plan runs on. Processes, areas and threads are those of the plan, by their indices; times are nanoseconds since the
/// run began.
pub trait Machine {
    /// Why it cannot go on.
    type Error;

    /// Forks a process, which has all that the first has.
    ///
    /// # Errors
    /// No memory, say.
    fn fork(&mut self, process: usize) -> Result<(), Self::Error>;

    /// A process that was forked ends.
    fn exit(&mut self, process: usize);

    /// Maps an area of a process that is there; returns its first address, a multiple of the plan's unit. It may grow to
    /// `max_size`.
    ///
    /// # Errors
    /// No memory, say.
    fn map(&mut self, index: usize, area: &AreaPlan) -> Result<u64, Self::Error>;

    /// An area of the first process that has `old` bytes now grows or shrinks to `new`, in place.
    ///
    /// # Errors
    /// No memory, say.
    fn resize(&mut self, index: usize, old: u64, new: u64) -> Result<(), Self::Error>;

    /// Gives the memory of an area of the first process back; it stays mapped.
    ///
    /// # Errors
    /// As the machine has them.
    fn discard(&mut self, index: usize, size: u64) -> Result<(), Self::Error>;

    /// Eight bytes are read or written; how long it takes, ns. What fails is told by [`Self::pass`].
    fn touch(&mut self, process: usize, thread: usize, address: u64, write: bool) -> u64;

    /// All areas are mapped and populated, at this time: what watches the plan begins.
    ///
    /// # Errors
    /// As the machine has them.
    fn ready(&mut self, now_ns: u64) -> Result<(), Self::Error>;

    /// It is as late as this, never earlier than before: what else goes on happens.
    ///
    /// # Errors
    /// What made it impossible to go on.
    fn pass(&mut self, now_ns: u64) -> Result<(), Self::Error>;
}

/// Number of a process in the truth: of the first 1.
fn pid(process: usize) -> u32 {
    u32::try_from(process).unwrap_or(u32::MAX).saturating_add(1)
}

/// Carries `plan` out on a machine, whose errors end it; what it did. Process numbers count from 1, in the order of
/// [`Plan::processes`].
///
/// # Errors
/// The machine's.
pub fn replay<M: Machine>(plan: &Plan, machine: &mut M) -> Result<Truth, M::Error> {
    let threads = plan.threads.iter().enumerate();
    let threads = threads.map(|(index, thread)| Thread::new(plan, index, thread.process)).collect();
    let truth = Truth {
        workload: workload_line(plan, pid(0), "virtual"),
        processes: Vec::new(),
        areas: Vec::new(),
        phases: Vec::new(),
        work: Vec::new(),
        end: None,
    };
    let mut run = Run { plan, machine, threads, extents: BTreeMap::new(), now: 0, cpu_ns: 0, truth };
    run.begin()?;
    for (index, phase) in plan.phases.iter().enumerate() {
        run.change(phase)?;
        run.phase(index, phase)?;
    }
    let cpu_ns = run.cpu_ns + run.threads.iter().map(|thread| thread.cpu).sum::<u64>();
    run.truth.end = Some(EndLine { time_ns: run.now, reason: "finished".to_owned(), cpu_ns });
    Ok(run.truth)
}

/// A thread and its CPU.
struct Thread {
    process: usize,
    rng: Rng,
    /// How late it is for it.
    at: u64,
    /// CPU time it had.
    cpu: u64,
    turn: usize,
    runners: Vec<Runner>,
}

impl Thread {
    fn new(plan: &Plan, index: usize, process: usize) -> Self {
        let rng = Rng::new(plan.seed, index as u64);
        Self { process, rng, at: 0, cpu: 0, turn: 0, runners: Vec::new() }
    }

    /// When it has something to do next.
    fn next(&self) -> Option<u64> {
        let due = self.runners.iter().filter(|runner| !runner.done).map(Runner::due).min()?;
        Some(due.max(self.at))
    }

    /// The most urgent runner that is due.
    fn choose(&mut self, now: u64) -> Option<&mut Runner> {
        let count = self.runners.len();
        let order = (0..count).map(|offset| (self.turn + offset) % count);
        let due = order.filter_map(|i| {
            let runner = self.runners.get(i).filter(|r| !r.done && r.due() <= now)?;
            Some((i, runner.period()))
        });
        let (chosen, _) = due.min_by_key(|(_, period)| *period)?;
        self.turn = chosen + 1;
        self.runners.get_mut(chosen)
    }
}

/// A thread's CPU for a while.
struct Cpu<'a, M> {
    machine: &'a mut M,
    process: usize,
    thread: usize,
    at: u64,
    cpu: u64,
}

impl<M: Machine> Ground for Cpu<'_, M> {
    fn now_ns(&self) -> u64 {
        self.at
    }

    fn cpu_ns(&self) -> u64 {
        self.cpu
    }

    #[inline]
    fn touch(&mut self, address: usize, write: bool) {
        let took = self.machine.touch(self.process, self.thread, address as u64, write);
        self.at += took;
        self.cpu += took;
    }
}

struct Run<'a, M> {
    plan: &'a Plan,
    machine: &'a mut M,
    threads: Vec<Thread>,
    /// First address of each area and first past it, by its index.
    extents: BTreeMap<usize, (u64, u64)>,
    now: u64,
    /// CPU time of what is in no thread: populating.
    cpu_ns: u64,
    truth: Truth,
}

impl<M: Machine> Run<'_, M> {
    /// Maps and forks all that is there before the first phase.
    fn begin(&mut self) -> Result<(), M::Error> {
        let plan = self.plan;
        for &process in &plan.lasting {
            if process != 0 {
                self.machine.fork(process)?;
            }
            self.process(process, None);
            for (index, area) in plan.areas.iter().enumerate().filter(|(_, a)| a.process == process) {
                let start = self.machine.map(index, area)?;
                self.extents.insert(index, (start, start + area.size));
                self.populate(index, start, start + area.size);
                self.area(index);
            }
        }
        self.machine.ready(self.now)
    }

    fn process(&mut self, process: usize, phase: Option<u32>) {
        let name = self.plan.processes.get(process).cloned().unwrap_or_default();
        self.truth.processes.push(ProcessLine { name, pid: pid(process), phase });
    }

    /// Writes to all pages, if the plan has it so.
    fn populate(&mut self, index: usize, start: u64, end: u64) {
        let Some(area) = self.plan.areas.get(index).filter(|area| area.populate) else { return };
        let step = usize::try_from(self.plan.base_page.min(self.plan.unit)).unwrap_or(usize::MAX);
        for address in (start..end).step_by(step) {
            // Nobody else runs, so it is the first thread's CPU.
            let took = self.machine.touch(area.process, 0, address, true);
            self.now += took;
            self.cpu_ns += took;
        }
    }

    fn area(&mut self, index: usize) {
        let (Some(area), Some(&(start, end))) = (self.plan.areas.get(index), self.extents.get(&index)) else {
            return;
        };
        self.truth.areas.push(AreaLine {
            pid: pid(area.process),
            name: area.name.clone(),
            start,
            end,
            unit: self.plan.unit,
            resident_bytes: if area.populate { end - start } else { 0 },
            huge_bytes: 0,
            backed_as_asked: true,
            shared: area.shared,
        });
    }

    fn change(&mut self, phase: &PhasePlan) -> Result<(), M::Error> {
        for &(index, size) in &phase.resize {
            let Some(&(start, end)) = self.extents.get(&index) else { continue };
            self.machine.resize(index, end - start, size)?;
            self.extents.insert(index, (start, start + size));
            self.populate(index, end, start + size);
            self.area(index);
        }
        for &index in &phase.discard {
            let Some(&(start, end)) = self.extents.get(&index) else { continue };
            self.machine.discard(index, end - start)?;
        }
        self.machine.pass(self.now)
    }

    fn phase(&mut self, index: usize, phase: &PhasePlan) -> Result<(), M::Error> {
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        for &process in &phase.forks {
            self.machine.fork(process)?;
            self.process(process, Some(number));
        }
        let start_ns = self.now;
        let end_ns = phase.duration.map(|duration| start_ns.saturating_add(duration));
        self.assign(phase);
        let last_ns = self.work(phase, end_ns)?;
        let mut tallies = Vec::new();
        for thread in &mut self.threads {
            tallies.extend(thread.runners.drain(..).map(|runner| runner.tally));
        }
        tallies.sort_by_key(|tally| tally.index);
        self.tell_work(number, phase, &tallies);
        let seconds = last_ns.saturating_sub(start_ns) as f64 / 1e9;
        let there = |process| {
            (self.plan.lasting.contains(&process) || phase.forks.contains(&process)).then(|| pid(process))
        };
        let (ranges, courses) = of_phase(self.plan, phase, &self.extents, there, &tallies, seconds);
        let (index, name, complete) = (number, phase.name.clone(), true);
        let line = PhaseLine { index, name, start_ns, end_ns: last_ns, complete, ranges, courses };
        self.truth.phases.push(line);
        self.now = last_ns;
        for &process in &phase.forks {
            self.machine.exit(process);
        }
        Ok(())
    }

    /// Gives each thread its streams.
    fn assign(&mut self, phase: &PhasePlan) {
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        for (index, stream) in phase.streams.iter().enumerate() {
            let start = self.extents.get(&stream.area).map_or(0, |e| e.0);
            let job = Job {
                index,
                base: size(start + stream.offset),
                size: size(stream.size),
                unit: size(self.plan.unit),
                base_page: size(self.plan.base_page),
                stream: stream.clone(),
            };
            if let Some(thread) = self.threads.get_mut(stream.thread) {
                thread.at = self.now;
                thread.runners.push(Runner::new(job, self.now, thread.cpu));
            }
        }
    }

    /// Lets all work until the phase is over; when its last access was over.
    fn work(&mut self, phase: &PhasePlan, end_ns: Option<u64>) -> Result<u64, M::Error> {
        let mut open = phase.streams.iter().filter(|stream| stream.ends()).count();
        let has_ends = open > 0;
        let mut last = self.now;
        loop {
            if has_ends && open == 0 {
                break;
            }
            let next = self.threads.iter().enumerate().filter_map(|(i, t)| Some((t.next()?, i))).min();
            let Some((now, index)) = next.filter(|(now, _)| end_ns.is_none_or(|end| *now < end)) else {
                last = last.max(end_ns.unwrap_or(last));
                break;
            };
            self.machine.pass(now)?;
            let Some(thread) = self.threads.get_mut(index) else { break };
            let mut rng = thread.rng.clone();
            let mut cpu = Cpu {
                machine: &mut *self.machine,
                process: thread.process,
                thread: index,
                at: now,
                cpu: thread.cpu,
            };
            if let Some(runner) = thread.choose(now) {
                runner.step(now, &mut rng, &mut cpu);
                open -= usize::from(runner.has_ended());
            }
            let (at, spent) = (cpu.at, cpu.cpu);
            (thread.at, thread.cpu, thread.rng) = (at, spent, rng);
            last = last.max(at);
        }
        self.machine.pass(last)?;
        Ok(last)
    }

    fn tell_work(&mut self, number: u32, phase: &PhasePlan, tallies: &[Tally]) {
        for (stream, tally) in phase.streams.iter().zip(tallies) {
            let granule = if stream.touch == Touch::Line { LINE } else { self.plan.base_page };
            let area = self.plan.areas.get(stream.area).map(|a| a.name.clone()).unwrap_or_default();
            let touches = stream.work_touches;
            self.truth.work.extend(tally.work.iter().map(|piece| WorkLine {
                phase: number,
                area: area.clone(),
                start_ns: piece.start_ns,
                end_ns: piece.end_ns,
                cpu_ns: piece.cpu_ns,
                touches,
                bytes: touches.saturating_mul(granule),
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Overrides, PageSizes, Pattern};

    /// Memory in which a touch takes 10 ns, and which counts.
    #[derive(Default)]
    struct Flat {
        mapped: Vec<(usize, u64, u64)>,
        touches: BTreeMap<(usize, u64), u64>,
        forked: Vec<usize>,
        gone: Vec<usize>,
        passed: u64,
        ready: Option<u64>,
    }

    impl Machine for Flat {
        type Error = std::convert::Infallible;

        fn fork(&mut self, process: usize) -> Result<(), Self::Error> {
            self.forked.push(process);
            Ok(())
        }
        fn exit(&mut self, process: usize) {
            self.gone.push(process);
        }
        fn map(&mut self, index: usize, area: &AreaPlan) -> Result<u64, Self::Error> {
            let start = (index as u64 + 1) << 32;
            self.mapped.push((index, start, area.size));
            Ok(start)
        }
        fn resize(&mut self, index: usize, _: u64, new: u64) -> Result<(), Self::Error> {
            self.mapped.iter_mut().filter(|m| m.0 == index).for_each(|m| m.2 = new);
            Ok(())
        }
        fn discard(&mut self, _: usize, _: u64) -> Result<(), Self::Error> {
            Ok(())
        }
        fn touch(&mut self, process: usize, _: usize, address: u64, _: bool) -> u64 {
            let inside = self.mapped.iter().any(|(_, start, size)| (*start..start + size).contains(&address));
            assert!(inside, "{address:#x} is not mapped");
            *self.touches.entry((process, address >> 12)).or_default() += 1;
            10
        }
        fn ready(&mut self, now_ns: u64) -> Result<(), Self::Error> {
            self.ready = Some(now_ns);
            Ok(())
        }
        fn pass(&mut self, now_ns: u64) -> Result<(), Self::Error> {
            assert!(now_ns >= self.passed, "time goes on");
            self.passed = now_ns;
            Ok(())
        }
    }

    fn run(pattern: &str, set: &[(&str, &str)]) -> (Plan, Flat, Truth) {
        let set: Vec<_> = set.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let pattern = Pattern::load(pattern, &set).expect("it is built in");
        let pages = PageSizes { base: 4096, huge: 2 << 20 };
        let plan = Plan::new(&pattern, &Overrides::default(), pages).expect("it can be carried out");
        let mut flat = Flat::default();
        let truth = match replay(&plan, &mut flat) {
            Ok(truth) => truth,
            Err(never) => match never {},
        };
        (plan, flat, truth)
    }

    #[test]
    fn every_page_is_touched_as_often_as_the_truth_says() {
        let (plan, flat, truth) = run("stairs", &[("steps", "3"), ("size", "64K"), ("phase", "1s")]);
        assert_eq!((truth.phases.len(), truth.areas.len()), (3, 3));
        let populated = flat.ready.expect("it was said");
        assert_eq!(populated, 3 * 16 * 10);
        for (index, phase) in truth.phases.iter().enumerate() {
            assert_eq!(phase.end_ns - phase.start_ns, 1_000_000_000);
            let hot: Vec<_> = phase.ranges.iter().filter(|range| range.hot).collect();
            assert_eq!(hot.len(), 1);
            assert_eq!((hot[0].touches, hot[0].missed), (250 * 16, 0));
            let page = (index as u64 + 1) << 20;
            assert_eq!(flat.touches[&(0, page)], 250 + 1);
        }
        let end = truth.end.expect("it has ended");
        assert_eq!(end.cpu_ns, (3 * 16 + 3 * 250 * 16) * 10);
        assert_eq!(end.time_ns, flat.passed);
        assert_eq!(plan.processes.len(), truth.processes.len());
    }

    #[test]
    fn what_takes_too_long_is_left_out_and_counted() {
        let max = [("size", "1M"), ("speed", "max"), ("touch", "page"), ("phase", "2ms"), ("idle", "1M")];
        let (_, _, truth) = run("sweep", &max);
        let touched: u64 = truth.phases[0].ranges.iter().map(|range| range.touches).sum();
        assert!((200_000..203_000).contains(&touched), "{touched}");
        // 10 ns for each of 256 pages, for which there are 2 us.
        let fast = [("steps", "1"), ("size", "1M"), ("rate", "500000Hz"), ("phase", "2ms")];
        let (_, _, truth) = run("stairs", &fast);
        let range = &truth.phases[0].ranges[0];
        assert!(range.missed > 150 && range.achieved_hz < 400_000.0, "{range:?}");
    }

    #[test]
    fn children_are_forked_and_end_and_their_areas_are_their_own() {
        let (plan, flat, truth) = run("prefork", &[]);
        assert_eq!(flat.forked.len() + 1, plan.processes.len());
        assert_eq!(truth.processes.len(), plan.processes.len());
        let (plan, flat, truth) = run("bgsave", &[]);
        let brief: usize = plan.phases.iter().map(|phase| phase.forks.len()).sum();
        assert!(brief > 0 && flat.gone.len() == brief);
        assert!(truth.processes.iter().any(|process| process.phase.is_some()));
    }

    #[test]
    fn the_same_plan_is_the_same_run() {
        let set = [("size", "2M"), ("phase", "1s"), ("idle", "1M")];
        let (first, second) = (run("zipf", &set).2, run("zipf", &set).2);
        assert_eq!(first, second);
        assert!(first.phases[0].ranges.iter().any(|range| range.touches > 500));
    }
}
