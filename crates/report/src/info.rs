//! What a recording holds: who made it where and when, how, of what, how long, how large, and whether it is whole.

use crate::Accumulate;
use crate::columns::{padded, shortened, wrapped_whole};
use crate::names::printable;
use crate::provenance::Provenance;
use crate::rate::{GAP_S, interval_ns};
use crate::units::{SECOND_NS, counted, format_share, format_size, format_time, significant};
use isotherm_damon::Snapshot;
use isotherm_record::{Item, RecordedAttrs, command_line};
use serde::Serialize;
use std::collections::HashMap;
use std::io::{self, Write};

/// Changes of attributes and targets listed; more are counted.
const MAX_LISTED: usize = 1024;

/// The file that was read, as far as its items do not say it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FileInfo {
    /// Its name.
    pub path: String,
    /// The format.
    pub format: String,
    /// The format's version, where it has one.
    pub version: Option<String>,
    /// Size on disk; `null` for a stream.
    pub bytes: Option<u64>,
    /// What is wrong with it, and what was assumed; a sentence each.
    pub remarks: Vec<String>,
    /// Whether nothing is missing.
    pub complete: bool,
}

/// Attributes that came into force while recording.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AttrsChange {
    /// From when, ns.
    pub time_ns: u64,
    /// What they were from then on.
    pub attrs: RecordedAttrs,
}

/// A target of the recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TargetSpan {
    /// Target id.
    pub id: u64,
    /// Process id; 0: not known.
    pub pid: u32,
    /// Target id of its parent.
    pub parent: Option<u64>,
    /// Name of the program, as last seen.
    pub comm: String,
    /// Its command line.
    pub cmdline: Vec<String>,
    /// Start of its first snapshot, ns; `null` when it is in none.
    pub first_ns: Option<u64>,
    /// End of its last snapshot, ns.
    pub last_ns: Option<u64>,
    /// Snapshots it is in.
    pub snapshots: u64,
    /// Its regions in all of them.
    pub regions: u64,
    /// Its mappings, as last recorded.
    pub mappings: u64,
    /// How it ended.
    pub ended: Option<String>,
}

/// Collects what a recording holds.
#[derive(Clone, Debug, Default)]
pub struct InfoAnalysis {
    provenance: Provenance,
    first_attrs: RecordedAttrs,
    changes: Vec<AttrsChange>,
    nr_changes: u64,
    targets: Vec<TargetSpan>,
    index: HashMap<u64, usize>,
    max_regions: u64,
    mappings: u64,
    longest_ns: u64,
    gap_ns: u64,
    started: bool,
    has_end: bool,
}

/// What a recording holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InfoReport {
    /// The file.
    pub file: FileInfo,
    /// Who made it where, of what, at what cost. Its list of targets is empty: they are in [`Self::targets`].
    pub provenance: Provenance,
    /// Start in wall-clock time, `2026-01-31T23:59:59Z`; `null` where the recording does not say.
    pub started: Option<String>,
    /// From the start of the first snapshot to the end of the last, ns.
    pub duration_ns: u64,
    /// Longest time between the end of a snapshot and the start of the next, ns.
    pub longest_gap_ns: u64,
    /// Regions a snapshot, all targets together, on the mean.
    pub mean_regions: f64,
    /// The most in one.
    pub max_regions: u64,
    /// Size on disk a region.
    pub bytes_per_region: Option<f64>,
    /// Attributes at the start.
    pub first_attrs: RecordedAttrs,
    /// Their changes; the first 1024.
    pub attrs_changes: Vec<AttrsChange>,
    /// How many there were.
    pub nr_attrs_changes: u64,
    /// Mappings of all targets, as last recorded of each.
    pub mappings: u64,
    /// Whether it has an end, which a recorder writes that was not killed; formats of other programs have none.
    pub has_end: bool,
    /// Targets in order of appearance; the first 1024.
    pub targets: Vec<TargetSpan>,
    /// How many there are.
    pub nr_targets: u64,
}

impl InfoAnalysis {
    fn target(&mut self, id: u64) -> Option<&mut TargetSpan> {
        let at = match self.index.get(&id) {
            Some(at) => *at,
            None if self.targets.len() < MAX_LISTED => {
                self.index.insert(id, self.targets.len());
                self.targets.push(TargetSpan { id, ..TargetSpan::default() });
                self.targets.len() - 1
            }
            None => return None,
        };
        self.targets.get_mut(at)
    }

