//! A recording under way that takes its name only when there is something in it.
//!
//! Who records again replaces the recording before. One that recorded nothing must not: so a new file has no name at first,
//! and whoever writes it gives it one ([`Replacement::publish`]) when its first snapshot is in it. A recorder that is killed
//! before leaves everything as it was; one that is killed later leaves a recording that can be read, under the name where it
//! is looked for. At no moment is there neither. What another recorder is writing is nobody's to replace or to rename.
//!
//! Recordings tell where in memory things lie and how programs were started, which the kernel shows their user alone: a new
//! file can be read by its owner only (mode 0600). One that takes another's place has that one's mode and owner, but not what a
//! stranger left in a directory such as `/tmp`.
//!
//! | output | until then |
//! |---|---|
//! | a file in a directory where files can be made | a file without a name (O_TMPFILE), or `FILE.PID.partial` where the file system has none |
//! | a file in a directory where none can be made | memory: the file that is there is overwritten, there is no other place |
//! | standard output, a pipe, a device, a descriptor (`/dev/fd/3`) | nothing waits: what is written is there at once |

use crate::content::{holds_something, is_recording};
use crate::files::{is_standard, name_of, read_head};
use crate::{Error, Format};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags, flock, linkat, renameat_with};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Bits of a directory's mode (inode(7)): files of others stay, everyone may make some.
const STICKY: u32 = 0o1000;
const WRITABLE_BY_ALL: u32 = 0o002;

/// Mode of a new recording: its owner may read and write it, nobody else anything.
pub const PRIVATE: u32 = 0o600;

/// A file that takes its name, and the place of what had it, when it is told to.
#[derive(Debug)]
pub struct Replacement {
    file: File,
    state: State,
    name: String,
}

#[derive(Debug)]
enum State {
    /// What is written is where it is to be.
    Placed,
    /// The file has another name than it is to have, or none.
    Draft { target: PathBuf, draft: Option<PathBuf> },
    /// What was written waits for the file that is there to be overwritten.
    Waiting { target: PathBuf, written: Vec<u8> },
}

/// Where a recording went.
#[derive(Debug, Default)]
pub struct Placement {
    /// Where the recording is, if not under the name it was to have: with the reason.
    pub instead: Option<(PathBuf, String)>,
    /// Where the one is now that had the name before, if there is a snapshot in it.
    pub old: Option<PathBuf>,
}

