//! What the screen shows, and how keys change it. Knows nothing of terminals, nor of how it is drawn.

pub use super::rows::{Column, Cursor, MappingRow, Row, Sort};
use super::rows::{matches, value};
use isotherm_damon::{AddrRange, TargetId};
use isotherm_report::holdings::{COLD_S, WINDOWS_S};
use isotherm_report::units::format_address;

/// Lengths of a column of the heatmap, ms.
pub const COLUMN_MS: [u64; 10] = [100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000];
/// That of one second.
const SECOND: usize = 3;

/// What the heatmap shows of the address space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Shown {
    /// Where the heat is.
    #[default]
    Hot,
    /// These addresses.
    Range(AddrRange),
}

/// Parts of the screen of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Parts {
    #[default]
    Both,
    Heatmap,
    Mappings,
}

/// A process that was entered.
#[derive(Clone, Debug)]
pub struct Entered {
    pub id: TargetId,
    pub cursor: Cursor,
    /// Address of the selected mapping, which keeps it selected when others come and go.
    pub selected: Option<u64>,
    pub sort: Sort,
    pub filter: String,
    pub shown: Shown,
    /// Index into [`COLUMN_MS`].
    pub column: usize,
    /// The right edge, ns; `None`: now.
    pub until: Option<u64>,
    pub parts: Parts,
}

impl Entered {
    pub fn new(id: TargetId) -> Self {
        Self {
            id,
            cursor: Cursor::default(),
            selected: None,
            sort: Sort::by(Column::WorkingSet),
            filter: String::new(),
            shown: Shown::Hot,
            column: SECOND,
            until: None,
            parts: Parts::Both,
        }
    }

    /// Length of a column, ns.
    pub fn column_ns(&self) -> u64 {
        COLUMN_MS[self.column.min(COLUMN_MS.len() - 1)] * 1_000_000
    }
}

/// What is typed at the bottom of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Part of a name.
    Filter,
    /// A file.
    Save,
}

/// What a key or a click asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Quit,
    Help,
    /// By lines of that.
    HelpBy(isize),
    /// To the list, or one step less deep.
    Back,
    Move(isize),
    /// By whole pages of the visible list.
    Page(isize),
    First,
    Last,
    /// The row with this index.
    Select(usize),
    Enter,
    SortNext,
    SortBefore,
    SortBy(Column),
    Reverse,
    Ask(Prompt),
    Type(char),
    Erase,
    EraseAll,
    Accept,
    Pause,
    /// The next window of the working set, the next time since which memory is cold.
    Window,
    ColdSince,
    /// In by this factor below 1, out by one above, about an address, or about the middle.
    Zoom(f64, Option<u64>),
    /// By a share of what is visible; up is positive.
    Pan(f64),
    Show(Shown),
    /// Longer or shorter columns.
    Stretch(isize),
    /// By columns; back is negative.
    Travel(i64),
    Now,
    Parts,
    Redraw,
    Suspend,
    /// Something on the screen was pointed at: say what it is.
    Say(String),
}

/// What must be done outside of this module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    None,
    Quit,
    Suspend,
    /// All of the screen is sent again.
    Redraw,
    /// What is kept, and the screen, is written to this file.
    Save(String),
}

/// What the state has to know of what is shown, to heed keys.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The list that is shown, in its order.
    pub ids: Vec<TargetId>,
    /// The entered process's mappings, in their order.
    pub mappings: Vec<AddrRange>,
    /// Lines of the list.
    pub page: usize,
    /// The addresses that the heatmap shows, the hottest area first.
    pub areas: Vec<AddrRange>,
    /// The addresses that are to be shown, where the heatmap shows parts of them only: what is mapped there lies far apart.
    pub parts_of: Option<AddrRange>,
    /// Where the process has memory.
    pub limits: Option<AddrRange>,
    /// Columns of the heatmap.
    pub columns: u64,
    /// What is kept, ns.
    pub kept: Option<(u64, u64)>,
}

