//! Building the guest program.

use anyhow::{Context, bail};
use isotherm_qemu::{DEFAULT_PROGRAM, DEFAULT_PROGRAM_ARM64, Kind};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Builds the guest program for such machines and tells where it is.
///
/// # Errors
/// It does not build; when that is for want of the target's libraries, says how to get them.
pub fn guest_program(kind: Kind) -> anyhow::Result<PathBuf> {
    let (target, program) = match kind {
        Kind::Microvm | Kind::Q35 => ("x86_64-unknown-none", DEFAULT_PROGRAM),
        Kind::Virt => ("aarch64-unknown-none", DEFAULT_PROGRAM_ARM64),
    };
    let program = root().join(program);
    // It is TARGET/release/NAME below the target directory.
    let directory = program.ancestors().nth(3).context("the guest program has no target directory")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--release", "--target", target, "--manifest-path"])
        .arg(root().join("guest/Cargo.toml"))
        .arg("--target-dir")
        .arg(directory)
        // Flags for the host's programs are not for one without an operating system.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("the guest program did not build; it needs `rustup target add {target}`");
    }
    Ok(program)
}
