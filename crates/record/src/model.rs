//! What a recording consists of, whatever the file format.

use isotherm_damon::{AddrRange, Snapshot};
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::sync::Arc;

/// How the backend of a recording is called that was read from a format of another program; the format follows.
pub const IMPORTED: &str = "imported from ";

/// What none of the formats of other programs tells, and what that does to reports; blind spots of what is read from them.
pub const NOT_TOLD: [&str; 2] = [
    "this format counts accesses in whole numbers: memory that is accessed less than once an aggregation reads idle in most \
     snapshots and accessed in some. A working set is estimated from the rates of one aggregation, so that of a longer window may be \
     several times too small",
    "this format does not tell memory that could not be observed from idle memory, nor what is mapped only from what is in memory: \
     some of what reads idle may be unknown, and some of what reads accessed may not be there",
];

/// What a backend can and cannot see; printed in every report drawn from the recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Backend {
    /// `pte`, `idle`, `refs`, `kernel`, or the foreign format a recording was imported from.
    pub name: String,
    /// Resolution is a whole VMA, not a page.
    pub coarse: bool,
    /// What it cannot see, a sentence each ("pages mapped by several processes: 12.5 % of the resident set").
    pub blind_spots: Vec<String>,
}

/// Attributes as recorded. Zero means unknown (foreign formats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordedAttrs {
    /// Sampling interval, microseconds.
    pub sample_us: u64,
    /// Aggregation interval, microseconds.
    pub aggr_us: u64,
    /// Regions update interval, microseconds.
    pub update_us: u64,
    /// Lower bound of regions.
    pub min_nr_regions: u64,
    /// Upper bound of regions.
    pub max_nr_regions: u64,
}

/// The first item of a recording: where, when, how.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Header {
    /// Program that made the recording, with its version.
    pub producer: String,
    /// Host name.
    pub host: String,
    /// Kernel release (`uname -r`).
    pub kernel: String,
    /// Machine (`uname -m`).
    pub machine: String,
    /// The command isotherm started, when it did.
    pub command: Vec<String>,
    /// Wall-clock time of the start, nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// The clock of all other times, at the same moment (CLOCK_MONOTONIC, nanoseconds).
    pub started_ns: u64,
    /// Size of a page, bytes.
    pub page_size: u64,
    /// Attributes at the start.
    pub attrs: RecordedAttrs,
    /// Backend and its blind spots.
    pub backend: Backend,
    /// Ceiling of the monitor's CPU time as a share of one CPU (0.01 = 1 %); 0: none.
    pub overhead_limit: f64,
    /// Which boot of the machine it was (`/proc/sys/kernel/random/boot_id`); empty where the recording does not say.
    #[serde(skip_serializing_if = "is_default")]
    pub boot: String,
    /// Which run of the recorder: an id drawn at random, the same in all files of a series. Empty where the recording does
    /// not say.
    #[serde(skip_serializing_if = "is_default")]
    pub run: String,
    /// The number of the file in its series, from 0.
    #[serde(skip_serializing_if = "is_default")]
    pub part: u64,
}

impl Header {
    /// Wall-clock time, nanoseconds since 1970, of a time of the recording; `None` where it does not say when it was
    /// started.
    pub fn wall_clock_ns(&self, time_ns: u64) -> Option<u64> {
        let behind = i128::from(time_ns) - i128::from(self.started_ns);
        let known = (self.started_unix_ns > 0).then_some(self.started_unix_ns)?;
        u64::try_from(i128::from(known) + behind).ok()
    }
}

/// A process under observation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetInfo {
    /// The id snapshots use for it. Unique in a recording; the pid, unless the pid came back as another process.
    pub id: u64,
    /// Process id.
    pub pid: u32,
    /// Parent's target id when it is a followed child.
    pub parent: Option<u64>,
    /// Short name.
    pub comm: String,
    /// Command line.
    pub cmdline: Vec<String>,
    /// When observation began, or it was found under another name, ns.
    pub time_ns: u64,
    /// When the process was started, clock ticks since boot (field 22 of `/proc/PID/stat`): with its pid that names it until
    /// the next boot. 0 where the recording does not say.
    #[serde(skip_serializing_if = "is_default")]
    pub started_ticks: u64,
}