/// The state of the screen.
#[derive(Clone, Debug)]
pub struct State {
    pub cursor: Cursor,
    pub selected: Option<TargetId>,
    pub sort: Sort,
    pub filter: String,
    pub entered: Option<Entered>,
    /// Since when, ns.
    pub paused: Option<u64>,
    pub help: bool,
    /// How far down in it, and how far that can be: lines.
    pub help_at: (usize, usize),
    pub prompt: Option<(Prompt, String)>,
    /// Said at the bottom until the next key.
    pub message: Option<String>,
    pub window: usize,
    pub cold: usize,
    /// What a snapshot is called unless another name is typed.
    pub file: String,
}

impl Default for State {
    fn default() -> Self {
        Self {
            cursor: Cursor::default(),
            selected: None,
            sort: Sort::by(Column::WorkingSet),
            filter: String::new(),
            entered: None,
            paused: None,
            help: false,
            help_at: (0, 0),
            prompt: None,
            message: None,
            window: 0,
            cold: 0,
            file: "isotherm-top.rec".into(),
        }
    }
}

impl State {
    /// Sorts and filters the list, and finds the selected process in it again.
    pub fn arrange(&mut self, rows: &mut Vec<Row>) {
        let (sort, window, cold) = (self.sort, self.window, self.cold);
        rows.retain(|row| matches(&self.filter, &[&row.name, &row.command, &row.pid.to_string()]));
        rows.sort_by(|a, b| {
            let figure = |row: &Row| value(row.figures.as_ref(), sort.by, window, cold);
            let resident = |row: &Row| row.figures.and_then(|figures| figures.resident);
            let order = match sort.by {
                Column::Key => sort.order(a.pid.cmp(&b.pid)),
                Column::Name => sort.order(a.name.cmp(&b.name)),
                _ => sort.order_figures(figure(a), figure(b)),
            };
            // Of equals the larger first, then by pid, so that rows do not jump about.
            order.then(resident(b).cmp(&resident(a))).then(a.pid.cmp(&b.pid)).then(a.id.cmp(&b.id))
        });
        // At the top it stays at the top; elsewhere it stays with the process.
        if let Some(at) = self.selected.and_then(|id| rows.iter().position(|row| row.id == id)) {
            self.cursor.at = at;
        }
        self.cursor.at = self.cursor.at.min(rows.len().saturating_sub(1));
    }

    /// The same for the mappings of the entered process.
    pub fn arrange_mappings(&mut self, rows: &mut Vec<MappingRow>) {
        let (window, cold) = (self.window, self.cold);
        let Some(entered) = &mut self.entered else { return };
        let sort = entered.sort;
        rows.retain(|row| matches(&entered.filter, &[&row.name, &row.path]));
        rows.sort_by(|a, b| {
            let figure = |row: &MappingRow| value(Some(&row.figures), sort.by, window, cold);
            let order = match sort.by {
                Column::Key => sort.order(a.range.start.cmp(&b.range.start)),
                Column::Name => sort.order(a.name.cmp(&b.name)),
                _ => sort.order_figures(figure(a), figure(b)),
            };
            let larger = b.figures.resident.cmp(&a.figures.resident);
            order.then(larger).then(a.range.start.cmp(&b.range.start))
        });
        if let Some(at) = entered.selected.and_then(|at| rows.iter().position(|r| r.range.start == at)) {
            entered.cursor.at = at;
        }
        entered.cursor.at = entered.cursor.at.min(rows.len().saturating_sub(1));
    }

