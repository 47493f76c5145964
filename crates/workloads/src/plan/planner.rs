//! Making a plan of a pattern: templates, names, limits.

use super::{AreaPlan, LINE, Overrides, PageSizes, PhasePlan, Plan, Stream, ThreadPlan};
use crate::order::{Order, Popularity};
use crate::pattern::{AccessSpec, Kind, Pattern, PatternError, Touch};
use crate::quantity::{Rate, Speed};
use crate::truth::Page;
use std::collections::BTreeMap;

/// Most processes a plan may have.
const MAX_PROCESSES: usize = 8192;
/// Most areas a plan may have, over all processes; the kernel's limit is 65530 mappings a process.
const MAX_AREAS: usize = 16_384;
/// Most phases a plan may have.
const MAX_PHASES: usize = 100_000;
/// Most threads a process may have.
const MAX_THREADS: usize = 512;
/// Most streams of accesses over all phases.
const MAX_STREAMS: usize = 1_000_000;
/// Most streams of accesses in a phase.
const MAX_STREAMS_PER_PHASE: usize = 16_384;
/// Most timed pieces of work of a stream; their times are kept until the phase is over.
const MAX_UNITS: u32 = 1_000_000;
/// What the process is called that forks the others.
const FIRST: &str = "main";

/// Expands a pattern; holds what is known so far.
struct Planner<'a> {
    pattern: &'a Pattern,
    unit: u64,
    base_page: u64,
    processes: BTreeMap<String, usize>,
    process_names: Vec<String>,
    /// The phase for which each is forked; empty: it lives as long as the workload.
    process_phases: Vec<String>,
    names: BTreeMap<String, usize>,
    areas: Vec<AreaPlan>,
    thread_names: BTreeMap<(usize, String), usize>,
    threads: Vec<ThreadPlan>,
    sizes: Vec<u64>,
    streams: usize,
}

impl Plan {
    /// Expands `pattern` for pages of the given sizes.
    ///
    /// # Errors
    /// [`PatternError::Meaning`] for whatever cannot be carried out: names that do not exist or exist twice, accesses
    /// outside their area, phases without an end, more areas, phases or threads than the limits.
    pub fn new(pattern: &Pattern, over: &Overrides, pages: PageSizes) -> Result<Self, PatternError> {
        let page = over.page.unwrap_or(pattern.page);
        let unit = if page == Page::Huge { pages.huge } else { pages.base };
        let time_scale = over.time_scale.unwrap_or(1.0);
        let mut planner = Planner {
            pattern,
            unit,
            base_page: pages.base,
            processes: BTreeMap::new(),
            process_names: vec![FIRST.to_owned()],
            process_phases: vec![String::new()],
            names: BTreeMap::new(),
            areas: Vec::new(),
            thread_names: BTreeMap::new(),
            threads: Vec::new(),
            sizes: Vec::new(),
            streams: 0,
        };
        if !(time_scale.is_finite() && time_scale > 0.0 && time_scale <= 1e6) {
            return Err(
                planner.error("time scale", "must be above 0 (1: as written, 0.2: five times shorter)")
            );
        }
        if !(pattern.hot_hz.is_finite() && pattern.hot_hz > 0.0) {
            return Err(planner.error("hot_hz", "must be above 0"));
        }
        planner.processes()?;
        planner.areas()?;
        let mut phases = Vec::new();
        for _ in 0..over.cycles.unwrap_or(pattern.cycles) {
            planner.phases(time_scale, &mut phases)?;
        }
        if phases.is_empty() {
            return Err(planner.error("phases", "there is none; add a [[phase]] (and cycles >= 1)"));
        }
        planner.check_forks(&phases)?;
        Ok(Self {
            pattern: pattern.name.clone(),
            page,
            unit,
            base_page: pages.base,
            seed: over.seed.unwrap_or(pattern.seed),
            time_scale,
            hot_hz: pattern.hot_hz,
            params: pattern.params.clone(),
            lasting: planner.lasting(),
            processes: planner.process_names,
            areas: planner.areas,
            threads: planner.threads,
            phases,
        })
    }

    /// Bytes of all areas when they are largest. What children copy of an inherited area by writing to it is not in it.
    pub fn max_bytes(&self) -> u64 {
        self.areas.iter().fold(0, |sum, a| sum.saturating_add(a.max_size))
    }

