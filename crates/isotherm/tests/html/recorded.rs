//! A recording of which it is known what its page must show.

use super::browser::Page;
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_record::{
    Format, Header, Item, ItemWriter, Mapping, Mappings, RecordedAttrs, TargetInfo, create,
};
use std::path::Path;

const MIB: u64 = 1 << 20;
/// Where the heap lies.
const HEAP: u64 = 0x1000_0000;
const STARTED_NS: u64 = 1_000_000_000;
const SNAPSHOTS: u64 = 200;
pub const LENGTH_S: f64 = 20.0;
/// Second at which the hot part falls silent.
pub const FIRST_HALF: u64 = 10;
/// Of a region with 4 accesses in 20 intervals of 5 ms.
pub const WARM_HZ: f64 = 40.0;

/// A place in the heap: shares of the time and of the addresses.
#[derive(Clone, Copy)]
pub struct Spot {
    pub time: f64,
    pub share: f64,
}

/// A quarter of the heap each, from the lowest address up.
pub const HOT: Spot = Spot { time: 0.25, share: 0.125 };
pub const WARM: Spot = Spot { time: 0.5, share: 0.375 };
pub const UNKNOWN: Spot = Spot { time: 0.5, share: 0.625 };
pub const COLD: Spot = Spot { time: 0.5, share: 0.875 };

/// Somewhere in the area of the libraries where nothing is mapped: its middle.
pub fn unmapped(page: &mut Page) -> (f64, f64) {
    let at = page.number(
        "[...document.querySelectorAll('.area h3')].findIndex((h) => h.textContent.startsWith('mmap'))",
    );
    let [x, y, width, height] = page.place(&format!("#area-{at}"));
    (x + width / 2.0, y + height / 2.0)
}

/// Writes the recording of one server, `isotherm.rec`.
pub fn sample(dir: &Path) {
    named(dir, "server");
}

/// Begins `isotherm.rec`.
fn begun(dir: &Path) -> Box<dyn ItemWriter> {
    let mut writer = create(&dir.join("isotherm.rec"), Format::Rec).unwrap();
    let attrs = RecordedAttrs { sample_us: 5000, aggr_us: 100_000, ..RecordedAttrs::default() };
    writer.write(&Item::Header(Header { attrs, started_ns: STARTED_NS, ..Header::default() })).unwrap();
    writer
}

fn process(writer: &mut dyn ItemWriter, id: u64, comm: &str, maps: Vec<Mapping>) {
    let pid = u32::try_from(id).unwrap();
    let comm = comm.to_owned();
    let info = TargetInfo { id, pid, comm, time_ns: STARTED_NS, ..TargetInfo::default() };
    writer.write(&Item::Target(info)).unwrap();
    writer.write(&Item::Mappings(Mappings { target: id, maps: maps.into(), ..Mappings::default() })).unwrap();
}

fn map(start: u64, size: u64, name: &str) -> Mapping {
    Mapping { start, end: start + size, perms: "rw-p".into(), name: name.into(), ..Mapping::default() }
}

fn region(start: u64, size: u64, nr: u32, age: u64) -> RegionSnapshot {
    RegionSnapshot {
        range: AddrRange::new(start, start + size),
        nr_accesses: nr,
        nr_accesses_bp: nr * 10_000,
        age: age as u32,
        ..RegionSnapshot::default()
    }
}

fn snapshot(index: u64, targets: Vec<TargetSnapshot>) -> Item {
    let start_ns = STARTED_NS + index * 100_000_000;
    let end_ns = start_ns + 100_000_000;
    Item::Snapshot(Snapshot { start_ns, end_ns, sample_ns: 5_000_000, max_nr_accesses: 20, targets })
}

