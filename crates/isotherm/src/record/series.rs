//! A recording in a series of files: their names, and which of them are kept.

use super::utc::Utc;
use isotherm_record::{is_being_written, is_own};
use isotherm_report::units::{format_size, parse_size};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What is kept of a series; the oldest files go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// So many files.
    Files(u64),
    /// So many bytes.
    Bytes(u64),
}

impl std::str::FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().parse() {
            Ok(0) => Err("nothing would be kept; say how many files (100) or bytes (1G)".to_owned()),
            Ok(files) => Ok(Self::Files(files)),
            Err(_) => match parse_size(text) {
                Ok(0) => Err("nothing would be kept; say how many files (100) or bytes (1G)".to_owned()),
                Ok(bytes) => Ok(Self::Bytes(bytes)),
                Err(_) => Err(format!("{text} is neither a number of files (100) nor a size (1G)")),
            },
        }
    }
}

impl std::fmt::Display for Keep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Files(1) => f.write_str("1 file"),
            Self::Files(files) => write!(f, "{files} files"),
            Self::Bytes(bytes) => f.write_str(&format_size(*bytes)),
        }
    }
}

/// The files of a series: `isotherm.rec` makes `isotherm-20260801T120000Z.rec` and so on.
#[derive(Clone, Debug)]
pub struct Series {
    directory: PathBuf,
    stem: String,
    ending: String,
    keep: Keep,
    /// Names of the files of this run that are there, in the order in which they were made.
    made: Vec<OsString>,
}

/// Length of a time in a name.
const TIME_LEN: usize = "20260801T120000Z".len();

impl Series {
    /// The series that is named after `path`.
    ///
    /// # Errors
    /// When that is no name for a file.
    pub fn new(path: &Path, keep: Keep) -> Result<Self, String> {
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|_| !path.is_dir()) else {
            return Err(format!("{}: a series is named after a file, such as isotherm.rec", path.display()));
        };
        let (stem, ending) = match name.rsplit_once('.') {
            Some((stem, ending)) if !stem.is_empty() => (stem.to_owned(), format!(".{ending}")),
            _ => (name.to_owned(), String::new()),
        };
        let directory = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        Ok(Self {
            directory: directory.unwrap_or(Path::new(".")).to_owned(),
            stem,
            ending,
            keep,
            made: Vec::new(),
        })
    }

    /// A name for a file that begins at this time, ns since 1970, as yet nobody's.
    pub fn at(&self, unix_ns: u64) -> PathBuf {
        let time = Utc::from_ns(unix_ns).for_name();
        let first = self.numbered(&time, 1);
        self.names(&first).into_iter().find(|path| !path.exists()).unwrap_or(first)
    }

    /// Names for the file that is to be `path` if that is another recorder's by then: of the same time, with a number.
    pub fn names(&self, path: &Path) -> Vec<PathBuf> {
        const MOST: u32 = 1000;
        let name = path.file_name().and_then(|name| name.to_str());
        let time = name.and_then(|name| self.time_in(name)).and_then(|rest| rest.get(..TIME_LEN));
        let Some(time) = time else { return vec![path.to_owned()] };
        (1..=MOST).map(|number| self.numbered(time, number)).collect()
    }

    fn numbered(&self, time: &str, number: u32) -> PathBuf {
        let more = if number > 1 { format!("-{number}") } else { String::new() };
        let name = format!("{}-{time}{more}{}", self.stem, self.ending);
        // Without `./`, as its user would say it.
        match self.directory.to_str() {
            Some(".") => PathBuf::from(name),
            _ => self.directory.join(name),
        }
    }

    /// The time in the name of a file of the series.
    fn time_in<'a>(&self, name: &'a str) -> Option<&'a str> {
        let rest = name.strip_prefix(&self.stem)?.strip_prefix('-')?.strip_suffix(&self.ending)?;
        let time = rest.get(..TIME_LEN)?;
        let fits = |(at, c): (usize, char)| match at {
            8 => c == 'T',
            15 => c == 'Z',
            _ => c.is_ascii_digit(),
        };
        let number = rest.get(TIME_LEN..)?;
        let numbered = number.is_empty()
            || number
                .strip_prefix('-')
                .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
        (time.chars().enumerate().all(fits) && numbered).then_some(rest)
    }

    /// The files of this run that are there, in the order in which they were made.
    pub fn made(&self) -> Vec<PathBuf> {
        self.made.iter().map(|name| self.directory.join(name)).collect()
    }

    /// Removes the oldest files of the series, those of former recorders too, until what is left is what is to be kept. `newest`,
    /// which this recorder writes, stays in any case, and so does what another one writes, and what is no recording. Returns how
    /// many it removed.
    ///
    /// The times in names are not asked for the order: the clock may have been set back.
    pub fn prune(&mut self, newest: &Path) -> usize {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return 0 };
        if let Some(name) = newest.file_name().filter(|name| !self.made.iter().any(|made| made == name)) {
            self.made.push(name.to_owned());
        }
        let mut files: Vec<Member> = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(time) = name.to_str().and_then(|name| self.time_in(name)) else { continue };
            let is_newest = newest.file_name() == Some(&name);
            let path = entry.path();
            let Some(metadata) = entry.metadata().ok().filter(std::fs::Metadata::is_file) else { continue };
            if is_newest || may_go(&path) && !is_being_written(&path) {
                files.push(Member {
                    made: self.made.iter().position(|made| *made == name),
                    modified: metadata.modified().ok(),
                    time: time.to_owned(),
                    size: metadata.len(),
                    path,
                });
            }
        }
        files.sort();
        self.made.retain(|made| files.iter().any(|file| file.path.file_name() == Some(made)));
        let (mut count, mut bytes, mut removed) = (0, 0_u64, 0);
        for Member { path, size, .. } in files.iter().rev() {
            (count, bytes) = (count + 1, bytes.saturating_add(*size));
            let fits = match self.keep {
                Keep::Files(most) => count <= most,
                Keep::Bytes(most) => bytes <= most,
            };
            if !fits && path.file_name() != newest.file_name() {
                removed += usize::from(std::fs::remove_file(path).is_ok());
            }
        }
        removed
    }
}

