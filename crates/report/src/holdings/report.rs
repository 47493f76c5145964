//! The report on holdings: which lines, in which order.

use super::{Figures, Holdings, MappingHoldings, ObjectHoldings, ProcessHoldings};
use crate::Accumulate;
use crate::before_end::{GaveUp, WithoutEnds};
use crate::heatmap::AreaError;
use crate::names::Sought;
use crate::provenance::Provenance;
use isotherm_damon::{Snapshot, TargetId};
use isotherm_record::Item;
use serde::Serialize;
use std::cmp::Reverse;

/// What a line is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// A process, with its largest mappings below it.
    #[default]
    Process,
    /// A mapping of a process.
    Mapping,
    /// A file or shared memory, each byte once; and what each process has of its own.
    Object,
}

/// What lines are sorted by; figures largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Name, A to Z.
    Name,
    /// Mapped bytes.
    Mapped,
    /// Resident bytes.
    Resident,
    /// Working set of a second.
    Ws1s,
    /// Working set of ten seconds.
    #[default]
    Ws10s,
    /// Working set of a minute.
    Ws60s,
    /// Hot bytes.
    Hot,
    /// Cold since 10 s.
    Cold10s,
    /// Cold since a minute.
    Cold1m,
    /// Cold since 5 minutes.
    Cold5m,
    /// Unknown bytes.
    Unknown,
}

impl Sort {
    /// What is sorted by, and by what where that is equal or not known: working sets of shorter windows.
    fn values(self, f: &Figures) -> [Option<u64>; 3] {
        let alone = |value| [value, None, None];
        let [ws_1s, ws_10s, ws_60s] = f.working_sets();
        match self {
            Self::Name => alone(None),
            Self::Mapped => alone(Some(f.mapped)),
            Self::Resident => alone(f.resident),
            Self::Ws1s => alone(ws_1s),
            Self::Ws10s => [ws_10s, ws_1s, None],
            Self::Ws60s => [ws_60s, ws_10s, ws_1s],
            Self::Hot => alone(f.known_hot()),
            Self::Cold10s => alone(f.cold_10s),
            Self::Cold1m => alone(f.cold_1m),
            Self::Cold5m => alone(f.cold_5m),
            Self::Unknown => alone(f.unknown),
        }
    }
}

/// What to report.
#[derive(Clone, Debug, PartialEq)]
pub struct HoldingsOptions {
    /// Targets; empty: all.
    pub targets: Vec<TargetId>,
    /// What a line is of.
    pub by: By,
    /// The order of lines, and of the mappings below a process.
    pub sort: Sort,
    /// The other way round.
    pub reverse: bool,
    /// Only mappings and objects with this in their path or name.
    pub mapping: String,
    /// Only lines of at least so many resident bytes; mapped ones where residence is not known.
    pub min_size: u64,
    /// Lines at most.
    pub limit: usize,
    /// Mappings below a process at most.
    pub mappings: usize,
}

impl Default for HoldingsOptions {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            by: By::default(),
            sort: Sort::default(),
            reverse: false,
            mapping: String::new(),
            min_size: 0,
            limit: usize::MAX,
            mappings: usize::MAX,
        }
    }
}

/// Collects holdings for a report.
#[derive(Clone, Debug, Default)]
pub struct HoldingsAnalysis {
    options: HoldingsOptions,
    provenance: Provenance,
    standing: WithoutEnds<Standing>,
}

/// How things stand.
#[derive(Clone, Debug, Default)]
struct Standing {
    holdings: Holdings,
    looks: Looks,
}

impl Accumulate for Standing {
    fn snapshot(&mut self, snapshot: &Snapshot) {
        if self.holdings.loses() {
            self.looks.look(&mut self.holdings, 4);
        }
        self.holdings.snapshot(snapshot);
        self.looks.look(&mut self.holdings, 1);
    }

    fn note(&mut self, item: &Item) {
        self.holdings.note(item);
    }
}

/// How things stood when the working set of a second was highest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Highest {
    /// When, ns.
    pub time_ns: u64,
    /// Figures of all that ran then; what several of them mapped counts once.
    pub figures: Figures,
}

/// Looks at the totals in the course of a recording.
#[derive(Clone, Debug, Default)]
struct Looks {
    highest: Option<Highest>,
    number: u32,
    /// The first one and the last one, and the least time between two, ns.
    first: Option<u64>,
    last: u64,
    step: u64,
}

/// After so many looks they become fewer, so that there are some hundreds of them in a recording of hours: each takes as long as a
/// snapshot does. A guess.
const LOOKS: u32 = 64;