/// The same of a process, and with mappings, that are called so.
pub fn named(dir: &Path, name: &str) {
    let mut writer = begun(dir);
    let (lib, stack) = (0x7f00_0000_0000, 0x7fff_0000_0000);
    let of = |ours| if name == "server" { ours } else { name };
    let maps = vec![
        map(HEAP, 64 * MIB, of("[heap]")),
        // A library, and another that is twice as far away as both are large.
        map(lib, 16 * MIB, of("/usr/lib/libfirst.so")),
        map(lib + 48 * MIB, 16 * MIB, of("/usr/lib/libsecond.so")),
        map(stack, MIB, of("[stack]")),
    ];
    process(&mut *writer, 11, name, maps);
    for index in 0..SNAPSHOTS {
        let region = |start, size, nr| region(start, size, nr, index);
        let hot = if index < FIRST_HALF * 10 { 20 } else { 0 };
        let regions = vec![
            region(HEAP, 16 * MIB, hot),
            region(HEAP + 16 * MIB, 16 * MIB, 4),
            unknown(HEAP + 32 * MIB, 16 * MIB),
            region(HEAP + 48 * MIB, 16 * MIB, 0),
            region(lib, 16 * MIB, 1),
            region(lib + 48 * MIB, 16 * MIB, 0),
            region(stack, MIB, 20),
        ];
        writer.write(&snapshot(index, vec![TargetSnapshot::new(TargetId(11), regions)])).unwrap();
    }
    writer.finish().unwrap();
}

fn unknown(start: u64, size: u64) -> RegionSnapshot {
    RegionSnapshot { seen_bp: 0, exposure: 0, ..region(start, size, 0, 0) }
}

/// One whose clock is near its end, and whose snapshots take 100 ns.
pub fn far_away(dir: &Path) {
    let mut writer = create(&dir.join("isotherm.rec"), Format::Rec).unwrap();
    writer.write(&Item::Header(Header { started_ns: 1, ..Header::default() })).unwrap();
    process(&mut *writer, 11, "server", vec![map(HEAP, 64 * MIB, "[heap]")]);
    for index in 0..20 {
        let regions = vec![region(HEAP, 64 * MIB, 10, index)];
        let start_ns = (1 << 62) + index * 100;
        let targets = vec![TargetSnapshot::new(TargetId(11), regions)];
        let snapshot =
            Snapshot { start_ns, end_ns: start_ns + 100, sample_ns: 5, max_nr_accesses: 20, targets };
        writer.write(&Item::Snapshot(snapshot)).unwrap();
    }
    writer.finish().unwrap();
}

/// The `nth` file of a long run, of one snapshot.
pub fn part(path: &Path, nth: u64) {
    let mut writer = create(path, Format::Rec).unwrap();
    let started_ns = STARTED_NS + nth * 100_000_000;
    let started_unix_ns = 1_700_000_000_000_000_000 + started_ns;
    writer.write(&Item::Header(Header { started_ns, started_unix_ns, ..Header::default() })).unwrap();
    process(&mut *writer, 11, "server", vec![map(HEAP, 64 * MIB, "[heap]")]);
    let regions = vec![region(HEAP, 64 * MIB, 10, nth)];
    writer.write(&snapshot(nth, vec![TargetSnapshot::new(TargetId(11), regions)])).unwrap();
    writer.finish().unwrap();
}

/// A process of which nothing could be observed.
pub fn unobserved(dir: &Path) {
    let mut writer = begun(dir);
    process(&mut *writer, 11, "server", vec![map(HEAP, 64 * MIB, "[heap]")]);
    for index in 0..10 {
        let regions = vec![unknown(HEAP, 64 * MIB)];
        writer.write(&snapshot(index, vec![TargetSnapshot::new(TargetId(11), regions)])).unwrap();
    }
    writer.finish().unwrap();
}

/// Five hundred processes, called `worker-0` and so on: each accesses as many MiB of its 64 as an eighth of its number.
pub fn many(dir: &Path) {
    let mut writer = begun(dir);
    for i in 0..500 {
        process(&mut *writer, 1000 + i, &format!("worker-{i}"), vec![map(HEAP, 64 * MIB, "[heap]")]);
    }
    for index in 0..20 {
        let target = |i: u64| {
            let hot = (i / 8) * MIB;
            let mut regions =
                vec![region(HEAP, hot, 20, index), region(HEAP + hot, 64 * MIB - hot, 0, index)];
            regions.retain(|r| !r.range.is_empty());
            TargetSnapshot::new(TargetId(1000 + i), regions)
        };
        writer.write(&snapshot(index, (0..500).map(target).collect())).unwrap();
    }
    writer.finish().unwrap();
}
