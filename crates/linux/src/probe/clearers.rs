//! Who else clears Accessed bits on this machine.
//!
//! The bit is one a page, whoever looks at it: what somebody else clears between two looks of ours is an access that is
//! never found, and since none of them flushes the TLB afterwards (DAMON, MGLRU's aging and page_idle do not, on
//! x86-64), a page whose bit is clear may still be in use through a translation that a TLB holds.
//!
//! Everything here is read, nothing written. Running kdamonds are found among the kernel's threads, which any user may
//! list; whose they are is told by the module parameters and by sysfs, some of which root alone may read.

mod isotherms;

use crate::proc_file::{parse_number, read_into, read_text};
use crate::process::parse;
use isotherms::isotherms;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Parts of the kernel that run DAMON for themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DamonModule {
    /// DAMON_STAT: statistics of accesses. On from the boot on in some kernels, such as Debian's from 7 on.
    DamonStat,
    /// DAMON_RECLAIM: proactive reclamation.
    DamonReclaim,
    /// DAMON_LRU_SORT: sorting of the LRU lists.
    DamonLruSort,
}

impl DamonModule {
    const ALL: [Self; 3] = [Self::DamonStat, Self::DamonReclaim, Self::DamonLruSort];

    /// Its name below `/sys/module` and on the kernel's command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DamonStat => "damon_stat",
            Self::DamonReclaim => "damon_reclaim",
            Self::DamonLruSort => "damon_lru_sort",
        }
    }
}

/// Somebody who clears Accessed bits, or may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AccessedBitClearer {
    /// A module of the kernel that is turned on. It samples all physical memory.
    Module {
        /// Which.
        module: DamonModule,
        /// Pid of its kdamond, where it says so and runs.
        kdamond: Option<u32>,
    },
    /// A kdamond that runs for whoever set it up in DAMON's sysfs files.
    Sysfs {
        /// Its number below `kdamonds`.
        index: u32,
        /// Its pid, where it says so.
        pid: Option<u32>,
        /// What it samples: `vaddr`, `fvaddr` or `paddr`, where it says so.
        operations: Option<String>,
    },
    /// A kdamond that runs, and neither a module nor sysfs says whose it is, or this user may not read who does.
    Kdamond {
        /// Its pid.
        pid: u32,
    },
    /// Another isotherm that watches processes.
    Isotherm {
        /// Its pid.
        pid: u32,
        /// The processes that it watches, those that live.
        targets: BTreeSet<u32>,
    },
    /// MGLRU is on: it clears bits when it ages pages, which is when memory is reclaimed.
    LruGen {
        /// Its switches: bit 0 itself, bit 1 clearing in batches while it walks page tables, bit 2 also in entries that
        /// are no leaves (kernel document admin-guide/mm/multigen_lru.rst).
        switches: u32,
    },
    /// The bitmap of idle frames is there. Whoever writes it clears bits; the kernel does not tell who does.
    PageIdle,
}

impl AccessedBitClearer {
    /// Whether it clears bits all the time, as a kdamond does, and not just at times or perhaps.
    pub const fn is_at_work(&self) -> bool {
        matches!(
            self,
            Self::Module { .. } | Self::Sysfs { .. } | Self::Kdamond { .. } | Self::Isotherm { .. }
        )
    }

    /// How to have it stop.
    pub fn remedy(&self) -> String {
        match self {
            Self::Module { module, .. } => {
                let name = module.name();
                format!("`echo N > /sys/module/{name}/parameters/enabled`, or boot with {name}.enabled=0")
            }
            Self::Sysfs { .. } => "stop it with the tool that made it (`damo stop`)".to_owned(),
            Self::Kdamond { .. } => {
                "run this as root to see whose it is, then stop it with what started it".to_owned()
            }
            Self::Isotherm { pid, .. } => {
                format!("watch a process with one at a time; `kill -INT {pid}` ends the other one")
            }
            Self::LruGen { .. } => {
                "record while memory is not short, or `echo n > /sys/kernel/mm/lru_gen/enabled`".to_owned()
            }
            Self::PageIdle => "record while no working-set tool that uses it runs".to_owned(),
        }
    }
}

impl fmt::Display for AccessedBitClearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let thread = |pid: &Option<u32>| pid.map_or_else(String::new, |pid| format!(", pid {pid}"));
        match self {
            Self::Module { module, kdamond } => {
                write!(f, "{} of the kernel{}", module.name(), thread(kdamond))
            }
            Self::Sysfs { index, pid, operations } => {
                write!(f, "kdamond {index} of DAMON's sysfs files{}", thread(pid))?;
                operations.as_ref().map_or(Ok(()), |operations| write!(f, ", operations {operations}"))
            }
            Self::Kdamond { pid } => write!(f, "a kdamond of an unknown owner, pid {pid}"),
            Self::Isotherm { pid, targets } => {
                let plural = if targets.len() == 1 { "" } else { "es" };
                write!(f, "another isotherm, pid {pid}, that watches {} process{plural}", targets.len())
            }
            Self::LruGen { switches } => {
                write!(f, "MGLRU when memory is reclaimed (lru_gen {switches:#06x})")
            }
            Self::PageIdle => write!(f, "users of the page_idle bitmap, if there are any"),
        }
    }
}

