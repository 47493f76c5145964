//! A frame: from the model and the state of the screen to what each place of the terminal shows.

use super::chrome;
use super::explained;
use super::gather::{self, Head, Process};
use super::heat::Heat;
use super::keys::Places;
use super::model::{Model, Shared};
use super::paint::Scroll;
use super::process::{self, Grid};
use super::state::{Action, Column, Effect, Parts, Seen, Shown, State};
use super::style::Look;
use super::table;
use super::{list, state};
use crossterm::event::Event;
use isotherm_damon::{AddrRange, TargetId};
use isotherm_report::colour::ColourMode;
use isotherm_report::heatmap::{Area, Cell};
use isotherm_report::units::{format_rate, format_size, significant};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// What can be clicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Head(Column),
    Row(usize),
}

/// Places that can be clicked.
pub type Hits = Vec<(Rect, Target)>;

/// The areas with the heat are looked for anew after this long, if less than half of the heat is in those shown.
const LOOK_AGAIN_NS: u64 = 5_000_000_000;
/// The past by which they are chosen.
const CHOOSE_BY_NS: u64 = 30_000_000_000;
/// Areas shown at most.
const MOST_AREAS: usize = 3;

/// The areas that were chosen for a process.
#[derive(Debug, Default)]
struct Chosen {
    id: Option<TargetId>,
    areas: Vec<Area>,
    /// Of which parts they were chosen; none: of all there is.
    parts: Vec<AddrRange>,
    at_ns: u64,
}

/// Where the heatmap of the last frame was.
#[derive(Clone, Debug, PartialEq)]
struct Drawn {
    grid: Grid,
    panels: Vec<(Area, usize)>,
    column_ns: u64,
    scale_hz: f64,
    last: u64,
}

/// All that makes frames.
pub struct Screen {
    pub state: State,
    model: Shared,
    look: Look,
    heat: Heat,
    chosen: Chosen,
    drawn: Option<Drawn>,
    hits: Hits,
    seen: Seen,
    /// All that is known at the moment of the pause, and what the screen took then. Lists, processes and heatmaps are of
    /// this one moment, whichever of them are looked at.
    frozen: Option<(Shared, f64)>,
    /// The entered process while it ran: of one that ended, mappings and their names are forgotten elsewhere.
    alive: Option<(TargetId, Process)>,
    /// Share of a CPU that the screen takes.
    pub cost: f64,
}

impl Screen {
    pub fn new(model: Shared, look: Look) -> Self {
        Self {
            state: State::default(),
            model,
            look,
            heat: Heat::default(),
            chosen: Chosen::default(),
            drawn: None,
            hits: Vec::new(),
            seen: Seen::default(),
            frozen: None,
            alive: None,
            cost: 0.0,
        }
    }

    /// Heeds an event; `None`: it means nothing here.
    pub fn event(&mut self, event: &Event) -> Option<Effect> {
        let action = super::keys::action(event, &self.state, self)?;
        Some(self.act(action))
    }

    fn act(&mut self, action: Action) -> Effect {
        if action == Action::Pause && self.state.paused.is_none() {
            let frozen = self.model.lock().frozen();
            self.seen.kept = frozen.kept();
            self.frozen = Some((Shared::new(frozen), self.cost));
        }
        let effect = self.state.apply(action, &self.seen);
        if self.state.paused.is_none() {
            self.frozen = None;
        }
        effect
    }

    /// What is known: while paused, at the moment of the pause.
    pub fn known(&self) -> &Shared {
        self.frozen.as_ref().map_or(&self.model, |(frozen, _)| frozen)
    }

    /// The head for what is known; that all is over is said also while paused.
    fn head(&self, model: &Model) -> Head {
        let mut head = Head::of(model);
        if self.frozen.is_some() {
            head.over.clone_from(&self.model.lock().over);
        }
        head
    }

    /// What the screen takes; while paused, what it took.
    fn own_cost(&self) -> f64 {
        self.frozen.as_ref().map_or(self.cost, |(_, cost)| *cost)
    }

