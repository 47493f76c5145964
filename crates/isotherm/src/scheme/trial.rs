//! `isotherm scheme try`.

use crate::Misuse;
use crate::args::TryArgs;
use crate::reading::Recording;
use crate::report::{PictureFile, PictureKind, print, print_json};
use isotherm_damon::schemes::Action;
use isotherm_linux::schemes::pageout_throughput;
use isotherm_linux::schemes::preflight::{DEFAULT_QUOTA, default_quota};
use isotherm_record::Item;
use isotherm_report::Accumulate;
use isotherm_report::provenance::Provenance;
use isotherm_report::tradeoff::{self, Point, Tradeoff};
use isotherm_report::units::{counted, format_share, format_size, format_time};
use isotherm_schemes::trial::{SchemeTrial, Sweep, Throughput, Trial, TrialReport};
use isotherm_schemes::{Entry, explain};
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;

/// A value of a sweep in JSON.
#[derive(Serialize)]
struct Swept<'a> {
    parameter: &'a str,
    value: &'a str,
    #[serde(flatten)]
    report: &'a TrialReport,
}

/// Runs the command.
///
/// # Errors
/// What is wrong with the schemes, or the recording.
pub fn run(args: &TryArgs) -> anyhow::Result<ExitCode> {
    let file = super::load(&args.schemes.schemes, args.schemes.from)?;
    for remark in &file.remarks {
        say!("isotherm: {}: {remark}", args.schemes.schemes);
    }
    let mut entries = file.entries;
    let mut added = Vec::new();
    for (index, entry) in entries.iter_mut().enumerate() {
        if let Some(quota) = default_quota(&entry.scheme) {
            entry.scheme.quota = quota;
            added.push(format!(
                "scheme {}: it gets the quota of `scheme apply`, {DEFAULT_QUOTA}",
                entry.title(index)
            ));
        }
    }
    let throughputs = throughputs(&args.throughput, &entries);
    let mut recording = Recording::new(&args.recording()).within(args.time);
    let mut provenance = Provenance::default();
    if let Some(sweep) = &args.sweep {
        let picture = args.output.as_deref().map(PictureFile::new).transpose()?;
        let mut sweep =
            Sweep::new(&entries, sweep, &throughputs).map_err(|error| Misuse(error.to_string()))?;
        let ended = recording.read(&mut |item| {
            match item {
                Item::Snapshot(snapshot) => provenance.snapshot(snapshot),
                item => provenance.note(item),
            }
            sweep.item(item);
            Ok(())
        })?;
        added.extend(ended.reading.remarks.iter().cloned());
        provenance.set_reading(ended.reading);
        let parameter = sweep.parameter.clone();
        let mut reports = sweep.finish();
        for (_, report) in &mut reports {
            report.assumed.splice(0..0, added.iter().cloned());
        }
        if let Some(picture) = picture {
            let tradeoff = tradeoff_of(&parameter, &reports);
            return picture
                .write(|kind, out| match kind {
                    PictureKind::Png => tradeoff::write_png(&tradeoff, &provenance, out),
                    PictureKind::Svg => tradeoff::write_svg(&tradeoff, &provenance, out),
                })
                .map(|()| ExitCode::SUCCESS);
        }
        if args.json {
            let swept = |(value, report)| Swept { parameter: &parameter, value, report };
            let all: Vec<Swept<'_>> = reports.iter().map(|(value, report)| swept((value, report))).collect();
            print_json(&all, true)?;
        } else {
            print(|out| write_sweep(&parameter, &reports, out))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.output.is_some() {
        misuse!("a picture is drawn of --sweep, like --sweep min_age=1s..60s -o trade-off.png");
    }
    let mut trial = Trial::new(&entries, &throughputs)?;
    let ended = recording.read(&mut |item| {
        trial.item(item);
        Ok(())
    })?;
    added.extend(ended.reading.remarks);
    let mut report = trial.finish();
    report.assumed.splice(0..0, added);
    if args.json {
        print_json(&report, true)?;
    } else {
        let sentences: Vec<String> = entries.iter().map(explain).collect();
        print(|out| write_report(&report, &sentences, out))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What was given, and what is measured here: how fast memory is paged out, where a quota's time depends on it.
fn throughputs(given: &[Throughput], entries: &[Entry]) -> Vec<Throughput> {
    let mut all = given.to_vec();
    let is_known = given.iter().any(|one| one.action.is_none_or(|action| action == Action::Pageout));
    let timed = |entry: &Entry| entry.scheme.action == Action::Pageout && entry.scheme.quota.time.is_some();
    if !is_known
        && entries.iter().any(timed)
        && let Some(bytes_per_s) = pageout_throughput()
    {
        let source =
            "measured just now on 32 MiB of this program's own; --throughput sets another".to_owned();
        all.push(Throughput { action: Some(Action::Pageout), bytes_per_s, source });
    }
    all
}

fn size(bytes: u64) -> String {
    format_size(bytes)
}

fn write_report(report: &TrialReport, sentences: &[String], out: &mut impl Write) -> io::Result<()> {
    let seconds = format_time((report.seconds * 1e9) as u64);
    writeln!(out, "Over {seconds} of recording, {}:", counted(report.snapshots, "snapshot"))?;
    for (scheme, sentence) in report.schemes.iter().zip(sentences) {
        writeln!(out, "\n{}: {sentence}", scheme.scheme)?;
        write_scheme(scheme, out)?;
    }
    if report.schemes.iter().any(|scheme| scheme.action == "pageout") {
        writeln!(
            out,
            "\nMemory kept out: {} on average, {} of {} {}; at most {} at a time; {:.1} GiB-seconds",
            size(report.out_bytes as u64),
            format_share(report.out_share()),
            size(report.resident_bytes as u64),
            if report.resident_known { "resident" } else { "mapped" },
            size(report.most_out_bytes),
            report.out_byte_seconds / f64::from(1 << 30)
        )?;
    }
    write_assumed(report, out)
}

fn write_assumed(report: &TrialReport, out: &mut impl Write) -> io::Result<()> {
    if !report.assumed.is_empty() {
        writeln!(out)?;
    }
    report.assumed.iter().try_for_each(|assumed| writeln!(out, "Note: {assumed}."))
}

fn write_scheme(scheme: &SchemeTrial, out: &mut impl Write) -> io::Result<()> {
    let pageout = scheme.action == "pageout";
    if scheme.action == "stat" {
        writeln!(out, "  matched {} in all passes together", size(scheme.tried_bytes))?;
    } else {
        let (done, tried) = (size(scheme.applied_bytes), size(scheme.tried_bytes));
        writeln!(out, "  {:<15}  {done} (tried on {tried})", if pageout { "paged out" } else { "acted on" })?;
        let again = size(scheme.accessed_again_bytes);
        let share = scheme.accessed_again_share().map(|share| format!(", {} of that", format_share(share)));
        let what = if pageout { "refaulted" } else { "accessed again" };
        writeln!(out, "  {what:<15}  {again}{}", share.unwrap_or_default())?;
        let too_soon = scheme.accessed_again_within_min_age_bytes;
        if too_soon > 0 {
            writeln!(out, "  {:<15}  {}, sooner than the minimum age", "", size(too_soon))?;
        }
        let mut last = 0;
        for (within_s, bytes) in &scheme.accessed_again_within {
            if *bytes > last {
                let within = format_time(within_s.saturating_mul(1_000_000_000));
                writeln!(out, "  {:<15}  {} within {within}", "", size(*bytes))?;
                last = *bytes;
            }
        }
    }
    if scheme.quota_exceeds > 0 {
        writeln!(out, "  {:<15}  {}", "quota full", counted(scheme.quota_exceeds, "time"))?;
    }
    if scheme.unknown_bytes > 0 {
        let bytes = size(scheme.unknown_bytes);
        writeln!(out, "  {:<15}  {bytes} in the end, whose rate is unknown", "left alone")?;
    }
    Ok(())
}

fn write_sweep(parameter: &str, reports: &[(String, TrialReport)], out: &mut impl Write) -> io::Result<()> {
    let head = [parameter, "acted on", "accessed again", "", "kept out", ""];
    let rows = reports.iter().map(|(value, report)| {
        let (applied, again) = totals(report);
        let share = if applied > 0 { format_share(again as f64 / applied as f64) } else { "-".to_owned() };
        let out = (size(report.out_bytes as u64), format_share(report.out_share()));
        [value.clone(), size(applied), size(again), share, out.0, out.1]
    });
    let rows: Vec<[String; 6]> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    for row in &rows {
        let cells = row.iter().enumerate().map(|(column, cell)| format!("{cell:>0$}", width(column)));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    reports.first().map_or(Ok(()), |(_, report)| write_assumed(report, out))
}

/// Bytes acted on, and of them accessed again: by schemes that page out, or by all where none does.
fn totals(report: &TrialReport) -> (u64, u64) {
    if report.paged_out_bytes() > 0 {
        return (report.paged_out_bytes(), report.refaulted_bytes());
    }
    let sum = |of: fn(&SchemeTrial) -> u64| report.schemes.iter().map(of).sum();
    (sum(|scheme| scheme.applied_bytes), sum(|scheme| scheme.accessed_again_bytes))
}

fn tradeoff_of(parameter: &str, reports: &[(String, TrialReport)]) -> Tradeoff {
    let points = reports.iter().map(|(value, report)| Point {
        label: value.clone(),
        gain: report.out_bytes,
        cost: if report.seconds > 0.0 { totals(report).1 as f64 / report.seconds } else { 0.0 },
    });
    Tradeoff {
        parameter: parameter.to_owned(),
        gain: "resident memory kept out, on average".to_owned(),
        cost: "accessed again, a second".to_owned(),
        points: points.collect(),
    }
}