    /// The report on `file`.
    pub fn finish(mut self, file: FileInfo) -> InfoReport {
        self.provenance.targets = Vec::new();
        let provenance = self.provenance;
        let started_ns = provenance.started_unix_ns;
        let per = |n: u64, by: u64| if by > 0 { n as f64 / by as f64 } else { 0.0 };
        InfoReport {
            started: (started_ns > 0).then(|| utc(started_ns)),
            duration_ns: provenance.length_ns(),
            longest_gap_ns: self.gap_ns,
            mean_regions: per(provenance.regions, provenance.snapshots),
            max_regions: self.max_regions,
            bytes_per_region: file
                .bytes
                .filter(|_| provenance.regions > 0)
                .map(|b| per(b, provenance.regions)),
            first_attrs: self.first_attrs,
            attrs_changes: self.changes,
            nr_attrs_changes: self.nr_changes,
            mappings: self.mappings,
            has_end: self.has_end,
            nr_targets: provenance.nr_targets.max(self.targets.len() as u64),
            targets: self.targets,
            provenance,
            file,
        }
    }
}

impl Accumulate for InfoAnalysis {
    fn snapshot(&mut self, snapshot: &Snapshot) {
        let (start, end) = interval_ns(snapshot);
        if self.started {
            self.gap_ns = self.gap_ns.max(start.saturating_sub(self.provenance.last_ns));
        }
        self.started = true;
        self.longest_ns = self.longest_ns.max(end - start);
        self.provenance.snapshot(snapshot);
        self.max_regions = self.max_regions.max(snapshot.nr_regions() as u64);
        for target in &snapshot.targets {
            let regions = target.regions.len() as u64;
            if let Some(span) = self.target(target.id.0) {
                span.first_ns = Some(span.first_ns.unwrap_or(start));
                span.last_ns = Some(end);
                span.snapshots += 1;
                span.regions += regions;
            }
        }
    }

    fn note(&mut self, item: &Item) {
        self.provenance.note(item);
        match item {
            Item::Header(header) => self.first_attrs = header.attrs,
            Item::Target(info) => {
                let info = info.clone();
                if let Some(span) = self.target(info.id) {
                    (span.pid, span.parent, span.comm, span.cmdline) =
                        (info.pid, info.parent, info.comm, info.cmdline);
                }
            }
            Item::Mappings(mappings) => {
                let nr = mappings.maps.len() as u64;
                let before =
                    self.target(mappings.target).map(|span| std::mem::replace(&mut span.mappings, nr));
                self.mappings = self.mappings.saturating_sub(before.unwrap_or(0)) + nr;
            }
            Item::Attrs { time_ns, attrs } => {
                self.nr_changes += 1;
                if self.changes.len() < MAX_LISTED {
                    self.changes.push(AttrsChange { time_ns: *time_ns, attrs: *attrs });
                }
            }
            Item::TargetEnd(end) => {
                if let Some(span) = self.target(end.target) {
                    span.ended = Some(end.reason.clone());
                }
            }
            Item::End(_) => self.has_end = true,
            Item::Snapshot(_) | Item::Cost(_) | Item::Action(_) => {}
        }
    }
}