    /// What is to be shown on a screen of this size, and which part of the last frame only moved.
    pub fn frame(&mut self, width: u16, height: u16) -> (Buffer, Vec<Scroll>) {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        self.hits.clear();
        if width < 20 || height < 3 {
            self.drawn = None;
            table::put(&mut buffer, area, 0, width, "too small", true, self.look.bold());
            return (buffer, Vec::new());
        }
        let top = chrome::head_lines(height);
        let head_area = Rect { height: top, ..area };
        let foot = Rect { y: height - 1, height: 1, ..area };
        let body = Rect { y: top, height: height - top - 1, ..area };
        let mut scrolls = Vec::new();
        if self.state.entered.is_some() {
            scrolls = self.process(head_area, body, &mut buffer);
        }
        if self.state.entered.is_none() {
            self.list(head_area, body, &mut buffer);
        }
        chrome::foot(&self.state, foot, self.look, &mut buffer);
        if self.state.help {
            let (at, _) = self.state.help_at;
            let most = explained::draw(area, at, self.look, &mut buffer);
            self.state.help_at = (at.min(most), most);
            // What lies over the heatmap does not move with it.
            self.drawn = None;
            scrolls.clear();
        }
        (buffer, scrolls)
    }

    /// The same as a terminal without colours would show it: what a text is to hold, where nothing is told by colours.
    pub fn without_colours(&mut self, width: u16, height: u16) -> Buffer {
        let look = std::mem::replace(&mut self.look, Look(ColourMode::Plain));
        // Columns that were drawn, and what can be clicked, are those of the screen.
        let (heat, drawn) = (std::mem::take(&mut self.heat), self.drawn.take());
        let (hits, seen) = (self.hits.clone(), self.seen.clone());
        let (buffer, _) = self.frame(width, height);
        (self.look, self.heat, self.drawn, self.hits, self.seen) = (look, heat, drawn, hits, seen);
        buffer
    }

    fn list(&mut self, head_area: Rect, body: Rect, buffer: &mut Buffer) {
        self.drawn = None;
        let (head, mut rows) = {
            let model = self.known().lock();
            (self.head(&model), gather::rows(&model))
        };
        self.state.arrange(&mut rows);
        self.seen.kept = head.kept;
        self.seen.ids = rows.iter().map(|row| row.id).collect();
        chrome::head(&head, None, &self.state, self.own_cost(), head_area, self.look, buffer);
        self.seen.page = list::draw(&mut self.state, &rows, &head, body, self.look, &mut self.hits, buffer);
    }

    fn process(&mut self, head_area: Rect, body: Rect, buffer: &mut Buffer) -> Vec<Scroll> {
        let Some(id) = self.state.entered.as_ref().map(|entered| entered.id) else { return Vec::new() };
        let (head, found) = {
            let model = self.known().lock();
            (self.head(&model), Process::of(&model, id))
        };
        let Some(mut process) = found else {
            // It ended, and what it did is past what is kept.
            self.state.entered = None;
            self.state.message = Some("the process ended, and nothing of it is kept any more".into());
            return Vec::new();
        };
        match &self.alive {
            Some((alive, last)) if *alive == id && process.ended.is_some() => {
                let ended = process.ended.take();
                process = last.clone();
                process.ended = ended;
            }
            _ => self.alive = Some((id, process.clone())),
        }
        let mut rows = std::mem::take(&mut process.mappings);
        self.state.arrange_mappings(&mut rows);
        self.seen.mappings = rows.iter().map(|row| row.range).collect();
        self.seen.kept = head.kept;
        self.seen.limits = process.limits();
        let Some(entered) = self.state.entered.clone() else { return Vec::new() };
        let places = process::places(body, entered.parts, rows.len());
        chrome::head(
            &head,
            Some((&process, &entered)),
            &self.state,
            self.own_cost(),
            head_area,
            self.look,
            buffer,
        );
        let scrolls = match entered.parts {
            Parts::Mappings => {
                self.drawn = None;
                Vec::new()
            }
            _ => self.heat(&entered, &process, &head, places.heat, buffer),
        };
        let page = process::draw_mappings(
            &mut self.state,
            &rows,
            places.mappings,
            self.look,
            &mut self.hits,
            buffer,
        );
        self.seen.page = page.max(1);
        scrolls
    }