impl Looks {
    /// Looks at how things stand, unless it did so less than a part of its step ago.
    fn look(&mut self, holdings: &mut Holdings, part: u64) {
        let now = holdings.now_ns();
        let since = now.saturating_sub(self.last);
        if self.first.is_some() && (since == 0 || since < self.step / part) {
            return;
        }
        let first = *self.first.get_or_insert(now);
        (self.last, self.number) = (now, self.number.saturating_add(1));
        if self.number.is_multiple_of(LOOKS) {
            self.step = now.saturating_sub(first) / u64::from(LOOKS / 2);
        }
        let figures = holdings.stock().totals;
        let most = |f: &Figures| (f.ws_1s, f.resident.unwrap_or(0));
        if self.highest.is_none_or(|highest| most(&highest.figures) < most(&figures)) {
            self.highest = Some(Highest { time_ns: now, figures });
        }
    }
}

/// What is held, as things stood at the end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HoldingsReport {
    /// Where it comes from.
    pub provenance: Provenance,
    /// The time called 0, ns.
    pub origin_ns: u64,
    /// The time that the figures are of, ns.
    pub time_ns: u64,
    /// For how long the process observed longest was observed, ns.
    pub observed_ns: u64,
    /// What a line is of.
    pub by: By,
    /// All targets chosen, but those that ended before; what several of them map counts once, with what those that ended did in it.
    /// Filters leave it alone.
    pub totals: Figures,
    /// Lines were chosen by name: the totals are not theirs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub totals_are_of_more: bool,
    /// Processes of which the list of mappings was not read to its end: at least so much is mapped.
    #[serde(skip_serializing_if = "is_none")]
    pub nr_partial: u64,
    /// How things stood when most was in the working set of a second, where that was more than at the end and processes have ended
    /// since: as far as was looked at it, in long recordings some hundred times, and before processes ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub highest: Option<Highest>,
    /// By process: all of each. By object: what each has of its own. Else none.
    pub processes: Vec<ProcessHoldings>,
    /// By mapping: all of them.
    pub mappings: Vec<MappingHoldings>,
    /// By object: files and shared memory.
    pub objects: Vec<ObjectHoldings>,
    /// Processes under observation, and those that ended before.
    pub nr_processes: u64,
    /// Those that ended before, listed or not.
    pub nr_ended: u64,
    /// Lines left out: filtered, or beyond the limit, or of processes that ended, of which only the largest are kept.
    pub hidden: u64,
    /// Processes that gave up memory before they ended, and are shown as they stood before that.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gave_up: Vec<GaveUp>,
    /// Processes that came and went without a snapshot of them: in no line, and not in `nr_processes`.
    pub nr_unseen: u64,
    /// For how long they were known at most, ns.
    pub longest_unseen_ns: u64,
    /// What [`HoldingsOptions::mapping`] asks for, and nothing is.
    #[serde(skip)]
    pub missing: Option<AreaError>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's")]
fn is_none(number: &u64) -> bool {
    *number == 0
}

impl HoldingsAnalysis {
    /// An analysis of nothing yet.
    pub fn new(options: HoldingsOptions) -> Self {
        let standing = Standing { holdings: Holdings::new(options.targets.clone()), looks: Looks::default() };
        Self { options, provenance: Provenance::default(), standing: WithoutEnds::new(standing) }
    }

    /// For reports on a recording that was cut: in what way, a clause.
    pub fn set_truncated(&mut self, how: String) {
        self.provenance.truncated = Some(how);
    }

