//! The processes of a control group and of those below it, in either version's hierarchy (cgroups(7)).

use crate::proc_file;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Why the members of a control group are not known.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No hierarchy is mounted.
    #[error(
        "no cgroup file system is mounted, so there is no cgroup {name}; mount cgroup2 on /sys/fs/cgroup"
    )]
    NotMounted {
        /// The group asked for.
        name: String,
    },
    /// No hierarchy has such a group.
    #[error(
        "no cgroup {name} (looked under {searched}); `systemd-cgls` or `cat /proc/PID/cgroup` show their names"
    )]
    NotFound {
        /// The group asked for.
        name: String,
        /// Mount points that were searched.
        searched: String,
    },
    /// Processes of a threaded group are listed by the group its domain is.
    #[error("cgroup {} is threaded and lists no processes; name the group above it", path.display())]
    Threaded {
        /// Its directory.
        path: PathBuf,
    },
    /// Anything else the system said.
    #[error("cannot read cgroup {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

/// A hierarchy, as mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    mount_point: PathBuf,
    /// The group that shows as the mount point; `/` outside of containers.
    root: PathBuf,
    unified: bool,
    /// Controllers (or `name=...`) of a version 1 hierarchy.
    controllers: Vec<String>,
}

/// A control group: the processes in it and in the groups below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    directory: PathBuf,
    unified: bool,
}

/// Most groups of a tree that are visited; a machine has some hundreds.
const MOST_GROUPS: usize = 16_384;

impl Cgroup {
    /// Finds a group by its directory (`/sys/fs/cgroup/system.slice/db.service`), its path in the hierarchy with or
    /// without the leading slash (`system.slice/db.service`), or a line of `/proc/PID/cgroup`
    /// (`0::/system.slice/db.service`, `4:memory:/docker/2f0c...`). A path that several hierarchies have is taken
    /// from version 2, then from the memory controller's, then from any other, the first that holds processes.
    ///
    /// # Errors
    /// When there is no such group, or none at all.
    pub fn find(name: &str) -> Result<Self, CgroupError> {
        Self::find_in(&mounted()?, name, None)
    }

    /// Finds a group as [`Self::find`] does, among those that have the file `file`. Where versions 1 and 2 are both mounted,
    /// a group often stands in both by the same path, and each has only some of a group's files.
    ///
    /// # Errors
    /// When there is no such group with that file.
    pub fn find_with(name: &str, file: &str) -> Result<Self, CgroupError> {
        Self::find_in(&mounted()?, name, Some(file))
    }

    fn find_in(hierarchies: &[Hierarchy], name: &str, file: Option<&str>) -> Result<Self, CgroupError> {
        let name = name.trim();
        if hierarchies.is_empty() {
            return Err(CgroupError::NotMounted { name: name.to_owned() });
        }
        let (controllers, path) = split_proc_line(name).unwrap_or((None, name));
        let mut candidates: Vec<Self> = Vec::new();
        if controllers.is_none() {
            // Only a directory of a mounted hierarchy is a group, whatever files it holds.
            let directory = fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path));
            let mounted = hierarchies.iter().filter(|h| directory.starts_with(&h.mount_point));
            // A hierarchy may be mounted below another's mount point (/sys/fs/cgroup/unified).
            if let Some(h) = mounted.max_by_key(|h| h.mount_point.as_os_str().len()) {
                candidates.push(Self { directory, unified: h.unified });
            }
        }
        let mut ordered: Vec<&Hierarchy> = hierarchies.iter().collect();
        ordered.sort_by_key(|h| (!h.unified, !h.controllers.iter().any(|c| c == "memory")));
        for hierarchy in ordered.iter().filter(|h| h.matches(controllers)) {
            if let Some(directory) = hierarchy.directory_of(Path::new(path)) {
                candidates.push(Self { directory, unified: hierarchy.unified });
            }
        }
        // Nothing named would be everything: the root group.
        candidates.retain(|group| {
            !path.is_empty() && group.exists() && file.is_none_or(|file| group.directory.join(file).is_file())
        });
        let populated = candidates.iter().position(|group| group.members().is_ok_and(|m| !m.is_empty()));
        let found = candidates.into_iter().nth(populated.unwrap_or(0));
        found.ok_or_else(|| CgroupError::NotFound {
            name: name.to_owned(),
            searched: ordered
                .iter()
                .map(|h| h.mount_point.display().to_string())
                .collect::<Vec<_>>()
                .join(", "),
        })
    }

    /// The group that the memory of a process is charged to, by the text of its `/proc/PID/cgroup`: that of the hierarchy, wherever
    /// it is mounted, which has the memory controller.
    pub(crate) fn of_memory(groups: &str) -> Option<Self> {
        let has_memory = |line: &&str| {
            line.split(':').nth(1).is_some_and(|list| list.split(',').any(|name| name == "memory"))
        };
        let line =
            groups.lines().find(has_memory).or_else(|| groups.lines().find(|l| l.starts_with("0::")))?;
        Self::find_with(line, "memory.stat").ok()
    }

    /// Bytes that it, and each group that it lies in, may still take: `u64::MAX` without a limit.
    pub(crate) fn memory_room(&self) -> u64 {
        let (limits, used): (&[&str], _) = match self.unified {
            true => (&["memory.max", "memory.high"], "memory.current"),
            false => (&["memory.limit_in_bytes"], "memory.usage_in_bytes"),
        };
        let number =
            |dir: &Path, name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
        let room = |dir: &Path| {
            let limit = limits.iter().filter_map(|name| number(dir, name)).min()?;
            Some(limit.saturating_sub(number(dir, used).unwrap_or(0)))
        };
        // What a hierarchy is mounted on lies in no group.
        let groups = self.directory.ancestors().take_while(|dir| dir.join("cgroup.procs").is_file());
        groups.filter_map(room).min().unwrap_or(u64::MAX)
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Version of its hierarchy, 1 or 2.
    pub const fn version(&self) -> u8 {
        if self.unified { 2 } else { 1 }
    }

    /// Whether it is still there.
    pub fn exists(&self) -> bool {
        self.directory.join("cgroup.procs").is_file()
    }

    /// The pids of all processes in it and in the groups below, in the observer's pid namespace.
    ///
    /// # Errors
    /// When the group itself is gone, threaded or unreadable; groups below that go meanwhile are none.
    pub fn members(&self) -> Result<BTreeSet<u32>, CgroupError> {
        let mut pids = BTreeSet::new();
        let mut text = Vec::new();
        read_procs(&self.directory, &mut text, &mut pids)?;
        let mut left = vec![self.directory.clone()];
        let mut visited = 0;
        while let Some(group) = left.pop() {
            visited += 1;
            if visited > MOST_GROUPS {
                break;
            }
            for below in groups_below(&group) {
                match read_procs(&below, &mut text, &mut pids) {
                    Ok(()) | Err(CgroupError::Threaded { .. }) => left.push(below),
                    // Gone between listing and reading, or not ours to read: the others still count.
                    Err(_) => {}
                }
            }
        }
        Ok(pids)
    }
}

