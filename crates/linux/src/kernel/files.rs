//! The few things done to sysfs and tracefs, so that tests can stand in for the kernel.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// Files that answer, as sysfs's and tracefs's do.
pub(super) trait Files {
    fn read(&self, path: &Path) -> io::Result<String>;
    fn write(&self, path: &Path, value: &str) -> io::Result<()>;
    fn make_dir(&self, path: &Path) -> io::Result<()>;
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Names of the entries of a directory.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Opens a stream whose `read` gives [`io::ErrorKind::WouldBlock`] when there is nothing more yet.
    fn open_stream(&self, path: &Path) -> io::Result<Box<dyn Read>>;
}

/// The kernel's own.
#[derive(Debug)]
pub(super) struct KernelFiles;

impl Files for KernelFiles {
    fn read(&self, path: &Path) -> io::Result<String> {
        retried(|| fs::read_to_string(path))
    }

    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        retried(|| fs::write(path, value))
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        retried(|| fs::remove_dir(path))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn open_stream(&self, path: &Path) -> io::Result<Box<dyn Read>> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Box::new(fs::File::from(fd)))
    }
}

/// Repeats what the kernel was too busy for: it answers EBUSY rather than wait for a lock that is held briefly.
fn retried<T>(mut operation: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    const TRIES: u32 = 20;
    for _ in 1..TRIES {
        match operation() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => sleep(Duration::from_millis(5)),
            done => return done,
        }
    }
    operation()
}
