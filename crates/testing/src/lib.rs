//! What the tests of several crates need.

mod headless;
mod mapped;

pub use headless::Headless;
pub use mapped::{ManyMappings, Writes};

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// User and group id of nobody.
pub const NOBODY: u32 = 65534;

/// A copy of a program that any user may run, wherever the program itself lies: a build directory may be closed to others.
///
/// A child makes the copy, since the kernel refuses to run a file that anybody has open for writing (ETXTBSY). Were it
/// written by this process, a child that another test forks meanwhile would have it open too, until its own exec.
#[derive(Clone, Debug)]
pub struct ProgramCopy(PathBuf);

impl ProgramCopy {
    /// Copies `program` into `dir`, which anyone may look into from then on.
    ///
    /// # Errors
    /// One of them is not there, or may not be used like that.
    pub fn make(program: &Path, dir: &Path) -> io::Result<Self> {
        let mode = std::fs::metadata(dir)?.permissions().mode();
        std::fs::set_permissions(dir, PermissionsExt::from_mode(mode | 0o755))?;
        let name = program.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let copy = dir.join(name);
        let done = Command::new("install").args(["-m", "755", "--"]).arg(program).arg(&copy).output()?;
        if !done.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&done.stderr).into_owned()));
        }
        Ok(Self(copy))
    }

    /// Runs it as nobody. Only root may become another user.
    pub fn as_nobody(&self) -> Command {
        let mut command = Command::new(&self.0);
        command.uid(NOBODY).gid(NOBODY);
        command
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_copy_runs_at_once_whatever_others_fork() {
        let dir = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let mut command = Command::new("true");
                        // As a fork and an exec, which holds what is open for longer than a spawn does.
                        // SAFETY: does nothing.
                        unsafe { command.pre_exec(|| Ok(())) };
                        command.status().unwrap();
                    }
                });
            }
            let refused: Vec<io::Error> = (0..50)
                .filter_map(|_| {
                    let copy = ProgramCopy::make(Path::new("/bin/true"), dir.path()).unwrap();
                    let refused = Command::new(copy.path()).status().err();
                    std::fs::remove_file(copy.path()).unwrap();
                    refused
                })
                .collect();
            stop.store(true, Ordering::Relaxed);
            assert!(refused.is_empty(), "{refused:?}");
        });
    }

    #[test]
    fn what_cannot_be_copied_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let error = ProgramCopy::make(Path::new("/no/such/program"), dir.path()).unwrap_err();
        assert!(error.to_string().contains("/no/such/program"), "{error}");
    }
}