    /// Bytes of inherited areas that are copied because a child, or its parent while a child shares them, writes to them, at
    /// most.
    pub(crate) fn copied_bytes(&self) -> u64 {
        let copied = |stream: &Stream, duration: Option<u64>, forks: bool| {
            let inherited = self
                .areas
                .get(stream.area)
                .is_some_and(|a| (forks || a.process != stream.process) && !a.shared);
            let seconds = duration.map_or(f64::INFINITY, |ns| ns as f64 / 1e9);
            let passes = match stream.rate {
                Rate::Hz(hz) => (hz * seconds).min(1.0),
                Rate::Max => 1.0,
            };
            if inherited && stream.write { (passes * stream.size as f64) as u64 } else { 0 }
        };
        let of_phase =
            |p: &PhasePlan| p.streams.iter().map(|s| copied(s, p.duration, !p.forks.is_empty())).sum::<u64>();
        // A child that ends with its phase gives its share back.
        let (brief, lasting): (Vec<_>, Vec<_>) = self.phases.iter().partition(|p| !p.forks.is_empty());
        let lasting = lasting.into_iter().map(of_phase).fold(0, u64::saturating_add);
        lasting.saturating_add(brief.into_iter().map(of_phase).max().unwrap_or(0))
    }
}

impl Planner<'_> {
    fn error(&self, place: &str, message: impl Into<String>) -> PatternError {
        PatternError::Meaning {
            pattern: self.pattern.name.clone(),
            place: place.to_owned(),
            message: message.into(),
        }
    }

    fn processes(&mut self) -> Result<(), PatternError> {
        for spec in &self.pattern.process {
            let place = format!("process {}", spec.name);
            if spec.count > 1 && !spec.name.contains("{i}") {
                return Err(self.error(&place, "count is above 1, so its name must hold {i}"));
            }
            for i in 0..spec.count {
                let name = spec.name.replace("{i}", &i.to_string());
                let index = self.process_names.len();
                if index >= MAX_PROCESSES {
                    return Err(self.error(&place, format!("more than {MAX_PROCESSES} processes")));
                }
                if name == FIRST || name.is_empty() {
                    let message =
                        format!("`{name}` names the process that forks the others; take another name");
                    return Err(self.error(&place, message));
                }
                if self.processes.insert(name.clone(), index).is_some() {
                    return Err(self.error(&place, format!("there are two processes called {name}")));
                }
                self.process_names.push(name);
                self.process_phases.push(spec.phase.replace("{i}", &i.to_string()));
            }
        }
        Ok(())
    }

    fn lasting(&self) -> Vec<usize> {
        let phases = self.process_phases.iter().enumerate();
        phases.filter(|(_, phase)| phase.is_empty()).map(|(process, _)| process).collect()
    }

    /// Processes that are forked for the phase `name`.
    fn forks(&self, name: &str) -> Vec<usize> {
        let phases = self.process_phases.iter().enumerate();
        phases.filter(|(_, phase)| !phase.is_empty() && *phase == name).map(|(process, _)| process).collect()
    }

    /// Each process that is forked for a phase needs such a phase, and something to do in it.
    fn check_forks(&self, phases: &[PhasePlan]) -> Result<(), PatternError> {
        for (process, phase) in self.process_phases.iter().enumerate().filter(|(_, phase)| !phase.is_empty())
        {
            let name = self.process_names.get(process).map_or("", String::as_str);
            let place = format!("process {name}");
            let mut its = phases.iter().filter(|p| p.forks.contains(&process)).peekable();
            if its.peek().is_none() {
                return Err(self.error(&place, format!("there is no phase `{phase}`")));
            }
            if its.any(|p| !p.streams.iter().any(|s| s.process == process)) {
                let message = format!("it is forked for the phase `{phase}` and has no access there");
                return Err(self.error(&place, message));
            }
        }
        Ok(())
    }

    fn find_process(&self, place: &str, name: &str) -> Result<usize, PatternError> {
        if name.is_empty() || name == FIRST {
            return Ok(0);
        }
        self.processes.get(name).copied().ok_or_else(|| {
            let known: Vec<_> = self.process_names.iter().take(12).map(String::as_str).collect();
            self.error(place, format!("there is no process `{name}`; processes are {}", known.join(", ")))
        })
    }

    fn areas(&mut self) -> Result<(), PatternError> {
        for spec in &self.pattern.area {
            let place = format!("area {}", spec.name);
            if spec.count > 1 && !spec.name.contains("{i}") {
                return Err(self.error(&place, "count is above 1, so its name must hold {i}"));
            }
            let size = spec.size.0.next_multiple_of(self.unit);
            if size == 0 {
                return Err(self.error(&place, "its size is 0; it must be at least a byte"));
            }
            for i in 0..spec.count {
                let name = spec.name.replace("{i}", &i.to_string());
                if self.areas.len() >= MAX_AREAS {
                    return Err(self.error(&place, format!("more than {MAX_AREAS} areas")));
                }
                if self.names.insert(name.clone(), self.areas.len()).is_some() {
                    return Err(self.error(&place, format!("there are two areas called {name}")));
                }
                let process = self.find_process(&place, &spec.process.replace("{i}", &i.to_string()))?;
                if self.process_phases.get(process).is_some_and(|phase| !phase.is_empty()) {
                    let message = "its process is forked for a phase, and such a one maps nothing of its own";
                    return Err(self.error(&place, message));
                }
                let (shared, populate) = (spec.shared, spec.populate);
                self.areas.push(AreaPlan { name, size, max_size: size, process, shared, populate });
                self.sizes.push(size);
            }
        }
        if self.areas.is_empty() {
            return Err(self.error("areas", "there is none; add an [[area]]"));
        }
        Ok(())
    }

    fn find_area(&self, place: &str, name: &str) -> Result<usize, PatternError> {
        self.names.get(name).copied().ok_or_else(|| {
            let known: Vec<_> = self.names.keys().take(12).cloned().collect();
            self.error(place, format!("there is no area `{name}`; areas are {}", known.join(", ")))
        })
    }

    fn phases(&mut self, time_scale: f64, phases: &mut Vec<PhasePlan>) -> Result<(), PatternError> {
        for (nr, spec) in self.pattern.phase.iter().enumerate() {
            for i in 0..spec.repeat {
                let fill = |text: &str| text.replace("{i}", &i.to_string());
                let name =
                    if spec.name.is_empty() { format!("phase{}", phases.len()) } else { fill(&spec.name) };
                let place = format!("phase {} ({name})", nr + 1);
                if phases.len() >= MAX_PHASES {
                    return Err(self.error(&place, format!("more than {MAX_PHASES} phases")));
                }
                let mut resize = Vec::new();
                for change in &spec.resize {
                    let area = self.find_area(&place, &fill(&change.area))?;
                    let size = change.size.0.next_multiple_of(self.unit);
                    if self.process_names.len() > 1 {
                        return Err(
                            self.error(&place, "areas cannot change their size once processes share them")
                        );
                    }
                    if size == 0 {
                        return Err(self.error(&place, "an area cannot shrink to 0; leave it a page"));
                    }
                    if let (Some(now), Some(plan)) = (self.sizes.get_mut(area), self.areas.get_mut(area)) {
                        *now = size;
                        plan.max_size = plan.max_size.max(size);
                    }
                    resize.push((area, size));
                }
                let mut discard = Vec::new();
                for name in &spec.discard {
                    if self.process_names.len() > 1 {
                        return Err(self.error(&place, "areas cannot be discarded once processes share them"));
                    }
                    discard.push(self.find_area(&place, &fill(name))?);
                }
                let mut streams = Vec::new();
                for access in &spec.access {
                    for j in 0..access.repeat {
                        let fill = |text: &str| fill(text).replace("{j}", &j.to_string());
                        let place = format!("{place}, access to {}", fill(&access.area));
                        streams.extend(self.stream(&place, access, (i, j), fill)?);
                        if streams.len() > MAX_STREAMS_PER_PHASE {
                            return Err(
                                self.error(&place, format!("more than {MAX_STREAMS_PER_PHASE} streams"))
                            );
                        }
                    }
                }
                let duration = spec.duration.map(|d| (d.0 as f64 * time_scale).round() as u64);
                let endless = !streams.iter().any(Stream::ends);
                if duration == Some(0) || (duration.is_none() && endless) {
                    let message = "it has no end; give it a duration above 0, or an access `work` and `units`, or `passes`";
                    return Err(self.error(&place, message));
                }
                let forks = self.forks(&name);
                let absent = streams.iter().map(|s| s.process).find(|process| {
                    let brief = self.process_phases.get(*process).is_some_and(|phase| !phase.is_empty());
                    brief && !forks.contains(process)
                });
                if let Some(process) = absent {
                    let name = self.process_names.get(process).map_or("", String::as_str);
                    return Err(self.error(&place, format!("the process {name} is not there in this phase")));
                }
                phases.push(PhasePlan { name, duration, resize, discard, forks, streams });
            }
        }
        Ok(())
    }

    /// The `j`-th stream of `spec` in the `i`-th phase of its kind; `None` when its rate is 0.
    fn stream(
        &mut self,
        place: &str,
        spec: &AccessSpec,
        (i, j): (u32, u32),
        fill: impl Fn(&str) -> String,
    ) -> Result<Option<Stream>, PatternError> {
        let unit = self.unit;
        let area = self.find_area(place, &fill(&spec.area))?;
        let area_size = self.sizes.get(area).copied().unwrap_or(0);
        let size = match spec.size {
            Some(size) => size.0.next_multiple_of(unit),
            None => area_size.saturating_sub(spec.offset.0 / unit * unit),
        };
        if size == 0 || size > area_size {
            let message = format!("size {size} does not fit into the area's {area_size} bytes");
            return Err(self.error(place, message));
        }
        // The range must not wrap itself, so its start wraps around what is left when it is taken out.
        let room = area_size - size;
        let walked = spec.step.0.saturating_mul(u64::from(i)).saturating_add(spec.offset.0) / unit * unit;
        let offset = if spec.step.0 > 0 { walked % (room + unit) } else { walked };
        let offset = offset.saturating_add(spec.step_each.0.saturating_mul(u64::from(j)) / unit * unit);
        if offset > room {
            let message = format!("offset {offset} + size {size} exceed the area's {area_size} bytes");
            return Err(self.error(place, message));
        }
        let owner = self.areas.get(area).map_or(0, |a| a.process);
        let process = match spec.process.as_str() {
            "" => owner,
            name => self.find_process(place, &fill(name))?,
        };
        if owner != 0 && owner != process {
            return Err(self.error(place, "the area belongs to another process"));
        }
        let (rate, steady) = match (spec.rate, spec.speed) {
            (Some(rate), None) => (rate, false),
            (None, Some(Speed::Max)) => (Rate::Max, false),
            (None, Some(Speed::Bytes(bytes))) => (Rate::Hz(bytes as f64 / size as f64), true),
            _ => return Err(self.error(place, "give it either a `rate` or a `speed`")),
        };
        if spec.work.is_some() != spec.units.is_some() || (spec.work.is_some() && rate != Rate::Max) {
            return Err(self.error(place, "`work` and `units` go together, and with rate = \"max\""));
        }
        if spec.units.is_some_and(|n| n == 0 || n > MAX_UNITS) {
            return Err(self.error(place, format!("`units` must be 1 to {MAX_UNITS}")));
        }
        let order = self.order(place, spec, i, size)?;
        if spec.passes.is_some_and(|n| n == 0) || (spec.passes.is_some() && order.is_random()) {
            return Err(self.error(place, "`passes` must be at least 1, and random accesses make none"));
        }
        if steady && order.is_random() {
            return Err(self.error(place, "random accesses take a `rate`, not a `speed`"));
        }
        if rate == Rate::Hz(0.0) {
            return Ok(None);
        }
        self.streams += 1;
        if self.streams > MAX_STREAMS {
            return Err(self.error(place, format!("more than {MAX_STREAMS} accesses over all phases")));
        }
        let thread = match self.thread_names.get(&(process, fill(&spec.thread))) {
            Some(&thread) => thread,
            None => {
                let thread = self.threads.len();
                self.thread_names.insert((process, fill(&spec.thread)), thread);
                self.threads.push(ThreadPlan { process });
                thread
            }
        };
        if self.threads.iter().filter(|t| t.process == process).count() > MAX_THREADS {
            return Err(self.error(place, format!("more than {MAX_THREADS} threads in a process")));
        }
        // A page touch steps by order-0 pages also in a huge page, as a program that knows nothing of them would.
        let granule = if spec.touch == Touch::Line { LINE } else { self.base_page };
        let work_touches = spec.work.map_or(0, |w| (w.0 / granule).max(1));
        Ok(Some(Stream {
            area,
            offset,
            size,
            process,
            order,
            rate,
            steady,
            gaps: spec.gaps,
            write: spec.write,
            touch: spec.touch,
            thread,
            work_touches,
            units: spec.units,
            passes: spec.passes,
            course: spec.course,
        }))
    }

    fn order(&self, place: &str, spec: &AccessSpec, i: u32, size: u64) -> Result<Order, PatternError> {
        match spec.kind {
            Kind::Sequential => Ok(Order::Sequential),
            Kind::Random => Ok(Order::Random),
            Kind::Butterfly => {
                let factor = u64::from(spec.stride_factor).saturating_pow(i);
                let stride = spec.stride.map_or(0, |s| s.0).saturating_mul(factor);
                if stride == 0 || stride > size / 2 {
                    let message =
                        format!("kind butterfly needs a `stride` of 1 to {} bytes, not {stride}", size / 2);
                    return Err(self.error(place, message));
                }
                Ok(Order::Butterfly { stride: stride.next_multiple_of(self.base_page) })
            }
            Kind::Zipf => {
                if !(0.0..=10.0).contains(&spec.skew) {
                    return Err(self.error(place, "`skew` must be 0 to 10"));
                }
                let grain = spec.grain.0.max(1).next_multiple_of(self.unit);
                if grain > size || !size.is_multiple_of(grain) {
                    return Err(self.error(place, format!("`grain` must divide the {size} bytes accessed")));
                }
                Ok(Order::Zipf(Popularity { skew: spec.skew, layout: spec.layout, grain }))
            }
        }
    }
}
