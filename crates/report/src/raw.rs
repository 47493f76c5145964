//! Every region of every snapshot, as text.
//!
//! Two forms with stable columns, one region a line, written as the recording is read:
//!
//! - text: `start_s end_s target address_start address_end bytes nr_accesses max_nr_accesses rate_hz age seen exposure
//!   resident` (`rate_hz` is `?` where the rate is unknown, which is not 0; `seen` is the share of the region that could
//!   be observed, 0 to 1; `exposure` the sampling intervals of observation, `-` where accesses are counted and no such
//!   account is kept; `resident` bytes, `-` where not known), separated by single spaces, so that awk and sort read it as it is; lines that begin with `#` tell everything else;
//! - JSON lines: an object a region with `"type":"region"`, and one each for header, targets, attributes and ends.

mod chunk;
mod text;

pub use chunk::{Chunk, TakeChunk};

use crate::json;
use crate::names::printable;
use crate::provenance::{Provenance, Reading};
use crate::rate::{RateScale, recorded_ns};
use crate::units::SECOND_NS;
use chunk::Text;
use isotherm_damon::{RegionSnapshot, Snapshot, TargetId};
use isotherm_record::{Item, TargetInfo};
use serde::Serialize;
use std::io::{self, Write};
use text::Lines;

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RawFormat {
    /// Columns.
    #[default]
    Text,
    /// An object a line.
    JsonLines,
}

/// Writes items as they come.
#[derive(Debug)]
pub struct RawWriter<W: TakeChunk> {
    out: W,
    chunk: Chunk,
    format: RawFormat,
    targets: Vec<TargetId>,
    provenance: Provenance,
    lines: Lines,
}

/// A region as a JSON line.
#[derive(Serialize)]
struct RawRegion {
    r#type: &'static str,
    start_ns: u64,
    end_ns: u64,
    target: u64,
    start: u64,
    end: u64,
    nr_accesses: u32,
    nr_accesses_bp: u64,
    max_nr_accesses: u32,
    rate_hz: Option<f64>,
    age: u32,
    seen_bp: u16,
    exposure: Option<u32>,
    resident: Option<u64>,
    #[serde(skip_serializing_if = "is_none")]
    idle_bp: u16,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it out so")]
const fn is_none(bp: &u16) -> bool {
    *bp == 0
}

/// Anything else as a JSON line.
#[derive(Serialize)]
struct RawItem<'a, T: Serialize> {
    r#type: &'static str,
    #[serde(flatten)]
    item: &'a T,
}

fn line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

impl<W: TakeChunk> RawWriter<W> {
    /// Writes to `out`; only the regions of `targets`, or of all when empty.
    pub fn new(out: W, format: RawFormat, targets: Vec<TargetId>) -> Self {
        Self {
            out,
            chunk: Chunk::default(),
            format,
            targets,
            provenance: Provenance::default(),
            lines: Lines::default(),
        }
    }

    /// Writes an item.
    ///
    /// # Errors
    /// Those of the output.
    pub fn item(&mut self, item: &Item) -> io::Result<()> {
        match item {
            Item::Snapshot(snapshot) => self.snapshot(snapshot),
            other => self.note(other),
        }
    }

    /// Writes the regions of a snapshot.
    ///
    /// # Errors
    /// Those of the output.
    pub fn snapshot(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        self.provenance.snapshot(snapshot);
        let scale = RateScale::of(snapshot);
        let (start_ns, end_ns) = recorded_ns(snapshot);
        let origin = self.provenance.origin_ns() as f64;
        let seconds = |ns: u64| (ns as f64 - origin) / SECOND_NS;
        let (from, to) = (seconds(start_ns), seconds(end_ns));
        let chosen = &self.targets;
        let targets = snapshot.targets.iter().filter(|t| chosen.is_empty() || chosen.contains(&t.id));
        if self.format == RawFormat::Text {
            self.lines.begin(from, to, snapshot.max_nr_accesses, scale);
            for target in targets {
                self.lines.target(target.id.0, &target.regions, &mut self.chunk, &mut self.out)?;
            }
            return Ok(());
        }
        for target in targets {
            for r in &target.regions {
                let region = RawRegion {
                    r#type: "region",
                    start_ns,
                    end_ns,
                    target: target.id.0,
                    start: r.range.start,
                    end: r.range.end,
                    nr_accesses: r.nr_accesses,
                    nr_accesses_bp: r.accesses_bp(),
                    max_nr_accesses: snapshot.max_nr_accesses,
                    rate_hz: (!r.is_unknown()).then(|| scale.hz(r)),
                    age: r.age,
                    seen_bp: r.seen_bp,
                    exposure: (r.exposure != RegionSnapshot::COUNTED).then_some(r.exposure),
                    resident: r.resident,
                    idle_bp: r.idle_bp,
                };
                line(&mut Text(&mut self.chunk, &mut self.out), &region)?;
            }
        }
        Ok(())
    }

