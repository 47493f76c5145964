//! The report on holdings as a table, and as comma-separated values.

use super::{By, Certainty, Figure, Figures, HoldingsReport, MappingHoldings, ProcessHoldings};
use crate::NOTHING_FITS;
use crate::before_end;
use crate::columns::{self, padded, shortened};
use crate::units::{counted, format_address, format_seconds, format_size, format_size_up, format_time, noun};
use std::io::{self, Write};

/// Columns from which on sizes are written in full.
const WIDE: usize = 150;

/// Writes the table with the head and foot of the recording, into `width` columns, at least 40: below 78 some are left out.
///
/// # Errors
/// Those of `out`.
pub fn write_text(report: &HoldingsReport, width: usize, out: &mut impl Write) -> io::Result<()> {
    for line in report.provenance.head_within(width.max(40)) {
        writeln!(out, "{line}")?;
    }
    write_table(report, width, out)?;
    for line in report.provenance.foot_within(width.max(40)) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Writes the table and what has to be said about it.
///
/// # Errors
/// Those of `out`.
pub fn write_table(report: &HoldingsReport, width: usize, out: &mut impl Write) -> io::Result<()> {
    if report.time_ns == 0 {
        return writeln!(out, "no process was observed: the recording holds no snapshot of one");
    }
    let lines = lines(report);
    let width = width.max(40);
    let table = Table::new(width, &lines);
    table.head(out)?;
    for line in &lines {
        table.line(line, out)?;
    }
    if lines.is_empty() {
        writeln!(out, "{NOTHING_FITS}")?;
    }
    let at = format_seconds(report.time_ns.saturating_sub(report.origin_ns));
    let total = if report.totals_are_of_more { "total of all" } else { "total" };
    let name = format!("{total} at {at} s");
    let fits = columns::width(&name) <= table.name;
    let name = if fits { name } else { total.to_owned() };
    table.line(&Line { name, figures: Some(report.totals), ..Line::default() }, out)?;
    if let Some(highest) = &report.highest {
        let at = format_seconds(highest.time_ns.saturating_sub(report.origin_ns));
        let name = format!("highest, {at} s");
        let name = if columns::width(&name) <= table.name { name } else { "highest".to_owned() };
        table.line(&Line { name, figures: Some(highest.figures), ..Line::default() }, out)?;
    }
    let mut remarks = remarks(report, &lines);
    let left_out = table.left_out();
    if !left_out.is_empty() {
        remarks.push(format!(
            "no room for {}: use a wider terminal, --width, --csv or --json",
            left_out.join(", ")
        ));
    }
    for line in remarks.iter().flat_map(|remark| columns::wrapped(remark, width)) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// What the reader has to know about this table.
fn remarks(report: &HoldingsReport, lines: &[Line]) -> Vec<String> {
    let mut remarks = Vec::new();
    let unknown = match (report.totals.ws_10s, report.totals.ws_60s) {
        (None, _) => Some("working sets of 10 s and 60 s are"),
        (_, None) => Some("the working set of 60 s is"),
        _ => None,
    };
    if let Some(unknown) = unknown {
        remarks.push(format!("observed for {}: {unknown} not known", format_time(report.observed_ns)));
    }
    let missing =
        |f: &Figures| f.cold().contains(&None) || (!f.nothing_known() && f.working_sets().contains(&None));
    if lines.iter().filter_map(|l| l.figures.as_ref()).any(missing) {
        remarks.push("-: not observed for so long, or nothing there to know".to_owned());
    }
    if lines.iter().filter_map(|l| l.figures.as_ref()).any(Figures::nothing_known) {
        remarks
            .push("?: most of it could not be observed, and in the rest no access was: how much is accessed is not known".to_owned());
    }
    if lines.iter().any(|l| l.figures.is_some_and(|f| f.hot.is_some_and(|bytes| bytes > 0))) {
        remarks.push(
            "hot: accessed in a tenth of the sampling intervals and more, on a mean in which 5 s ago counts a seventh"
                .to_owned(),
        );
    }
    let is = |of: fn(&Certainty) -> bool| {
        let known = |f: &Figures| {
            Figure::ALL.iter().any(|figure| f.shown(*figure).is_some() && of(&f.certainty(*figure)))
        };
        lines
            .iter()
            .filter_map(|l| l.figures.as_ref())
            .chain([&report.totals])
            .chain(report.highest.iter().map(|h| &h.figures))
            .any(known)
    };
    let (about, at_most) = (is(|c| *c == Certainty::About), is(|c| matches!(c, Certainty::AtMost(_))));
    if about || at_most {
        let words = match (about, at_most) {
            (true, true) => "~: about, <: no more than:",
            (true, false) => "~: about:",
            _ => "<: no more than:",
        };
        remarks.push(format!("{words} of a region that covers several mappings only the sum is known"));
    }
    if report.totals.resident_at_least().is_some()
        || lines.iter().any(|l| l.figures.is_some_and(|f| f.resident_at_least().is_some()))
    {
        remarks.push("+: and what is there of memory that had not been looked at yet".to_owned());
    }
    if lines.iter().any(|l| l.ended) {
        let but = if report.nr_ended < report.nr_processes {
            ", but for what it did in objects still mapped"
        } else {
            ""
        };
        remarks.push(format!("*: ended before, as it stood then; not in the total{but}"));
    }
    if report.nr_partial > 0 {
        let (nr, their) = (report.nr_partial, if report.nr_partial == 1 { "its" } else { "their" });
        remarks.push(format!(
            "of {} the list of mappings was not read to its end: what is mapped is at least so much, and {their} other files have no line",
            counted(nr, "process")
        ));
    }
    let listed = |target: u64| report.processes.iter().find(|p| p.target == target).map(process_name);
    let named = |target: u64| {
        let of_mapping = || report.mappings.iter().find(|m| m.target == target);
        listed(target).or_else(|| of_mapping().map(|m| called(&m.process, m.pid, target)))
    };
    let gave_up: Vec<_> = report.gave_up.iter().filter(|of| named(of.target).is_some()).copied().collect();
    remarks
        .extend(before_end::remark(&gave_up, report.origin_ns, |target| named(target).unwrap_or_default()));
    if report.highest.is_some() {
        remarks.push(
            "highest: when most was accessed within a second, with those that have ended since".to_owned(),
        );
    }
    if report.nr_processes > 1 {
        remarks.push(
            "in the total, files and shared memory count once, memory of a fork in each process".to_owned(),
        );
    }
    if report.nr_unseen > 0 {
        let them = if report.nr_unseen == 1 { "it" } else { "them" };
        remarks.push(format!(
            "{} more {} ended before a snapshot of {them} was taken, within {} of being found: nothing is known of {them}",
            report.nr_unseen,
            noun(report.nr_unseen, "process"),
            format_time(report.longest_unseen_ns)
        ));
    }
    if report.hidden > 0 {
        let what = match report.by {
            By::Process => "process",
            By::Mapping => "mapping",
            By::Object => "object or process",
        };
        let are = if report.hidden == 1 { "is" } else { "are" };
        remarks.push(match (report.by, report.hidden) {
            (By::Object, 2..) => format!("{} objects and processes are not listed", report.hidden),
            _ => format!("{} {are} not listed", counted(report.hidden, what)),
        });
    }
    remarks
}

/// A line of the table.
#[derive(Clone, Debug, Default)]
struct Line {
    name: String,
    figures: Option<Figures>,
    ended: bool,
    /// Where it begins, or how many map it.
    place: String,
}

fn process_line(p: &ProcessHoldings, what: &str) -> Line {
    let star = if p.ended.is_some() { "*" } else { "" };
    let name = process_name(p);
    let place = String::new();
    Line { name: format!("{what}{name}{star}"), figures: Some(p.figures), ended: p.ended.is_some(), place }
}

fn process_name(p: &ProcessHoldings) -> String {
    called(&p.name, p.pid, p.target)
}

fn called(name: &str, pid: u32, target: u64) -> String {
    match (name, pid) {
        ("", 0) => format!("target {target}"),
        ("", pid) => format!("pid {pid}"),
        (name, pid) => format!("{name} {pid}"),
    }
}

fn mapping_line(m: &MappingHoldings, what: &str) -> Line {
    let name = format!("{what}{}", m.name);
    let place = format_address(m.start);
    Line { name, figures: Some(m.figures), ended: false, place }
}

fn lines(report: &HoldingsReport) -> Vec<Line> {
    let mut lines = Vec::new();
    match report.by {
        By::Process => {
            for process in &report.processes {
                lines.push(process_line(process, ""));
                lines.extend(process.mappings.iter().map(|m| mapping_line(m, "  ")));
            }
        }
        By::Mapping => lines.extend(report.mappings.iter().map(|m| {
            let pid = if m.pid == 0 { m.target } else { u64::from(m.pid) };
            mapping_line(m, &format!("{pid} "))
        })),
        By::Object => {
            lines.extend(report.objects.iter().map(|o| Line {
                name: o.name.clone(),
                figures: Some(o.figures),
                ended: false,
                place: match o.mappers {
                    0 => "unmapped".to_owned(),
                    mappers => counted(mappers, "process"),
                },
            }));
            lines.extend(report.processes.iter().map(|p| process_line(p, "own: ")));
        }
    }
    lines
}

/// How the columns lie.
struct Table {
    name: usize,
    wide: bool,
    place: usize,
    /// Which columns there is room for, in their order.
    columns: Vec<usize>,
}

/// A column of figures.
struct Column {
    /// Its head below that of its group, and how wide it is when sizes are short.
    head: (&'static str, usize),
    /// The same where some columns are left out, and with them the heads of groups.
    alone: (&'static str, usize),
    /// The lower, the sooner it is left out.
    rank: u8,
}

const fn column(head: (&'static str, usize), alone: (&'static str, usize), rank: u8) -> Column {
    Column { head, alone, rank }
}

const COLUMNS: [Column; 10] = [
    column(("mapped", 7), ("mapped", 7), 4),
    column(("resid.", 7), ("resid.", 7), 9),
    column(("1 s", 5), ("ws 1s", 6), 8),
    column(("10 s", 5), ("ws10s", 6), 5),
    column(("60 s", 5), ("ws60s", 6), 3),
    column(("hot", 5), ("hot", 5), 7),
    column(("10 s", 6), ("cold10s", 8), 6),
    column(("1 m", 5), ("cold1m", 7), 2),
    column(("5 m", 5), ("cold5m", 7), 1),
    // What could not be observed belongs beside every other figure.
    column(("unkn.", 6), ("unkn.", 6), 10),
];

/// The width of each when sizes are written in full.
const FULL: usize = 12;

/// The least width for names: with all columns, and where some are left out.
const NAME: usize = 20;
const SHORT_NAME: usize = 14;

impl Table {
    fn new(width: usize, lines: &[Line]) -> Self {
        let wide = width >= WIDE;
        let mut columns: Vec<usize> = (0..COLUMNS.len()).collect();
        let taken = |columns: &[usize]| columns.iter().map(|c| cell_width(*c, wide, columns)).sum::<usize>();
        // A column is there whole or not at all: of a figure that is cut nobody can tell.
        if taken(&columns) + NAME > width {
            while taken(&columns) + SHORT_NAME > width && columns.len() > 1 {
                // Of a column in which nothing is known the reader has nothing.
                let worth = |at: &usize| (holds_something(columns[*at], lines), COLUMNS[columns[*at]].rank);
                let least = (0..columns.len()).min_by_key(worth);
                columns.remove(least.unwrap_or(0));
            }
        }
        let figures = taken(&columns);
        let longest =
            |of: fn(&Line) -> &String| lines.iter().map(|l| columns::width(of(l))).max().unwrap_or(0);
        let place = longest(|l| &l.place);
        // Where it begins is of less use than its name.
        let place = if place > 0 && figures + 24 + 2 + place <= width { place + 2 } else { 0 };
        let room = width.saturating_sub(figures + place).max(1);
        let name = longest(|l| &l.name).max(NAME).min(room);
        Self { name, wide, place, columns }
    }

    /// What is not shown, for want of room.
    fn left_out(&self) -> Vec<&'static str> {
        let missing = (0..COLUMNS.len()).filter(|c| !self.columns.contains(c));
        missing.map(|c| COLUMNS[c].alone.0).collect()
    }

    fn width(&self, column: usize) -> usize {
        cell_width(column, self.wide, &self.columns)
    }

    fn head(&self, out: &mut impl Write) -> io::Result<()> {
        let all = self.columns.len() == COLUMNS.len();
        let group = |from: usize, to: usize, title: &str| {
            let width: usize = (from..to).map(|c| self.width(c)).sum();
            format!("{:>width$}", format!("{title:-^w$}", w = width - 1))
        };
        if all {
            let before = self.name + self.width(0) + self.width(1);
            let groups = format!(
                "{:before$}{}{:hot$}{}",
                "",
                group(2, 5, "working set"),
                "",
                group(6, 9, "cold since"),
                hot = self.width(5)
            );
            writeln!(out, "{groups}")?;
        }
        let head = |c: &usize| if all { COLUMNS[*c].head.0 } else { COLUMNS[*c].alone.0 };
        let heads: String =
            self.columns.iter().map(|c| format!("{:>w$}", head(c), w = self.width(*c))).collect();
        writeln!(out, "{:w$}{heads}", "", w = self.name)
    }

    fn line(&self, line: &Line, out: &mut impl Write) -> io::Result<()> {
        let mut text = padded(&shortened(&line.name, self.name), self.name);
        if let Some(f) = &line.figures {
            let size = |bytes: u64| if self.wide { format_size(bytes) } else { short_size(bytes) };
            let about = |bytes: u64| if self.wide { format_size(bytes) } else { rough_size(bytes, false) };
            let no_less =
                |bytes: u64| if self.wide { format_size_up(bytes) } else { rough_size(bytes, true) };
            let without = |figure| match figure {
                Figure::WorkingSet(_) if !f.nothing_known() => "-",
                Figure::Cold(_) => "-",
                _ => "?",
            };
            let cell = |figure| match (f.shown(figure), f.certainty(figure)) {
                (None, _) => without(figure).to_owned(),
                (Some(bytes), Certainty::Measured) => size(bytes),
                (Some(bytes), Certainty::About) => format!("~{}", about(bytes)),
                (Some(_), Certainty::AtMost(most)) => format!("<{}", no_less(most)),
            };
            let mut cells = vec![size(f.mapped)];
            cells.extend(Figure::ALL.map(cell));
            if let Some(told) = f.resident_at_least() {
                cells[1] = format!("{}+", size(told));
            }
            for column in &self.columns {
                text.push_str(&format!("{:>w$}", cells[*column], w = self.width(*column)));
            }
        }
        if self.place > 0 {
            text.push_str("  ");
            text.push_str(&line.place);
        }
        writeln!(out, "{}", text.trim_end())
    }
}

/// Whether any line has a figure there. That nothing is unknown is worth knowing, and resident bytes are marked where they are
/// not told.
fn holds_something(column: usize, lines: &[Line]) -> bool {
    let value = |f: &Figures| match column {
        2..=4 => f.working_sets()[column - 2],
        5 => f.known_hot(),
        6..=8 => f.cold()[column - 6],
        _ => Some(0),
    };
    lines.iter().filter_map(|l| l.figures.as_ref()).any(|f| value(f).is_some())
}

/// How wide a column is beside these.
fn cell_width(column: usize, wide: bool, columns: &[usize]) -> usize {
    match (wide, columns.len() == COLUMNS.len()) {
        (true, _) => FULL,
        (false, true) => COLUMNS[column].head.1,
        (false, false) => COLUMNS[column].alone.1,
    }
}

/// Bytes in at most four characters: `0`, `4.0K` (KiB), `579M` (MiB), `1.1G` (GiB).
pub fn short_size(bytes: u64) -> String {
    const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];
    if bytes == 0 {
        return "0".to_owned();
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value < 0.05 && unit == 0 {
        return "<.1K".to_owned();
    }
    if value < 9.95 { format!("{value:.1}{}", UNITS[unit]) } else { format!("{value:.0}{}", UNITS[unit]) }
}

/// The same of a figure with a mark before it, in at most three characters: to the nearest, or up where it is a bound.
fn rough_size(bytes: u64, up: bool) -> String {
    const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];
    if bytes == 0 {
        return "0".to_owned();
    }
    let round = if up { f64::ceil } else { f64::round };
    let mut value = bytes as f64 / 1024.0;
    let mut units = UNITS.into_iter().peekable();
    while let Some(unit) = units.next() {
        let whole = round(value).max(1.0);
        let Some(next) = units.peek().filter(|_| whole >= 100.0) else { return format!("{whole}{unit}") };
        // Of hundreds the next unit has tenths.
        let tenths = round(value / 102.4);
        if tenths < 10.0 {
            return format!(".{tenths}{next}");
        }
        value /= 1024.0;
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rough_sizes_take_three_characters() {
        for (bytes, text) in [
            (0, "0"),
            (100, "1K"),
            (4096, "4K"),
            (64 << 10, "64K"),
            (9_900, "10K"),
            (500 << 10, ".5M"),
            (949 << 10, ".9M"),
            (999 << 10, "1M"),
            (579 << 20, ".6G"),
            (1126 << 20, "1G"),
        ] {
            assert_eq!(rough_size(bytes, false), text);
        }
        for (bytes, text) in [
            (0, "0"),
            (1, "1K"),
            (64 << 10, "64K"),
            ((64 << 10) + 1, "65K"),
            (99 << 10, "99K"),
            ((99 << 10) + 1, ".1M"),
            (1434 << 10, "2M"),
            (820 << 10, ".9M"),
            (922 << 10, "1M"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(rough_size(bytes, true), text, "{bytes}");
        }
    }

    #[test]
    fn what_is_printed_of_a_bound_is_no_less() {
        let value = |text: &str| {
            let (number, unit) = text.split_at(text.len() - 1);
            let power = "KMGTPE".find(unit).unwrap() as i32 + 1;
            number.parse::<f64>().unwrap() * 1024_f64.powi(power)
        };
        let mut bytes = 1_u64;
        while bytes < 1 << 52 {
            for bytes in [bytes, bytes + 1, bytes * 7 / 5] {
                let (up, near) = (rough_size(bytes, true), rough_size(bytes, false));
                assert!(up.len() <= 3 && near.len() <= 3, "{bytes}: {up} {near}");
                assert!(value(&up) >= bytes as f64, "{bytes}: {up}");
                assert!(
                    (value(&near) - bytes as f64).abs() <= (value(&up) - bytes as f64).abs().max(1023.0),
                    "{bytes}: {near}"
                );
            }
            bytes += bytes / 37 + 1;
        }
    }

    #[test]
    fn short_sizes_take_four_characters() {
        for (bytes, text) in [
            (0, "0"),
            (1, "<.1K"),
            (512, "0.5K"),
            (4096, "4.0K"),
            (10 << 10, "10K"),
            (999 << 10, "999K"),
            (1023 << 10, "1.0M"),
            (579 << 20, "579M"),
            (1126 << 20, "1.1G"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(short_size(bytes), text);
            assert!(text.len() <= 4);
        }
    }
}