    /// Does what is asked for.
    pub fn apply(&mut self, action: Action, seen: &Seen) -> Effect {
        if !matches!(action, Action::Type(_) | Action::Erase | Action::EraseAll) {
            self.message = None;
        }
        match action {
            Action::Quit => return Effect::Quit,
            Action::Suspend => return Effect::Suspend,
            Action::Redraw => return Effect::Redraw,
            Action::Help => (self.help, self.help_at) = (!self.help, (0, 0)),
            Action::HelpBy(lines) => {
                let (at, most) = self.help_at;
                self.help_at = (at.saturating_add_signed(lines).min(most), most);
            }
            Action::Back => self.back(),
            Action::Pause => {
                self.paused = match self.paused {
                    None => Some(seen.kept.map_or(0, |(_, last)| last)),
                    Some(_) => None,
                };
            }
            Action::Window => self.window = (self.window + 1) % WINDOWS_S.len(),
            Action::ColdSince => self.cold = (self.cold + 1) % COLD_S.len(),
            Action::Ask(prompt) => {
                let text = match prompt {
                    Prompt::Save => self.file.clone(),
                    Prompt::Filter => self.filter_mut().clone(),
                };
                self.prompt = Some((prompt, text));
            }
            Action::Type(c) => self.edit(|text| text.push(c)),
            Action::Erase => self.edit(|text| _ = text.pop()),
            Action::EraseAll => self.edit(String::clear),
            Action::Accept => {
                if let Some((Prompt::Save, name)) = self.prompt.take()
                    && !name.trim().is_empty()
                {
                    self.file.clone_from(&name);
                    return Effect::Save(name);
                }
            }
            Action::Say(text) => self.message = Some(text),
            Action::SortNext => {
                let sort = self.sort_mut();
                *sort = Sort::by(sort.by.after(1));
            }
            Action::SortBefore => {
                let sort = self.sort_mut();
                *sort = Sort::by(sort.by.after(Column::ALL.len() - 1));
            }
            Action::SortBy(column) => self.sort_mut().choose(column),
            Action::Reverse => {
                let sort = self.sort_mut();
                sort.reverse = !sort.reverse;
            }
            Action::Move(by) => self.step(by, seen),
            Action::Page(by) => self.step(by.saturating_mul(seen.page.max(2) as isize - 1), seen),
            Action::First => self.step(isize::MIN, seen),
            Action::Last => self.step(isize::MAX, seen),
            Action::Select(at) => {
                let from = self.entered.as_ref().map_or(self.cursor.at, |e| e.cursor.at);
                self.step(at as isize - from as isize, seen);
            }
            Action::Enter => self.enter(seen),
            other => self.look(other, seen),
        }
        Effect::None
    }

    /// What moves the heatmap.
    fn look(&mut self, action: Action, seen: &Seen) {
        let Some(entered) = &mut self.entered else { return };
        match action {
            Action::Show(shown) => entered.shown = shown,
            Action::Zoom(factor, about) => {
                let hottest = seen.areas.first().copied();
                let all = about.and_then(|at| seen.areas.iter().find(|r| r.contains(at)).copied());
                let now = match &entered.shown {
                    // In leads into a part, out to all parts there are: between them is nothing to see.
                    Shown::Range(range) if seen.parts_of == Some(*range) && factor < 1.0 => all.or(hottest),
                    Shown::Range(range) if seen.parts_of == Some(*range) => {
                        let limits = seen.limits.filter(|limits| limits.size() > range.size());
                        entered.shown = limits.map_or(Shown::Hot, Shown::Range);
                        return;
                    }
                    Shown::Range(range) => Some(*range),
                    Shown::Hot => all.or(hottest),
                };
                if let (Some(now), Some(limits)) = (now, seen.limits) {
                    entered.shown = zoomed(now, factor, about, limits);
                }
            }
            Action::Pan(share) => {
                let now = match &entered.shown {
                    Shown::Range(range) if seen.parts_of != Some(*range) => Some(*range),
                    _ => seen.areas.first().copied(),
                };
                if let (Some(now), Some(limits)) = (now, seen.limits) {
                    entered.shown = Shown::Range(panned(now, share, limits));
                }
            }
            Action::Stretch(by) => {
                entered.column = entered.column.saturating_add_signed(by).min(COLUMN_MS.len() - 1);
            }
            Action::Travel(columns) => {
                let Some((first, last)) = seen.kept else { return };
                let column = entered.column_ns();
                let now = self.paused.unwrap_or(last);
                let at = entered.until.unwrap_or(now);
                let to = at.saturating_add_signed(columns.saturating_mul(column as i64));
                // At least one column of what is kept stays visible.
                let to = to.max(first.saturating_add(column));
                entered.until = (to < now).then_some(to);
            }
            Action::Now => entered.until = None,
            Action::Parts => {
                entered.parts = match entered.parts {
                    Parts::Both => Parts::Heatmap,
                    Parts::Heatmap => Parts::Mappings,
                    Parts::Mappings => Parts::Both,
                };
            }
            _ => {}
        }
    }

