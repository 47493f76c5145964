//! Several files of one long run, read as one recording.
//!
//! A recorder that goes on for days writes a series of files, each complete on its own. Read together, the first one's header
//! stands for all, targets of later files are the targets they were, and there is one end, the last file's. What one of them
//! cannot see is said of all: the header names every backend, and the end has the blind spots of all files.
//!
//! # Order and times
//! All times are of CLOCK_MONOTONIC, which starts anew with the machine. The headers say which boot it was, and files of one
//! boot are read in the order of that clock: the wall clock may have been set meanwhile, or the machine suspended. Boots
//! follow each other as the wall clock says; times of a later one are moved to where that puts it, but never before the end
//! of what is there. Headers that say no boot (older ones, and those of other programs) are taken for one boot
//! where wall clock and monotonic clock differ by the same, but for 10 s. Files whose times overlap are no parts
//! of one run. Several runs of the recorder are read one after the other, which a warning says, as it does where a file of a
//! series is missing.
//!
//! # Targets
//! A process is known by its boot, its pid and when it was started; where a file does not say the latter, by its target id
//! and pid. It has one id in all files: the one it came with, unless another process had that before.

mod order;
mod spots;
mod targets;

use crate::files::is_standard;
use crate::{Backend, Error, Format, Header, Item, ItemReader, ReadOptions, Warning, open_with};
use isotherm_damon::Snapshot;
use order::Part;
use spots::BlindSpots;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use targets::Targets;

/// Opens several files as one recording; one as [`open_with`] does. Their order does not matter.
///
/// # Errors
/// As [`open_with`], of any of them; [`Error::Unsupported`] when they are not of one run.
pub fn open_joined(paths: &[PathBuf], options: &ReadOptions) -> Result<Box<dyn ItemReader>, Error> {
    match paths {
        [] => {
            Err(Error::Unsupported { file: "nothing".to_owned(), why: "there is no file to read".to_owned() })
        }
        [path] => open_with(path, options),
        _ if paths.iter().any(|path| is_stream(path)) => Err(Error::Unsupported {
            file: paths
                .iter()
                .find(|path| is_stream(path))
                .map_or_else(String::new, |p| p.display().to_string()),
            why: "a stream is read alone, not with other files".to_owned(),
        }),
        _ => Ok(Box::new(Joined::open(paths, options)?)),
    }
}

fn is_stream(path: &Path) -> bool {
    is_standard(path) || path.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir())
}

struct Joined {
    options: ReadOptions,
    parts: VecDeque<Part>,
    first_boot_ns: Option<i128>,
    /// The boot that the file at hand is of, by number and by id.
    boot: (usize, String),
    reader: Option<Box<dyn ItemReader>>,
    format: Format,
    name: String,
    /// To be added to all times of the file.
    shift_ns: i64,
    targets: Targets,
    began: bool,
    last_ns: u64,
    /// The same of the files before this one.
    floor_ns: u64,
    last_attrs: crate::RecordedAttrs,
    /// What the ends of the files so far say that could not be seen, or the headers of those without.
    blind_spots: BlindSpots,
    /// The run that the file at hand is of, and what its header says of blind spots.
    run: String,
    header_spots: Vec<String>,
    snapshot: Item,
    other: Item,
    warnings: Vec<Warning>,
}

impl Joined {
    fn open(paths: &[PathBuf], options: &ReadOptions) -> Result<Self, Error> {
        let parts = paths.iter().map(|path| Part::open(path, options)).collect::<Result<Vec<_>, _>>()?;
        let (parts, warnings) = order::ordered(parts)?;
        let boot = parts.front().map_or((0, String::new()), |part| (0, part.header.boot.clone()));
        let first_boot_ns = parts.front().and_then(Part::boot_ns);
        Ok(Self {
            options: *options,
            parts,
            first_boot_ns,
            boot,
            reader: None,
            format: Format::Rec,
            name: String::new(),
            shift_ns: 0,
            targets: Targets::default(),
            began: false,
            last_ns: 0,
            floor_ns: 0,
            last_attrs: crate::RecordedAttrs::default(),
            blind_spots: BlindSpots::default(),
            run: String::new(),
            header_spots: Vec::new(),
            snapshot: Item::Snapshot(Snapshot::default()),
            other: Item::Header(Header::default()),
            warnings,
        })
    }

