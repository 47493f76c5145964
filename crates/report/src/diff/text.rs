//! The comparison as a table.

use super::statistics::motion_counts;
use super::{Compared, DiffReport, DiffRow, MISSED, Outcome};
use crate::columns::{self, padded, shortened, wrapped};
use crate::units::{counted, format_share, format_size, format_time, significant};
use std::io::{self, Write};

/// Rows written; of more, those that differ and the largest.
const MAX_ROWS: usize = 20;

/// Writes the comparison into `width` columns, at least 40; below 80 figures stand below the names.
///
/// # Errors
/// Those of `out`.
pub fn write_text(report: &DiffReport, width: usize, out: &mut impl Write) -> io::Result<()> {
    let width = width.max(40);
    for (side, list) in [("A", &report.a), ("B", &report.b)] {
        for one in list {
            let head = one.provenance.title(width - 3);
            let line = format!("{side}: {}: {head}", one.file);
            if columns::width(&line) <= width {
                writeln!(out, "{line}")?;
            } else {
                // A path stays whole: it is there to be copied.
                writeln!(out, "{side}: {}:", one.file)?;
                say(&head, width, 3, out)?;
            }
            for line in one.provenance.foot() {
                say(&line, width, 3, out)?;
            }
        }
    }
    say(&how(report), width, 0, out)?;
    let busy = report.a.iter().chain(&report.b).map(|one| one.missed).fold(0.0, f64::max);
    if busy > MISSED {
        let text = format!(
            "the machine was busy: the monitor was late for {} of its sampling intervals, and the program may have been \
             slower, too; that much more counts as noise",
            format_share(busy)
        );
        say(&text, width, 0, out)?;
    }
    if let Some(text) = motion(report) {
        say(&text, width, 0, out)?;
    }
    writeln!(out)?;
    // 0: below each other.
    let name = width.checked_sub(80).map_or(0, |more| more + 26);
    if name > 0 {
        writeln!(out, "{:name$} {:>11} {:>11} {:>9}", "working set (1 s)", "A", "B", "change")?;
    } else {
        writeln!(out, "working set (1 s)\n  {:>11} {:>11} {:>9}", "A", "B", "change")?;
    }
    line(&report.total, "all", (name, width), out)?;
    let differs = |row: &&DiffRow| row.working_set.significant || row.rate_hz.significant;
    let compared: Vec<&DiffRow> = report.rows.iter().filter(|row| row.working_set.p.is_some()).collect();
    let shown: Vec<&DiffRow> = compared
        .iter()
        .enumerate()
        .filter(|(i, row)| *i < MAX_ROWS || differs(row))
        .map(|(_, row)| *row)
        .collect();
    for row in &shown {
        line(row, &title(row), (name, width), out)?;
    }
    let more = report.rows.len() - shown.len();
    if more > 0 {
        let are = if more == 1 { "mapping is" } else { "mappings are" };
        say(&format!("{more} more {are} too small to compare, or not among the largest"), width, 0, out)?;
    }
    writeln!(out)?;
    let caveat = caveat(report).map_or_else(String::new, |caveat| format!("; {caveat}"));
    say(&format!("{}{caveat}", report.verdict), width, 0, out)?;
    let Some(unlike) = &report.unlike else { return Ok(()) };
    let may = "so a difference may be one of what was seen: record both alike";
    say(&format!("{unlike}: {may}"), width, 0, out)
}

/// What memory in motion makes uncertain, where it counts.
fn motion(report: &DiffReport) -> Option<String> {
    let sides = [&report.a, &report.b];
    if motion_counts(sides.map(Vec::len)) <= 0.0 {
        return None;
    }
    let more = "several recordings a side show it themselves";
    let known = |side: &[Compared]| side.iter().map(|one| one.motion).collect::<Option<Vec<f64>>>();
    let (Some(a), Some(b)) = (known(&report.a), known(&report.b)) else {
        let why = "a recording is too short, or has too little in use, to tell how much memory is in motion, and a tenth is taken to be";
        return Some(format!("{why}: {more}"));
    };
    let [a, b] = [a, b].map(|side| side.into_iter().fold(0.0, f64::max));
    (a.max(b) > 0.0).then(|| {
        let (a, b) = (format_share(a), format_share(b));
        format!(
            "memory in motion: within two seconds {a} of A's working set gave way to other memory, {b} of B's. What another run has in use is \
             uncertain by twice as much, and rates by eight times: {more}"
        )
    })
}

/// Why no difference that was found says little.
fn caveat(report: &DiffReport) -> Option<String> {
    if report.outcome != Outcome::Same {
        return None;
    }
    let single = report.a.iter().chain(&report.b).any(|one| one.blocks_s.len() < 2);
    let hidden = report.total.working_set.detectable.map_or_else(
        || "noise may hide much".to_owned(),
        |share| format!("noise hides what is below {}", format_share(share)),
    );
    single.then(|| {
        format!("but a recording of one block does not show how much it moves by itself, and {hidden}: record for longer")
    })
}

/// Writes a sentence in lines of at most `width` columns, all of them indented.
fn say(text: &str, width: usize, indent: usize, out: &mut impl Write) -> io::Result<()> {
    wrapped(text, width - indent).iter().try_for_each(|line| writeln!(out, "{:indent$}{line}", ""))
}

fn title(row: &DiffRow) -> String {
    let shared = if row.object { " (shared)" } else { "" };
    let program = if row.program.is_empty() { String::new() } else { format!("{}: ", row.program) };
    format!("{program}{}{shared}", row.mapping)
}

