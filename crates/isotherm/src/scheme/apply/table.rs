//! What schemes did, for people.

use isotherm_damon::schemes::{Action, Latencies, Status};
use isotherm_linux::schemes::{Halt, KernelCounters, SchemeReport};
use isotherm_report::columns;
use isotherm_report::units::{counted, format_size, format_time};
use std::fmt::Write;
use std::time::Duration;

/// How things stand with the session.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    pub elapsed: Duration,
    /// Targets observed.
    pub targets: usize,
    /// Resident bytes of all targets: the most there were, and now.
    pub resident: Option<(u64, u64)>,
    /// Share of one CPU that monitoring takes, in the last second; `None` before that was measured.
    pub monitor: Option<f64>,
    /// CPU time that acting took in all.
    pub acting: Duration,
    /// What the kernel counted since the start, of the whole machine.
    pub kernel: Option<KernelCounters>,
}

/// Why a scheme does not act, or that it does.
fn status(report: &SchemeReport) -> String {
    match (report.halt, report.status) {
        (Some(Halt::Refaults(rate, _)), _) => format!("suspended: {:.0} % came back", rate * 100.0),
        (Some(Halt::Pressure(share)), _) => format!("suspended: pressure {share:.1} %"),
        (Some(Halt::PressureUnknown), _) => "suspended: pressure cannot be read".into(),
        (None, Status::Active | Status::Suspended) => "active".into(),
        (None, Status::Watermarks) => "off by its watermarks".into(),
        (None, Status::Snapshots) => "done: as many snapshots as asked for".into(),
        (None, Status::Goals) => "waits: no goal can be read".into(),
    }
}

/// How long a call took: half of them, and 99 of 100.
fn latency(latencies: &Latencies) -> String {
    if latencies.count() == 0 {
        return "-".into();
    }
    let of = |percent| format_time(latencies.percentile(percent));
    format!("{}, {}", of(50), of(99))
}

fn refaults(report: &SchemeReport) -> String {
    report.refaults.rate().map_or_else(|| "-".to_owned(), |rate| format!("{:.1} %", rate * 100.0))
}

/// The first line: how long, of what, at what cost.
pub fn head(standing: &Standing) -> String {
    let mut text = format!("{:.0} s", standing.elapsed.as_secs_f64());
    let _ = write!(
        text,
        "  {} {}",
        standing.targets,
        if standing.targets == 1 { "process" } else { "processes" }
    );
    if let Some((most, now)) = standing.resident {
        let _ = write!(text, "  resident {} (most {})", format_size(now), format_size(most));
    }
    let acting = u64::try_from(standing.acting.as_nanos()).unwrap_or(u64::MAX);
    let monitor = standing.monitor.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0));
    let _ = write!(text, "  monitoring {monitor} of a CPU  acting {} of CPU time", format_time(acting));
    text
}

/// What the kernel counted, where a scheme pages out: not of the targets alone.
pub fn machine(standing: &Standing, reports: &[SchemeReport]) -> Option<String> {
    let counted = standing.kernel?;
    reports.iter().any(|report| report.scheme.action == Action::Pageout).then(|| {
        format!(
            "all of the machine, as the kernel counts: {} to swap, {} from swap, {} of files read again",
            format_size(counted.swapped_out),
            format_size(counted.swapped_in),
            format_size(counted.file_refaults),
        )
    })
}

/// A line a scheme, without a table around.
pub fn lines(reports: &[SchemeReport]) -> Vec<String> {
    let line = |report: &SchemeReport| {
        let stats = &report.stats;
        let mut text = format!(
            "{}: {}, tried {}, applied {}, unknown {}, refaults {}",
            report.name,
            status(report),
            format_size(stats.sz_tried),
            format_size(stats.sz_applied),
            format_size(stats.sz_unknown_last),
            refaults(report),
        );
        if report.effective_bytes > 0 {
            let quota = format_size(report.effective_bytes);
            let _ = write!(text, ", quota {quota} a window, full {}", counted(stats.qt_exceeds, "time"));
        }
        text + &left(report)
    };
    reports.iter().map(line).collect()
}

fn left(report: &SchemeReport) -> String {
    let mut reasons: Vec<String> =
        report.left.iter().map(|(reason, bytes)| format!("{} {reason}", format_size(bytes))).collect();
    if report.stats.sz_refused > 0 {
        reasons.push(format!("{} of processes that were gone or new", format_size(report.stats.sz_refused)));
    }
    // The same memory is met with in pass after pass.
    if reasons.is_empty() {
        String::new()
    } else {
        format!(", left alone, sum of all passes: {}", reasons.join(", "))
    }
}

/// All of it in one line, for what is no terminal.
pub fn line(standing: &Standing, reports: &[SchemeReport]) -> String {
    let parts = std::iter::once(head(standing)).chain(lines(reports)).chain(machine(standing, reports));
    parts.collect::<Vec<_>>().join("  | ")
}