    /// Begins to read the next file. False if there is none.
    fn next_part(&mut self) -> Result<bool, Error> {
        let Some(part) = self.parts.pop_front() else { return Ok(false) };
        if part.boot != self.boot.0 {
            let apart = part.boot_ns().zip(self.first_boot_ns).map_or(0, |(boot, first)| boot - first);
            self.shift_ns = i64::try_from(apart).unwrap_or(0);
            // Of boots that are known to be two nothing but the clock can be wrong.
            let known = !part.header.boot.is_empty() && !self.boot.1.is_empty();
            let begins_ns = part.header.started_ns.saturating_add_signed(self.shift_ns);
            if known && begins_ns < self.last_ns {
                self.shift_ns =
                    self.last_ns.cast_signed().saturating_sub(part.header.started_ns.cast_signed());
                let what = format!(
                    "{} is of a later boot, and begins before the file before it ends by the wall clock, which was set: it is \
                     read as if it followed at once",
                    part.path.display()
                );
                self.warnings.push(Warning::Assumed { what });
            }
            self.boot = (part.boot, part.header.boot.clone());
        }
        self.targets.begin_file();
        self.floor_ns = self.last_ns;
        self.name = part.path.display().to_string();
        let reader = open_with(&part.path, &self.options)?;
        self.format = reader.format();
        self.reader = Some(reader);
        Ok(true)
    }

    fn end_part(&mut self) {
        let Some(reader) = self.reader.take() else { return };
        // One that was cut off has no end.
        self.blind_spots.add(&self.run, &std::mem::take(&mut self.header_spots));
        for warning in reader.warnings() {
            // Once for all of them.
            if !self.warnings.contains(warning) {
                self.warnings.push(warning.clone());
            }
        }
    }

    /// What the joined recording has of the next item of the file: `Some(false)` nothing, `None` that it ended.
    fn step(&mut self) -> Result<Option<Handed>, Error> {
        let Some(reader) = &mut self.reader else { return Ok(None) };
        let is_last = self.parts.is_empty();
        let shift = |ns: &mut u64| *ns = ns.saturating_add_signed(self.shift_ns);
        match reader.next_ref()? {
            None => return Ok(None),
            Some(Item::Snapshot(snapshot)) => {
                let Item::Snapshot(copy) = &mut self.snapshot else { return Ok(None) };
                copy.clone_from(snapshot);
                shift(&mut copy.start_ns);
                shift(&mut copy.end_ns);
                for target in &mut copy.targets {
                    target.id.0 = self.targets.id(target.id.0);
                }
                if self.floor_ns > 0 && copy.end_ns <= self.floor_ns {
                    return Err(Error::Unsupported {
                        file: self.name.clone(),
                        why: "begins before the file before it ends: these are no parts of one run"
                            .to_owned(),
                    });
                }
                self.last_ns = self.last_ns.max(copy.end_ns);
                return Ok(Some(Handed::Snapshot));
            }
            Some(item) => self.other = item.clone(),
        }
        match &mut self.other {
            Item::Header(header) => {
                let attrs = header.attrs;
                // What an end says of blind spots stands for that file's header too: it comes later.
                self.header_spots.clone_from(&header.backend.blind_spots);
                self.run.clone_from(&header.run);
                if !self.began {
                    self.began = true;
                    self.last_attrs = attrs;
                    let mut spots = BlindSpots::default();
                    spots.add(&header.run, &header.backend.blind_spots);
                    for part in &self.parts {
                        header.backend.add(&part.header.backend);
                        spots.add(&part.header.run, &part.header.backend.blind_spots);
                    }
                    header.backend.blind_spots = spots.sentences();
                } else {
                    let mut time_ns = header.started_ns;
                    shift(&mut time_ns);
                    if std::mem::replace(&mut self.last_attrs, attrs) == attrs {
                        return Ok(Some(Handed::Nothing));
                    }
                    self.other = Item::Attrs { time_ns, attrs };
                }
            }
            Item::Target(info) => {
                self.targets.meet(info, self.boot.0);
                shift(&mut info.time_ns);
            }
            Item::Mappings(mappings) => {
                mappings.target = self.targets.id(mappings.target);
                shift(&mut mappings.time_ns);
            }
            Item::Attrs { time_ns, attrs } => {
                self.last_attrs = *attrs;
                shift(time_ns);
            }
            Item::Cost(cost) => shift(&mut cost.time_ns),
            Item::Action(action) => {
                action.target = self.targets.id(action.target);
                shift(&mut action.time_ns);
            }
            Item::TargetEnd(end) => {
                let id = end.target;
                end.target = self.targets.id(id);
                self.targets.end(id);
                shift(&mut end.time_ns);
            }
            Item::End(end) => {
                shift(&mut end.time_ns);
                let of_file = if end.blind_spots.is_empty() { &self.header_spots } else { &end.blind_spots };
                self.blind_spots.add(&self.run, of_file);
                self.header_spots.clear();
                if !is_last {
                    return Ok(Some(Handed::Nothing));
                }
                end.blind_spots = self.blind_spots.sentences();
            }
            Item::Snapshot(_) => {}
        }
        Ok(Some(Handed::Other))
    }
}

