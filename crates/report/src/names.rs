//! Names of address ranges: which mapping a region lies in.

use isotherm_damon::{AddrRange, TargetId};
use isotherm_record::{Item, Mapping, Mappings};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

pub use isotherm_record::printable;

/// Mappings gone from a target of which the name is still remembered.
const MAX_FORMER: usize = 1024;
/// Ended targets of which the mappings are still remembered.
const MAX_ENDED: usize = 256;

/// How many names are told of where none is what was asked for.
const MAX_TOLD: usize = 12;

/// A part of a name that is looked for, and what else there is as long as nothing has it in its name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sought {
    part: String,
    /// Bytes by name; gone once one was found.
    sizes: Option<HashMap<String, u64>>,
    /// Something was looked at.
    looked: bool,
}

impl Sought {
    /// Looks for a name with `part` in it; for none where that is empty.
    pub fn new(part: &str) -> Self {
        Self { part: part.to_owned(), sizes: (!part.is_empty()).then(HashMap::new), looked: false }
    }

    /// Takes memory of so many bytes with its name, if it has one; `fits`: that is what is looked for.
    pub fn look(&mut self, name: Option<&str>, bytes: u64, fits: bool) {
        self.looked = true;
        match (&mut self.sizes, name) {
            (Some(_), _) if fits => self.sizes = None,
            (Some(sizes), Some(name)) => *sizes.entry(name.to_owned()).or_default() += bytes,
            _ => {}
        }
    }

    /// What was looked for and nothing has, and what the largest are called instead.
    pub fn missing(self) -> Option<(String, String)> {
        let mut names: Vec<(String, u64)> = self.sizes.filter(|_| self.looked)?.into_iter().collect();
        names.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        Some((self.part, listed(names.into_iter().map(|(name, _)| name))))
    }
}

/// The first of a list of names, for messages, and how many more there are.
pub(crate) fn listed(names: impl IntoIterator<Item = String>) -> String {
    let mut names = names.into_iter();
    let first: Vec<String> = names.by_ref().take(MAX_TOLD).collect();
    match (first.is_empty(), names.count()) {
        (true, _) => "none at all".to_owned(),
        (false, 0) => first.join(", "),
        (false, more) => format!("{}, and {more} more", first.join(", ")),
    }
}

/// The mappings of every target as of some time, kept from [`Mappings`] items.
///
/// Memory does not grow with the recording: of mappings that went and targets that ended, only the latest are kept.
#[derive(Clone, Debug, Default)]
pub struct NameBook {
    targets: BTreeMap<u64, Book>,
    ended: VecDeque<u64>,
}

#[derive(Clone, Debug, Default)]
struct Book {
    time_ns: u64,
    current: Arc<[Mapping]>,
    former: VecDeque<Mapping>,
}

/// The name of a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeName {
    /// Short name of the mapping that covers most of it: a file name, `[heap]`, `anon`.
    pub name: String,
    /// How many mappings of other names it also covers.
    pub others: usize,
}

impl std::fmt::Display for RangeName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.others {
            0 => f.write_str(&self.name),
            n => write!(f, "{} (+{n})", self.name),
        }
    }
}

impl NameBook {
    /// Takes what an item says about mappings; others are ignored.
    pub fn note(&mut self, item: &Item) {
        match item {
            Item::Mappings(mappings) => self.update(mappings),
            Item::TargetEnd(end) => {
                self.ended.push_back(end.target);
                if self.ended.len() > MAX_ENDED
                    && let Some(oldest) = self.ended.pop_front()
                {
                    self.targets.remove(&oldest);
                }
            }
            _ => {}
        }
    }

    fn update(&mut self, mappings: &Mappings) {
        self.ended.retain(|id| *id != mappings.target);
        let book = self.targets.entry(mappings.target).or_default();
        let mut maps = Arc::clone(&mappings.maps);
        // They come sorted, and none is empty; a file may have it otherwise.
        if !maps.is_sorted_by_key(|m| m.start) || maps.iter().any(|m| m.start >= m.end) {
            let mut some: Vec<Mapping> = maps.iter().filter(|m| m.start < m.end).cloned().collect();
            some.sort_by_key(|m| m.start);
            maps = some.into();
        }
        let former = std::mem::replace(&mut book.current, maps);
        let hides = |m: &Mapping| overlapping(&book.current, AddrRange::new(m.start, m.end)).next().is_some();
        book.former.retain(|m| !hides(m));
        book.former.extend(former.iter().filter(|m| !hides(m)).cloned());
        while book.former.len() > MAX_FORMER {
            book.former.pop_front();
        }
        book.time_ns = mappings.time_ns;
    }