/// All of it for a terminal of so many columns: as a table if there is room for one, else a paragraph a scheme. Nothing is cut
/// off.
pub fn on_terminal(standing: &Standing, reports: &[SchemeReport], width: usize) -> Vec<String> {
    let rows = rows(reports);
    let is_narrow = rows.iter().any(|row| columns::width(row) > width);
    let mut text = vec![head(standing)];
    if is_narrow {
        text.extend(lines(reports));
    } else {
        text.extend(rows);
        text.extend(leaving(reports));
    }
    text.extend(machine(standing, reports));
    text.iter().flat_map(|line| columns::wrapped(line, width.max(1))).collect()
}

/// A table of all schemes, with what they left alone below.
pub fn table(reports: &[SchemeReport]) -> Vec<String> {
    rows(reports).into_iter().chain(leaving(reports)).collect()
}

/// What each scheme left alone, if anything.
fn leaving(reports: &[SchemeReport]) -> impl Iterator<Item = String> {
    let some = reports.iter().filter(|report| report.left.total() > 0 || report.stats.sz_refused > 0);
    some.map(|report| format!("{}{}", report.name, left(report).replacen(", ", ": ", 1)))
}

/// The rows of the table, of one width but for the last column.
fn rows(reports: &[SchemeReport]) -> Vec<String> {
    let heads = [
        "scheme",
        "tried",
        "applied",
        "regions",
        "unknown",
        "refaults",
        "quota",
        "full",
        "latency 50, 99 %",
        "status",
    ];
    let mut rows: Vec<Vec<String>> = vec![heads.iter().map(|&head| head.to_owned()).collect()];
    for report in reports {
        let stats = &report.stats;
        let quota = if report.effective_bytes > 0 { format_size(report.effective_bytes) } else { "-".into() };
        rows.push(vec![
            report.name.clone(),
            format_size(stats.sz_tried),
            format_size(stats.sz_applied),
            stats.nr_applied.to_string(),
            format_size(stats.sz_unknown_last),
            refaults(report),
            quota,
            stats.qt_exceeds.to_string(),
            latency(&stats.latencies),
            status(report),
        ]);
    }
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|text| columns::width(text)).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let last = heads.len() - 1;
    rows.iter()
        .map(|row| {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (text, width))| match column {
                0 => columns::padded(text, *width),
                _ if column == last => text.clone(),
                _ => format!("{text:>width$}"),
            });
            cells.collect::<Vec<_>>().join("  ")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_damon::schemes::{AccessPattern, Scheme, Stats};
    use isotherm_linux::actions::{LeftAlone, Refaults};

    fn report(status: Status, action: Action) -> SchemeReport {
        SchemeReport {
            name: "idle".into(),
            scheme: Scheme::new(AccessPattern::ANY, action),
            stats: Stats { sz_tried: 3 << 20, sz_refused: 1 << 20, ..Stats::default() },
            status,
            halt: None,
            effective_bytes: 0,
            left: LeftAlone::default(),
            refaults: Refaults::default(),
            suspensions: 0,
        }
    }

    #[test]
    fn why_a_scheme_waits_and_what_it_could_not_reach_is_said() {
        let waits = report(Status::Goals, Action::Pageout);
        let line = lines(std::slice::from_ref(&waits)).remove(0);
        assert!(line.starts_with("idle: waits: no goal can be read, tried 3.0 MiB"), "{line}");
        assert!(line.ends_with("1.0 MiB of processes that were gone or new"), "{line}");
        let table = table(&[waits]).join("\n");
        assert!(table.contains("no goal can be read") && table.contains("gone or new"), "{table}");
    }

    #[test]
    fn on_a_narrow_terminal_nothing_is_cut_off() {
        let standing = Standing { resident: Some((3 << 30, 2 << 30)), ..Standing::default() };
        let mut hurts = report(Status::Active, Action::Pageout);
        (hurts.halt, hurts.effective_bytes) = (Some(Halt::Refaults(0.31, 0)), 512 << 20);
        let reports = [report(Status::Watermarks, Action::Cold), hurts];
        for width in [20, 40, 80, 100, 132, 400] {
            let lines = on_terminal(&standing, &reports, width);
            assert!(lines.iter().all(|line| columns::width(line) <= width), "{width}: {lines:#?}");
            let text = lines.join(" ");
            for part in ["most 3.0 GiB", "off by its watermarks", "suspended: 31 % came back", "512.0 MiB"] {
                assert!(text.contains(part), "{width}: {part}: {lines:#?}");
            }
            assert_eq!(
                text.contains("latency 50, 99 %"),
                width >= 132,
                "a table where there is room: {lines:#?}"
            );
        }
        assert!(!line(&standing, &reports).contains('\n'));
    }

    #[test]
    fn the_kernels_counters_stand_where_something_is_paged_out() {
        let counted = KernelCounters { swapped_out: 2 << 20, swapped_in: 4096, file_refaults: 0 };
        let standing = Standing { kernel: Some(counted), ..Standing::default() };
        let line = machine(&standing, &[report(Status::Active, Action::Pageout)]).unwrap();
        assert!(line.ends_with("2.0 MiB to swap, 4.0 KiB from swap, 0 B of files read again"), "{line}");
        assert_eq!(machine(&standing, &[report(Status::Active, Action::Cold)]), None);
        // A share of a CPU that was not measured yet is none.
        assert!(head(&standing).contains("monitoring - of a CPU"), "{}", head(&standing));
    }
}