/// Nanoseconds since 1970 as a date and time of day, UTC.
fn utc(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years of 365.2425 days that begin in March, so that the leap day is the last (H. Hinnant, "chrono-Compatible Low-Level
    // Date Algorithms").
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

fn attrs_text(attrs: &RecordedAttrs) -> String {
    let time = |us: u64| if us > 0 { format_time(us.saturating_mul(1000)) } else { "unknown".to_owned() };
    let mut text = format!("sampling {}, aggregation {}", time(attrs.sample_us), time(attrs.aggr_us));
    if attrs.update_us > 0 {
        text.push_str(&format!(", regions update {}", time(attrs.update_us)));
    }
    if attrs.max_nr_regions > 0 {
        text.push_str(&format!(", {} to {} regions", attrs.min_nr_regions, attrs.max_nr_regions));
    }
    text
}

/// Writes a line a fact, broken where it is longer than `width` columns; the targets when `targets` is set.
///
/// # Errors
/// Those of `out`.
pub fn write_text(report: &InfoReport, targets: bool, width: usize, out: &mut impl Write) -> io::Result<()> {
    let mut fact = |name: &str, value: &str| {
        let lines = wrapped_whole(&printable(value), width.saturating_sub(13).max(20));
        let names = std::iter::once(name).chain(std::iter::repeat(""));
        lines.iter().zip(names).try_for_each(|(line, name)| writeln!(out, "{name:<12} {line}"))
    };
    let (file, from) = (&report.file, &report.provenance);
    let version = file.version.as_ref().map_or_else(String::new, |v| format!(", version {v}"));
    fact("file", &file.path)?;
    fact("format", &format!("{}{version}", file.format))?;
    let size = match (file.bytes, report.bytes_per_region) {
        (Some(bytes), Some(each)) => {
            format!("{} on disk, {} bytes a region", format_size(bytes), significant(each, 3))
        }
        (Some(bytes), None) => format!("{} on disk", format_size(bytes)),
        (None, _) => "a stream".to_owned(),
    };
    fact("size", &size)?;
    let whole = match (file.complete, report.has_end, &from.end) {
        (false, ..) => "no: see the remarks below".to_owned(),
        (true, true, Some(end)) => format!("yes; ended: {end}"),
        (true, ..) => "yes, as far as the format can tell: it has no end of its own".to_owned(),
    };
    fact("complete", &whole)?;
    let known = |text: &str| if text.is_empty() { "unknown".to_owned() } else { text.to_owned() };
    fact("producer", &known(&from.producer))?;
    fact("host", &known(&from.host))?;
    fact("kernel", &known(format!("{} {}", from.kernel, from.machine).trim()))?;
    if !from.command.is_empty() {
        fact("command", &command_line(&from.command))?;
    }
    let coarse = if from.backend.coarse { " (whole mappings only)" } else { "" };
    fact("backend", &format!("{}{coarse}", known(&from.backend.name)))?;
    fact("attributes", &attrs_text(&report.first_attrs))?;
    for change in report.attrs_changes.iter().take(8) {
        let at = format_time(change.time_ns.saturating_sub(from.origin_ns()));
        fact("", &format!("from {at} on: {}", attrs_text(&change.attrs)))?;
    }
    if report.nr_attrs_changes > 8 {
        fact("", &format!("and {} more", counted(report.nr_attrs_changes - 8, "change")))?;
    }
    fact("started", report.started.as_deref().unwrap_or("unknown"))?;
    let gap = match report.longest_gap_ns {
        gap if gap as f64 > GAP_S * SECOND_NS => {
            format!("; longest gap between snapshots {}", format_time(gap))
        }
        _ => String::new(),
    };
    fact("duration", &format!("{}{gap}", format_time(report.duration_ns)))?;
    fact("snapshots", &from.snapshots.to_string())?;
    fact(
        "regions",
        &format!(
            "{} in all; a snapshot: {} on the mean, at most {}",
            from.regions,
            significant(report.mean_regions, 4),
            report.max_regions
        ),
    )?;
    let list = if report.nr_targets > 0 && !targets { "; --targets lists them" } else { "" };
    fact("targets", &format!("{}{list}", report.nr_targets))?;
    fact("mappings", &format!("{} as last recorded", report.mappings))?;
    let cost = match from.cost.cpu_share() {
        // What starting cost is no share of a time in which nothing was recorded.
        Some(_) if from.snapshots == 0 => {
            format!("{} of CPU time, before anything was recorded", format_time(from.cost.cpu_ns))
        }
        Some(share) => format!(
            "{} of a CPU ({}), {}, {} cleared",
            format_share(share),
            if from.overhead_limit > 0.0 {
                format!("ceiling {}", format_share(from.overhead_limit))
            } else {
                "no ceiling".to_owned()
            },
            counted(from.cost.checks, "check"),
            counted(from.cost.clears, "page")
        ),
        None => "unknown".to_owned(),
    };
    fact("cost", &cost)?;
    for line in from.actions_in_words() {
        fact("actions", &line)?;
    }
    for line in from.foot() {
        fact("remark", &line)?;
    }
    let said = |remark: &&String| {
        from.remarks.contains(remark) || from.truncated.as_ref().is_some_and(|t| t.contains(*remark))
    };
    for remark in file.remarks.iter().filter(|remark| !said(remark)) {
        fact("remark", remark)?;
    }
    if targets { write_targets(report, width, out) } else { Ok(()) }
}

/// Writes a line a file, with what is wrong with it below.
///
/// # Errors
/// Those of `out`.
pub fn write_list(reports: &[InfoReport], out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<20} {:>9} {:>9} {:>10} {:>5}  file",
        "started", "duration", "snapshots", "size", "whole"
    )?;
    for report in reports {
        writeln!(
            out,
            "{:<20} {:>9} {:>9} {:>10} {:>5}  {}",
            report.started.as_deref().unwrap_or("unknown"),
            format_time(report.duration_ns),
            report.provenance.snapshots,
            report.file.bytes.map_or_else(|| "?".to_owned(), format_size),
            if report.file.complete { "yes" } else { "no" },
            printable(&report.file.path)
        )?;
        for remark in &report.file.remarks {
            writeln!(out, "    {}", printable(remark))?;
        }
    }
    Ok(())
}

