//! The own format as a user meets it: what was written is read, however the file fared.

#![allow(clippy::unwrap_used)] // helpers of tests; clippy.toml allows it in the tests only

mod common;

use common::{items_of, small, snapshots};
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_record::rec::{Reader, Writer, scan_summaries};
use isotherm_record::synthetic::{Shape, Synthetic};
use isotherm_record::{Cost, Header, Item, ItemReader, ItemWriter, Mapping, Mappings, Warning};
use proptest::prelude::*;
use std::io::{self, Write};
use std::sync::Arc;

fn file_of(items: &[Item]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file, "test.rec").unwrap();
    items.iter().for_each(|item| writer.write(item).unwrap());
    writer.finish().unwrap();
    drop(writer);
    file
}

fn read(file: &[u8]) -> (Vec<Item>, Vec<Warning>) {
    let mut reader = Reader::new(file, "test.rec").unwrap();
    let items = items_of(&mut reader);
    (items, reader.warnings().to_vec())
}

#[test]
fn what_was_written_is_read() {
    let items = small();
    let (read, warnings) = read(&file_of(&items));
    assert_eq!(read, items);
    assert_eq!(warnings, []);
}

/// Bar 7, at every byte: a cut loses at most the second it falls in.
#[test]
fn a_cut_at_any_byte_reads_up_to_its_last_whole_second() {
    let items = small();
    let file = file_of(&items);
    // How many items are safe after so many bytes: what a writer had brought out before the next second began.
    let mut ends = vec![(0_u64, 0_usize)];
    let mut writer = Writer::new(std::io::sink(), "test.rec").unwrap();
    let mut began = None;
    for (i, item) in items.iter().enumerate() {
        writer.write(item).unwrap();
        if let Item::Snapshot(s) = item {
            began.get_or_insert(s.start_ns);
        }
        if writer.bytes_written() > ends.last().unwrap().0 {
            ends.push((writer.bytes_written(), i + 1));
            if let (Item::Snapshot(s), Some(start)) = (item, began.take()) {
                assert!(s.end_ns - start <= 1_100_000_000, "a block covers {} ns", s.end_ns - start);
            }
        }
    }
    for cut in 1..file.len() {
        let (read, warnings) = read(&file[..cut]);
        let whole = ends.iter().rev().find(|e| e.0 <= cut as u64).unwrap();
        if whole.1 == 0 {
            assert_eq!(read, [Item::Header(Header::default())], "cut at {cut}");
            assert!(warnings.contains(&Warning::HeaderLost), "cut at {cut}");
            continue;
        }
        assert_eq!(read, items[..whole.1], "cut at {cut}");
        let last_ns = read.iter().rev().find_map(|i| match i {
            Item::Snapshot(s) => Some(s.end_ns),
            _ => None,
        });
        let last_ns = last_ns.unwrap_or(0);
        let expected = match cut as u64 - whole.0 {
            0 => Warning::Unfinished { last_ns },
            lost_bytes => Warning::Truncated { offset: whole.0, lost_bytes, last_ns },
        };
        assert_eq!(warnings, [expected], "cut at {cut}");
    }
}

#[test]
fn damage_in_the_middle_costs_only_the_block_it_hits() {
    let items = small();
    let mut file = file_of(&items);
    let middle = file.len() / 2;
    file[middle] ^= 0x10;
    let (read, warnings) = read(&file);
    let [Warning::Damaged { offset, lost_bytes, from_ns, to_ns }] = warnings[..] else {
        panic!("{warnings:?}");
    };
    assert!((offset..offset + lost_bytes).contains(&(middle as u64)));
    let gap = to_ns - from_ns;
    assert!((900_000_000..1_200_000_000).contains(&gap), "a gap of {gap} ns");
    let expected: Vec<&Item> = items
        .iter()
        .filter(|i| !matches!(i, Item::Snapshot(s) if from_ns < s.end_ns && s.start_ns < to_ns))
        .collect();
    assert_eq!(read.iter().collect::<Vec<_>>(), expected);
}

/// A file in memory that is full after so many bytes.
struct Small {
    file: Vec<u8>,
    left: usize,
}