/// Most clearers named in a sentence: a recording of weeks may meet thousands of other isotherms. A guess: as many as are
/// read.
const MOST_NAMED: usize = 8;

/// Among which processes of the machine those that clear bits are looked for.
#[derive(Clone, Copy, Debug)]
pub enum Among<'a> {
    /// All, some 10 us each, but these, which are known not to be called [`AccessedBitClearers::ISOTHERM`].
    All {
        /// Their pids.
        but: &'a BTreeSet<u32>,
    },
    /// These alone: all others are known not to have one of the names that begin like [`AccessedBitClearers::NAMES`].
    Those(&'a [u32]),
}

impl Among<'_> {
    /// All there are.
    pub const ALL: Self = Self::All { but: &BTreeSet::new() };
}

/// All of them that the kernel tells of. Writers of `/proc/PID/clear_refs` are never among them: it tells of none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessedBitClearers {
    /// Those that are at work all the time first.
    pub found: Vec<AccessedBitClearer>,
    /// What could not be read, and why; a clearer that only this would show is not among those found.
    pub unreadable: Vec<String>,
}

impl AccessedBitClearers {
    /// The name of the programs that are taken for other isotherms.
    pub const ISOTHERM: &str = isotherms::COMM;

    /// How the names of processes and threads begin that clear bits.
    pub const NAMES: [[u8; 8]; 2] = [*b"isotherm", *b"kdamond."];

    /// Looks for them.
    pub fn look(among: Among<'_>) -> Self {
        Self::look_in(&ClearerPaths::default(), among)
    }

    /// The same at other places.
    pub fn look_in(paths: &ClearerPaths, among: Among<'_>) -> Self {
        let mut all = Self::default();
        let has_damon = paths.damon.exists()
            || DamonModule::ALL.iter().any(|module| paths.modules.join(module.name()).exists());
        if has_damon {
            let threads = all.tell(&paths.proc, kdamonds(&paths.proc, among));
            all.look_for_kdamonds(paths, threads.unwrap_or_default());
        }
        all.found.extend(isotherms(&paths.proc, among));
        if let Some(switches) = all.read(&paths.lru_gen).as_deref().and_then(lru_gen)
            && switches & 1 != 0
        {
            all.found.push(AccessedBitClearer::LruGen { switches });
        }
        if paths.page_idle.exists() {
            all.found.push(AccessedBitClearer::PageIdle);
        }
        all
    }

    /// Only those that clear bits of the processes of these pids.
    #[must_use]
    pub fn of(mut self, pids: &BTreeSet<u32>) -> Self {
        self.found.retain(|one| match one {
            AccessedBitClearer::Isotherm { targets, .. } => !targets.is_disjoint(pids),
            _ => true,
        });
        self
    }

    /// Adds the isotherms that an earlier look found: they may have ended, and what they cleared is lost all the same.
    pub fn add_isotherms_of(&mut self, earlier: &Self) {
        for (pid, targets) in earlier.isotherms() {
            let same = |one: &&mut AccessedBitClearer| matches!(one, AccessedBitClearer::Isotherm { pid: known, .. } if *known == pid);
            match self.found.iter_mut().find(same) {
                Some(AccessedBitClearer::Isotherm { targets: known, .. }) => known.extend(targets),
                _ => self.found.push(AccessedBitClearer::Isotherm { pid, targets: targets.clone() }),
            }
        }
    }

    /// Other isotherms among them, with what they watch.
    pub fn isotherms(&self) -> impl Iterator<Item = (u32, &BTreeSet<u32>)> {
        self.found.iter().filter_map(|one| match one {
            AccessedBitClearer::Isotherm { pid, targets } => Some((*pid, targets)),
            _ => None,
        })
    }

    /// A sentence for the blind spots of a recording, if anybody but its monitor clears bits all the time.
    pub fn blind_spot(&self) -> Option<String> {
        let at_work = self.found.iter().filter(|one| one.is_at_work());
        let more = at_work.clone().count().saturating_sub(MOST_NAMED);
        let mut at_work: Vec<String> = at_work.take(MOST_NAMED).map(ToString::to_string).collect();
        if more > 0 {
            at_work.push(format!("{more} more"));
        }
        (!at_work.is_empty()).then(|| {
            format!(
                "Accessed bits were also cleared by {}: accesses between two looks may be lost, and memory in use may \
                 look idle",
                at_work.join(" and by ")
            )
        })
    }