    /// Chooses what the heatmap shows.
    fn areas(&mut self, entered: &state::Entered, process: &Process, now: u64) -> Vec<Area> {
        let id = entered.id;
        self.seen.parts_of = None;
        if let Shown::Range(range) = entered.shown {
            let parts = process.parts(range);
            if parts.iter().any(|part| part.range() != range) {
                self.seen.parts_of = Some(range);
            }
            return if parts.len() > 1 { self.hottest(id, parts, now) } else { parts };
        }
        if !self.chosen.parts.is_empty() {
            self.chosen = Chosen::default();
        }
        let again = now >= self.chosen.at_ns.saturating_add(LOOK_AGAIN_NS);
        if self.chosen.id != Some(id) || self.chosen.areas.is_empty() || again {
            let from = now.saturating_sub(CHOOSE_BY_NS);
            let recent =
                gather::material(&self.known().lock(), id, now.saturating_sub(LOOK_AGAIN_NS), now + 1);
            let same = self.chosen.id == Some(id) && !self.chosen.areas.is_empty();
            let fits = recent.share_in(&self.chosen.areas).is_none_or(|share| share >= 0.5);
            if !same || !fits {
                let material = gather::material(&self.known().lock(), id, from, now + 1);
                self.chosen.areas = material.areas(id, MOST_AREAS);
            }
            (self.chosen.id, self.chosen.at_ns) = (Some(id), now);
        }
        self.chosen.areas.clone()
    }

    /// Of parts that lie far apart, those to show, the hottest first. They stay, until the heat is elsewhere.
    fn hottest(&mut self, id: TargetId, parts: Vec<Area>, now: u64) -> Vec<Area> {
        let ranges: Vec<AddrRange> = parts.iter().map(Area::range).collect();
        let same = self.chosen.id == Some(id) && self.chosen.parts == ranges;
        if !same || now >= self.chosen.at_ns.saturating_add(LOOK_AGAIN_NS) {
            let recent = if same { LOOK_AGAIN_NS } else { CHOOSE_BY_NS };
            let material = gather::material(&self.known().lock(), id, now.saturating_sub(recent), now + 1);
            let heat = |area: &Area| material.share_in(std::slice::from_ref(area)).unwrap_or(0.0);
            let mut ranked: Vec<(f64, Area)> = parts.into_iter().map(|area| (heat(&area), area)).collect();
            ranked.sort_by(|(a, one), (b, other)| {
                b.total_cmp(a).then(other.range().size().cmp(&one.range().size()))
            });
            if !same || !ranked.first().is_some_and(|(_, hottest)| self.chosen.areas.contains(hottest)) {
                self.chosen.areas = ranked.into_iter().take(MOST_AREAS).map(|(_, area)| area).collect();
            }
            (self.chosen.id, self.chosen.parts, self.chosen.at_ns) = (Some(id), ranges, now);
        }
        self.chosen.areas.clone()
    }