impl Write for &mut Small {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let len = bytes.len().min(self.left);
        self.left -= len;
        self.file.write(&bytes[..len])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_ends_in_an_error_and_keeps_what_was_saved() {
    let items = small();
    let mut disk = Small { file: Vec::new(), left: 5000 };
    let mut writer = Writer::new(&mut disk, "/small/x.rec").unwrap();
    let error = items.iter().try_for_each(|item| writer.write(item)).and_then(|()| writer.finish());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("/small/x.rec") && error.contains("stays readable"), "{error}");
    drop(writer);
    assert_eq!(disk.file.len(), 5000);
    let (read, _) = read(&disk.file);
    assert!(snapshots(&read).len() > 5);
    assert_eq!(read, items[..read.len()]);
}

/// What a quiet session has gathered is flushed, so that a reader sees it while the recording goes on.
#[test]
fn what_was_flushed_is_read_while_the_recording_goes_on() {
    let items = small();
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file, "test.rec").unwrap();
    // Header, two targets with mappings, one snapshot: far less than a second.
    items.iter().take(6).for_each(|item| writer.write(item).unwrap());
    writer.flush().unwrap();
    drop(writer);
    assert_eq!(read(&file).0, items[..6]);
}

#[test]
fn a_piece_cut_out_is_a_gap() {
    let items = small();
    let file = file_of(&items);
    for (from, to) in [(500, 700), (file.len() / 3, file.len() / 2), (20, file.len() * 2 / 3)] {
        let pieces = [&file[..from], &file[to..]].concat();
        let (read, warnings) = read(&pieces);
        assert!(warnings.iter().any(|w| matches!(w, Warning::Damaged { .. })), "{from}..{to}: {warnings:?}");
        assert_eq!(read.last(), items.last(), "{from}..{to}");
    }
}

/// Where the blocks of a file begin, and where the last one ends.
fn borders(file: &[u8]) -> Vec<usize> {
    let mut at = 16;
    let mut borders = vec![at];
    while let Some(head) = file.get(at..at + 28) {
        let number = |from: usize, len: usize| {
            head[from..from + len].iter().rev().fold(0, |n, &b| n << 8 | usize::from(b))
        };
        at += 28 + number(6, 2) + number(12, 4);
        borders.push(at);
    }
    assert_eq!(borders.last(), Some(&file.len()), "these are its blocks");
    borders
}

#[test]
fn whole_blocks_that_are_missing_are_counted_and_what_comes_again_is_read_once() {
    let items = small();
    let file = file_of(&items);
    let at = borders(&file);
    assert!(at.len() > 6, "{} blocks", at.len());
    let piece = |from: usize, to: usize| &file[at[from]..at[to]];
    let end = at.len() - 1;

    let (_, warnings) = read(&[&file[..at[2]], piece(4, end)].concat());
    let [Warning::Missing { offset, blocks: 2, from_ns, to_ns }] = warnings[..] else {
        panic!("{warnings:?}")
    };
    assert!(offset == at[2] as u64 && from_ns > 0);
    assert_eq!(
        warnings[0].to_string(),
        format!(
            "2 blocks are missing before byte {offset}: a gap of {:.3} s",
            (to_ns - from_ns) as f64 / 1e9
        )
    );

    let again = |count| Warning::Skipped { count, what: "blocks that come again" };
    for back in [1, 2] {
        let (read, warnings) = read(&[&file[..at[3]], piece(3 - back, end)].concat());
        assert_eq!(warnings, [again(back as u64)]);
        assert!(read == items, "{back}");
    }
    // The same recording twice, with its preamble.
    let (twice, warnings) = read(&[&file[..], &file[..]].concat());
    assert_eq!(warnings, [again(end as u64)]);
    assert!(twice == items);
    // Once each, if not in order.
    let (out_of_order, warnings) = read(&[&file[..at[2]], piece(3, 4), piece(2, 3), piece(4, end)].concat());
    let mut times: Vec<u64> = snapshots(&out_of_order).iter().map(|s| s.start_ns).collect();
    times.sort_unstable();
    assert_eq!(times, snapshots(&items).iter().map(|s| s.start_ns).collect::<Vec<_>>());
    assert!(
        matches!(&warnings[..], [Warning::Assumed { what }] if what.contains("not in the order")),
        "{warnings:?}"
    );
    // What is missing for good is one of what was not there in its place.
    let (_, warnings) = read(&[&file[..at[2]], piece(4, 5), piece(3, 4), piece(5, end)].concat());
    assert!(
        matches!(&warnings[..], [Warning::Missing { blocks: 1, .. }, Warning::Assumed { .. }]),
        "{warnings:?}"
    );
}