impl Backend {
    /// Has this one stand for both, but for blind spots.
    fn add(&mut self, other: &Self) {
        if !other.name.is_empty() && !self.name.split(", ").any(|name| name == other.name) {
            self.name = match self.name.as_str() {
                "" => other.name.clone(),
                name => format!("{name}, {}", other.name),
            };
        }
        self.coarse |= other.coarse;
    }
}

/// Where the item is that is handed out.
enum Handed {
    Nothing,
    Snapshot,
    Other,
}

impl ItemReader for Joined {
    fn next_ref(&mut self) -> Result<Option<&Item>, Error> {
        loop {
            if self.reader.is_none() && !self.next_part()? {
                return Ok(None);
            }
            match self.step()? {
                None => self.end_part(),
                Some(Handed::Nothing) => {}
                Some(Handed::Snapshot) => return Ok(Some(&self.snapshot)),
                Some(Handed::Other) => return Ok(Some(&self.other)),
            }
        }
    }

    fn format(&self) -> Format {
        self.format
    }

    fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{End, RecordedAttrs, TargetEnd, TargetInfo, create};
    use isotherm_damon::{AddrRange, RegionSnapshot, TargetId, TargetSnapshot};

    const SECOND: u64 = 1_000_000_000;

    struct File {
        unix_s: u64,
        mono_s: u64,
        /// Name and pid.
        target: (u64, u32),
        seconds: u64,
        aggr_us: u64,
    }

    fn write(dir: &Path, name: &str, file: &File) -> PathBuf {
        let path = dir.join(name);
        let mut writer = create(&path, Format::Rec).unwrap();
        let (id, pid) = file.target;
        let began = file.mono_s * SECOND;
        let header = Header {
            host: "box".to_owned(),
            started_unix_ns: file.unix_s * SECOND,
            started_ns: began,
            attrs: RecordedAttrs { aggr_us: file.aggr_us, ..RecordedAttrs::default() },
            ..Header::default()
        };
        let target =
            TargetInfo { id, pid, comm: format!("of {name}"), time_ns: began, ..TargetInfo::default() };
        let mut items = vec![Item::Header(header), Item::Target(target)];
        for second in 0..file.seconds {
            let region = RegionSnapshot { range: AddrRange::new(4096, 8192), ..RegionSnapshot::default() };
            items.push(Item::Snapshot(Snapshot {
                start_ns: began + second * SECOND,
                end_ns: began + (second + 1) * SECOND,
                targets: vec![TargetSnapshot::new(TargetId(id), vec![region])],
                ..Snapshot::default()
            }));
        }
        let time_ns = began + file.seconds * SECOND;
        items.push(Item::TargetEnd(TargetEnd { target: id, time_ns, reason: name.to_owned() }));
        items.push(Item::End(End { time_ns, reason: name.to_owned(), ..End::default() }));
        items.iter().for_each(|item| writer.write(item).unwrap());
        writer.finish().unwrap();
        path
    }

