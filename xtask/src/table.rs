//! The steps for people.

use crate::steps::Step;

/// A row a step: the first column to the left, all others to the right.
pub fn render(steps: &[Step]) -> String {
    let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20));
    let headings = ["step", "guest uses", "resident: RAM", "QEMU", "allowed", "seconds", "verdict"];
    let mut rows = vec![headings.map(str::to_owned)];
    for step in steps {
        rows.push([
            step.name.clone(),
            mib(step.uses),
            mib(step.resident.ram),
            mib(step.resident.whole),
            step.allowed.map_or_else(|| "-".into(), mib),
            step.seconds.map_or_else(|| "-".into(), |s| format!("{s:.1}")),
            step.verdict(),
        ]);
    }
    let widths: Vec<usize> = (0..headings.len())
        .map(|c| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate();
        let line: String = cells
            .map(|(c, (cell, &width))| match c {
                0 => format!("{cell:<width$}"),
                6 => format!("  {cell}"),
                _ => format!("  {cell:>width$}"),
            })
            .collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