/// The same recording so many hours later.
fn later(hours: u64) -> Vec<Item> {
    let by = hours * 3_600_000_000_000;
    let mut items = small();
    for item in &mut items {
        match item {
            Item::Header(header) => header.started_ns += by,
            Item::Target(target) => target.time_ns += by,
            Item::Mappings(mappings) => mappings.time_ns += by,
            Item::Snapshot(snapshot) => {
                snapshot.start_ns += by;
                snapshot.end_ns += by;
            }
            Item::End(end) => end.time_ns += by,
            _ => {}
        }
    }
    items
}

/// However the first one ended: blocks of two recordings have the same numbers, and none of them is taken for the other's.
#[test]
fn recordings_behind_each_other_are_all_read() {
    let (a, b) = (file_of(&small()), file_of(&later(1)));
    let at = borders(&a);
    let begins = |warnings: &[Warning]| {
        let joint = |w: &&Warning| matches!(w, Warning::Assumed { what } if what.starts_with("another recording begins"));
        warnings.iter().filter(joint).count()
    };
    let (read_a, read_b) = (read(&a).0, read(&b).0);
    let (both, warnings) = read(&[&a[..], &b[..]].concat());
    assert!(both == [&read_a[..], &read_b].concat(), "{} items", both.len());
    assert!(begins(&warnings) == 1 && warnings.len() == 1, "{warnings:?}");

    // The first was cut within a block, between two, and followed by zeros.
    for (first, damaged) in [
        (a[..at[3] + 36].to_vec(), true),
        (a[..at[3]].to_vec(), false),
        ([&a[..at[3]], &[0; 4096]].concat(), true),
    ] {
        let (both, warnings) = read(&[&first[..], &b].concat());
        assert!(snapshots(&both).ends_with(&snapshots(&read_b)[..]), "{} bytes", first.len());
        assert!(both.len() > read_b.len());
        assert_eq!(begins(&warnings), 1, "{warnings:?}");
        let told = warnings.iter().filter(|w| matches!(w, Warning::Damaged { .. })).count();
        assert_eq!(told, usize::from(damaged), "{warnings:?}");
        assert!(warnings.iter().any(|w| matches!(w, Warning::Unfinished { .. })), "{warnings:?}");
    }
    // The second one's preamble is damaged.
    let mut flipped = b.clone();
    flipped[3] ^= 1;
    let (both, warnings) = read(&[&a[..], &flipped].concat());
    assert!(both == [&read_a[..], &read_b].concat(), "{} items", both.len());
    assert_eq!(begins(&warnings), 1, "{warnings:?}");

    // Many: what is damaged in the last is reported all the same.
    let mut many: Vec<u8> = (0..100).flat_map(|hours| file_of(&later(hours))).collect();
    let middle = many.len() - b.len() / 2;
    many[middle] ^= 1;
    let (_, warnings) = read(&many);
    let [Warning::Damaged { .. }, Warning::Assumed { what }] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(what.starts_with("99 other recordings follow"), "{what}");

    // Back in time: figures over both would be of nothing.
    let (read, warnings) = read(&[&b[..], &a].concat());
    assert!(snapshots(&read) == snapshots(&read_b));
    let text = format!("at byte {} another recording begins, of an earlier time", b.len() + 16);
    assert!(
        matches!(&warnings[..], [Warning::Stopped { why, .. }] if why.starts_with(&text)),
        "{warnings:?}"
    );
}

/// Only what is the beginning of a block was cut; anything else at the end is damage, whatever it was.
#[test]
fn damage_at_the_end_is_no_cut() {
    let items = small();
    let file = file_of(&items);
    let at = borders(&file);
    let last = at[at.len() - 2];
    for flipped in [last, last + 5, last + 13, last + 30, file.len() - 1] {
        let mut file = file.clone();
        file[flipped] ^= 4;
        let (_, warnings) = read(&file);
        let lost_bytes = (file.len() - last) as u64;
        let damage = Warning::Damaged { offset: last as u64, lost_bytes, from_ns: 0, to_ns: 0 };
        assert_eq!(warnings[0], damage, "byte {flipped} of {}", file.len());
    }
    for rubbish in [vec![0; 8192], vec![b'x'; 550]] {
        let (read, warnings) = read(&[&file[..], &rubbish].concat());
        let (offset, lost_bytes) = (file.len() as u64, rubbish.len() as u64);
        assert_eq!(warnings, [Warning::Damaged { offset, lost_bytes, from_ns: 0, to_ns: 0 }]);
        assert!(read == items);
    }
}

