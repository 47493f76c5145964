//! Where the mappings of a process begin and end, one at a time.
//!
//! A folio that two mappings share is split when one of them is advised. A process may have tens of thousands of mappings,
//! so the one in question is asked for; kernels before 6.11 leave only what was read last.

use crate::maps::range_at;
use crate::process::Process;
use isotherm_damon::AddrRange;
use std::fs::File;

/// The mappings of one process. The file is opened with the first question.
pub struct Areas<'a> {
    process: &'a Process,
    read: &'a [AddrRange],
    file: Option<Option<File>>,
}

impl<'a> Areas<'a> {
    pub fn new(process: &'a Process, read: &'a [AddrRange]) -> Self {
        Self { process, read, file: None }
    }

    /// The mapping that holds `addr`; `None` if there is none.
    pub fn at(&mut self, addr: u64) -> Option<AddrRange> {
        let file = self.file.get_or_insert_with(|| File::open(self.process.memory_path("maps")).ok());
        match range_at(file.as_ref()?, addr) {
            Ok(range) => Some(range),
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                let next = self.read.partition_point(|r| r.end <= addr);
                self.read.get(next).filter(|r| r.contains(addr)).copied()
            }
            Err(_) => None,
        }
    }
}
