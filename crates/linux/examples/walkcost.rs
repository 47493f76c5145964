//! Cost of looking up page-table entries: `cargo run --release --example walkcost`.
use isotherm_linux::pte::walk::{Entry, Walker};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::os::fd::AsFd;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let t = Instant::now();
    let mut walker = Walker::load()?;
    println!("loaded in {:?}, {} levels", t.elapsed(), walker.levels());
    let pidfd = pidfd_open(getpid(), PidfdFlags::empty())?;
    let data = vec![1u8; 64 << 20];
    let base = data.as_ptr() as u64;
    for n in [1u64, 10, 100, 1000] {
        let mut present = 0;
        let t = Instant::now();
        let rounds = 200;
        for _ in 0..rounds {
            present = 0;
            let w = walker.walk(pidfd.as_fd(), (0..n).map(|i| base + i * 61440), |_, e| {
                present += u32::from(matches!(e, Entry::Leaf { young: true, .. }));
            })?;
            assert!(matches!(w, isotherm_linux::pte::walk::Walked::Done { .. }));
        }
        println!("{n} pages: {:?} a run, {present} young", t.elapsed() / rounds);
    }
    Ok(())
}