    /// Whether mappings of `target` are known, and none of them is among `maps` at the same address under the same name.
    /// The kernel's own, which every process has in the same place, do not count.
    pub(crate) fn has_none_of(&self, target: TargetId, maps: &[Mapping]) -> bool {
        let Some(book) = self.targets.get(&target.0) else { return false };
        let own = |m: &&Mapping| &*m.name != "[vsyscall]";
        let known = |m: &Mapping| {
            let at = book.current.partition_point(|old| old.start < m.start);
            book.current.get(at).is_some_and(|old| old.start == m.start && old.name == m.name)
        };
        let mut new = maps.iter().filter(own).peekable();
        new.peek().is_some() && book.current.iter().any(|m| own(&m)) && !new.any(known)
    }

    /// When the mappings of `target` were last read, ns; `None` when they never were.
    pub fn time_ns(&self, target: TargetId) -> Option<u64> {
        self.targets.get(&target.0).map(|book| book.time_ns)
    }

    /// All mappings of `target` (or of every target) that share an address with `range`, present ones first.
    fn mappings(
        &self,
        target: Option<TargetId>,
        range: AddrRange,
    ) -> impl Iterator<Item = (TargetId, &Mapping)> {
        let books = self.targets.iter().filter(move |(id, _)| target.is_none_or(|t| t.0 == **id));
        books.flat_map(move |(id, book)| {
            let former = book.former.iter().filter(move |m| AddrRange::new(m.start, m.end).intersects(range));
            overlapping(&book.current, range).chain(former).map(move |m| (TargetId(*id), m))
        })
    }

    /// The name of `range` in `target`; `None` where no known mapping is.
    pub fn name(&self, target: TargetId, range: AddrRange) -> Option<RangeName> {
        self.name_with(target, range, "", |_, _, _| {})
    }

    /// The same of the mappings that have `part` in their name or path; `None` where none has. `each` is called with the name of each
    /// mapping in the range, its bytes there, and whether it has.
    pub(crate) fn name_with(
        &self,
        target: TargetId,
        range: AddrRange,
        part: &str,
        mut each: impl FnMut(&str, u64, bool),
    ) -> Option<RangeName> {
        // Of each name the bytes, where among the names it comes, and whether it is wanted.
        let mut bytes: HashMap<Cow<'_, str>, (u64, usize, bool)> = HashMap::new();
        for (_, mapping) in self.mappings(Some(target), range) {
            let size = AddrRange::new(mapping.start, mapping.end).intersection(range).size();
            let name = short_name(mapping);
            let fits = part.is_empty() || name.contains(part) || mapping.name.contains(part);
            each(&name, size, fits);
            let nth = bytes.len();
            let (sum, _, wanted) = bytes.entry(name).or_insert((0, nth, false));
            (*sum, *wanted) = (*sum + size, *wanted || fits);
        }
        let others = bytes.len().saturating_sub(1);
        let wanted = bytes.into_iter().filter(|(_, (.., wanted))| *wanted);
        // The first of equals: the lower address.
        let (name, _) = wanted.max_by_key(|(_, (size, nth, _))| (*size, Reverse(*nth)))?;
        Some(RangeName { name: name.into_owned(), others })
    }

    /// The mappings inside `range`, neighbours of one name joined, sorted by address and clipped to the range. With
    /// several targets, those of the first that maps an address count.
    pub fn labels(&self, target: Option<TargetId>, range: AddrRange) -> Vec<(AddrRange, String)> {
        let mut found: Vec<(AddrRange, String)> = self
            .mappings(target, range)
            .map(|(_, m)| (AddrRange::new(m.start, m.end).intersection(range), short_name(m).into_owned()))
            .collect();
        found.sort_by_key(|(r, _)| r.start);
        let mut labels: Vec<(AddrRange, String)> = Vec::new();
        for (range, name) in found {
            match labels.last_mut() {
                Some((last, last_name)) if *last_name == name && range.start <= last.end => {
                    last.end = last.end.max(range.end);
                }
                Some((last, _)) if range.start < last.end => {}
                _ => labels.push((range, name)),
            }
        }
        labels
    }

