//! Writes a synthetic recording of a given number of regions, or measures how fast one is decoded.
//!
//! `cargo run --release -p isotherm-record --example synthetic -- write FILE REGIONS [--fractions] [--wide]`, then `read FILE`.
//! `--wide`: up to a million regions a snapshot.

use isotherm_record::synthetic::{Shape, Synthetic};
use isotherm_record::{Format, Item, ItemReader, create, open};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["write", file, regions, ref rest @ ..] => {
            let fractions = rest.contains(&"--fractions");
            let max_nr_regions =
                if rest.contains(&"--wide") { 1_000_000 } else { Shape::default().max_nr_regions };
            let shape = Shape { nr_regions: regions.parse()?, max_nr_regions, fractions, ..Shape::default() };
            let mut synthetic = Synthetic::new(shape);
            let path = Path::new(file);
            let mut writer = create(path, Format::from_path(path).unwrap_or(Format::Rec))?;
            while let Some(item) = synthetic.next_ref()? {
                writer.write(item)?;
            }
            writer.finish()?;
            let bytes = path.metadata()?.len();
            println!("{bytes} bytes, {:.2} a region", bytes as f64 / shape.nr_regions as f64);
        }
        ["read", file] => {
            let began = Instant::now();
            let mut reader = open(Path::new(file))?;
            let (mut regions, mut snapshots, mut accesses) = (0_u64, 0_u64, 0_u64);
            while let Some(item) = reader.next_ref()? {
                if let Item::Snapshot(snapshot) = item {
                    snapshots += 1;
                    for target in &snapshot.targets {
                        regions += target.regions.len() as u64;
                        accesses += target.regions.iter().map(|r| u64::from(r.nr_accesses)).sum::<u64>();
                    }
                }
            }
            let took = began.elapsed().as_secs_f64();
            println!(
                "{regions} regions, {accesses} accesses, {snapshots} snapshots in {took:.3} s: {:.1} M regions/s",
                regions as f64 / took / 1e6
            );
            reader.warnings().iter().for_each(|w| println!("{w}"));
        }
        _ => return Err("usage: synthetic write FILE REGIONS [--fractions] [--wide] | read FILE".into()),
    }
    Ok(())
}
