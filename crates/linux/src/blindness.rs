//! How much of a process's memory clearing Accessed bits by `process_madvise(MADV_COLD)` cannot reach.
//!
//! MADV_COLD leaves alone what several processes map (libraries, shared memory, what a fork still shares), what is
//! locked, and huge pages of hugetlbfs. The share of the first is estimated from a sample of addresses, the others the
//! kernel counts itself; so a survey costs the same whatever the size of the process.

use crate::pagemap::{Entry, Pagemap};
use crate::process::{Process, ProcessError, ProcessMemory};

/// Most addresses a survey looks at, half a microsecond each.
pub const MAX_SAMPLES: usize = 1024;

/// What a survey found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blindness {
    /// Sampled addresses with a page in memory.
    pub present: u32,
    /// Those of them whose page other processes map as well.
    pub shared: u32,
    /// Those of the shared that belong to a file or to shared memory; the rest is what a fork shares.
    pub shared_of_files: u32,
    /// Sampled addresses whose page is swapped out: nothing to see there until it is touched.
    pub swapped: u32,
    /// What the kernel counts.
    pub memory: ProcessMemory,
}

impl Blindness {
    /// Surveys a process at `addrs`, of which the first [`MAX_SAMPLES`] count. They should be spread over its memory as
    /// checks are, a random address of each region for instance.
    ///
    /// # Errors
    /// When the process has exited or may not be read.
    pub fn survey(process: &Process, addrs: impl IntoIterator<Item = u64>) -> Result<Self, ProcessError> {
        let pagemap = Pagemap::open(process)?;
        let mut found = Self { memory: process.memory()?, ..Self::default() };
        found.count(addrs.into_iter().take(MAX_SAMPLES).filter_map(|addr| pagemap.entry(addr)));
        process.still_alive()?;
        Ok(found)
    }

    fn count(&mut self, entries: impl Iterator<Item = Entry>) {
        for entry in entries {
            self.swapped += u32::from(entry.swapped());
            if entry.present() {
                self.present += 1;
                self.shared += u32::from(!entry.exclusive());
                self.shared_of_files += u32::from(!entry.exclusive() && entry.of_file());
            }
        }
    }

    /// Share of the resident memory that several processes map, 0..=1; 0 if nothing sampled was in memory.
    pub fn shared_share(&self) -> f64 {
        if self.present == 0 { 0.0 } else { f64::from(self.shared) / f64::from(self.present) }
    }

    /// Share of the resident memory (with huge pages of hugetlbfs) that cannot be seen, 0..=1. What is both shared and
    /// locked counts twice, so the truth may be less.
    pub fn unseen_share(&self) -> f64 {
        let (rss, hugetlb) = (self.memory.rss as f64, self.memory.hugetlb as f64);
        if rss + hugetlb <= 0.0 {
            return 0.0;
        }
        let unseen = self.shared_share() * rss + (self.memory.locked as f64).min(rss) + hugetlb;
        (unseen / (rss + hugetlb)).min(1.0)
    }

    /// A sentence for each kind of memory that cannot be seen; none if all can.
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        if self.shared > 0 {
            let of_files = f64::from(self.shared_of_files) / f64::from(self.shared) * 100.0;
            sentences.push(format!(
                "pages mapped by several processes are not seen: {:.0} % of {} resident ({} of {} sampled; {of_files:.0} \
                 % of them in files or shared memory, the others shared since a fork)",
                self.shared_share() * 100.0,
                bytes(self.memory.rss),
                self.shared,
                self.present,
            ));
        }
        if self.memory.locked > 0 {
            sentences.push(format!("locked memory is not seen: {}", bytes(self.memory.locked)));
        }
        if self.memory.hugetlb > 0 {
            sentences.push(format!("huge pages of hugetlbfs are not seen: {}", bytes(self.memory.hugetlb)));
        }
        sentences
    }
}

fn bytes(n: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    for (size, unit) in UNITS {
        if n >= size {
            return format!("{:.1} {unit}", n as f64 / size as f64);
        }
    }
    format!("{n} B")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    use rustix::process::getpid;

    #[test]
    fn counts_become_shares_and_sentences() {
        let entry = |bits: u64| Entry(bits);
        let mut found = Blindness {
            memory: ProcessMemory { rss: 3 << 30, locked: 0, hugetlb: 1 << 30, swapped: 0 },
            ..Blindness::default()
        };
        assert_eq!(found.unseen_share(), 0.25);
        found.count(
            [
                entry(Entry::PRESENT | Entry::EXCLUSIVE),
                entry(Entry::PRESENT | Entry::EXCLUSIVE | Entry::FILE_OR_SHARED),
                entry(Entry::PRESENT | Entry::FILE_OR_SHARED),
                entry(Entry::PRESENT),
                entry(Entry::SWAPPED),
                entry(0),
            ]
            .into_iter(),
        );
        assert_eq!((found.present, found.shared, found.shared_of_files, found.swapped), (4, 2, 1, 1));
        assert_eq!(found.shared_share(), 0.5);
        assert_eq!(found.unseen_share(), (1.5 + 1.0) / 4.0);
        let sentences = found.sentences();
        assert!(sentences[0].contains("50 % of 3.0 GiB resident (2 of 4 sampled; 50 % of them in files"));
        assert!(sentences[1].ends_with("hugetlbfs are not seen: 1.0 GiB"));
        found.memory.locked = u64::MAX;
        assert_eq!(found.unseen_share(), 1.0);
    }

    #[test]
    fn an_empty_process_hides_nothing() {
        assert_eq!(Blindness::default().unseen_share(), 0.0);
        assert!(Blindness::default().sentences().is_empty());
    }

    #[test]
    fn private_memory_is_seen_and_libraries_are_not() {
        let private = vec![1_u8; 4 << 20];
        let process = Process::open(getpid()).unwrap();
        let inside = |i: usize| private.as_ptr() as u64 + i as u64 * 4096;
        let found = Blindness::survey(&process, (0..1000).map(inside)).unwrap();
        assert_eq!((found.present, found.shared), (1000, 0));
        assert!(found.sentences().iter().all(|s| !s.contains("several processes")));

        // Any process of this system that is dynamically linked maps libc's code too; a static build has none.
        let mut maps = crate::maps::Maps::new();
        maps.read(&process).unwrap();
        let libc = maps.mappings().iter().find(|m| m.name.contains("/libc.so") && m.perms.exec());
        let code = libc.expect("tests are linked dynamically").range;
        let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let found = Blindness::survey(&process, (code.start..code.end).step_by(4096)).unwrap();
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(found.shared > 0 && found.shared_of_files == found.shared, "{found:?}");
    }

    #[test]
    fn no_more_than_the_maximum_is_looked_at() {
        let process = Process::open(getpid()).unwrap();
        let size = 64 << 20;
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice, unmapped below, referred to by nothing else.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let base = base.unwrap();
        let addrs = (base as u64..base as u64 + size as u64).step_by(4096);
        assert_eq!(Blindness::survey(&process, addrs).unwrap().present as usize, MAX_SAMPLES);
        // SAFETY: as above.
        unsafe { munmap(base, size) }.unwrap();
    }

    #[test]
    fn a_process_that_ended_is_an_error() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        // It may be gone already, which is an error as well.
        let process = Process::open(pid);
        child.wait().unwrap();
        let survey = process.and_then(|process| Blindness::survey(&process, [0]));
        assert!(matches!(survey, Err(error) if error.is_gone()));
    }
}