impl Replacement {
    /// Makes a file that is to be `path`; `-` is standard output.
    ///
    /// # Errors
    /// [`Error::WouldClobber`] when there is something else than a recording; [`Error::BeingWritten`] when another recorder
    /// writes to it; [`Error::Unsupported`] when `path` leads elsewhere by a link that another user made in a directory such as
    /// `/tmp`; [`Error::Io`].
    pub fn create(path: &Path) -> Result<Self, Error> {
        let name = name_of(path, "standard output");
        let failed = |e| Error::io("create", &name, e);
        if is_standard(path) {
            let stdout = io::stdout().as_fd().try_clone_to_owned().map_err(failed)?;
            return Ok(Self { file: File::from(stdout), state: State::Placed, name });
        }
        let target = end_of_links(path, &name)?;
        let target = target.filter(|target| target.metadata().map_or(true, |m| m.is_file()));
        let Some(target) = target else {
            // Pipes and devices can be written to without being readable.
            let file =
                OpenOptions::new().write(true).create(true).truncate(true).open(path).map_err(failed)?;
            return Ok(Self { file, state: State::Placed, name });
        };
        if let Ok(mut there) = File::open(&target) {
            let head = read_head(&mut there).map_err(failed)?;
            if !head.is_empty() && Format::detect(&head).is_none() {
                return Err(Error::WouldClobber { file: name });
            }
            if is_being_written(&target) {
                return Err(Error::BeingWritten { file: name });
            }
        }
        let drafted = match may_be_renamed_over(&target) {
            true => new_file_beside(&target, PRIVATE),
            false => Err(Errno::PERM.into()),
        };
        match drafted {
            Ok((file, draft)) => Ok(Self { file, state: State::Draft { target, draft }, name }),
            Err(_) if target.exists() => {
                let file = OpenOptions::new().write(true).open(&target).map_err(failed)?;
                in_place(file, target, name)
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Makes a file that is to be `path`, or if that is taken by then another one in its directory: for
    /// [`Replacement::publish_new`]. It never takes the place of what is there. `mode`: of a file that takes nobody's place,
    /// [`PRIVATE`] of a recording; the process's file mode creation mask is taken off.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create_new(path: &Path, mode: u32) -> Result<Self, Error> {
        let name = name_of(path, "standard output");
        let (file, draft) = new_file_beside(path, mode).map_err(|e| Error::io("create", &name, e))?;
        Ok(Self { file, state: State::Draft { target: path.to_owned(), draft }, name })
    }

    /// Gives the file the first of `names` that nothing has, and returns that. All are in the directory it was made for.
    ///
    /// # Errors
    /// [`Error::Io`], also when all are taken; then there is no file.
    pub fn publish_new(&mut self, names: impl IntoIterator<Item = PathBuf>) -> Result<PathBuf, Error> {
        let failed = |e: io::Error| Error::io("create", &self.name, e);
        for name in names {
            let named = match &self.state {
                State::Draft { draft: None, .. } => link_file(&self.file, &name),
                State::Draft { draft: Some(draft), .. } => rename_to_free(draft, &name),
                State::Placed | State::Waiting { .. } => Err(Errno::INVAL),
            };
            match named {
                Ok(()) => {
                    self.state = State::Placed;
                    return Ok(name);
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
        Err(failed(Errno::EXIST.into()))
    }

    /// Gives the file its name. A recording that was there is kept under its name with `.old`, if there is a snapshot in it and
    /// the directory allows it. If the file that is there cannot be replaced after all, the new one gets a name beside it.
    /// Further calls do nothing.
    ///
    /// # Errors
    /// [`Error::Io`]; then there is no file, and what was there still is.
    pub fn publish(&mut self) -> Result<Placement, Error> {
        let failed = |e| Error::io("create", &self.name, e);
        match std::mem::replace(&mut self.state, State::Placed) {
            State::Placed => Ok(Placement::default()),
            State::Draft { target, draft } => {
                let draft = match draft {
                    Some(draft) => draft,
                    None => name_file(&self.file, &target).map_err(failed)?,
                };
                let free = match is_being_written(&target) {
                    // It was not when this one began.
                    true => Err(io::Error::other("another recorder is writing to it")),
                    false => Ok(()),
                };
                let placed = free.and_then(|()| keep_old(&target));
                match placed.and_then(|old| std::fs::rename(&draft, &target).map(|()| old)) {
                    Ok(old) => Ok(Placement { instead: None, old }),
                    Err(error) => {
                        Ok(Placement { instead: Some((draft, error.to_string())), ..Placement::default() })
                    }
                }
            }
            State::Waiting { written, .. } => {
                self.file.set_len(0).and_then(|()| self.file.rewind()).map_err(failed)?;
                self.file.write_all(&written).map_err(|e| Error::io("write", &self.name, e))?;
                Ok(Placement::default())
            }
        }
    }

    /// Gives the file its name, in place of the file that has it, if any: of that nothing is kept, unless `keeps`: then a
    /// recording that was there is kept as [`Self::publish`] does. Returns where.
    ///
    /// # Errors
    /// [`Error::BeingWritten`] when a recorder has begun to write to it meanwhile; [`Error::Io`]. Then there is no file, and what
    /// was there still is.
    pub fn replace(&mut self, keeps: bool) -> Result<Option<PathBuf>, Error> {
        let failed = |e| Error::io("write", &self.name, e);
        let State::Draft { target, draft } = std::mem::replace(&mut self.state, State::Placed) else {
            return Err(failed(Errno::INVAL.into()));
        };
        let draft = match draft {
            Some(draft) => draft,
            None => name_file(&self.file, &target).map_err(failed)?,
        };
        let placed = match is_being_written(&target) {
            // It was not when this one began.
            true => Err(Error::BeingWritten { file: self.name.clone() }),
            false => {
                let kept = if keeps { keep_old(&target) } else { Ok(None) };
                kept.and_then(|old| std::fs::rename(&draft, &target).map(|()| old)).map_err(failed)
            }
        };
        placed.inspect_err(|_| drop(std::fs::remove_file(&draft)))
    }

    /// Gives the file to a user, where it is a file and this user may. One that is to take another's place stays that one's
    /// owner's.
    pub fn give_to(&self, uid: u32, gid: u32) {
        let taken = match &self.state {
            State::Draft { target, .. } => target.exists(),
            State::Placed | State::Waiting { .. } => true,
        };
        if !taken {
            let _ = std::os::unix::fs::fchown(&self.file, Some(uid), Some(gid));
        }
    }

    /// Another handle of the file, for what writes to files. Not for one that waits for the file that is there.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn file(&self) -> Result<File, Error> {
        self.file.try_clone().map_err(|e| Error::io("write", &self.name, e))
    }

    /// Whether it would take the place of a recording that has a snapshot in it.
    pub fn would_replace(&self) -> bool {
        match &self.state {
            State::Placed => false,
            State::Draft { target, .. } | State::Waiting { target, .. } => holds_something(target),
        }
    }

    /// Brings what was written to the disk: that this is full may show only now. What is no file of a disk cannot be brought
    /// there.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync(&self) -> Result<(), Error> {
        if self.file.metadata().is_ok_and(|m| m.is_file()) {
            self.file.sync_data().map_err(|e| Error::io("write", &self.name, e))?;
        }
        Ok(())
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.state {
            State::Waiting { written, .. } => written.write(bytes),
            State::Placed | State::Draft { .. } => self.file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if let State::Draft { draft: Some(draft), .. } = &self.state {
            let _ = std::fs::remove_file(draft);
        }
    }
}

/// The file that `path` leads to, there or not; none where it leads to an open file of a process, which has no name to be
/// replaced (`/dev/stdout`), or nowhere.
///
/// # Errors
/// When it leads there by a link that is not trusted: see [`is_trusted`].
fn end_of_links(path: &Path, name: &str) -> Result<Option<PathBuf>, Error> {
    const MOST_LINKS: usize = 40;
    let mut target = path.to_owned();
    for _ in 0..MOST_LINKS {
        let dir = directory_of(&target);
        if dir.canonicalize().is_ok_and(|dir| dir.starts_with("/proc")) {
            return Ok(None);
        }
        // Held open: the link whose owner is looked at is the one that is read.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(link) = rustix::fs::open(&target, flags, Mode::empty()) else { return Ok(Some(target)) };
        let link = File::from(link);
        let Some(about) = link.metadata().ok().filter(|m| m.is_symlink()) else { return Ok(Some(target)) };
        if !is_trusted(&about, dir) {
            return Err(Error::Unsupported {
                file: name.to_owned(),
                why: format!(
                    "{} is a link that another user made in a directory where everyone may; it is not followed (remove it, or \
                     choose another name)",
                    target.display()
                ),
            });
        }
        match rustix::fs::readlinkat(&link, "", Vec::new()) {
            Ok(next) => target = dir.join(OsStr::from_bytes(next.as_bytes())),
            Err(_) => return Ok(Some(target)),
        }
    }
    Ok(None)
}

/// Whether a link in `dir` may be followed, or a file be taken for one's own. In a directory such as `/tmp` anyone could make one
/// that leads to a file of the one who records, or that the recording is then readable through. The rule is the kernel's (Documentation/admin-guide/sysctl/fs.rst, `protected_symlinks`), which does not apply
/// to links that are read one by one, as they are here.
fn is_trusted(there: &Metadata, dir: &Path) -> bool {
    let Ok(dir) = dir.metadata() else { return false };
    let shared = dir.mode() & STICKY != 0 && dir.mode() & WRITABLE_BY_ALL != 0;
    !shared || [rustix::process::geteuid().as_raw(), dir.uid()].contains(&there.uid())
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// In a directory such as `/tmp` the files of others stay.
fn may_be_renamed_over(target: &Path) -> bool {
    let own = rustix::process::geteuid();
    let (Ok(there), Ok(dir)) = (target.metadata(), directory_of(target).metadata()) else { return true };
    own.is_root() || dir.mode() & STICKY == 0 || [there.uid(), dir.uid()].contains(&own.as_raw())
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn draft_name(target: &Path) -> PathBuf {
    with_ending(target, &format!(".{}.partial", std::process::id()))
}

/// A new file in the directory of `target`, without a name where that can be.
fn new_file_beside(target: &Path, mode: u32) -> io::Result<(File, Option<PathBuf>)> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let (file, draft) = match rustix::fs::open(directory_of(target), flags, Mode::from_raw_mode(mode)) {
        Ok(file) => (File::from(file), None),
        // File systems that know nothing of it, and kernels.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            let draft = draft_name(target);
            // One of a process that had this pid before.
            let _ = std::fs::remove_file(&draft);
            let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
            (file, Some(draft))
        }
        Err(error) => return Err(error.into()),
    };
    // What another user left in a directory such as `/tmp` gives nobody a claim to what is recorded under its name.
    if let Some(there) = target.metadata().ok().filter(|there| is_trusted(there, directory_of(target))) {
        // The mode last: to change the owner takes bits of it away, and who may not do that keeps it to themselves.
        let given = std::os::unix::fs::fchown(&file, Some(there.uid()), Some(there.gid()));
        let same = given.is_ok()
            || file.metadata().is_ok_and(|own| (own.uid(), own.gid()) == (there.uid(), there.gid()));
        if same {
            let _ = file.set_permissions(Permissions::from_mode(there.mode() & 0o777));
        }
    }
    // Where the file system knows no locks it goes without: see [`is_being_written`].
    let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
    Ok((file, draft))
}

/// For what cannot but be overwritten where it is. Nobody else may write to it meanwhile.
fn in_place(file: File, target: PathBuf, name: String) -> Result<Replacement, Error> {
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(Error::BeingWritten { file: name }),
        _ => Ok(Replacement { file, state: State::Waiting { target, written: Vec::new() }, name }),
    }
}

/// Whether a recorder that runs has `path` open: it holds a lock (flock(2)) on what it writes, until it is closed.
pub fn is_being_written(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}

/// Renames to what nothing has. Some file systems know no renaming of that kind (NFS), others no second names (FAT).
fn rename_to_free(from: &Path, to: &Path) -> rustix::io::Result<()> {
    match linkat(CWD, from, CWD, to, AtFlags::empty()) {
        Ok(()) => {
            let _ = std::fs::remove_file(from);
            Ok(())
        }
        Err(Errno::EXIST) => Err(Errno::EXIST),
        Err(_) => renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE),
    }
}

fn link_file(file: &File, name: &Path) -> rustix::io::Result<()> {
    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, open.as_str(), CWD, name, AtFlags::SYMLINK_FOLLOW)
}

fn name_file(file: &File, target: &Path) -> io::Result<PathBuf> {
    let draft = draft_name(target);
    let _ = std::fs::remove_file(&draft);
    link_file(file, &draft)?;
    Ok(draft)
}

/// Whether nothing is lost that is no recording, or that somebody is still writing, when `path` is replaced. A directory is not
/// replaced at all.
fn may_become_old(path: &Path) -> bool {
    let Ok(metadata) = path.symlink_metadata() else { return true };
    metadata.is_dir()
        || metadata.is_file() && !is_being_written(path) && (metadata.len() == 0 || is_recording(path))
}

/// Gives what is worth it the name with `.old` (`.old.1` and so on where something else than a recording has that, or one that
/// is still written), beside its own where the file system knows several names of a file: then there is no moment without a
/// recording of that name.
fn keep_old(target: &Path) -> io::Result<Option<PathBuf>> {
    if !holds_something(target) {
        return Ok(None);
    }
    const MOST_NAMES: usize = 100;
    let numbered = (1..MOST_NAMES).map(|number| format!(".old.{number}"));
    let mut names =
        std::iter::once(".old".to_owned()).chain(numbered).map(|ending| with_ending(target, &ending));
    let Some(old) = names.find(|name| may_become_old(name)) else { return Err(Errno::EXIST.into()) };
    let second = with_ending(target, &format!(".{}.old", std::process::id()));
    let kept = std::fs::hard_link(target, &second).and_then(|()| std::fs::rename(&second, &old));
    // Renaming does nothing where both are names of one file already.
    let _ = std::fs::remove_file(&second);
    kept.or_else(|_| std::fs::rename(target, &old))?;
    Ok(Some(old))
}

#[cfg(test)]
mod tests;
