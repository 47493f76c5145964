//! Output files that neither destroy what they replace nor pass for complete when they are not.

use anyhow::{Context, bail};
use isotherm_record::{Format, PRIVATE, Replacement, is_being_written, is_recording};
use isotherm_report::canvas::{SVG_SIGNATURE, is_drawn_png};
use isotherm_report::html::SIGNATURE;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Whether `path` means standard input or output.
pub fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// What a file is, as told by its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A recording in any format. Many things begin as one could (any JSON does): only what can be read as one is one.
    Recording,
    /// PNG or SVG, drawn by Isotherm.
    Picture,
    /// Any other PNG or SVG.
    Image,
    /// A page made by `isotherm report html`.
    Page,
    /// Any other HTML.
    Html,
    /// A compressed archive, a program: bytes.
    Bytes,
    /// Anything else that people can read.
    Text,
}

impl std::fmt::Display for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Recording => "a recording",
            Self::Picture => "a picture made by isotherm",
            Self::Image => "another picture",
            Self::Page => "a page made by `isotherm report html`",
            Self::Html => "another HTML page",
            Self::Bytes => "a file of bytes",
            Self::Text => "a text",
        })
    }
}

impl Content {
    /// The content of the file at `path`, which is not empty.
    fn of(path: &Path) -> std::io::Result<Self> {
        let mut head = Vec::new();
        File::open(path)?.take(16 << 10).read_to_end(&mut head)?;
        let picture = |drawn: bool| if drawn { Self::Picture } else { Self::Image };
        if head.starts_with(b"\x89PNG\r\n\x1a\n") {
            return Ok(picture(is_drawn_png(&head)));
        }
        let text = String::from_utf8_lossy(&head);
        let markup = after_prolog(&text);
        let begins = |with: &str| markup.get(..with.len()).is_some_and(|m| m.eq_ignore_ascii_case(with));
        if begins("<svg") {
            return Ok(picture(markup.starts_with(SVG_SIGNATURE)));
        }
        if begins(SIGNATURE) {
            return Ok(Self::Page);
        }
        if begins("<!doctype html") || begins("<html") {
            return Ok(Self::Html);
        }
        Ok(match is_recording(path) {
            true => Self::Recording,
            false if text.contains(['\0', '\u{fffd}']) => Self::Bytes,
            false => Self::Text,
        })
    }
}

/// XML without what may stand before its first element: byte order mark, declaration, comments, a document type other
/// than HTML's.
fn after_prolog(text: &str) -> &str {
    let mut rest = text.trim_start_matches('\u{feff}').trim_start();
    loop {
        let end = match rest {
            _ if rest.starts_with("<?") => "?>",
            _ if rest.starts_with("<!--") => "-->",
            _ if rest.get(..13).is_some_and(|d| d.eq_ignore_ascii_case("<!doctype svg")) => ">",
            _ => return rest,
        };
        match rest.split_once(end) {
            Some((_, after)) => rest = after.trim_start(),
            None => return rest,
        }
    }
}

/// Refuses a name that stands for another format than the one that recordings are made in: whoever gives it does not want a file
/// that only Isotherm reads.
///
/// # Errors
/// Misuse, with what to do.
pub fn check_name(path: &Path) -> anyhow::Result<()> {
    match Format::from_path(path).filter(|named| *named != Format::Rec) {
        Some(named) => misuse!(
            "{path}: its name stands for {named}, and recordings are made as rec; end it in .rec, and convert that afterwards \
             (isotherm convert FILE.rec {path})",
            path = path.display()
        ),
        None => Ok(()),
    }
}

/// Refuses to replace a file that is no recording.
///
/// # Errors
/// As [`check_replaceable_by`].
pub fn check_replaceable(path: &Path) -> anyhow::Result<()> {
    check_replaceable_by(Content::Recording, path)
}

/// Refuses to replace a file by other content than it has.
///
/// # Errors
/// When `path` is a file with something else in it: what it is, and what to do.
pub fn check_replaceable_by(new: Content, path: &Path) -> anyhow::Result<()> {
    if is_standard(path) {
        return Ok(());
    }
    match path.metadata() {
        Ok(metadata) if metadata.is_file() && metadata.len() > 0 => {}
        // In directories such as /tmp the kernel does not follow links of other users.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && path.is_symlink() => {
            return Err(error).with_context(|| {
                format!("{} is a link that may not be followed; choose another name", path.display())
            });
        }
        Ok(_) | Err(_) => return Ok(()),
    }
    if is_being_written(path) {
        bail!("{} is being written to by a recorder; it is left to it (choose another name)", path.display());
    }
    let found = Content::of(path)
        .with_context(|| format!("{} exists and cannot be read; choose another name", path.display()))?;
    if found != new {
        bail!(
            "{} exists and is not {new} but {found}; it is left as it is (remove it, or choose another name)",
            path.display()
        );
    }
    Ok(())
}