    fn heat(
        &mut self,
        entered: &state::Entered,
        process: &Process,
        head: &Head,
        area: Rect,
        buffer: &mut Buffer,
    ) -> Vec<Scroll> {
        let before = self.drawn.take();
        let grid = Grid::new(area, self.look);
        let Some((_, end)) = head.kept.filter(|_| grid.cells.height > 1 && grid.cells.width > 0) else {
            return Vec::new();
        };
        let known_to = self.state.paused.unwrap_or(end).min(end);
        let until = entered.until.unwrap_or(known_to).min(known_to);
        let areas = self.areas(entered, process, known_to);
        self.seen.areas = areas.iter().map(Area::range).collect();
        if areas.is_empty() {
            let text = "nothing of it was seen yet";
            table::put(buffer, area, 1, area.width.saturating_sub(1), text, true, self.look.dim());
            return Vec::new();
        }
        // Shares of the heat go with the time and would have all drawn anew.
        let target = Some(entered.id.0);
        let areas: Vec<Area> = areas.into_iter().map(|a| Area { target, heat_share: None, ..a }).collect();
        self.heat.show(entered.id, grid.panels(&areas), entered.column_ns(), head.started_ns);
        // The column that ends with the right edge.
        let last = self.heat.column_at(until.saturating_sub(1));
        let first = (last + 1).saturating_sub(u64::from(grid.cells.width));
        self.seen.columns = u64::from(grid.cells.width);
        let (model, id) = (self.known().clone(), entered.id);
        self.heat.update(first..last + 1, known_to, |from, to| {
            gather::material(&model.lock(), id, from, to.min(known_to))
        });
        process::draw_heat(&self.heat, &grid, last, head.started_ns, self.look, buffer);
        let drawn = Drawn {
            grid,
            panels: self.heat.panels().to_vec(),
            column_ns: entered.column_ns(),
            scale_hz: self.heat.scale_hz,
            last,
        };
        let moved = before.filter(|before| *before == Drawn { last: before.last, ..drawn.clone() });
        let by = moved.map_or(0, |before| last.saturating_sub(before.last));
        let full = last + 1 >= u64::from(grid.cells.width);
        self.drawn = Some(drawn);
        match u16::try_from(by) {
            // Until the screen is full, columns stand where they are.
            Ok(by) if by > 0 && by < grid.cells.width && full => self.scrolls(&grid, by),
            _ => Vec::new(),
        }
    }

    /// Lines of cells, and the axis below them; titles stay.
    fn scrolls(&self, grid: &Grid, by: u16) -> Vec<Scroll> {
        let unit = usize::from(grid.rows_per_line);
        let mut scrolls = Vec::new();
        let mut y = grid.cells.y;
        for (_, rows) in self.heat.panels().iter().rev() {
            let lines = (rows / unit) as u16;
            let area = Rect { y: y + 1, height: lines, ..grid.cells };
            scrolls.push(Scroll { area: area.intersection(grid.cells), by });
            y += 1 + lines;
        }
        scrolls.push(Scroll {
            area: Rect { y: grid.cells.bottom(), height: grid.axis_lines(), ..grid.cells },
            by,
        });
        scrolls
    }

    fn pointed(&self, x: u16, y: u16) -> Option<process::Pointed> {
        let drawn = self.drawn.as_ref()?;
        let first = (drawn.last + 1).saturating_sub(u64::from(drawn.grid.cells.width));
        process::pointed(&self.heat, &drawn.grid, first, x, y)
    }
}

impl Places for Screen {
    fn target(&self, x: u16, y: u16) -> Option<Target> {
        self.hits.iter().find(|(area, _)| area.contains((x, y).into())).map(|(_, target)| *target)
    }

    fn address(&self, x: u16, y: u16) -> Option<u64> {
        self.pointed(x, y).map(|pointed| pointed.range.start + pointed.range.size() / 2)
    }

    fn words(&self, x: u16, y: u16) -> Option<String> {
        let pointed = self.pointed(x, y)?;
        let drawn = self.drawn.as_ref()?;
        let rate = match pointed.cell {
            Cell::Rate(hz) => format_rate(hz),
            Cell::Unknown => "unknown".into(),
            Cell::Empty => "not monitored".into(),
        };
        let seconds = (pointed.column * drawn.column_ns) as f64 / 1e9;
        Some(format!(
            "{} at {} s, {} of {} ({})",
            rate,
            significant(seconds, 6),
            state::addresses(pointed.range),
            if pointed.name.is_empty() { "?" } else { &pointed.name },
            format_size(pointed.range.size())
        ))
    }
}

#[cfg(test)]
mod tests;
