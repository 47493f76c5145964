//! Splitting huge pages of this process into smaller folios, by the file `split_huge_pages` of the debug file system.
//!
//! "PID,0xSTART,0xEND,ORDER" written to it splits the huge pages of a range of addresses of one process
//! (admin-guide/mm/transhuge.rst; ORDER since Linux 6.10). That changes memory of our own and nothing of the machine,
//! unlike the sizes below `/sys/kernel/mm/transparent_hugepage`, which hold for every process.

use super::PAGE;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

/// The first Linux that splits to an order that is asked for. Those before would split to single pages.
const SINCE: (u32, u32) = (6, 10);
/// Where the debug file system is mounted, if it is (sysfs(5), debugfs.rst).
const USUAL: &str = "/sys/kernel/debug";
/// DEBUGFS_MAGIC of linux/magic.h.
const MAGIC: u64 = 0x6462_6720;

/// Why huge pages cannot be split.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("Linux {release} splits huge pages to single pages only; to an order since 6.10")]
    TooOld { release: String },
    #[error("needs the debug file system, which this kernel has not got (CONFIG_DEBUG_FS)")]
    NoDebugfs,
    #[error("needs root (CAP_SYS_ADMIN) to reach the debug file system: {0}; run it as root")]
    NotPermitted(Errno),
    #[error("this kernel's debug file system has no split_huge_pages (CONFIG_TRANSPARENT_HUGEPAGE)")]
    NoFile,
    #[error(
        "the kernel is locked down and lets not even root open split_huge_pages of the debug file system ({0}); boot \
         it without lockdown"
    )]
    LockedDown(String),
    #[error("cannot {what}: {why}")]
    System { what: &'static str, why: Errno },
}

/// The open file.
#[derive(Debug)]
pub(super) struct Splitter(File);

impl Splitter {
    pub(super) fn open() -> Result<Splitter, Refused> {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        if version(&release).is_some_and(|version| version < SINCE) {
            return Err(Refused::TooOld { release });
        }
        // What is mounted comes first: all mounts show one file system, and another may reset its options.
        let mounted = rustix::fs::statfs(USUAL).is_ok_and(|found| found.f_type as u64 == MAGIC);
        let root = if mounted { directory() } else { detached() }?;
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        match rustix::fs::openat(&root, "split_huge_pages", flags, Mode::empty()) {
            Ok(file) => Ok(Splitter(file.into())),
            Err(Errno::NOENT) => Err(Refused::NoFile),
            Err(why @ Errno::ACCESS) => Err(Refused::NotPermitted(why)),
            Err(why @ Errno::PERM) if rustix::process::geteuid().is_root() => {
                Err(Refused::LockedDown(lockdown().unwrap_or_else(|| why.to_string())))
            }
            Err(why @ Errno::PERM) => Err(Refused::NotPermitted(why)),
            Err(why) => Err(Refused::System { what: "open split_huge_pages of the debug file system", why }),
        }
    }

    /// Splits the huge pages among `pages` pages at `start`, an address of this process, into folios of `order`. What
    /// could not be split stays whole without an error: look.
    pub(super) fn split(&self, start: usize, pages: usize, order: u8) -> std::io::Result<()> {
        let end = start + pages * PAGE;
        let wish = format!("{},{start:#x},{end:#x},{order}", std::process::id());
        // One write is one wish.
        (&self.0).write(wish.as_bytes()).map(drop)
    }
}

fn directory() -> Result<OwnedFd, Refused> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(USUAL, flags, Mode::empty())
        .map_err(|why| Refused::System { what: "open /sys/kernel/debug", why })
}

/// The debug file system, mounted nowhere: gone with its last descriptor.
fn detached() -> Result<OwnedFd, Refused> {
    let refused = |what| {
        move |why| match why {
            Errno::NODEV => Refused::NoDebugfs,
            Errno::PERM | Errno::ACCESS => Refused::NotPermitted(why),
            why => Refused::System { what, why },
        }
    };
    let context =
        rustix::mount::fsopen("debugfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(refused("open debugfs"))?;
    rustix::mount::fsconfig_create(&context).map_err(refused("set debugfs up"))?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .map_err(refused("reach debugfs"))
}

/// The mode that the kernel is locked down in, if it tells.
fn lockdown() -> Option<String> {
    let modes = std::fs::read_to_string("/sys/kernel/security/lockdown").ok()?;
    Some(modes.split_once('[')?.1.split_once(']')?.0.to_owned())
}

/// Version and patch level of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_as_numbers() {
        assert_eq!(version("6.18.44-fc-v669"), Some((6, 18)));
        assert_eq!(version("6.9-rc1"), Some((6, 9)));
        assert_eq!(version("7.0.0+deb14-cloud-amd64"), Some((7, 0)));
        assert_eq!(version("none"), None);
        assert!(version("6.9.12") < Some(SINCE) && version("6.10.0") >= Some(SINCE));
    }

    /// Neither the mounts nor the descriptors of this process are others than before, whether it may or not.
    #[test]
    fn nothing_is_left_mounted() {
        let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let before = mounts();
        let splitter = Splitter::open();
        assert_eq!(before, mounts());
        if let Err(why) = splitter {
            println!("skipped: splitting: {why}");
        }
        assert_eq!(before, mounts());
    }
}