/// A file, or memory that is shared like one: what several processes can map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObjectId {
    /// Device, major and minor number.
    pub device: (u32, u32),
    /// Inode on that device.
    pub inode: u64,
}

/// `MAJOR:MINOR:INODE`, the numbers decimal.
impl std::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.device.0, self.device.1, self.inode)
    }
}

/// One mapping of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address past it.
    pub end: u64,
    /// Permissions as the kernel prints them, `rw-p`.
    #[serde(deserialize_with = "permissions")]
    pub perms: Cow<'static, str>,
    /// Path, or `[heap]`, `[stack]`, `[anon:name]`; empty for anonymous memory.
    pub name: Arc<str>,
    /// Device of the file, major and minor number; 0:0 if there is none, or the recording does not say.
    #[serde(skip_serializing_if = "is_default")]
    pub device: (u32, u32),
    /// Inode of the file; 0 if there is none, or the recording does not say. Shared anonymous memory has one too.
    #[serde(skip_serializing_if = "is_default")]
    pub inode: u64,
    /// Where in the file it begins, bytes.
    #[serde(skip_serializing_if = "is_default")]
    pub offset: u64,
}

/// All permissions as the kernel prints them: 1 read, 2 write, 4 execute, 8 shared.
pub(crate) const PERMS: [&str; 16] = [
    "---p", "r--p", "-w-p", "rw-p", "--xp", "r-xp", "-wxp", "rwxp", "---s", "r--s", "-w-s", "rw-s", "--xs",
    "r-xs", "-wxs", "rwxs",
];

/// Reads permissions. There are few, so that they take no memory of their own; of anything else only as much is kept as the
/// kernel would print.
fn permissions<'de, D: Deserializer<'de>>(from: D) -> Result<Cow<'static, str>, D::Error> {
    let read = Cow::<'de, str>::deserialize(from)?;
    let known = PERMS.iter().find(|known| **known == read);
    Ok(known.map_or_else(|| read.chars().take(4).collect::<String>().into(), |known| Cow::Borrowed(*known)))
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Mapping {
    /// Its addresses.
    pub fn range(&self) -> AddrRange {
        AddrRange::new(self.start, self.end)
    }

    /// The object whose bytes these are: of a shared mapping, and of a private one that nobody may write to. What is
    /// private and may be written is the process's own: its pages are copies, or may become ones any time.
    pub fn object(&self) -> Option<ObjectId> {
        let mut perms = self.perms.bytes();
        let (writable, shared) = (perms.nth(1) == Some(b'w'), perms.nth(1) == Some(b's'));
        (self.inode != 0 && (shared || !writable))
            .then_some(ObjectId { device: self.device, inode: self.inode })
    }
}

/// The mappings of a target from this time on (until the next such item of the same target).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mappings {
    /// Target id.
    pub target: u64,
    /// From when, ns.
    pub time_ns: u64,
    /// Sorted by address. Shared by all who keep the list: there may be hundreds of processes of thousands of mappings each.
    pub maps: Arc<[Mapping]>,
    /// There are more than these: the list was cut, or not yet read to its end (of one that changed, the rest is as it was
    /// known before). Of none it is not known which there are.
    #[serde(skip_serializing_if = "is_default")]
    pub partial: bool,
}

impl Mappings {
    /// Index of the mapping that covers most of `range`; `None` when none covers any of it. Of several that cover as
    /// much, the lowest. `maps` must be sorted.
    pub fn main_mapping(&self, range: AddrRange) -> Option<usize> {
        let first = self.maps.partition_point(|m| m.end <= range.start);
        let touching = self.maps.iter().enumerate().skip(first).take_while(|(_, m)| m.start < range.end);
        let covered = |m: &Mapping| AddrRange::new(m.start, m.end).intersection(range).size();
        touching.max_by_key(|&(i, m)| (covered(m), std::cmp::Reverse(i))).map(|(i, _)| i)
    }
}