/// Waits until somebody reads the pipe that `path` may be the name of: to open it would wait, too, and hear no signal. Returns its
/// end to be kept until the file is open, or nothing where it is none, or once `asked` to stop.
///
/// # Errors
/// It may not be opened.
pub fn wait_for_reader(path: &Path, asked: impl Fn() -> bool) -> anyhow::Result<Option<File>> {
    const PAUSE: Duration = Duration::from_millis(20);
    if is_standard(path) || !path.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo()) {
        return Ok(None);
    }
    let mut told = false;
    while !asked() {
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        match File::options().write(true).custom_flags(flags).open(path) {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {}
            opened => {
                return opened.map(Some).with_context(|| format!("cannot write to {}", path.display()));
            }
        }
        if !told {
            say!(
                "isotherm: {} is a pipe that nobody reads yet; waiting for somebody who does",
                path.display()
            );
            told = true;
        }
        std::thread::sleep(PAUSE);
    }
    Ok(None)
}

/// Has a new file belong to the one who called this program by sudo: root alone could read the recording otherwise.
pub fn hand_over(file: &Replacement) {
    let id = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    if rustix::process::geteuid().is_root()
        && let (Some(user), Some(group)) = (id("SUDO_UID"), id("SUDO_GID"))
    {
        file.give_to(user, group);
    }
}

/// A file that takes its name when it is complete, and goes away when it is not, whatever ends this program: until then it
/// has none, where the file system knows that.
pub struct Draft {
    target: PathBuf,
    /// Nothing where there is nothing to protect (a pipe, a device).
    file: Option<Replacement>,
    content: Content,
}

