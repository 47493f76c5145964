//! Plans: a pattern with its templates expanded, every name resolved, every size and time a number.

use crate::pattern::{AccessSpec, Gaps, Kind, Pattern, PatternError, Touch};
use crate::quantity::Rate;
use crate::truth::Page;
use std::collections::BTreeMap;

/// Most areas a plan may have: far above any use, far below the kernel's limit of 65530 mappings.
const MAX_AREAS: usize = 4096;
/// Most phases a plan may have.
const MAX_PHASES: usize = 100_000;
/// Most threads a plan may have.
const MAX_THREADS: usize = 512;
/// Most streams of accesses over all phases.
const MAX_STREAMS: usize = 1_000_000;
/// Most streams of accesses in a phase.
const MAX_STREAMS_PER_PHASE: usize = 4096;
/// Most timed pieces of work of a stream; their times are kept until the phase is over.
const MAX_UNITS: u32 = 1_000_000;
/// Bytes of a cache line, whatever the machine's: what [`Touch::Line`] steps by.
pub(crate) const LINE: u64 = 64;

/// What the command line says over the pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Page size of all areas.
    pub page: Option<Page>,
    /// Seed of all random draws.
    pub seed: Option<u64>,
    /// How often the phases are gone through.
    pub cycles: Option<u32>,
    /// Factor on the length of phases, > 0; default 1.
    pub time_scale: Option<f64>,
}

/// Sizes of pages on this machine, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSizes {
    /// Order-0 page.
    pub base: u64,
    /// Transparent huge page (PMD size).
    pub huge: u64,
}

impl PageSizes {
    /// Asks the kernel. Where it knows no transparent huge pages, 2 MiB is assumed: the areas are aligned all the
    /// same, and the truth says what backs them.
    pub fn of_this_machine() -> Self {
        let huge = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
            .ok()
            .and_then(|s| s.trim().parse().ok())
            .filter(|n: &u64| n.is_power_of_two())
            .unwrap_or(2 << 20);
        Self { base: rustix::param::page_size() as u64, huge }
    }
}

/// A mapping to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AreaPlan {
    /// Its name.
    pub name: String,
    /// Bytes before the first phase; a multiple of the unit.
    pub size: u64,
    /// Bytes when it is largest.
    pub max_size: u64,
}

/// A stream of accesses to part of an area.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// Index of the area.
    pub area: usize,
    /// First byte, counted from the area's start; a multiple of the unit.
    pub offset: u64,
    /// Bytes; a multiple of the unit, within the area's size in the phase.
    pub size: u64,
    /// How.
    pub kind: Kind,
    /// How often each page; above 0.
    pub rate: Rate,
    /// When random accesses come.
    pub gaps: Gaps,
    /// Writes instead of reads.
    pub write: bool,
    /// What one touch covers.
    pub touch: Touch,
    /// Index of the thread.
    pub thread: usize,
    /// Touches in a timed piece of work; 0: none is timed.
    pub work_touches: u64,
    /// Pieces of work after which the stream ends; `None`: it ends with the phase.
    pub units: Option<u32>,
}

/// A phase.
#[derive(Clone, Debug, PartialEq)]
pub struct PhasePlan {
    /// Its name.
    pub name: String,
    /// Length in ns; `None`: until all its work is done.
    pub duration: Option<u64>,
    /// Areas that change their size before it, with the new size.
    pub resize: Vec<(usize, u64)>,
    /// What goes on in it.
    pub streams: Vec<Stream>,
}

/// All that is needed to run a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Name of the pattern.
    pub pattern: String,
    /// Pages of all areas.
    pub page: Page,
    /// Size of such a page, bytes.
    pub unit: u64,
    /// Size of an order-0 page, bytes.
    pub base_page: u64,
    /// Seed of all random draws.
    pub seed: u64,
    /// Factor that was applied to the length of phases.
    pub time_scale: f64,
    /// Rate from which a range is called hot, Hz.
    pub hot_hz: f64,
    /// Parameters, for the truth.
    pub params: toml::Table,
    /// Mappings.
    pub areas: Vec<AreaPlan>,
    /// How many threads do the accesses.
    pub threads: usize,
    /// Phases in order.
    pub phases: Vec<PhasePlan>,
}