fn groups_below(group: &Path) -> Vec<PathBuf> {
    // A directory has a link from each directory in it, itself and its parent: with two it is a leaf, and listing
    // its dozens of files can be saved.
    if fs::metadata(group).is_ok_and(|m| m.nlink() == 2) {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir(group) else { return Vec::new() };
    entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
}

fn read_procs(group: &Path, text: &mut Vec<u8>, pids: &mut BTreeSet<u32>) -> Result<(), CgroupError> {
    let path = group.join("cgroup.procs");
    // The whole of it: a group may hold tens of thousands of processes.
    if let Err(source) = proc_file::read_whole(&path, text) {
        let threaded = source.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error());
        return Err(if threaded {
            CgroupError::Threaded { path: group.to_owned() }
        } else {
            CgroupError::Io { path, source }
        });
    }
    // Processes outside our pid namespace show as 0.
    let listed = text.split(|&b| b == b'\n').filter_map(proc_file::parse_number);
    pids.extend(listed.filter_map(|pid| u32::try_from(pid).ok()).filter(|&pid| pid != 0));
    Ok(())
}

impl Hierarchy {
    fn matches(&self, controllers: Option<&str>) -> bool {
        match controllers {
            None => true,
            Some("") => self.unified,
            Some(list) => {
                !self.unified && list.split(',').all(|c| self.controllers.iter().any(|own| own == c))
            }
        }
    }

    /// Where the group of that path in the hierarchy is mounted. `None` if it would lie outside the mount.
    fn directory_of(&self, path: &Path) -> Option<PathBuf> {
        let below = path.strip_prefix(&self.root).or_else(|_| path.strip_prefix("/")).unwrap_or(path);
        let inside = below.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
        inside.then(|| self.mount_point.join(below))
    }
}

/// Splits a line of `/proc/PID/cgroup`: hierarchy number, controllers (empty for version 2), path.
fn split_proc_line(line: &str) -> Option<(Option<&str>, &str)> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    (is_number && path.starts_with('/')).then_some((Some(controllers), path))
}

/// The mounted hierarchies.
fn mounted() -> Result<Vec<Hierarchy>, CgroupError> {
    let path = Path::new("/proc/self/mountinfo");
    let mut text = Vec::new();
    // Not `read_into`: a host of containers may have thousands of mounts.
    fs::File::open(path)
        .and_then(|file| io::Read::read_to_end(&mut io::Read::take(file, 16 << 20), &mut text))
        .map_err(|source| CgroupError::Io { path: path.to_owned(), source })?;
    Ok(hierarchies(&String::from_utf8_lossy(&text)))
}

/// Whether hierarchies of version 1 and of version 2 are mounted.
pub(crate) fn mounted_versions() -> (bool, bool) {
    let mounted = mounted().unwrap_or_default();
    (mounted.iter().any(|h| !h.unified), mounted.iter().any(|h| h.unified))
}

/// The cgroup hierarchies in a text of the format of `/proc/PID/mountinfo` (proc_pid_mountinfo(5)):
/// `ID PARENT MAJOR:MINOR ROOT MOUNT_POINT OPTIONS [TAG...] - TYPE SOURCE SUPER_OPTIONS`.
fn hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
    let parse = |line: &str| {
        let (mount, fs) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, mount_point) = (unescape(mount.next()?), unescape(mount.next()?));
        let mut fs = fs.split(' ');
        let (kind, options) = (fs.next()?, fs.nth(1).unwrap_or(""));
        let unified = match kind {
            "cgroup2" => true,
            "cgroup" => false,
            _ => return None,
        };
        let controllers =
            options.split(',').filter(|o| !matches!(*o, "rw" | "ro")).map(str::to_owned).collect();
        Some(Hierarchy { mount_point, root, unified, controllers })
    };
    mountinfo.lines().filter_map(parse).collect()
}

/// Undoes the octal escapes of blanks, tabs, newlines and backslashes.
fn unescape(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|d| d.iter().all(|b| (b'0'..=b'7').contains(b)));
        match (first, digits) {
            (b'\\', Some(&[a, b, c])) => {
                // Three octal digits are at most 0o777; a kernel writes none above 0o377.
                bytes.push(
                    ((u16::from(a - b'0') << 6) | u16::from(b - b'0') << 3 | u16::from(c - b'0')) as u8,
                );
                rest = tail.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests;