    /// Ranges of the mappings whose name or path contains `part`, neighbours joined, a target each.
    pub fn find(&self, target: Option<TargetId>, part: &str) -> Vec<(TargetId, AddrRange, String)> {
        let everything = AddrRange::new(0, u64::MAX);
        let mut found: Vec<(TargetId, AddrRange, String)> = self
            .mappings(target, everything)
            .filter(|(_, m)| m.name.contains(part) || short_name(m).contains(part))
            .map(|(id, m)| (id, AddrRange::new(m.start, m.end), short_name(m).into_owned()))
            .collect();
        found.sort_by_key(|(id, range, _)| (*id, range.start));
        let mut joined: Vec<(TargetId, AddrRange, String)> = Vec::new();
        for (id, range, name) in found {
            match joined.last_mut() {
                Some((last_id, last, last_name))
                    if *last_id == id && *last_name == name && range.start <= last.end =>
                {
                    last.end = last.end.max(range.end);
                }
                _ => joined.push((id, range, name)),
            }
        }
        joined
    }

    /// Names that occur, each once, for messages.
    pub fn names(&self, target: Option<TargetId>) -> Vec<String> {
        let all = self.mappings(target, AddrRange::new(0, u64::MAX)).map(|(_, mapping)| short_name(mapping));
        let mut seen = HashSet::new();
        all.filter(|name| seen.insert(name.clone())).map(Cow::into_owned).collect()
    }
}

/// The mappings of a list sorted by address and disjoint that share an address with `range`.
fn overlapping(maps: &[Mapping], range: AddrRange) -> impl Iterator<Item = &Mapping> {
    let first = maps.partition_point(|m| m.end <= range.start);
    maps[first..].iter().take_while(move |m| m.start < range.end)
}

/// A list of mappings as it stands, if they are in order and none is empty or overlaps another, as lists are; else those that do
/// not overlap a lower one.
pub(crate) fn disjoint(maps: &Arc<[Mapping]>) -> Arc<[Mapping]> {
    if maps.is_sorted_by(|a, b| a.end <= b.start) && maps.iter().all(|m| m.start < m.end) {
        return Arc::clone(maps);
    }
    let mut some: Vec<Mapping> = maps.iter().filter(|m| m.start < m.end).cloned().collect();
    some.sort_by_key(|m| m.start);
    let mut end = 0;
    some.retain(|m| {
        let apart = end <= m.start;
        end = if apart { m.end } else { end };
        apart
    });
    some.into()
}

