//! Encoding and decoding of Isotherm's own format, regions a second.
#![allow(missing_docs)] // criterion's macros make public items

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_record::rec::{Reader, Writer};
use isotherm_record::synthetic::{Shape, Synthetic};
use isotherm_record::{Item, ItemReader, ItemWriter};
use std::hint::black_box;

fn codec(c: &mut Criterion) {
    for (name, fractions) in [("counted", false), ("fractions", true)] {
        let shape = Shape { nr_regions: 500_000, fractions, ..Shape::default() };
        let mut synthetic = Synthetic::new(shape);
        let mut items = Vec::new();
        while let Ok(Some(item)) = synthetic.next_item() {
            items.push(item);
        }
        let encode = || -> Result<Vec<u8>, isotherm_record::Error> {
            let mut file = Vec::new();
            let mut writer = Writer::new(&mut file, "bench")?;
            items.iter().try_for_each(|item| writer.write(item))?;
            writer.finish()?;
            drop(writer);
            Ok(file)
        };
        let file = encode().unwrap_or_default();

        let mut group = c.benchmark_group(name);
        group.sample_size(10).throughput(Throughput::Elements(shape.nr_regions));
        group.bench_function("encode", |b| b.iter(|| black_box(encode())));
        group.bench_function("decode", |b| {
            b.iter(|| {
                let mut regions = 0;
                if let Ok(mut reader) = Reader::new(&file[..], "bench") {
                    while let Ok(Some(item)) = reader.next_ref() {
                        if let Item::Snapshot(snapshot) = item {
                            regions += black_box(snapshot).nr_regions();
                        }
                    }
                }
                regions
            });
        });
        group.finish();
    }
}

/// Snapshots of 1,000 targets of which 5 changed. The first of each block has all regions.
fn steady(c: &mut Criterion) {
    let snapshot = |index: u32| Snapshot {
        start_ns: u64::from(index) * 100_000_000,
        end_ns: u64::from(index + 1) * 100_000_000,
        sample_ns: 5_000_000,
        max_nr_accesses: 20,
        targets: (0..1000)
            .map(|id| {
                let changed = id < 5;
                let region = |i: u64| RegionSnapshot {
                    range: AddrRange::new((id * 100 + i) << 16, (id * 100 + i + 1) << 16),
                    nr_accesses: if changed { index % 20 } else { 1 },
                    age: if changed { 0 } else { index },
                    ..RegionSnapshot::default()
                };
                let regions = (0..10).map(region).collect();
                TargetSnapshot { id: TargetId(id), regions, steady: !changed && index > 0 }
            })
            .collect(),
    };
    let mut group = c.benchmark_group("steady");
    group.sample_size(10).throughput(Throughput::Elements(1000));
    for (name, per_block) in [("first of a block", 1), ("ten a block", 10), ("hundred a block", 100)] {
        let list: Vec<Snapshot> = (0..100)
            .map(|i| {
                let length = 1_000_000_000 / per_block;
                Snapshot { start_ns: i * length, end_ns: (i + 1) * length, ..snapshot(i as u32).changes() }
            })
            .collect();
        group.bench_function(format!("100 snapshots of 1000 targets, {name}"), |b| {
            b.iter(|| {
                let mut file = Vec::new();
                if let Ok(mut writer) = Writer::new(&mut file, "bench") {
                    let _ = black_box(list.iter().try_for_each(|s| writer.write_snapshot(s)));
                }
                file
            });
        });
    }
    group.finish();
}

criterion_group!(benches, codec, steady);
criterion_main!(benches);