/// Expands a pattern; holds what is known so far.
struct Planner<'a> {
    pattern: &'a Pattern,
    unit: u64,
    base_page: u64,
    names: BTreeMap<String, usize>,
    areas: Vec<AreaPlan>,
    threads: BTreeMap<String, usize>,
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
            names: BTreeMap::new(),
            areas: Vec::new(),
            threads: BTreeMap::new(),
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
        planner.areas()?;
        let mut phases = Vec::new();
        for _ in 0..over.cycles.unwrap_or(pattern.cycles) {
            planner.phases(time_scale, &mut phases)?;
        }
        if phases.is_empty() {
            return Err(planner.error("phases", "there is none; add a [[phase]] (and cycles >= 1)"));
        }
        Ok(Self {
            pattern: pattern.name.clone(),
            page,
            unit,
            base_page: pages.base,
            seed: over.seed.unwrap_or(pattern.seed),
            time_scale,
            hot_hz: pattern.hot_hz,
            params: pattern.params.clone(),
            areas: planner.areas,
            threads: planner.threads.len(),
            phases,
        })
    }

    /// Bytes mapped when all areas are largest.
    pub fn max_bytes(&self) -> u64 {
        self.areas.iter().fold(0, |sum, a| sum.saturating_add(a.max_size))
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
                self.areas.push(AreaPlan { name, size, max_size: size });
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
                    if size == 0 {
                        return Err(self.error(&place, "an area cannot shrink to 0; leave it a page"));
                    }
                    if let (Some(now), Some(plan)) = (self.sizes.get_mut(area), self.areas.get_mut(area)) {
                        *now = size;
                        plan.max_size = plan.max_size.max(size);
                    }
                    resize.push((area, size));
                }
                let mut streams = Vec::new();
                for access in &spec.access {
                    for j in 0..access.repeat {
                        let fill = |text: &str| fill(text).replace("{j}", &j.to_string());
                        let place = format!("{place}, access to {}", fill(&access.area));
                        streams.extend(self.stream(&place, access, i, fill)?);
                        if streams.len() > MAX_STREAMS_PER_PHASE {
                            return Err(
                                self.error(&place, format!("more than {MAX_STREAMS_PER_PHASE} streams"))
                            );
                        }
                    }
                }
                let duration = spec.duration.map(|d| (d.0 as f64 * time_scale).round() as u64);
                let endless = streams.iter().all(|s| s.units.is_none());
                if duration == Some(0) || (duration.is_none() && endless) {
                    let message =
                        "it has no end; give it a duration above 0, or an access `work` and `units`";
                    return Err(self.error(&place, message));
                }
                phases.push(PhasePlan { name, duration, resize, streams });
            }
        }
        Ok(())
    }

    /// The stream of `spec` in the `i`-th phase of its kind; `None` when its rate is 0.
    fn stream(
        &mut self,
        place: &str,
        spec: &AccessSpec,
        i: u32,
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
        if offset > room {
            let message = format!("offset {offset} + size {size} exceed the area's {area_size} bytes");
            return Err(self.error(place, message));
        }
        if spec.work.is_some() != spec.units.is_some() || (spec.work.is_some() && spec.rate != Rate::Max) {
            return Err(self.error(place, "`work` and `units` go together, and with rate = \"max\""));
        }
        if spec.units.is_some_and(|n| n == 0 || n > MAX_UNITS) {
            return Err(self.error(place, format!("`units` must be 1 to {MAX_UNITS}")));
        }
        if spec.rate == Rate::Hz(0.0) {
            return Ok(None);
        }
        self.streams += 1;
        if self.streams > MAX_STREAMS {
            return Err(self.error(place, format!("more than {MAX_STREAMS} accesses over all phases")));
        }
        let threads = self.threads.len();
        let thread = *self.threads.entry(fill(&spec.thread)).or_insert(threads);
        if thread >= MAX_THREADS {
            return Err(self.error(place, format!("more than {MAX_THREADS} threads")));
        }
        // A page touch steps by order-0 pages also in a huge page, as a program that knows nothing of them would.
        let granule = if spec.touch == Touch::Line { LINE } else { self.base_page };
        let work_touches = spec.work.map_or(0, |w| (w.0 / granule).max(1));
        Ok(Some(Stream {
            area,
            offset,
            size,
            kind: spec.kind,
            rate: spec.rate,
            gaps: spec.gaps,
            write: spec.write,
            touch: spec.touch,
            thread,
            work_touches,
            units: spec.units,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::BUILTIN;

    const PAGES: PageSizes = PageSizes { base: 4096, huge: 2 << 20 };

    fn plan(text: &str, over: &Overrides) -> Result<Plan, PatternError> {
        Plan::new(&Pattern::parse("test", text, &[])?, over, PAGES)
    }

    #[test]
    fn every_builtin_pattern_can_be_planned_on_either_page_size() {
        for (name, _) in BUILTIN {
            for page in [Page::Base, Page::Huge] {
                let pattern = Pattern::load(name, &[]).unwrap();
                let over = Overrides { page: Some(page), ..Overrides::default() };
                let plan = Plan::new(&pattern, &over, PAGES).unwrap();
                assert_eq!(&plan.pattern, name);
                assert!(!pattern.summary.is_empty(), "{name} lacks a summary");
                for phase in &plan.phases {
                    for s in &phase.streams {
                        assert_eq!((s.offset % plan.unit, s.size % plan.unit), (0, 0), "{name}");
                        assert!(s.offset + s.size <= plan.areas[s.area].max_size, "{name}");
                    }
                }
            }
        }
    }

    #[test]
    fn stairs_is_ten_steps_of_ten_megabytes_one_at_a_time() {
        let pattern = Pattern::load("stairs", &[]).unwrap();
        let over = Overrides { time_scale: Some(0.2), ..Overrides::default() };
        let plan = Plan::new(&pattern, &over, PAGES).unwrap();
        assert_eq!(plan.areas.len(), 10);
        for (i, phase) in plan.phases.iter().enumerate() {
            assert_eq!(phase.duration, Some(1_000_000_000));
            assert_eq!(phase.streams.len(), 1);
            assert_eq!((phase.streams[0].area, phase.streams[0].size), (i, 10 << 20));
        }
    }

    #[test]
    fn huge_pages_round_sizes_up_and_a_moving_range_stays_inside() {
        let text = r#"
            name = "t"
            [[area]]
            name = "a"
            size = "9M"
            [[phase]]
            repeat = 20
            duration = "1s"
            access = [{ area = "a", size = "1M", offset = "3M", step = "3M", rate = 5 }]
        "#;
        let plan = plan(text, &Overrides { page: Some(Page::Huge), ..Overrides::default() }).unwrap();
        assert_eq!(plan.areas[0].size, 10 << 20);
        let offsets: std::collections::BTreeSet<_> =
            plan.phases.iter().map(|p| p.streams[0].offset >> 21).collect();
        assert_eq!(offsets.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn what_cannot_be_carried_out_is_refused_by_name() {
        let head = "name = \"t\"\n[[area]]\nname = \"a\"\nsize = \"1M\"\n[[phase]]\n";
        for (tail, part) in [
            ("duration = \"1s\"\naccess = [{ area = \"b\", rate = 1 }]", "no area `b`"),
            ("duration = \"1s\"\naccess = [{ area = \"a\", size = \"2M\", rate = 1 }]", "does not fit"),
            (
                "duration = \"1s\"\naccess = [{ area = \"a\", size = \"1M\", offset = 4096, rate = 1 }]",
                "exceed",
            ),
            ("access = [{ area = \"a\", rate = 1 }]", "no end"),
            ("duration = 0", "no end"),
            ("duration = 1\nrepeat = 1000000", "phases"),
            ("access = [{ area = \"a\", rate = 1, work = \"1M\", units = 2 }]", "max"),
            ("access = [{ area = \"a\", rate = \"max\", work = \"1M\" }]", "go together"),
            (
                "duration = 1\naccess = [{ area = \"a\", rate = 1, repeat = 600, thread = \"{j}\" }]",
                "threads",
            ),
            ("duration = 1\nresize = [{ area = \"a\", size = 0 }]", "shrink"),
            ("duration = 1\n[[area]]\nname = \"a\"\nsize = 1", "two areas"),
            ("duration = 1\n[[area]]\nname = \"c\"\nsize = 1\ncount = 2", "{i}"),
        ] {
            let error = plan(&format!("{head}{tail}"), &Overrides::default()).unwrap_err().to_string();
            assert!(error.contains(part), "{tail}: {error}");
        }
        let over = Overrides { cycles: Some(0), ..Overrides::default() };
        assert!(plan(&format!("{head}duration = 1"), &over).is_err());
        let over = Overrides { time_scale: Some(f64::NAN), ..Overrides::default() };
        assert!(plan(&format!("{head}duration = 1"), &over).is_err());
    }
}