fn line(row: &DiffRow, title: &str, (name, width): (usize, usize), out: &mut impl Write) -> io::Result<()> {
    let size = |bytes: f64| format_size(bytes.round().max(0.0) as u64);
    let ws = &row.working_set;
    let change = match ws.change {
        Some(share) => format!("{}{} %", if share >= 0.0 { "+" } else { "" }, significant(share * 100.0, 3)),
        None if ws.b > 0.0 => "new".to_owned(),
        None => String::new(),
    };
    let mut verdict = String::new();
    if ws.outcome != Outcome::Same {
        verdict = ws.verdict.clone();
    }
    if row.rate_hz.significant {
        verdict = if verdict.is_empty() {
            row.rate_hz.verdict.clone()
        } else {
            format!("{verdict}; {}", row.rate_hz.verdict)
        };
    }
    if verdict.is_empty() {
        verdict = ws.none();
    }
    let figures = format!("{:>11} {:>11} {change:>9}", size(ws.a), size(ws.b));
    match name {
        0 => writeln!(out, "{}\n  {figures}", shortened(title, width))?,
        _ => writeln!(out, "{} {figures}", padded(&shortened(title, name), name))?,
    }
    say(&verdict, width, 4, out)
}

/// What was done, and what a difference is.
fn how(report: &DiffReport) -> String {
    let all = || report.a.iter().chain(&report.b);
    let blocks = |one: &Compared| one.blocks_s.len();
    let (fewest, most) = (all().map(blocks).min().unwrap_or(0), all().map(blocks).max().unwrap_or(0));
    let blocks =
        if fewest == most { counted(most as u64, "block") } else { format!("{fewest} to {most} blocks") };
    // Of a short one less is left out.
    let left_out = |seconds: f64| format_time((seconds * 1e9) as u64);
    let least = left_out(all().map(|one| one.settled_s).fold(f64::INFINITY, f64::min));
    let most = left_out(all().map(|one| one.settled_s).fold(0.0, f64::max));
    let settled = if least == most { most } else { format!("{least} to {most}") };
    format!(
        "means over time, compared without the first {settled}, in {blocks} a recording; a difference is one of {} at least, \
         of which noise makes one in {} comparisons like this at most",
        format_share(report.min_change),
        significant(1.0 / report.level.max(1e-9), 3),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Accumulate;
    use crate::diff::{DiffOptions, Profile, compare};
    use crate::synthetic::{MIB, mapping, mappings, region, snapshot};
    use isotherm_record::{Backend, Header, Item, RecordedAttrs};

    /// What is printed of a program that uses `hot` MiB, recorded twice, for so many tenths of a second.
    fn printed(hot: u64, tenths: [u64; 2]) -> String {
        printed_with(hot, tenths, [0.03, 0.03])
    }

    fn printed_with(hot: u64, tenths: [u64; 2], ceilings: [f64; 2]) -> String {
        printed_of(hot, tenths, ceilings.map(|overhead_limit| Header { overhead_limit, ..Header::default() }))
    }

    fn printed_of(hot: u64, tenths: [u64; 2], headers: [Header; 2]) -> String {
        let mut headers = headers.into_iter();
        let [a, b] = tenths.map(|tenths| {
            let mut profile = Profile::new(Vec::new());
            profile.note(&Item::Header(headers.next().unwrap()));
            profile.note(&mappings(1, vec![mapping(0, 64 * MIB, "rw-p", "[heap]", 0, 0)]));
            for i in 0..tenths {
                let regions = vec![region(0, hot * MIB, 20), region(hot * MIB, 64 * MIB, 0)];
                profile.snapshot(&snapshot(i, 1, regions));
            }
            vec![("x.rec".to_owned(), profile)]
        });
        let mut out = Vec::new();
        write_text(&compare(a, b, &DiffOptions::default()), 200, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn recordings_that_saw_differently_are_told() {
        assert!(!printed_with(32, [200, 200], [0.03, 0.03]).contains("recorded with"));
        let text = printed_with(32, [200, 200], [0.03, 0.0]);
        let said = "A was recorded with a ceiling of 3 %, B with no ceiling: so a difference may be one of what was seen";
        assert!(text.contains(said), "{text}");
        // Of an import nobody knows its ceiling, nor what it does not tell.
        let of = |name: &str, sample_us, overhead_limit| Header {
            backend: Backend { name: name.to_owned(), ..Backend::default() },
            attrs: RecordedAttrs { sample_us, ..RecordedAttrs::default() },
            overhead_limit,
            ..Header::default()
        };
        let imported = format!("{}perf-script", isotherm_record::IMPORTED);
        let text = printed_of(32, [200, 200], [of("pte", 5000, 0.03), of(&imported, 0, 0.0)]);
        assert!(
            text.contains(&format!("A was recorded with backend pte, B with backend {imported}: ")),
            "{text}"
        );
    }

    #[test]
    fn how_much_was_left_out_is_that_of_each() {
        assert!(printed(32, [200, 200]).contains("compared without the first 3 s, "));
        let text = printed(32, [200, 30]);
        assert!(text.contains("compared without the first 1 s to 3 s, "), "{text}");
    }

    #[test]
    fn little_that_was_compared_is_no_proof() {
        let end = |text: &str| text.lines().last().unwrap().to_owned();
        assert_eq!(end(&printed(32, [200, 200])), "no significant difference");
        let short = end(&printed(32, [12, 200]));
        for part in
            ["no significant difference", "a recording of one block", "noise hides what is below", " %"]
        {
            assert!(short.contains(part), "{part}: {short}");
        }
        let nothing = end(&printed(0, [200, 200]));
        assert_eq!(
            nothing,
            "unclear whether the working set differs: what is known to be in use is too little to be compared"
        );
    }
}
