//! The access report as a table.

use super::{AccessReport, Totals};
use crate::NOTHING_FITS;
use crate::before_end;
use crate::columns::{shortened, wrapped};
use crate::space::UNKNOWN_MAPPING;
use crate::units::{
    counted, format_address, format_rate, format_seconds, format_share, format_size, format_time,
};
use isotherm_damon::TargetId;
use std::io::{self, Write};

/// Writes a table a target, sums by rate, a legend, and the head and foot of the recording, into `width` columns, at least
/// 40: where a row does not fit, figures go below the addresses, and those that still do not fit are left out.
///
/// # Errors
/// Those of `out`.
pub fn write_text(report: &AccessReport, width: usize, out: &mut impl Write) -> io::Result<()> {
    let width = width.max(40);
    for line in report.provenance.head_within(width) {
        writeln!(out, "{line}")?;
    }
    if report.snapshots == 0 {
        writeln!(out, "no snapshot in the chosen time")?;
    } else {
        let at = |ns: u64| format_seconds(ns.saturating_sub(report.origin_ns));
        let how = counted(report.snapshots, "snapshot");
        let when =
            format!("from {} s to {} s of the recording, {how}", at(report.start_ns), at(report.end_ns));
        write_wrapped(&when, width, out)?;
        let regions = || report.targets.iter().flat_map(|t| &t.regions);
        let columns =
            Columns::new(regions().any(|r| r.resident.is_some()), regions().any(|r| r.seen < 1.0), width);
        for target in &report.targets {
            writeln!(out)?;
            write_wrapped(&target.name, width, out)?;
            let address = if target.object.is_some() { "offset" } else { "address" };
            columns.write(out, address, ["size", "resident", "rate", "rate %", "seen", "age"], "mapping")?;
            for r in &target.regions {
                let addresses = format!("{:>14}-{:<14}", format_address(r.start), format_address(r.end));
                let share = match r.rate_hz {
                    _ if r.is_absent() => String::new(),
                    Some(_) => r.rate_share.map_or_else(|| "?".to_owned(), format_share),
                    None => String::new(),
                };
                let cells = [
                    format_size(r.size),
                    r.resident.map_or_else(|| "?".to_owned(), format_size),
                    match r.rate_hz {
                        _ if r.is_absent() => ABSENT.to_owned(),
                        Some(hz) => format_rate(hz),
                        None => "unknown".to_owned(),
                    },
                    share,
                    if r.is_absent() { String::new() } else { format_share(r.seen) },
                    format_time(r.age_ns),
                ];
                let cells = cells.each_ref().map(String::as_str);
                columns.write(out, &addresses, cells, r.mapping.as_deref().unwrap_or(UNKNOWN_MAPPING))?;
            }
            if target.unlisted_regions > 0 {
                let regions = counted(target.unlisted_regions, "more region");
                let size = format_size(target.unlisted_bytes);
                write_wrapped(&format!("{regions}, {size}, not listed: --limit"), width, out)?;
            }
            if report.targets.len() > 1 {
                write_totals(&target.totals, report.ceiling_hz, width, out)?;
            }
        }
        writeln!(out)?;
        if report.targets.is_empty() && report.hidden_regions > 0 {
            write_wrapped(NOTHING_FITS, width, out)?;
        }
        if report.targets.len() > 1 {
            let all = "all of it; files and shared memory count once, memory of a fork in each target";
            write_wrapped(all, width, out)?;
        }
        write_totals(&report.totals, report.ceiling_hz, width, out)?;
        for note in notes(report, columns.seen) {
            write_wrapped(&note, width, out)?;
        }
    }
    for line in report.provenance.foot_within(width) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn write_wrapped(text: &str, width: usize, out: &mut impl Write) -> io::Result<()> {
    wrapped(text, width).iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// What the reader has to know of the table; `seen`: shares that could be observed are in it.
fn notes(report: &AccessReport, seen: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if report.hidden_regions > 0 {
        let size = format_size(report.hidden_bytes);
        let regions = counted(report.hidden_regions, "region");
        let resident = report
            .hidden_resident
            .map_or_else(String::new, |bytes| format!(" ({} resident)", format_size(bytes)));
        let unknown = match report.hidden_unknown_bytes {
            0 => String::new(),
            bytes => format!("; {} of it is unknown", format_size(bytes)),
        };
        notes.push(format!("not shown: {regions}, {size}{resident}, which the filters exclude{unknown}"));
    }
    let name = |id| report.provenance.target_name(TargetId(id));
    notes.extend(before_end::remark(&report.gave_up, report.origin_ns, name));
    notes.push(format!(
        "rate: sampling intervals a second in which the region was seen accessed, 100 % is {}; age: for how long it kept \
         about that rate",
        format_rate(report.ceiling_hz)
    ));
    let mut regions = report.targets.iter().flat_map(|target| &target.regions);
    if report.totals.absent_bytes > 0 || regions.any(|region| region.is_absent()) {
        notes.push(format!(
            "{ABSENT}: mapped, but not in memory: never touched, given back or swapped out; neither cold nor unknown, and \
             shares are of the rest"
        ));
    }
    if seen {
        notes.push(
            "seen: share of the region that could be observed, whose rate it is; unknown is not 0 Hz, and `--rate` leaves it out"
                .to_owned(),
        );
    }
    notes
}

/// What is said of memory that is mapped and not in memory.
const ABSENT: &str = "not there";

/// The columns that not every recording has, nor every terminal room for.
#[derive(Clone, Copy)]
struct Columns {
    resident: bool,
    seen: bool,
    share: bool,
    /// Figures stand below the addresses.
    below: bool,
    width: usize,
}

/// Columns of a row's addresses, and of its size, rate and age.
const ADDRESSES: usize = 31;
const FIGURES: usize = 31;
/// Room for the name of a mapping in a row: `[heap]`.
const NAME: usize = 8;

impl Columns {
    fn new(resident: bool, seen: bool, width: usize) -> Self {
        let mut columns = Self { resident, seen, share: true, below: false, width };
        if ADDRESSES + columns.figures() + NAME <= width {
            return columns;
        }
        columns.below = true;
        // The least useful first.
        for drop in
            [|c: &mut Self| c.share = false, |c: &mut Self| c.seen = false, |c: &mut Self| c.resident = false]
        {
            if 2 + columns.figures() > width {
                drop(&mut columns);
            }
        }
        columns
    }

    fn figures(&self) -> usize {
        FIGURES + usize::from(self.resident) * 11 + usize::from(self.share) * 8 + usize::from(self.seen) * 8
    }

    /// Writes a row: size, resident, rate, rate %, seen, age.
    fn write(&self, out: &mut impl Write, first: &str, cells: [&str; 6], last: &str) -> io::Result<()> {
        let [size, resident, rate, share, seen, age] = cells;
        if self.below {
            let first = first.trim();
            let name = shortened(last, self.width.saturating_sub(first.len() + 2));
            writeln!(out, "{first}  {name}")?;
            write!(out, "  {size:>10} ")?;
        } else {
            write!(out, "{first:>29}  {size:>10} ")?;
        }
        if self.resident {
            write!(out, "{resident:>10} ")?;
        }
        write!(out, "{rate:>9} ")?;
        if self.share {
            write!(out, "{share:>7} ")?;
        }
        if self.seen {
            write!(out, "{seen:>7} ")?;
        }
        match self.below {
            true => writeln!(out, "{age:>8}"),
            false => writeln!(out, "{age:>8}  {last}"),
        }
    }
}

fn write_totals(totals: &Totals, ceiling_hz: f64, width: usize, out: &mut impl Write) -> io::Result<()> {
    let there = totals.bytes.saturating_sub(totals.absent_bytes).max(1) as f64;
    let all = if totals.absent_bytes > 0 { "of what is there" } else { "of all" };
    let mut line = |what: &str, bytes: u64, second: &str, rest: &str| {
        let size = format_size(bytes);
        let line = format!("{what:>29}  {size:>10} {second:>9} {rest}");
        if crate::columns::width(&line) <= width {
            return writeln!(out, "{line}");
        }
        let second = if second.is_empty() { String::new() } else { format!("{second} ") };
        let lines = wrapped(&format!("{what}: {size}, {second}{rest}"), width - 4);
        let indents = std::iter::once("  ").chain(std::iter::repeat("    "));
        lines.iter().zip(indents).try_for_each(|(line, indent)| writeln!(out, "{indent}{line}"))
    };
    for class in &totals.classes {
        if class.regions == 0 && class.bytes == 0 {
            continue;
        }
        let rates = match class.up_to_share {
            0.0 => "at 0 Hz".to_owned(),
            up_to => format!("up to {}", format_rate(up_to * ceiling_hz)),
        };
        let share = format_share(class.bytes as f64 / there);
        line(&rates, class.bytes, &share, &format!("{all}, {}", counted(class.regions, "region")))?;
    }
    if totals.unknown_bytes > 0 {
        let share = format_share(totals.unknown_bytes as f64 / there);
        let regions = counted(totals.unknown_regions, "region");
        line("unknown", totals.unknown_bytes, &share, &format!("{all}, {regions} and parts of others"))?;
    }
    if totals.absent_bytes > 0 {
        let regions = counted(totals.absent_regions, "region");
        line(ABSENT, totals.absent_bytes, "", &format!("{regions} and parts of others"))?;
    }
    let resident =
        totals.resident.map_or_else(String::new, |bytes| format!(", {} resident", format_size(bytes)));
    let regions = counted(totals.regions, "region");
    line("total", totals.bytes, &format_rate(totals.rate_hz), &format!("on average, {regions}{resident}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Accumulate;
    use crate::access::{AccessAnalysis, AccessOptions, Pattern, Selection};
    use crate::synthetic::{MIB, region, snapshot, stairs, unknown};
    use crate::units::Bounds;
    use crate::units::Rate;
    use isotherm_damon::RegionSnapshot;
    use std::time::Duration;

    fn text(options: AccessOptions, each: u64) -> String {
        within(100, options, each)
    }

    fn within(width: usize, options: AccessOptions, each: u64) -> String {
        let mut analysis = AccessAnalysis::new(options);
        stairs(0x7f00_0000_0000, each).iter().for_each(|s| analysis.snapshot(s));
        let mut out = Vec::new();
        write_text(&analysis.finish(), width, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_row_carries_its_units() {
        let text = text(AccessOptions::default(), 1);
        let hot = text.lines().find(|l| l.contains("0x7f0005a00000-")).unwrap();
        for part in ["0x7f0006400000", "10.0 MiB", "200 Hz", "100 %", "300 ms"] {
            assert!(hot.contains(part), "{part} in {hot}");
        }
        for part in ["at 0 Hz", "90.0 MiB", "90 % of all", "20 Hz on average, 10 regions", "100 % is 200 Hz"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn on_a_narrow_terminal_figures_are_whole_or_not_there() {
        for width in [40, 60, 80] {
            let text = within(width, AccessOptions::default(), 1);
            let (at, row) =
                text.lines().enumerate().find(|(_, l)| l.contains("0x7f0005a00000-0x7f0006400000")).unwrap();
            let figures = if width < 80 { text.lines().nth(at + 1).unwrap() } else { row };
            for part in ["10.0 MiB", "200 Hz", "300 ms"] {
                assert!(figures.contains(part), "{part} in {figures}: {text}");
            }
            // A name in the last column may go on in the next line.
            let taken =
                |line: &str| crate::columns::width(line.trim_end_matches("unknown mapping").trim_end());
            assert!(text.lines().all(|line| taken(line) <= width), "{width}: {text}");
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(
                words.contains("90.0 MiB") && words.contains("90 % of all, 9 regions"),
                "{width}: {text}"
            );
        }
    }

    #[test]
    fn what_filters_hide_is_counted() {
        let pattern =
            Pattern { min_rate: Some(Rate::Hz(1.0)), size: Bounds::default(), ..Pattern::default() };
        let text = text(AccessOptions { pattern, ..AccessOptions::default() }, 1);
        assert!(text.contains("not shown: 9 regions, 90.0 MiB"), "{text}");
    }

    /// A process that reserved a terabyte, used some of it, and has some more of which nothing is known.
    #[test]
    fn addresses_without_memory_are_neither_cold_nor_unknown() {
        let with = |region: RegionSnapshot, resident| RegionSnapshot { resident: Some(resident), ..region };
        let (tib, used) = (1 << 40, 1 << 30);
        let regions = vec![
            with(region(0, MIB, 20), MIB),
            with(region(MIB, used, 0), 3 * MIB),
            with(region(used, tib, 0), 0),
            with(unknown(tib, 2 * tib), 0),
        ];
        for selection in [Selection::Last, Selection::Between(Duration::ZERO, Duration::MAX)] {
            let mut analysis = AccessAnalysis::new(AccessOptions { selection, ..AccessOptions::default() });
            analysis.snapshot(&snapshot(0, 1, regions.clone()));
            let report = analysis.finish();
            let totals = &report.totals;
            assert_eq!((totals.classes[0].bytes, totals.classes[4].bytes), (3 * MIB, MIB));
            assert_eq!((totals.unknown_bytes, totals.absent_bytes), (0, 2 * tib - 4 * MIB));
            assert_eq!((totals.resident, totals.absent_regions, totals.rate_hz), (Some(4 * MIB), 2, 50.0));
            let mut out = Vec::new();
            write_text(&report, 120, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(text.lines().all(|l| !l.trim_start().starts_with("unknown ")), "{text}");
            let line = |start: &str| text.lines().find(|l| l.trim_start().starts_with(start)).unwrap();
            assert!(line("at 0 Hz").contains(" 3.0 MiB      75 % of what is there, 1 region"), "{text}");
            assert!(line("not there").contains("2.0 TiB"), "{text}");
            assert!(line("total").ends_with("50 Hz on average, 4 regions, 4.0 MiB resident"), "{text}");
            assert_eq!(text.matches(" not there").count(), 2 + 1, "two rows and their sum: {text}");
            assert!(text.contains("\nnot there: mapped, but not in memory"), "{text}");
        }
    }

    #[test]
    fn without_snapshots_it_says_so() {
        assert!(text(AccessOptions::default(), 0).contains("no snapshot"));
    }
}