impl Draft {
    /// A draft of the recording `path`.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn new(path: &Path) -> anyhow::Result<Self> {
        Self::of(Content::Recording, path)
    }

    /// A draft of `path`, which is to hold `content`.
    ///
    /// # Errors
    /// As [`check_replaceable_by`]; no file can be made there.
    pub fn of(content: Content, path: &Path) -> anyhow::Result<Self> {
        check_replaceable_by(content, path)?;
        // A link goes on to point where it did.
        let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let special = is_standard(path) || target.metadata().is_ok_and(|m| !m.is_file());
        // Pictures, pages and screens name programs with their arguments, as recordings do: they are no less private.
        let file = (!special).then(|| Replacement::create_new(&target, PRIVATE)).transpose()?;
        file.iter().for_each(hand_over);
        Ok(Self { target, file, content })
    }

    /// Whether it is a file that has yet to take its name; else what is written is there at once.
    pub fn is_file(&self) -> bool {
        self.file.is_some()
    }

    /// Where to write. A pipe is opened when somebody reads it.
    ///
    /// # Errors
    /// The system refuses.
    pub fn open(&self) -> anyhow::Result<File> {
        match &self.file {
            Some(file) => Ok(file.file()?),
            None => {
                File::create(&self.target).with_context(|| format!("cannot write {}", self.target.display()))
            }
        }
    }

    /// Gives it its name. It is on the disk before it takes the place of what is there: after a crash there is the one or the
    /// other, whole.
    ///
    /// # Errors
    /// When the system refuses; the draft is gone then.
    pub fn keep(self) -> anyhow::Result<()> {
        self.place(false).map(|_| ())
    }

    /// The same; a recording that is there is kept, and returned where.
    ///
    /// # Errors
    /// As [`Self::keep`].
    pub fn keep_both(self) -> anyhow::Result<Option<PathBuf>> {
        let keeps = self.content == Content::Recording;
        self.place(keeps)
    }

    fn place(self, keeps: bool) -> anyhow::Result<Option<PathBuf>> {
        let Some(mut file) = self.file else { return Ok(None) };
        file.sync()?;
        Ok(file.replace(keeps)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_record::synthetic::{Shape, Synthetic};
    use isotherm_record::{Format, ItemReader, create};
    use isotherm_report::canvas::{Bitmap, Svg};
    use std::io::Write;

    #[test]
    fn only_recordings_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        assert!(check_replaceable(&dir.path().join("new")).is_ok());
        assert!(check_replaceable(&file("empty", b"")).is_ok());
        for (name, content) in [
            ("notes.txt", &b"to do: buy milk"[..]),
            ("package.json", b"{\"name\": \"shop\"}"),
            ("list.json", b"[1, 2, 3]"),
            ("picture.z", b"\x78\x9c\x03\x00\x00\x00\x00\x01"),
        ] {
            let error = check_replaceable(&file(name, content)).unwrap_err().to_string();
            assert!(error.contains("is not a recording") && error.contains(name), "{error}");
        }
        for format in Format::ALL {
            let path = dir.path().join(format!("recording.{format}"));
            let mut writer = create(&path, format).unwrap();
            let mut reader = Synthetic::new(Shape { nr_regions: 100, ..Shape::default() });
            while let Some(item) = reader.next_ref().unwrap() {
                writer.write(item).unwrap();
            }
            writer.finish().unwrap();
            assert!(check_replaceable(&path).is_ok(), "{format}");
        }
    }

    #[test]
    fn a_link_that_the_kernel_does_not_follow_is_not_replaced() {
        use std::os::unix::fs::{PermissionsExt, lchown, symlink};
        let protects = std::fs::read_to_string("/proc/sys/fs/protected_symlinks");
        if !rustix::process::geteuid().is_root() || protects.is_ok_and(|text| text.trim() == "0") {
            println!("skipped: needs root and fs.protected_symlinks");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let shared = dir.path().join("shared");
        std::fs::create_dir(&shared).unwrap();
        std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o1777)).unwrap();
        let link = shared.join("a.rec");
        symlink(dir.path().join("far"), &link).unwrap();
        assert!(check_replaceable(&link).is_ok(), "one's own");
        lchown(&link, Some(65534), None).unwrap();
        let error = check_replaceable(&link).unwrap_err().to_string();
        assert!(error.contains("may not be followed"), "{error}");
    }

    #[test]
    fn pictures_and_pages_are_told_by_their_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.png");
        let (mut png, svg) = (Vec::new(), Svg::new(3, 2).finish());
        Bitmap::new(3, 2).write_png(&mut png).unwrap();
        let contents = [
            (&png[..], Content::Picture),
            (svg.as_bytes(), Content::Picture),
            (b"\x89PNG\r\n\x1a\n....", Content::Image),
            (b"<svg xmlns=\"http://www.w3.org/2000/svg\"/>", Content::Image),
            (
                b"\xef\xbb\xbf<?xml version=\"1.0\"?>\n<!-- <html> --><!DOCTYPE svg PUBLIC \"\">\n<SVG/>",
                Content::Image,
            ),
            (b"<!doctype HTML>\n<html>", Content::Html),
            (SIGNATURE.as_bytes(), Content::Page),
            (b"<p>notes</p>", Content::Text),
            (b"\x89PNG", Content::Bytes),
            (b"\x1f\x8b\x08\0\0", Content::Bytes),
        ];
        for (bytes, content) in contents {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(Content::of(&path).unwrap(), content, "{}", String::from_utf8_lossy(bytes));
            for new in [Content::Picture, Content::Page, Content::Recording] {
                assert_eq!(check_replaceable_by(new, &path).is_ok(), new == content, "{new} over {content}");
            }
        }
    }

    #[test]
    fn a_draft_has_no_name_until_it_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.rec");
        let write = |draft: &Draft, text: &str| draft.open().unwrap().write_all(text.as_bytes()).unwrap();
        let draft = Draft::new(&path).unwrap();
        write(&draft, "half");
        assert!(!path.exists());
        drop(draft);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        for text in ["whole", "another, in its place"] {
            let file = Some(Replacement::create_new(&path, PRIVATE).unwrap());
            let draft = Draft { target: path.clone(), file, content: Content::Text };
            write(&draft, text);
            draft.keep().unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }

    /// What is made of a recording tells as much of who did what; one that replaces another keeps that one's mode.
    #[test]
    fn nobody_else_reads_what_is_made_of_a_recording() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        for (content, text) in
            [(Content::Page, SIGNATURE), (Content::Picture, SVG_SIGNATURE), (Content::Text, "a screen")]
        {
            let path = dir.path().join(format!("{content:?}"));
            let write = || {
                let draft = Draft::of(content, &path).unwrap();
                draft.open().unwrap().write_all(text.as_bytes()).unwrap();
                draft.keep().unwrap();
                path.metadata().unwrap().permissions().mode() & 0o777
            };
            assert_eq!(write(), 0o600, "{content}");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
            assert_eq!(write(), 0o644, "{content}: shown around");
        }
    }

    #[test]
    fn devices_are_written_in_place() {
        for path in ["/dev/null", "-"] {
            assert!(!Draft::new(Path::new(path)).unwrap().is_file());
        }
        assert!(Draft::new(Path::new("/dev/null")).unwrap().open().is_ok());
    }
}