    /// The report.
    pub fn finish(self) -> HoldingsReport {
        let Self { options, provenance, standing } = self;
        let (Standing { holdings, looks }, mut gave_up) = standing.finish();
        gave_up.retain(|of| options.targets.is_empty() || options.targets.contains(&TargetId(of.target)));
        let all = holdings.processes();
        let mut report = HoldingsReport {
            origin_ns: provenance.origin_ns(),
            time_ns: holdings.now_ns(),
            observed_ns: all.iter().map(|p| p.observed_ns).max().unwrap_or(0),
            by: options.by,
            totals: holdings.totals(),
            totals_are_of_more: !options.mapping.is_empty(),
            nr_partial: all.iter().filter(|p| p.is_partial && p.ended.is_none()).count() as u64,
            highest: None,
            processes: Vec::new(),
            mappings: Vec::new(),
            objects: Vec::new(),
            nr_processes: all.iter().filter(|p| p.ended.is_none()).count() as u64 + holdings.nr_ended(),
            nr_ended: holdings.nr_ended(),
            hidden: 0,
            nr_unseen: holdings.unseen().0,
            longest_unseen_ns: holdings.unseen().1,
            missing: None,
            gave_up,
            provenance,
        };
        if report.nr_ended > 0 {
            report.highest = looks.highest.filter(|highest| highest.figures.ws_1s > report.totals.ws_1s);
        }
        let hidden = &mut report.hidden;
        let mut sought = Sought::new(&options.mapping);
        let mut look = |row: &dyn Line| {
            let (name, figures) = (row.name(), row.figures());
            sought.look(Some(name), figures.mapped, row.is_called(&options.mapping));
        };
        match options.by {
            By::Process => {
                let chosen = |mut row: ProcessHoldings| {
                    row.mappings.iter().for_each(|mapping| look(mapping));
                    options.choose(&mut row.mappings, options.mappings, &mut 0);
                    row.mappings.shrink_to_fit();
                    row
                };
                let mut rows: Vec<_> = holdings.processes_with_mappings().map(chosen).collect();
                if !options.mapping.is_empty() {
                    let before = rows.len();
                    rows.retain(|row| !row.mappings.is_empty());
                    *hidden += (before - rows.len()) as u64;
                }
                options.choose(&mut rows, options.limit, hidden);
                *hidden += holdings.nr_forgotten();
                report.processes = rows;
            }
            By::Mapping => {
                let running = holdings.processes_with_mappings().filter(|p| p.ended.is_none());
                let mut rows: Vec<MappingHoldings> = Vec::new();
                for process in running {
                    process.mappings.iter().for_each(|mapping| look(mapping));
                    rows.extend(process.mappings);
                    // Not all are kept at once where few are asked for.
                    if rows.len() / 2 > options.limit {
                        options.choose(&mut rows, options.limit, hidden);
                    }
                }
                options.choose(&mut rows, options.limit, hidden);
                report.mappings = rows;
            }
            By::Object => {
                let mut rows: Vec<Either> = holdings.objects().into_iter().map(Either::Object).collect();
                rows.iter().for_each(|row| look(row));
                // Whether there is any object or not: none of it is called so.
                sought.look(None, 0, false);
                rows.extend(holdings.own_of_processes().into_iter().map(Either::Process));
                options.choose(&mut rows, options.limit, hidden);
                for row in rows {
                    match row {
                        Either::Object(object) => report.objects.push(object),
                        Either::Process(process) => report.processes.push(process),
                    }
                }
            }
        }
        report.missing = sought.missing().map(|(part, known)| match options.by {
            By::Object => AreaError::NoObject { part, known },
            By::Process | By::Mapping => AreaError::NoName { part, known },
        });
        report
    }
}

impl HoldingsOptions {
    /// Leaves what was asked for, in the order asked for; counts what goes.
    fn choose<R: Line>(&self, rows: &mut Vec<R>, limit: usize, hidden: &mut u64) {
        let before = rows.len();
        rows.retain(|row| {
            let f = row.figures();
            f.resident.unwrap_or(f.mapped) >= self.min_size && row.is_called(&self.mapping)
        });
        rows.sort_by(|a, b| {
            let values = |row: &R| self.sort.values(row.figures());
            let by_size = |row: &R| Reverse((values(row), row.figures().resident, row.figures().mapped));
            let order = match self.sort {
                Sort::Name => a.name().cmp(b.name()),
                _ => by_size(a).cmp(&by_size(b)),
            };
            let order = if self.reverse { order.reverse() } else { order };
            // What is not known is neither large nor small: it comes last, whichever is first.
            values(a)[0].is_none().cmp(&values(b)[0].is_none()).then(order)
        });
        rows.truncate(limit);
        *hidden += (before - rows.len()) as u64;
    }
}

/// What is filtered and sorted.
trait Line {
    fn figures(&self) -> &Figures;
    fn name(&self) -> &str;
    /// Whether it is, or may be, what `--mapping` names.
    fn is_called(&self, word: &str) -> bool;
}

impl Line for ProcessHoldings {
    fn figures(&self) -> &Figures {
        &self.figures
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn is_called(&self, _: &str) -> bool {
        true
    }
}

impl Line for MappingHoldings {
    fn figures(&self) -> &Figures {
        &self.figures
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn is_called(&self, word: &str) -> bool {
        self.path.contains(word) || self.name.contains(word)
    }
}

enum Either {
    Object(ObjectHoldings),
    Process(ProcessHoldings),
}

impl Line for Either {
    fn figures(&self) -> &Figures {
        match self {
            Self::Object(object) => &object.figures,
            Self::Process(process) => &process.figures,
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Object(object) => &object.name,
            Self::Process(process) => &process.name,
        }
    }

    fn is_called(&self, word: &str) -> bool {
        match self {
            Self::Object(object) => object.path.contains(word) || object.id == word,
            Self::Process(_) => word.is_empty(),
        }
    }
}

impl Accumulate for HoldingsAnalysis {
    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.provenance.snapshot(snapshot);
        self.standing.snapshot(snapshot);
    }

    fn note(&mut self, item: &Item) {
        self.provenance.note(item);
        self.standing.note(item);
    }
}