#[test]
fn items_without_snapshots_are_read_alone() {
    let items = small();
    let file = file_of(&items);
    let mut reader = Reader::new(&file[..], "test.rec").unwrap().without_snapshots();
    let others: Vec<Item> = items.into_iter().filter(|i| !matches!(i, Item::Snapshot(_))).collect();
    assert_eq!(items_of(&mut reader), others);
}

#[test]
fn the_scan_knows_the_axes_before_anything_is_decoded() {
    let items = small();
    let scan = scan_summaries(&file_of(&items)[..], "test.rec").unwrap();
    let snapshots = snapshots(&items);
    assert_eq!(scan.total.nr_snapshots, snapshots.len() as u64);
    assert_eq!(scan.total.nr_regions, snapshots.iter().map(|s| s.nr_regions() as u64).sum::<u64>());
    assert_eq!(scan.total.first_ns, snapshots[0].start_ns);
    assert_eq!(scan.total.last_ns, snapshots[snapshots.len() - 1].end_ns);
    assert_eq!(scan.total.nr_others, (items.len() - snapshots.len()) as u64);
    assert_eq!(scan.warnings, []);
    // Heap, mmap area and stack, as the recording's own mappings have them.
    for (target, summary) in snapshots[0].targets.iter().zip(&scan.total.targets) {
        assert_eq!(target.id.0, summary.id);
        let maps = items.iter().find_map(|i| match i {
            Item::Mappings(m) if m.target == summary.id => Some(&m.maps),
            _ => None,
        });
        let areas: Vec<_> = maps.unwrap().iter().map(|m| (m.start, m.end)).collect();
        assert_eq!(summary.areas.iter().map(|a| (a.start, a.end)).collect::<Vec<_>>(), areas);
    }
}

/// The bar is 6 bytes a region on real runs. This run is noisier than real ones: a third of its chunks are neither idle
/// nor always accessed.
#[test]
fn a_region_takes_few_bytes() {
    for (fractions, most) in [(false, 4.0), (true, 6.0)] {
        let shape = Shape { nr_regions: 200_000, fractions, ..Shape::default() };
        let items = items_of(&mut Synthetic::new(shape));
        let regions: usize = snapshots(&items).iter().map(|s| s.nr_regions()).sum();
        let each = file_of(&items).len() as f64 / regions as f64;
        println!("fractions {fractions}: {each:.2} bytes a region");
        assert!(each <= most, "fractions {fractions}: {each:.2} bytes a region");
    }
}

/// Also where regions are few, and what is not regions weighs: cost every second, and a heap that grows.
#[test]
fn a_region_takes_few_bytes_also_when_there_are_few() {
    let shape = Shape { nr_regions: 20_000, max_nr_regions: 30, ..Shape::default() };
    let mut regions = 0;
    let mut items = Vec::new();
    let mapping = |i: u64| {
        let start = 0x7f00_0000_0000 + i * 0x35000;
        let name = format!(
            "/usr/lib/x86_64-linux-gnu/lib{}.so.{}",
            ["crypto", "systemd", "c", "jemalloc"][i as usize / 5 % 4],
            i / 5
        );
        let perms = ["r--p", "r-xp", "r--p", "r--p", "rw-p"][i as usize % 5].into();
        let end = start + 0x1000 * (i % 7 + 1);
        Mapping { start, end, perms, name: name.into(), ..Mapping::default() }
    };
    let mut maps = Mappings { target: 4001, maps: (0..150).map(mapping).collect(), ..Mappings::default() };
    let mut second = 0;
    for item in items_of(&mut Synthetic::new(shape)) {
        if let Item::Snapshot(s) = &item {
            regions += s.nr_regions();
            if s.end_ns / 1_000_000_000 > second {
                second = s.end_ns / 1_000_000_000;
                let cost = Cost {
                    time_ns: s.end_ns,
                    wall_ns: 1_000_300_211 + second % 977,
                    cpu_ns: 7_300_000 + second * 7919 % 90_000,
                    checks: 4000 + second * 31 % 701,
                    max_checks_per_sample: 30,
                    clears: 700 + second * 17 % 301,
                    resident_pages: 262_144 + second,
                    ..Cost::default()
                };
                items.push(Item::Cost(cost));
                maps.time_ns = s.end_ns;
                Arc::make_mut(&mut maps.maps)[0].end += 0x1000;
                items.push(Item::Mappings(maps.clone()));
            }
        }
        items.push(item);
    }
    let file = file_of(&items);
    let each = file.len() as f64 / regions as f64;
    println!("{each:.2} bytes a region");
    assert!(each <= 6.0, "{each:.2} bytes a region");
    assert_eq!(read(&file).0, items);
}

