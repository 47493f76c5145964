//! Swap in compressed memory (zram), for as long as an experiment lasts.

use anyhow::{Context, bail};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

const CONTROL: &str = "/sys/class/zram-control";

/// A zram device in use as swap. Dropped, it is swap no more and the device is gone; what lies there comes back to memory first.
#[derive(Debug)]
pub struct Zram {
    id: u32,
    is_swap: bool,
}

impl Zram {
    /// Makes a device that holds `bytes` bytes of pages, and swaps there.
    ///
    /// # Errors
    /// It is not permitted, the kernel has no zram, or `mkswap` and `swapon` (Debian: util-linux) fail, with what they said.
    pub fn new(bytes: u64) -> anyhow::Result<Self> {
        if !fs::exists(CONTROL).unwrap_or(false) {
            // As a module it is there from when it is loaded.
            let _ = run(Command::new("modprobe").arg("zram"));
        }
        let id = fs::read_to_string(format!("{CONTROL}/hot_add")).context(
            "cannot make a zram device: reading /sys/class/zram-control/hot_add (needs root, and a kernel with zram)",
        )?;
        let id = id.trim().parse().context("zram-control/hot_add says no number")?;
        // From here on it is removed whatever happens.
        let mut zram = Self { id, is_swap: false };
        let size = format!("/sys/block/zram{id}/disksize");
        fs::write(&size, bytes.to_string()).with_context(|| format!("cannot write {bytes} to {size}"))?;
        run(Command::new("mkswap").arg(zram.device()))?;
        run(Command::new("swapon").arg(zram.device()))?;
        zram.is_swap = true;
        Ok(zram)
    }

    /// What undoes it, should this program be killed.
    pub fn remedy(&self) -> String {
        format!("swapoff {} && echo {} > {CONTROL}/hot_remove", self.device().display(), self.id)
    }

    fn device(&self) -> PathBuf {
        format!("/dev/zram{}", self.id).into()
    }

    fn remove(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.is_swap) {
            run(Command::new("swapoff").arg(self.device()))?;
        }
        fs::write(format!("{CONTROL}/hot_remove"), self.id.to_string())
            .with_context(|| format!("cannot remove {}", self.device().display()))
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let remedy = self.remedy();
        if let Err(error) = self.remove() {
            eprintln!("isotherm: swap in zram is left behind: {error:#}; {remedy}");
        }
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        bail!("{name} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(())
}