/// A file of the series. The fields are in the order in which files are compared: those of former runs (`made` is none) come
/// before those of this one.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Member {
    made: Option<usize>,
    modified: Option<SystemTime>,
    time: String,
    path: PathBuf,
    size: u64,
}

/// Whether a file of this name may go: it is a recording, or nothing was written to it, which is nobody's loss.
fn may_go(path: &Path) -> bool {
    is_own(path) || path.metadata().is_ok_and(|m| m.is_file() && m.len() == 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "what fails here fails the test")]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn how_much_is_kept_is_a_number_of_files_or_of_bytes() {
        assert_eq!("100".parse(), Ok(Keep::Files(100)));
        assert_eq!("1G".parse(), Ok(Keep::Bytes(1 << 30)));
        for text in ["0", "0K", "-1", "many"] {
            assert!(text.parse::<Keep>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_oldest_recordings_go_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let magic = b"\x89ITH\r\n\x1a\n and more";
        let mut age = 1000;
        let mut file = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            fs::write(&path, content).unwrap();
            age -= 1;
            let time = SystemTime::now() - std::time::Duration::from_secs(age);
            fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        };
        file("a-20260801T120000Z-2.rec", magic);
        for day in 1..=6 {
            file(&format!("a-2026080{day}T120000Z.rec"), magic);
        }
        file("a-20260701T120000Z.rec", b"not a recording");
        for other in [
            "a.rec",
            "a-old.rec",
            "b-20260101T120000Z.rec",
            "a-20260101T120000Z.txt",
            "a-2026010xT120000Z.rec",
        ] {
            file(other, magic);
        }
        let left = || {
            let mut left: Vec<String> = fs::read_dir(dir.path())
                .unwrap()
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .collect();
            left.retain(|name| name.starts_with("a-202608"));
            left.sort();
            left
        };
        let newest = dir.path().join("a-20260806T120000Z.rec");
        let base = dir.path().join("a.rec");
        assert_eq!(Series::new(&base, Keep::Files(4)).unwrap().prune(&newest), 3);
        assert_eq!(left().len(), 4);
        assert_eq!(left()[0], "a-20260803T120000Z.rec");
        assert_eq!(Series::new(&base, Keep::Bytes(2 * magic.len() as u64)).unwrap().prune(&newest), 2);
        assert_eq!(Series::new(&base, Keep::Bytes(1)).unwrap().prune(&newest), 1);
        assert_eq!(left(), ["a-20260806T120000Z.rec"], "the one under way stays");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 7);
    }

    #[test]
    fn what_is_made_last_is_newest_though_the_clock_was_set_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut series = Series::new(&dir.path().join("a.rec"), Keep::Files(2)).unwrap();
        let file = |time: &str| {
            let path = dir.path().join(format!("a-{time}.rec"));
            fs::write(&path, b"\x89ITH\r\n\x1a\n and more").unwrap();
            path
        };
        let (former, first) = (file("20270101T000000Z"), file("20260805T120000Z"));
        // Of a run before which the clock was right.
        let later = SystemTime::now() + std::time::Duration::from_secs(9999);
        fs::File::options().write(true).open(&former).unwrap().set_modified(later).unwrap();
        assert_eq!(series.prune(&first), 0);
        let second = file("20200101T000000Z");
        assert_eq!(series.prune(&second), 1);
        assert!(!former.exists(), "of a former run");
        let third = file("20200101T000000Z-2");
        assert_eq!(series.prune(&third), 1);
        assert!(!first.exists() && second.exists() && third.exists());
        assert_eq!(series.made.len(), 3, "until the next time");
    }

    #[test]
    fn what_another_recorder_writes_stays() {
        let dir = tempfile::tempdir().unwrap();
        let mut series = Series::new(&dir.path().join("a.rec"), Keep::Files(1)).unwrap();
        let path = dir.path().join("a-20260801T120000Z.rec");
        let mut other = isotherm_record::Replacement::create_new(&path, isotherm_record::PRIVATE).unwrap();
        assert_eq!(other.publish_new(series.names(&path)).unwrap(), path);
        let own = dir.path().join("a-20260802T120000Z.rec");
        fs::write(&own, "").unwrap();
        assert_eq!(series.prune(&own), 0);
        assert!(path.exists());
        drop(other);
        assert_eq!(series.prune(&own), 1);
        assert!(!path.exists());
        assert_eq!(series.names(&own)[1], dir.path().join("a-20260802T120000Z-2.rec"));
        assert_eq!(series.names(&dir.path().join("a-20260802T120000Z-7.rec"))[0], own);
    }

    #[test]
    fn names_sort_by_time_and_none_is_taken_twice() {
        let dir = tempfile::tempdir().unwrap();
        let series = Series::new(&dir.path().join("x.y.rec"), Keep::Files(1)).unwrap();
        let mut names = Vec::new();
        for _ in 0..2 {
            // The last moment of the second.
            let path = series.at(1_785_585_600_999_999_999);
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            assert!(series.time_in(&name).is_some());
            fs::write(&path, "").unwrap();
            names.push(name);
        }
        assert_eq!(names, ["x.y-20260801T120000Z.rec", "x.y-20260801T120000Z-2.rec"]);
        assert!(Series::new(dir.path(), Keep::Files(1)).is_err());
    }
}