/// What of each target a snapshot changes, many targets at once.
fn swarm(nr_targets: u64, changing: u64, index: u64) -> Snapshot {
    let target = |id: u64| {
        let moves = id < changing || index == 0;
        let region = |i: u64| RegionSnapshot {
            range: AddrRange::new((id * 100 + i) << 16, (id * 100 + i + 1) << 16),
            nr_accesses: if moves { ((index + i) % 20) as u32 } else { 1 },
            nr_accesses_bp: if moves { ((index + i) % 20) as u32 * 10_000 } else { 12_300 },
            age: if moves { 0 } else { index as u32 },
            seen_bp: 5020,
            exposure: 40,
            resident: Some(4096 * i),
            idle_bp: if i.is_multiple_of(2) { 0 } else { 7000 },
        };
        let regions = (0..8).map(region).collect();
        TargetSnapshot { id: TargetId(5000 + id), regions, steady: !moves && index > 1 }
    };
    Snapshot {
        start_ns: index * 100_000_000,
        end_ns: (index + 1) * 100_000_000,
        sample_ns: 5_000_000,
        max_nr_accesses: 20,
        targets: (0..nr_targets).map(target).collect(),
    }
}

/// Whether the writer is handed all regions or only those of the targets that changed, a reader has them all.
#[test]
fn steady_targets_cost_next_to_nothing_and_are_read_whole() {
    let whole: Vec<Item> = (0..100).map(|i| Item::Snapshot(swarm(1000, 5, i))).collect();
    let changes: Vec<Item> = (0..100).map(|i| Item::Snapshot(swarm(1000, 5, i).changes())).collect();
    assert!(changes[50] != whole[50]);
    let file = file_of(&whole);
    assert!(file == file_of(&changes), "what is steady needs no regions");
    let (items, _) = read(&file);
    assert!(items[1..] == whole[..], "steady targets do not come back");
    // A block a second: eight regions of a thousand targets in its first snapshot, five targets in nine others.
    let still: Vec<Item> = (0..100).map(|i| Item::Snapshot(swarm(5, 5, i))).collect();
    let each = (file.len() - file_of(&still).len()) / 10;
    assert!(each < 16_000, "{each} bytes a block for what did not change");
    // Blocks stand for themselves: whatever is lost, later ones are whole.
    let mut damaged = file.clone();
    let middle = file.len() / 2;
    damaged[middle] ^= 1;
    let (items, warnings) = read(&damaged);
    assert!(warnings.iter().any(|w| matches!(w, Warning::Damaged { .. })), "{warnings:?}");
    let mut after_gap = 0;
    for (read, next) in snapshots(&items).iter().zip(snapshots(&items).iter().skip(1)) {
        let expected = swarm(1000, 5, next.start_ns / 100_000_000);
        for (target, expected) in next.targets.iter().zip(&expected.targets) {
            assert_eq!(target.regions, expected.regions);
            let gap = read.end_ns != next.start_ns;
            assert_eq!(target.steady, expected.steady && !gap, "steady against what was lost");
            after_gap += usize::from(gap);
        }
    }
    assert_eq!(after_gap, 1000);
}

/// Also when "steady" is not true: what comes with its regions is compared.
#[test]
fn a_false_steady_does_no_harm_where_regions_say_otherwise() {
    let mut list: Vec<Snapshot> = (0..5).map(|i| swarm(3, 3, i)).collect();
    list.iter_mut().flat_map(|s| &mut s.targets).for_each(|t| t.steady = true);
    let items: Vec<Item> = list.iter().cloned().map(Item::Snapshot).collect();
    for (read, written) in snapshots(&read(&file_of(&items)).0).iter().zip(&list) {
        for (read, written) in read.targets.iter().zip(&written.targets) {
            assert_eq!(read.regions, written.regions);
            assert!(!read.steady);
        }
    }
}