    fn items(paths: &[PathBuf]) -> Result<Vec<Item>, Error> {
        let mut reader = open_joined(paths, &ReadOptions::default())?;
        let mut items = Vec::new();
        while let Some(item) = reader.next_item()? {
            items.push(item);
        }
        assert_eq!(reader.warnings(), [], "nothing is wrong with them");
        Ok(items)
    }

    fn snapshots(items: &[Item]) -> Vec<(u64, u64)> {
        let snapshot = |item: &Item| match item {
            Item::Snapshot(s) => Some((s.start_ns / SECOND, s.targets[0].id.0)),
            _ => None,
        };
        items.iter().filter_map(snapshot).collect()
    }

    #[test]
    fn files_of_one_run_read_as_one_recording_in_order_of_time() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, mono_s: u64, aggr_us: u64| {
            write(
                dir.path(),
                name,
                &File { unix_s: 1000 + mono_s, mono_s, target: (7, 7), seconds: 3, aggr_us },
            )
        };
        let paths = [file("c", 26, 5), file("a", 20, 1), file("b", 23, 1)];
        let items = items(&paths).unwrap();
        assert!(matches!(&items[0], Item::Header(header) if header.started_ns == 20 * SECOND));
        assert_eq!(items.iter().filter(|item| matches!(item, Item::Header(_))).count(), 1);
        let expected: Vec<_> = (20..29).map(|second| (second, 7)).collect();
        assert_eq!(snapshots(&items), expected);
        let ends: Vec<&str> = items
            .iter()
            .filter_map(|item| if let Item::End(end) = item { Some(end.reason.as_str()) } else { None })
            .collect();
        assert_eq!(ends, ["c"], "the last one's");
        let attrs: Vec<u64> = items
            .iter()
            .filter_map(|item| if let Item::Attrs { attrs, .. } = item { Some(attrs.aggr_us) } else { None })
            .collect();
        assert_eq!(attrs, [5], "where they change");
    }

    #[test]
    fn files_of_another_boot_lie_where_the_wall_clock_says() {
        let dir = tempfile::tempdir().unwrap();
        let paths = [
            write(
                dir.path(),
                "a",
                &File { unix_s: 1000, mono_s: 500, target: (7, 7), seconds: 2, aggr_us: 1 },
            ),
            write(dir.path(), "b", &File { unix_s: 1100, mono_s: 3, target: (7, 7), seconds: 2, aggr_us: 1 }),
        ];
        assert_eq!(snapshots(&items(&paths).unwrap()), [(500, 7), (501, 7), (600, 7), (601, 7)]);
    }

    #[test]
    fn a_name_that_means_another_process_is_another_target() {
        let dir = tempfile::tempdir().unwrap();
        let reused = 1 << 32;
        let file = |name: &str, mono_s: u64, pid: u32| {
            let target = (reused, pid);
            write(dir.path(), name, &File { unix_s: 1000 + mono_s, mono_s, target, seconds: 1, aggr_us: 1 })
        };
        let items = items(&[file("a", 20, 7), file("b", 21, 8), file("c", 22, 7)]).unwrap();
        let ids: Vec<u64> = snapshots(&items).into_iter().map(|(_, id)| id).collect();
        assert!(ids[0] == reused && ids[1] != reused && ids[2] == reused, "{ids:?}");
        let told: Vec<(u64, u32)> = items
            .iter()
            .filter_map(|item| if let Item::Target(t) = item { Some((t.id, t.pid)) } else { None })
            .collect();
        assert_eq!(told, [(ids[0], 7), (ids[1], 8), (ids[2], 7)]);
    }

    #[test]
    fn what_is_not_of_one_run_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, mono_s: u64| {
            let target = (7, 7);
            write(dir.path(), name, &File { unix_s: 1000 + mono_s, mono_s, target, seconds: 30, aggr_us: 1 })
        };
        let error = items(&[file("a", 20), file("b", 30)]).unwrap_err().to_string();
        assert!(error.contains("no parts of one run"), "{error}");
        assert!(items(&[file("a", 20), file("a", 20)]).is_err(), "the same twice");
        assert!(items(&[]).is_err());
        assert!(items(&[file("a", 20), dir.path().join("none")]).is_err());
    }
}
