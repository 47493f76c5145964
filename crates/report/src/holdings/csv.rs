//! The report on holdings as comma-separated values.

use super::{By, COLD_NAMES, Figure, Figures, HoldingsReport, MappingHoldings, ProcessHoldings, WINDOWS_S};
use crate::names::printable;
use crate::units::format_address;
use std::borrow::Cow;
use std::io::{self, Write};

/// Writes comma-separated values (RFC 4180): a header, a line a process, mapping and object, one of the total, and one of the highest
/// where there is one ([`HoldingsReport::highest`]). Bytes
/// are whole numbers; what is not known is empty. The columns of figures have the names that they have in JSON. `shared_out` is how many of the mapped bytes lie in regions that other
/// lines have a part of, so that what is present and accessed of them is a share by size; where that may be far off, the figure is
/// empty. The last column,
/// `id`, is of objects: their device and inode, which tell two of one name apart. A name that a spreadsheet would take for a
/// formula has a `'` before it.
///
/// # Errors
/// Those of `out`.
pub fn write_csv(report: &HoldingsReport, out: &mut impl Write) -> io::Result<()> {
    write!(out, "kind,target,pid,process,name,path,start,end,ended,mapped,resident")?;
    for window in WINDOWS_S {
        write!(out, ",ws_{window}s")?;
    }
    write!(out, ",hot")?;
    for name in COLD_NAMES {
        write!(out, ",{name}")?;
    }
    writeln!(out, ",unknown,shared_out,id")?;
    let process = |p: &ProcessHoldings, kind: &str| Row {
        kind: kind.to_owned(),
        target: Some(p.target),
        pid: (p.pid != 0).then_some(p.pid),
        process: p.name.clone(),
        ended: p.ended.clone().unwrap_or_default(),
        ..Row::default()
    };
    let own = if report.by == By::Object { "own" } else { "process" };
    for p in &report.processes {
        process(p, own).write(&p.figures, out)?;
        for m in &p.mappings {
            mapping_row(m, process(p, "mapping")).write(&m.figures, out)?;
        }
    }
    for m in &report.mappings {
        let row = Row {
            kind: "mapping".to_owned(),
            target: Some(m.target),
            pid: (m.pid != 0).then_some(m.pid),
            process: m.process.clone(),
            ..Row::default()
        };
        mapping_row(m, row).write(&m.figures, out)?;
    }
    for o in &report.objects {
        let row = Row {
            kind: "object".to_owned(),
            name: o.name.clone(),
            path: o.path.clone(),
            id: o.id.clone(),
            ..Row::default()
        };
        row.write(&o.figures, out)?;
    }
    Row { kind: "total".to_owned(), ..Row::default() }.write(&report.totals, out)?;
    match &report.highest {
        Some(highest) => Row { kind: "highest".to_owned(), ..Row::default() }.write(&highest.figures, out),
        None => Ok(()),
    }
}

fn mapping_row(m: &MappingHoldings, row: Row) -> Row {
    Row { name: m.name.clone(), path: m.path.clone(), range: Some((m.start, m.end)), ..row }
}

/// What a line of comma-separated values is of.
#[derive(Default)]
struct Row {
    kind: String,
    target: Option<u64>,
    pid: Option<u32>,
    process: String,
    name: String,
    path: String,
    range: Option<(u64, u64)>,
    ended: String,
    id: String,
}

impl Row {
    fn write(&self, f: &Figures, out: &mut impl Write) -> io::Result<()> {
        fn or_empty(value: Option<impl ToString>) -> String {
            value.map_or_else(String::new, |v| v.to_string())
        }
        let mut cells = vec![
            self.kind.clone(),
            or_empty(self.target),
            or_empty(self.pid),
            text_cell(&self.process),
            text_cell(&self.name),
            text_cell(&self.path),
            or_empty(self.range.map(|r| format_address(r.0))),
            or_empty(self.range.map(|r| format_address(r.1))),
            text_cell(&self.ended),
            f.mapped.to_string(),
        ];
        cells.extend(Figure::ALL.map(|figure| or_empty(f.measured(figure))));
        cells.push(or_empty(f.bounds.map(|bounds| bounds.shared_out)));
        cells.push(self.id.clone());
        writeln!(out, "{}", cells.join(","))
    }
}

/// A name as a cell: nothing in it ends the cell or the line, disturbs a terminal, or is a formula to a spreadsheet.
fn text_cell(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = printable(text);
    let text = if formula { Cow::Owned(format!("'{text}")) } else { text };
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_break_a_line_is_quoted() {
        assert_eq!(text_cell("a,b \"c\""), "\"a,b \"\"c\"\"\"");
        assert_eq!(text_cell("libc.so.6"), "libc.so.6");
        assert_eq!(text_cell("a\u{1b}[2J\n"), "a?[2J?");
    }

    #[test]
    fn no_name_is_a_formula() {
        assert_eq!(text_cell("=cmd|calc,\"q\""), "\"'=cmd|calc,\"\"q\"\"\"");
        for (name, cell) in [
            ("-bash", "'-bash"),
            ("+1", "'+1"),
            ("@x", "'@x"),
            ("\t=1", "'?=1"),
            ("\r=1", "'?=1"),
            ("a=1", "a=1"),
        ] {
            assert_eq!(text_cell(name), cell);
        }
    }
}