    /// Changes what is typed; a filter is heeded while it is.
    fn edit(&mut self, change: impl FnOnce(&mut String)) {
        if let Some((prompt, text)) = &mut self.prompt {
            change(text);
            if *prompt == Prompt::Filter {
                *self.filter_mut() = self.typed();
            }
        }
    }

    fn typed(&self) -> String {
        self.prompt.as_ref().map_or_else(String::new, |(_, text)| text.clone())
    }

    fn filter_mut(&mut self) -> &mut String {
        match &mut self.entered {
            Some(entered) => &mut entered.filter,
            None => &mut self.filter,
        }
    }

    fn sort_mut(&mut self) -> &mut Sort {
        match &mut self.entered {
            Some(entered) => &mut entered.sort,
            None => &mut self.sort,
        }
    }

    fn back(&mut self) {
        if self.help {
            self.help = false;
        } else if let Some((prompt, _)) = self.prompt.take() {
            if prompt == Prompt::Filter {
                self.filter_mut().clear();
            }
        } else if let Some(entered) = &mut self.entered {
            if entered.shown != Shown::Hot {
                entered.shown = Shown::Hot;
            } else if !entered.filter.is_empty() {
                entered.filter.clear();
            } else {
                self.entered = None;
            }
        } else {
            self.filter.clear();
        }
    }

    fn step(&mut self, by: isize, seen: &Seen) {
        match &mut self.entered {
            Some(entered) => {
                entered.cursor.step(by, seen.mappings.len());
                entered.selected = seen.mappings.get(entered.cursor.at).map(|range| range.start);
            }
            None => {
                self.cursor.step(by, seen.ids.len());
                self.selected = seen.ids.get(self.cursor.at).copied();
            }
        }
    }

    fn enter(&mut self, seen: &Seen) {
        match &mut self.entered {
            Some(entered) => {
                if let Some(range) = seen.mappings.get(entered.cursor.at) {
                    entered.shown = Shown::Range(*range);
                }
            }
            None => {
                if let Some(&id) = seen.ids.get(self.cursor.at) {
                    self.selected = Some(id);
                    self.entered = Some(Entered::new(id));
                }
            }
        }
    }
}

/// Least that is shown, bytes: two dozen pages.
const LEAST: u64 = 96 << 10;

/// `now` by `factor`, about an address that stays where it is. Out of what is there it leads to where the heat is.
fn zoomed(now: AddrRange, factor: f64, about: Option<u64>, limits: AddrRange) -> Shown {
    let about = about.filter(|at| now.contains(*at)).unwrap_or(now.start + now.size() / 2);
    let size = now.size() as f64 * factor;
    if size > 2.0 * limits.size() as f64 || (factor > 1.0 && now.size() >= limits.size()) {
        return Shown::Hot;
    }
    let size = (size as u64).max(LEAST);
    let share = (about - now.start) as f64 / now.size().max(1) as f64;
    let start = about.saturating_sub((size as f64 * share) as u64);
    Shown::Range(within(start, size, limits))
}

fn panned(now: AddrRange, share: f64, limits: AddrRange) -> AddrRange {
    let by = (now.size() as f64 * share) as i64;
    within(now.start.saturating_add_signed(by), now.size(), limits)
}

/// `size` bytes from `start`, in whole pages, moved so far that they lie within `limits`.
fn within(start: u64, size: u64, limits: AddrRange) -> AddrRange {
    let size = size.min(limits.size().max(LEAST)).next_multiple_of(4096);
    let start = start.clamp(limits.start, limits.end.saturating_sub(size).max(limits.start)) & !0xfff;
    AddrRange::new(start, start.saturating_add(size))
}

/// The addresses of a range, for people.
pub fn addresses(range: AddrRange) -> String {
    format!("{}-{}", format_address(range.start), format_address(range.end))
}

#[cfg(test)]
mod tests;
