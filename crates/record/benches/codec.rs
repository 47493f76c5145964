//! Encoding and decoding of Isotherm's own format, regions a second.
#![allow(missing_docs)] // criterion's macros make public items

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
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

criterion_group!(benches, codec);
criterion_main!(benches);
