//! In which order the files of a run are read, and which of them are of one boot.

use crate::{Error, Header, Item, ReadOptions, Warning, command_line, open_with, printable};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

/// Of headers that do not say which boot it was: wall clocks are set while monotonic ones go on, so differences up to this are
/// no other boot. A guess; NTP corrects less.
pub(super) const SAME_BOOT_NS: i128 = 10_000_000_000;

/// A file that waits to be read.
pub(super) struct Part {
    pub path: PathBuf,
    pub header: Header,
    /// Which of the boots it is of, in the order in which they are read.
    pub boot: usize,
}

impl Part {
    pub fn open(path: &Path, options: &ReadOptions) -> Result<Self, Error> {
        let mut reader = open_with(path, options)?;
        let header = match reader.next_ref()? {
            Some(Item::Header(header)) => header.clone(),
            _ => Header::default(),
        };
        Ok(Self { path: path.to_owned(), header, boot: 0 })
    }

    /// Wall-clock time at which the monotonic clock was 0.
    pub fn boot_ns(&self) -> Option<i128> {
        let known = self.header.started_unix_ns > 0 && self.header.started_ns > 0;
        known.then(|| i128::from(self.header.started_unix_ns) - i128::from(self.header.started_ns))
    }

    /// Whether both are of one boot.
    fn shares_boot(&self, other: &Self) -> bool {
        let (a, b) = (&self.header.boot, &other.header.boot);
        if !a.is_empty() && !b.is_empty() {
            return a == b;
        }
        self.boot_ns().zip(other.boot_ns()).is_none_or(|(a, b)| (a - b).abs() <= SAME_BOOT_NS)
    }
}

/// Puts the files of a run in order; what is to be said of them.
///
/// # Errors
/// [`Error::Unsupported`] when they are not of one machine, or one is there twice.
pub(super) fn ordered(parts: Vec<Part>) -> Result<(VecDeque<Part>, Vec<Warning>), Error> {
    one_machine(&parts)?;
    let mut boots: Vec<Vec<Part>> = Vec::new();
    for part in parts {
        match boots.iter_mut().find(|boot| boot.iter().any(|other| other.shares_boot(&part))) {
            Some(boot) => boot.push(part),
            None => boots.push(vec![part]),
        }
    }
    for boot in &mut boots {
        // Where one says nothing they are taken as they were given.
        if boot.iter().all(|part| part.header.started_ns > 0) {
            boot.sort_by_key(|part| (part.header.started_ns, part.header.part));
        }
    }
    let wall_clock = |boot: &Vec<Part>| boot.first().map_or(0, |part| part.header.started_unix_ns);
    if boots.iter().all(|boot| wall_clock(boot) > 0) {
        boots.sort_by_key(wall_clock);
    }
    let number = |(boot, parts): (usize, Vec<Part>)| parts.into_iter().map(move |part| Part { boot, ..part });
    let parts: VecDeque<Part> = boots.into_iter().enumerate().flat_map(number).collect();
    let notices = notices(&parts)?;
    Ok((parts, notices))
}

fn one_machine(parts: &[Part]) -> Result<(), Error> {
    let mut hosts = parts.iter().filter(|part| !part.header.host.is_empty());
    if let Some(first) = hosts.next()
        && let Some(other) = hosts.find(|other| other.header.host != first.header.host)
    {
        return Err(Error::Unsupported {
            file: other.path.display().to_string(),
            why: format!(
                "recorded on {}, but {} on {}: these are no parts of one run",
                printable(&other.header.host),
                first.path.display(),
                printable(&first.header.host)
            ),
        });
    }
    Ok(())
}

/// Most commands named in a remark.
const MOST_NAMED: usize = 3;

/// Most characters shown of a command.
const MOST_SHOWN: usize = 60;

/// What a file is a recording of, as far as its header says: a command in quotes, cut if it is long.
fn recorded(command: &[String]) -> String {
    if command.is_empty() {
        return "processes that ran already".to_owned();
    }
    let whole = command_line(command);
    match whole.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("`{}...`", whole.get(..end).unwrap_or(&whole)),
        None => format!("`{whole}`"),
    }
}

/// What the ids of runs and the numbers of files say.
fn notices(parts: &VecDeque<Part>) -> Result<Vec<Warning>, Error> {
    let mut runs: BTreeMap<&str, Vec<&Part>> = BTreeMap::new();
    for part in parts.iter().filter(|part| !part.header.run.is_empty()) {
        runs.entry(&part.header.run).or_default().push(part);
    }
    let mut notices = Vec::new();
    if runs.len() > 1 {
        let mut what =
            format!("the files are of {} runs of the recorder, read one after the other", runs.len());
        let commands: BTreeSet<&[String]> = parts.iter().map(|part| &part.header.command[..]).collect();
        if commands.len() > 1 {
            let mut names: Vec<String> = commands.iter().take(MOST_NAMED).map(|c| recorded(c)).collect();
            if commands.len() > MOST_NAMED {
                names.push("others".to_owned());
            }
            what.push_str(&format!(
                "; they recorded different commands ({}), so a figure over all of them is of none",
                names.join(", ")
            ));
        }
        notices.push(Warning::Assumed { what });
    }
    for run in runs.values_mut() {
        run.sort_by_key(|part| part.header.part);
        // One alone may be what was asked for; of several they may have been left behind, or not kept.
        if let [first, _, ..] = &run[..]
            && first.header.part > 0
        {
            let (nr, file) = (first.header.part, first.path.display());
            notices.push(Warning::Assumed {
                what: match nr {
                    1 => format!("the run began earlier: the file before {file} is missing"),
                    _ => format!("the run began earlier: the {nr} files before {file} are missing"),
                },
            });
        }
        for pair in run.windows(2) {
            let [one, next] = pair else { continue };
            let (file, other) = (next.path.display(), one.path.display());
            match next.header.part.saturating_sub(one.header.part) {
                0 => {
                    return Err(Error::Unsupported {
                        file: file.to_string(),
                        why: format!("it is the same part of its run as {other}: name each once"),
                    });
                }
                1 => {}
                2 => notices.push(Warning::Assumed {
                    what: format!("of the run, 1 file between {other} and {file} is missing"),
                }),
                apart => notices.push(Warning::Assumed {
                    what: format!("of the run, {} files between {other} and {file} are missing", apart - 1),
                }),
            }
        }
    }
    Ok(notices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_files_say_of_themselves_sends_no_escape_sequences() {
        let part = |host: &str| Part {
            path: "x.rec".into(),
            header: Header { host: host.to_owned(), ..Header::default() },
            boot: 0,
        };
        let error = one_machine(&[part("a\u{1b}[2J"), part("b\u{9b}2J\u{202e}")]).unwrap_err().to_string();
        assert!(error.contains("recorded on b?2J?, but x.rec on a?[2J:"), "{error}");
        assert_eq!(recorded(&["a\u{1b}[m".to_owned()]), "`a?[m`");
    }
}