/// A file written by the last version of the code that wrote version 1.0 of the format.
#[test]
fn a_file_of_version_1_0_is_read_to_the_last_digit() {
    let shape = Shape {
        seed: 7,
        nr_targets: 2,
        nr_regions: 1500,
        max_nr_regions: 40,
        fractions: true,
        ..Shape::default()
    };
    let mut expected = items_of(&mut Synthetic::new(shape));
    let Some(Item::End(end)) = expected.pop() else { panic!("no end") };
    expected.push(Item::Cost(Cost { time_ns: end.time_ns, checks: 10, ..Cost::default() }));
    expected.push(Item::End(end));
    let (items, warnings) = read(include_bytes!("data/version-1.0.rec"));
    assert!(items == expected, "not what was written");
    assert_eq!(warnings, []);
    // Written again, in the version of today, only the steps of small rates differ.
    let again = snapshots(&read(&file_of(&items)).0);
    let regions = |list: &[Snapshot]| -> Vec<RegionSnapshot> {
        list.iter().flat_map(|s| &s.targets).flat_map(|t| t.regions.clone()).collect()
    };
    let (again, once) = (regions(&again), regions(&snapshots(&expected)));
    assert_eq!(again.len(), once.len());
    for (again, once) in again.iter().zip(&once) {
        let most = if once.nr_accesses_bp < 1600 { once.nr_accesses_bp / 32 } else { 0 };
        assert!(again.nr_accesses_bp.abs_diff(once.nr_accesses_bp) <= most, "{again:?} {once:?}");
        assert_eq!(RegionSnapshot { nr_accesses_bp: once.nr_accesses_bp, ..*again }, *once);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bits_never_panic_and_never_invent(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8_u32), 1..20),
    ) {
        let items = small();
        let mut file = file_of(&items);
        for (at, bit) in flips {
            let at = at.index(file.len());
            file[at] ^= 1 << bit;
        }
        let Ok(mut reader) = Reader::new(&file[..], "test.rec") else { return Ok(()) };
        while let Some(item) = reader.next_item().unwrap() {
            prop_assert!(items.contains(&item) || item == Item::Header(Header::default()));
        }
    }

    /// Targets come, go, stand still and lose snapshots on the way; a reader has what the source had.
    #[test]
    fn whatever_stands_still_is_followed(
        steps in prop::collection::vec(
            (prop::collection::vec((0..6_u64, 0..4_u8), 0..6), 1..900_u64, any::<bool>(), any::<bool>()),
            1..40,
        ),
    ) {
        let mut state: std::collections::BTreeMap<u64, TargetSnapshot> = Default::default();
        let (mut list, mut file) = (Vec::new(), Vec::new());
        let mut writer = Writer::new(&mut file, "test.rec").unwrap();
        let mut now = 0;
        for (events, ms, changes, reversed) in steps {
            for target in state.values_mut() {
                target.steady = true;
                target.regions.iter_mut().for_each(|r| r.age += 1);
            }
            for (id, what) in events {
                let regions = (0..u64::from(what)).map(|i| RegionSnapshot {
                    range: AddrRange::new((i + now) << 12, (i + now + 1) << 12),
                    seen_bp: 0,
                    ..RegionSnapshot::default()
                });
                match what {
                    0 => drop(state.remove(&id)),
                    _ => drop(state.insert(id, TargetSnapshot::new(TargetId(id), regions.collect()))),
                }
            }
            let mut targets: Vec<TargetSnapshot> = state.values().cloned().collect();
            if reversed {
                targets.reverse();
            }
            let start_ns = now * 1_000_000;
            now += ms;
            let snapshot = Snapshot { start_ns, end_ns: now * 1_000_000, targets, ..Snapshot::default() };
            writer.write_snapshot(&if changes { snapshot.changes() } else { snapshot.clone() }).unwrap();
            list.push(snapshot);
        }
        writer.finish().unwrap();
        drop(writer);
        let (items, _) = read(&file);
        prop_assert_eq!(snapshots(&items), list);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        if let Ok(mut reader) = Reader::new(&bytes[..], "test.rec") {
            items_of(&mut reader);
        }
    }
}
