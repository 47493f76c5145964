//! Writing the text.

use super::NOTHING;
use crate::whole::whole_accesses;
use crate::{Error, ItemWriter};
use isotherm_damon::Snapshot;
use std::io::{self, BufWriter, Write};

/// Writes the text.
pub(crate) struct Writer<W: Write> {
    output: BufWriter<W>,
    file: String,
    empty: bool,
    nr_snapshots: usize,
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(output: W, file: String) -> Self {
        Self { output: BufWriter::with_capacity(256 << 10, output), file, empty: true, nr_snapshots: 0 }
    }

    fn print(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        let end_us = snapshot.end_ns.saturating_add(500) / 1000;
        for target in &snapshot.targets {
            for region in &target.regions {
                self.empty = false;
                writeln!(
                    self.output,
                    "kdamond.0 0 [000] {}.{:06}: damon:damon_aggregated: target_id={} nr_regions={} {}-{}: {} {}",
                    end_us / 1_000_000,
                    end_us % 1_000_000,
                    target.id.0,
                    target.regions.len(),
                    region.range.start,
                    region.range.end,
                    whole_accesses(region, self.nr_snapshots),
                    region.age,
                )?;
            }
        }
        self.nr_snapshots += 1;
        Ok(())
    }
}

impl<W: Write + Send> ItemWriter for Writer<W> {
    fn write_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        self.print(snapshot).map_err(|e| Error::io("write", &self.file, e))
    }

    fn finish(&mut self) -> Result<(), Error> {
        let marked = if self.empty { writeln!(self.output, "{NOTHING}") } else { Ok(()) };
        marked.and_then(|()| self.output.flush()).map_err(|e| Error::io("write", &self.file, e))
    }
}