    fn look_for_kdamonds(&mut self, paths: &ClearerPaths, mut threads: Vec<u32>) {
        let mut owned = |pid: Option<u32>| threads.retain(|thread| Some(*thread) != pid);
        for module in DamonModule::ALL {
            let parameters = paths.modules.join(module.name()).join("parameters");
            if self.read(&parameters.join("enabled")).is_some_and(|text| text.trim() == "Y") {
                // -1 while none runs. DAMON_STAT tells from 7.2 on.
                let kdamond = self.read(&parameters.join("kdamond_pid")).as_deref().and_then(pid);
                owned(kdamond);
                self.found.push(AccessedBitClearer::Module { module, kdamond });
            }
        }
        let admin = paths.damon.join("admin/kdamonds");
        let mut index = 0;
        // Counted by their directories, which any user may list: nr_kdamonds is root's.
        while admin.join(index.to_string()).exists() {
            let kdamond = admin.join(index.to_string());
            if self.read(&kdamond.join("state")).is_some_and(|state| state.trim() == "on") {
                let pid = self.read(&kdamond.join("pid")).as_deref().and_then(pid);
                let operations =
                    self.read(&kdamond.join("contexts/0/operations")).map(|text| text.trim().to_owned());
                owned(pid);
                self.found.push(AccessedBitClearer::Sysfs { index, pid, operations });
            }
            index += 1;
        }
        // A module that does not tell its kdamond's pid has one of these: as many as there are such modules.
        let silent =
            |one: &&AccessedBitClearer| matches!(one, AccessedBitClearer::Module { kdamond: None, .. });
        let silent = self.found.iter().filter(silent).count();
        if threads.len() > silent {
            self.found.extend(threads.into_iter().map(|pid| AccessedBitClearer::Kdamond { pid }));
        }
    }

    /// The text of a file; a file that is not there is no trouble.
    fn read(&mut self, path: &Path) -> Option<String> {
        self.tell(path, read_text(path))
    }

    fn tell<T>(&mut self, path: &Path, result: io::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.unreadable.push(format!("{}: {error}", path.display()));
                None
            }
        }
    }
}

/// Where the kernel shows who clears Accessed bits.
#[derive(Clone, Debug)]
pub struct ClearerPaths {
    /// Mount point of proc.
    pub proc: PathBuf,
    /// Where parts of the kernel show their parameters.
    pub modules: PathBuf,
    /// DAMON's directory in sysfs.
    pub damon: PathBuf,
    /// MGLRU's switches.
    pub lru_gen: PathBuf,
    /// The bitmap of idle frames.
    pub page_idle: PathBuf,
}

impl Default for ClearerPaths {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            modules: "/sys/module".into(),
            damon: "/sys/kernel/mm/damon".into(),
            lru_gen: "/sys/kernel/mm/lru_gen/enabled".into(),
            page_idle: "/sys/kernel/mm/page_idle/bitmap".into(),
        }
    }
}

/// Pids of the kernel's threads called kdamond, in order. One that ends meanwhile is left out.
fn kdamonds(proc: &Path, among: Among<'_>) -> io::Result<Vec<u32>> {
    let mut pids = match among {
        Among::All { .. } => kernel_threads(proc).map_or_else(|| all_tasks(proc), Ok)?,
        Among::Those(pids) => pids.to_vec(),
    };
    let mut text = Vec::new();
    pids.retain(|pid| {
        let at = proc.join(pid.to_string());
        // Any program may call itself that; only the kernel's threads bear the flag. The name alone is cheaper to read.
        read_into(at.join("comm"), &mut text).is_ok_and(|()| text.starts_with(b"kdamond"))
            && read_into(at.join("stat"), &mut text).is_ok()
            && parse::stat(&text).is_some_and(|stat| stat.kernel_thread)
    });
    pids.sort_unstable();
    Ok(pids)
}

/// The kernel's threads, all of them children of one, where the kernel lists children; none in a pid namespace of its own,
/// where they have no numbers.
fn kernel_threads(proc: &Path) -> Option<Vec<u32>> {
    let mut stat = Vec::new();
    read_into(proc.join("2/stat"), &mut stat).ok()?;
    if !parse::stat(&stat).is_some_and(|stat| stat.kernel_thread) {
        return Some(Vec::new());
    }
    let children = read_text(proc.join("2/task/2/children")).ok()?;
    Some(children.split_ascii_whitespace().filter_map(pid).collect())
}

fn all_tasks(proc: &Path) -> io::Result<Vec<u32>> {
    let names = std::fs::read_dir(proc)?.map(|entry| entry.map(|entry| entry.file_name()));
    let pids = names.map(|name| Ok(name?.to_str().and_then(pid)));
    pids.filter_map(io::Result::transpose).collect()
}

fn pid(text: &str) -> Option<u32> {
    parse_number(text.as_bytes()).and_then(|pid| u32::try_from(pid).ok()).filter(|&pid| pid != 0)
}

/// The switches in a text such as `0x0007`.
fn lru_gen(text: &str) -> Option<u32> {
    u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests;