/// Cost and cuts since the last such item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// When, ns.
    pub time_ns: u64,
    /// Wall time covered, ns.
    pub wall_ns: u64,
    /// CPU time the monitor itself used, ns.
    pub cpu_ns: u64,
    /// Access checks done.
    pub checks: u64,
    /// Most checks in one sampling interval.
    pub max_checks_per_sample: u64,
    /// Pages cleared.
    pub clears: u64,
    /// Ranges cleared at once, each of which flushed translations.
    #[serde(skip_serializing_if = "is_default")]
    pub flushes: u64,
    /// Whole processes cleared at once, without a flush.
    #[serde(skip_serializing_if = "is_default")]
    pub sweeps: u64,
    /// Pages in them.
    #[serde(skip_serializing_if = "is_default")]
    pub pages_swept: u64,
    /// Checks the overhead budget cut.
    pub checks_cut: u64,
    /// Clears the overhead budget cut.
    pub clears_cut: u64,
    /// Sampling intervals missed because the monitor came late.
    pub samples_missed: u64,
    /// Snapshots an observer lost because it was slow.
    pub snapshots_lost: u64,
    /// Pages of the targets resident at the end of the period (what a full scan would check).
    pub resident_pages: u64,
    /// Processes that came and went; absent where the recording does not say.
    #[serde(skip_serializing_if = "is_default")]
    pub processes: Option<Processes>,
}

/// Processes that became targets or should have, since the last such item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Processes {
    /// Became targets.
    pub seen: u64,
    /// Started by targets, and ended before they could be looked at; `null` where they could not be counted.
    pub too_short: Option<u64>,
    /// No more than so many were too short, also where they could not be counted.
    pub at_most: u64,
    /// Ended while they waited for their turn to be looked at, which the overhead budget did not reach; not among those that were
    /// too short.
    #[serde(skip_serializing_if = "is_default")]
    pub unreached: u64,
    /// The longest that one of these waited so far, ns.
    #[serde(skip_serializing_if = "is_default")]
    pub longest_wait_ns: u64,
    /// Lived at the time of the item, and were not targets yet: not since the last item, but then.
    pub waiting: u64,
}

/// A target is no longer observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetEnd {
    /// Target id.
    pub target: u64,
    /// When, ns.
    pub time_ns: u64,
    /// How: `exited with status 3`, `killed by SIGSEGV`, `left the cgroup`, `recording stopped`.
    pub reason: String,
}

/// A scheme acted on memory of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SchemeAction {
    /// When, ns.
    pub time_ns: u64,
    /// Target id.
    pub target: u64,
    /// First address.
    pub start: u64,
    /// First address past it.
    pub end: u64,
    /// Name of the scheme.
    pub scheme: String,
    /// What it did: `pageout`, `cold`, ...
    pub action: String,
    /// Bytes that it was tried on.
    pub tried: u64,
    /// Bytes on which it took effect.
    pub applied: u64,
}

/// The last item of a recording that was finished properly.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct End {
    /// When, ns.
    pub time_ns: u64,
    /// Why: `duration reached`, `interrupted`, `all targets ended`.
    pub reason: String,
    /// What was learned about blind spots while recording; replaces the header's list when not empty.
    pub blind_spots: Vec<String>,
}

/// One item of a recording.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// Always first.
    Header(Header),
    /// A target appears.
    Target(TargetInfo),
    /// A target's mappings change.
    Mappings(Mappings),
    /// The attributes change while running.
    Attrs {
        /// From when, ns.
        time_ns: u64,
        /// The new attributes.
        attrs: RecordedAttrs,
    },
    /// The end of an aggregation.
    Snapshot(Snapshot),
    /// Cost and cuts of the monitor.
    Cost(Cost),
    /// A target goes.
    TargetEnd(TargetEnd),
    /// A scheme acted.
    Action(SchemeAction),
    /// The recording ends.
    End(End),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_kept_as_the_kernel_prints_them_and_no_longer() {
        let read = |perms: &str| {
            let text = serde_json::json!({"start": 1, "end": 2, "perms": perms}).to_string();
            serde_json::from_str::<Mapping>(&text).unwrap().perms
        };
        assert!(matches!(read("rw-p"), Cow::Borrowed("rw-p")), "no memory for each");
        assert_eq!(read("r-xs"), "r-xs");
        assert_eq!(read(&"x".repeat(200_000)), "xxxx");
        assert_eq!(read(""), "");
        let none: Mapping = serde_json::from_str("{}").unwrap();
        assert_eq!(none.perms, "");
    }
}