    fn tagged<T: Serialize>(&mut self, r#type: &'static str, item: &T) -> io::Result<()> {
        line(&mut Text(&mut self.chunk, &mut self.out), &RawItem { r#type, item })
    }

    fn note(&mut self, item: &Item) -> io::Result<()> {
        self.provenance.note(item);
        if self.format == RawFormat::JsonLines {
            return match item {
                Item::Header(header) => self.tagged("header", header),
                Item::Target(target) => self.tagged("target", target),
                Item::Mappings(mappings) => self.tagged("mappings", mappings),
                Item::Attrs { attrs, .. } => self.tagged("attrs", attrs),
                Item::Cost(cost) => self.tagged("cost", cost),
                Item::TargetEnd(end) => self.tagged("target_end", end),
                Item::Action(action) => self.tagged("action", action),
                Item::End(end) => self.tagged("end", end),
                Item::Snapshot(_) => Ok(()),
            };
        }
        let out = &mut Text(&mut self.chunk, &mut self.out);
        match item {
            Item::Header(_) => {
                for line in self.provenance.head().iter().skip(1) {
                    writeln!(out, "# {line}")?;
                }
                let columns = "start_s end_s target address_start address_end bytes nr_accesses max_nr_accesses rate_hz age seen exposure resident";
                writeln!(out, "# {columns}")
            }
            Item::Target(target) => writeln!(out, "# target {} {}", target.id, who(target)),
            Item::TargetEnd(end) => writeln!(out, "# target {} {}", end.target, printable(&end.reason)),
            Item::Action(a) => {
                let origin = self.provenance.origin_ns() as f64;
                writeln!(
                    out,
                    "# action {:.6} {} {:#x} {:#x} {} by {}: tried {}, applied {}",
                    (a.time_ns as f64 - origin) / SECOND_NS,
                    a.target,
                    a.start,
                    a.end,
                    printable(&a.action),
                    printable(&a.scheme),
                    a.tried,
                    a.applied
                )
            }
            Item::End(end) => writeln!(out, "# end: {}", printable(&end.reason)),
            _ => Ok(()),
        }
    }

    /// Writes what limits the figures (text form) or what became of reading the recording (JSON lines), and hands on the rest.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self, reading: Reading) -> io::Result<W> {
        self.provenance.set_reading(reading);
        let out = &mut Text(&mut self.chunk, &mut self.out);
        match self.format {
            RawFormat::Text => {
                for line in self.provenance.foot() {
                    writeln!(out, "# {line}")?;
                }
            }
            RawFormat::JsonLines => {
                if let Some(how) = self.provenance.truncated.take() {
                    line(out, &serde_json::json!({"type": "truncated", "how": how}))?;
                }
                for remark in &self.provenance.remarks {
                    line(out, &serde_json::json!({"type": "remark", "text": remark}))?;
                }
            }
        }
        self.out.take_chunk(&mut self.chunk)?;
        Ok(self.out)
    }
}

/// Which process a target is. Recordings of other programs may know no more of it than a number.
fn who(target: &TargetInfo) -> String {
    match (target.pid, &*printable(&target.comm)) {
        (0, "") => "is a process of which the recording tells neither pid nor name".to_owned(),
        (0, name) => format!("is {name}, pid not known"),
        (pid, "") => format!("is pid {pid}"),
        (pid, name) => format!("is pid {pid}: {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{region, snapshot, unknown};
    use isotherm_record::Header;

    fn items() -> Vec<Item> {
        let mut second = snapshot(1, 2, vec![region(0, 4096, 0)]);
        second.end_ns += 50;
        let last = RegionSnapshot { resident: Some(8192), ..unknown(0x4000, 0x8000) };
        vec![
            Item::Header(Header::default()),
            Item::Target(TargetInfo { id: 1, pid: 10, comm: "a\nb".to_owned(), ..TargetInfo::default() }),
            Item::Snapshot(snapshot(0, 1, vec![region(0x1000, 0x3000, 7), region(0x3000, 0x4000, 20), last])),
            Item::Snapshot(second),
        ]
    }

    fn write(format: RawFormat, targets: Vec<TargetId>) -> String {
        let reading =
            Reading { truncated: Some("cut".to_owned()), remarks: vec!["left out: 2 lines".to_owned()] };
        let mut raw = RawWriter::new(Vec::new(), format, targets);
        items().iter().for_each(|item| raw.item(item).unwrap());
        String::from_utf8(raw.finish(reading).unwrap()).unwrap()
    }

    #[test]
    fn a_line_a_region_with_stable_columns() {
        let text = write(RawFormat::Text, Vec::new());
        let rows: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
        assert_eq!(
            rows,
            [
                "0.000000 0.100000 1 0x1000 0x3000 8192 7 20 70.000 3 1.0000 - -",
                "0.000000 0.100000 1 0x3000 0x4000 4096 20 20 200.000 3 1.0000 - -",
                "0.000000 0.100000 1 0x4000 0x8000 16384 0 20 ? 3 0.0000 0 8192",
                "0.100000 0.200000 2 0x0 0x1000 4096 0 20 0.000 3 1.0000 - -",
            ]
        );
        assert!(
            text.contains("# target 1 is pid 10: a?b\n") && text.contains("# incomplete recording: cut"),
            "{text}"
        );
        assert_eq!(
            write(RawFormat::Text, vec![TargetId(2)]).lines().filter(|l| !l.starts_with('#')).count(),
            1
        );
    }

    #[test]
    fn who_a_target_is_is_said_as_far_as_it_is_known() {
        let of =
            |pid, comm: &str| who(&TargetInfo { id: 3, pid, comm: comm.to_owned(), ..TargetInfo::default() });
        assert_eq!(of(10, "sh"), "is pid 10: sh");
        assert_eq!(of(10, ""), "is pid 10");
        assert!(of(0, "sh").contains("sh") && !of(0, "sh").contains("pid 0"));
        assert!(of(0, "").contains("neither pid nor name"));
    }

    #[test]
    fn every_json_line_parses_and_names_its_type() {
        let text = write(RawFormat::JsonLines, Vec::new());
        let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let types: Vec<&str> = lines.iter().map(|l| l["type"].as_str().unwrap()).collect();
        assert_eq!(
            types,
            ["header", "target", "region", "region", "region", "region", "truncated", "remark"]
        );
        assert_eq!((lines[2]["start"].as_u64(), lines[2]["rate_hz"].as_f64()), (Some(0x1000), Some(70.0)));
    }
}