/// What people call a mapping: the file name of its path, `[heap]`, `anon` for anonymous memory.
pub fn short_name(mapping: &Mapping) -> Cow<'_, str> {
    let name = &*mapping.name;
    if name.is_empty() {
        return Cow::Borrowed("anon");
    }
    let file = if name.starts_with('/') {
        name.rsplit('/').find(|part| !part.is_empty()).unwrap_or(name)
    } else {
        name
    };
    printable(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_record::TargetEnd;

    fn map(start: u64, end: u64, name: &str) -> Mapping {
        Mapping { start, end, perms: "rw-p".into(), name: name.into(), ..Mapping::default() }
    }

    fn book(time_ns: u64, maps: Vec<Mapping>) -> Item {
        Item::Mappings(Mappings { target: 1, time_ns, maps: maps.into(), ..Mappings::default() })
    }

    #[test]
    fn a_region_has_the_name_of_the_mapping_that_covers_most_of_it() {
        let mut names = NameBook::default();
        names.note(&book(
            0,
            vec![map(0, 10, "/usr/lib/libc.so.6"), map(10, 100, ""), map(100, 110, "[heap]")],
        ));
        let name = |s, e| names.name(TargetId(1), AddrRange::new(s, e)).map(|n| n.to_string());
        assert_eq!(name(0, 10).as_deref(), Some("libc.so.6"));
        assert_eq!(name(5, 60).as_deref(), Some("anon (+1)"));
        assert_eq!(name(200, 300), None);
        assert_eq!(names.name(TargetId(2), AddrRange::new(0, 10)), None);
    }

    #[test]
    fn a_region_over_very_many_mappings_is_named_in_one_pass() {
        // Each name against all others would take minutes.
        const MANY: u64 = 300_000;
        let mut names = NameBook::default();
        let maps = (0..MANY).map(|i| map(10 * i, 10 * i + 1 + u64::from(i == 777), &format!("/d/{i}")));
        names.note(&book(0, maps.collect()));
        let name = names.name(TargetId(1), AddrRange::new(0, 10 * MANY)).unwrap();
        assert_eq!(name, RangeName { name: "777".to_owned(), others: MANY as usize - 1 });
        let equal = names.name(TargetId(1), AddrRange::new(0, 5000)).unwrap();
        assert_eq!(equal.to_string(), "0 (+499)", "the first of equals");
    }

    #[test]
    fn the_name_of_a_mapping_that_went_is_remembered_until_another_takes_its_place() {
        let mut names = NameBook::default();
        names.note(&book(0, vec![map(0, 10, "/a"), map(20, 30, "/b")]));
        names.note(&book(1, vec![map(0, 10, "/a")]));
        assert_eq!(names.name(TargetId(1), AddrRange::new(20, 30)).unwrap().name, "b");
        names.note(&book(2, vec![map(0, 10, "/a"), map(25, 40, "/c")]));
        assert_eq!(names.name(TargetId(1), AddrRange::new(20, 30)).unwrap().name, "c");
        assert_eq!(names.time_ns(TargetId(1)), Some(2));
    }

    #[test]
    fn a_region_is_found_by_each_mapping_that_it_covers() {
        let mut names = NameBook::default();
        names.note(&book(0, vec![map(0, 100, "/srv/large"), map(100, 110, "/opt/small"), map(110, 120, "")]));
        let mut told = Vec::new();
        let mut found = |part| {
            let range = AddrRange::new(0, 115);
            let name = names.name_with(TargetId(1), range, part, |name, bytes, fits| {
                told.push((name.to_owned(), bytes, fits));
            });
            name.map(|name| name.to_string())
        };
        assert_eq!(found("small").as_deref(), Some("small (+2)"));
        assert_eq!(found("opt").as_deref(), Some("small (+2)"), "by its path");
        assert_eq!(found("nosuch"), None);
        assert_eq!(
            told[..3].iter().map(|t| (t.1, t.2)).collect::<Vec<_>>(),
            [(100, false), (10, true), (5, false)]
        );
    }

    #[test]
    fn a_list_of_names_says_how_many_it_leaves_out() {
        let list = |n: usize| listed((0..n).map(|i| i.to_string()));
        assert_eq!((&*list(0), &*list(2)), ("none at all", "0, 1"));
        assert!(list(12).ends_with(", 11") && list(150).ends_with(", 11, and 138 more"), "{}", list(150));
    }

    #[test]
    fn labels_join_the_mappings_of_one_file() {
        let mut names = NameBook::default();
        names.note(&book(
            0,
            vec![map(0, 10, "/x"), map(10, 20, "/x"), map(20, 30, "[heap]"), map(50, 60, "/x")],
        ));
        let labels = names.labels(Some(TargetId(1)), AddrRange::new(5, 55));
        let expected = [(5, 20, "x"), (20, 30, "[heap]"), (50, 55, "x")];
        assert_eq!(labels, expected.map(|(s, e, n)| (AddrRange::new(s, e), n.to_owned())));
        assert_eq!(names.find(None, "x").len(), 2);
        assert_eq!(names.names(None), ["x", "[heap]"]);
    }

    #[test]
    fn a_name_cannot_send_escape_sequences_to_the_terminal() {
        let mut names = NameBook::default();
        names.note(&book(0, vec![map(0, 10, "/tmp/\u{1b}[2Jgone")]));
        assert_eq!(names.name(TargetId(1), AddrRange::new(0, 10)).unwrap().name, "?[2Jgone");
    }

    #[test]
    fn targets_that_ended_do_not_fill_the_memory() {
        let mut names = NameBook::default();
        for id in 0..10_000 {
            let maps = [map(0, 10, "/x")].into();
            names.note(&Item::Mappings(Mappings { target: id, maps, ..Mappings::default() }));
            names.note(&Item::TargetEnd(TargetEnd { target: id, ..TargetEnd::default() }));
        }
        assert!(names.targets.len() <= MAX_ENDED + 1);
        assert!(names.name(TargetId(9_999), AddrRange::new(0, 1)).is_some());
    }
}
