//! The access report as a table.

use super::{AccessReport, Totals};
use crate::units::{format_address, format_rate, format_seconds, format_share, format_size, format_time};
use std::io::{self, Write};

/// Writes a table a target, sums by rate, a legend, and the head and foot of the recording.
///
/// # Errors
/// Those of `out`.
pub fn write_text(report: &AccessReport, out: &mut impl Write) -> io::Result<()> {
    for line in report.provenance.head() {
        writeln!(out, "{line}")?;
    }
    if report.snapshots == 0 {
        writeln!(out, "no snapshot in the chosen time")?;
    } else {
        let at = |ns: u64| format_seconds(ns.saturating_sub(report.origin_ns));
        let how = match report.snapshots {
            1 => "1 snapshot".to_owned(),
            n => format!("{n} snapshots"),
        };
        writeln!(out, "from {} s to {} s of the recording, {how}", at(report.start_ns), at(report.end_ns))?;
        for target in &report.targets {
            writeln!(out)?;
            writeln!(out, "{}", target.name)?;
            writeln!(
                out,
                "{:>29}  {:>10} {:>9} {:>7} {:>8}  mapping",
                "address", "size", "rate", "rate %", "age"
            )?;
            for r in &target.regions {
                let addresses = format!("{:>14}-{:<14}", format_address(r.start), format_address(r.end));
                let share = r.rate_share.map_or_else(|| "?".to_owned(), format_share);
                writeln!(
                    out,
                    "{addresses}  {:>10} {:>9} {share:>7} {:>8}  {}",
                    format_size(r.size),
                    format_rate(r.rate_hz),
                    format_time(r.age_ns),
                    r.mapping.as_deref().unwrap_or("?")
                )?;
            }
            if report.targets.len() > 1 {
                write_totals(&target.totals, report.ceiling_hz, out)?;
            }
        }
        writeln!(out)?;
        if report.targets.len() > 1 {
            writeln!(out, "all targets")?;
        }
        write_totals(&report.totals, report.ceiling_hz, out)?;
        if report.hidden_regions > 0 {
            let size = format_size(report.hidden_bytes);
            writeln!(out, "not shown: {} regions, {size}, which the filters exclude", report.hidden_regions)?;
        }
        writeln!(
            out,
            "rate: sampling intervals a second in which the region was seen accessed, 100 % is {}; age: for how long it \
             kept about that rate",
            format_rate(report.ceiling_hz)
        )?;
    }
    for line in report.provenance.foot() {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn write_totals(totals: &Totals, ceiling_hz: f64, out: &mut impl Write) -> io::Result<()> {
    for class in &totals.classes {
        if class.regions == 0 {
            continue;
        }
        let rates = match class.up_to_share {
            0.0 => "at 0 Hz".to_owned(),
            up_to => format!("up to {}", format_rate(up_to * ceiling_hz)),
        };
        let share = format_share(class.bytes as f64 / totals.bytes.max(1) as f64);
        writeln!(
            out,
            "{rates:>29}  {:>10} {share:>9} of all, {} regions",
            format_size(class.bytes),
            class.regions
        )?;
    }
    writeln!(
        out,
        "{:>29}  {:>10} {:>9} on average, {} regions",
        "total",
        format_size(totals.bytes),
        format_rate(totals.rate_hz),
        totals.regions
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Accumulate;
    use crate::access::{AccessAnalysis, AccessOptions, Pattern};
    use crate::synthetic::stairs;
    use crate::units::Bounds;
    use crate::units::Rate;

    fn text(options: AccessOptions, each: u64) -> String {
        let mut analysis = AccessAnalysis::new(options);
        stairs(0x7f00_0000_0000, each).iter().for_each(|s| analysis.snapshot(s));
        let mut out = Vec::new();
        write_text(&analysis.finish(), &mut out).unwrap();
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
    fn what_filters_hide_is_counted() {
        let pattern =
            Pattern { min_rate: Some(Rate::Hz(1.0)), size: Bounds::default(), ..Pattern::default() };
        let text = text(AccessOptions { pattern, ..AccessOptions::default() }, 1);
        assert!(text.contains("not shown: 9 regions, 90.0 MiB"), "{text}");
    }

    #[test]
    fn without_snapshots_it_says_so() {
        assert!(text(AccessOptions::default(), 0).contains("no snapshot"));
    }
}