/// Columns of a target's figures, and some of how it ended.
const TARGET: usize = 100;

fn write_targets(report: &InfoReport, width: usize, out: &mut impl Write) -> io::Result<()> {
    let origin = report.provenance.origin_ns();
    writeln!(out)?;
    writeln!(
        out,
        "{:>10} {:>8} {:<16} {:>10} {:>10} {:>10} {:>8}  how it ended, command",
        "target", "pid", "name", "from", "to", "regions", "mappings"
    )?;
    for target in &report.targets {
        let at =
            |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), |ns| format_time(ns.saturating_sub(origin)));
        let mean = target.regions as f64 / target.snapshots.max(1) as f64;
        let line = format!(
            "{:>10} {:>8} {} {:>10} {:>10} {:>10} {:>8}  {}; {}",
            target.id,
            target.pid,
            padded(&printable(&target.comm), 16),
            at(target.first_ns),
            at(target.last_ns),
            significant(mean, 4),
            target.mappings,
            printable(target.ended.as_deref().unwrap_or("still ran")),
            command_line(&target.cmdline)
        );
        // What a command was called with is in the JSON, too; the figures of the table are not cut.
        let line = line.trim_end_matches(['\u{20}', ';']);
        writeln!(out, "{}", shortened(line, width.max(TARGET)))?;
    }
    let more = report.nr_targets.saturating_sub(report.targets.len() as u64);
    if more > 0 {
        writeln!(out, "and {more} more")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::width;
    use crate::synthetic::{mapping, mappings, region, snapshot};
    use isotherm_record::{Header, TargetEnd, TargetInfo};

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_704_067_199, "2023-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds * 1_000_000_000), text);
        }
    }

    #[test]
    fn it_counts_what_there_is() {
        let mut info = InfoAnalysis::default();
        info.item(&Item::Header(Header { host: "box".to_owned(), started_unix_ns: 1, ..Header::default() }));
        for id in [1, 2] {
            info.item(&Item::Target(TargetInfo {
                id,
                pid: 7,
                comm: "sh".to_owned(),
                ..TargetInfo::default()
            }));
            info.item(&mappings(id, vec![mapping(0, 9, "rw-p", "", 0, 0); 3]));
        }
        info.item(&mappings(1, vec![mapping(0, 9, "rw-p", "", 0, 0)]));
        let attrs = RecordedAttrs { sample_us: 1000, ..RecordedAttrs::default() };
        info.item(&Item::Attrs { time_ns: 5, attrs });
        for i in [0, 1, 40] {
            info.item(&Item::Snapshot(snapshot(i, 1, vec![region(0, 5, 1); 1 + i as usize])));
        }
        let end = TargetEnd { target: 2, reason: "killed".to_owned(), ..TargetEnd::default() };
        info.item(&Item::TargetEnd(end));
        let file = FileInfo { format: "rec".to_owned(), bytes: Some(440), ..FileInfo::default() };
        let report = info.finish(file);
        assert_eq!((report.mappings, report.nr_targets, report.nr_attrs_changes), (4, 2, 1));
        assert_eq!((report.max_regions, report.mean_regions.round()), (41, 15.0));
        assert_eq!(report.longest_gap_ns, 38 * crate::synthetic::AGGR_NS);
        assert_eq!(report.bytes_per_region, Some(10.0));
        let mut out = Vec::new();
        write_text(&report, true, usize::MAX, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let mut narrow = Vec::new();
        write_text(&report, false, 40, &mut narrow).unwrap();
        let narrow = String::from_utf8(narrow).unwrap();
        assert!(narrow.lines().all(|line| width(line) <= 40), "{narrow}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert!(
            words(&text).starts_with(&words(&narrow.replace("; --targets lists them", ""))),
            "{narrow}{text}"
        );
        for part in ["box", "10 bytes a region", "killed", "longest gap", "from 5 ns on: sampling 1 ms"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
