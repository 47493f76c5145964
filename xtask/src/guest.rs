//! `cargo xtask guest`.

use crate::{build, steps, table};
use anyhow::{Context, bail};
use clap::ValueEnum;
use isotherm_qemu::{Accel, Backing, Ended, Guest, Kind, Machine};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const HELP: &str = "\
Examples:
  cargo xtask guest                       microvm, 1 GiB, all steps: about a minute
  cargo xtask guest --machine q35 --backing memfd --rounds 100
  cargo xtask guest --machine virt        arm64: the same steps
  cargo xtask guest --build               only build it, and say where it is
  cargo xtask guest --shell               speak to the guest yourself; `help` lists its commands

Each step's verdict is `ok` when, within 3 s, QEMU's resident set is within 10 % + 32 MiB of what the guest really
uses, and every page the guest looked at held what was written to it. The status is 0 when all steps are ok, 1
otherwise, 130 after Ctrl-C. Needs QEMU (Debian: qemu-system-x86) and `rustup target add x86_64-unknown-none`, for arm64
qemu-system-arm and aarch64-unknown-none; neither root nor KVM.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MachineName {
    /// No PCI: the balloon on virtio-mmio
    Microvm,
    /// A PC with PCI Express: the balloon on virtio-pci
    Q35,
    /// arm64: the balloon on virtio-mmio
    Virt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BackingName {
    /// Private memory, given back with MADV_DONTNEED
    Anonymous,
    /// A shared memfd, given back by punching holes
    Memfd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AccelName {
    /// QEMU's translator
    Tcg,
    /// The host's processors, where /dev/kvm can be used
    Kvm,
}

/// What can be said to `cargo xtask guest`.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Only build the guest program and print where it is
    #[arg(long)]
    build: bool,
    /// Boot this program instead of building one
    #[arg(long, value_name = "PATH", conflicts_with = "build")]
    guest: Option<PathBuf>,
    /// Which machine to boot
    #[arg(long, value_name = "KIND", default_value = "microvm")]
    machine: MachineName,
    /// What the guest's RAM is on the host
    #[arg(long, value_name = "KIND", default_value = "anonymous")]
    backing: BackingName,
    /// What executes the guest
    #[arg(long, value_name = "NAME", default_value = "tcg")]
    accel: AccelName,
    /// The guest's RAM, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(256..=65_536))]
    memory: u64,
    /// The guest's processors
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=8))]
    cpus: u32,
    /// Page tables of 5 levels instead of 4
    #[arg(long)]
    five_levels: bool,
    /// Rounds of allocate, stamp, check, free, report
    #[arg(long, value_name = "N", default_value_t = 1000)]
    rounds: u64,
    /// The emulator, if it is not the machine's
    #[arg(long, value_name = "PROGRAM")]
    qemu: Option<PathBuf>,
    /// Connect the guest's serial line to this terminal and run no steps
    #[arg(long, conflicts_with_all = ["build", "json"])]
    shell: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "build")]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    machine: Kind,
    backing: Backing,
    accel: Accel,
    cpus: u32,
    five_levels: bool,
    memory: u64,
    steps: &'a [steps::Step],
    ok: bool,
}

/// Builds, boots and watches.
///
/// # Errors
/// When the guest does not build, boot or answer, with the reason; a verdict is no error.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let kind = match args.machine {
        MachineName::Microvm => Kind::Microvm,
        MachineName::Q35 => Kind::Q35,
        MachineName::Virt => Kind::Virt,
    };
    let program = match &args.guest {
        Some(program) => program.clone(),
        None => build::guest_program(kind)?,
    };
    if args.build {
        println!("{}", program.display());
        return Ok(ExitCode::SUCCESS);
    }
    let mut machine = Machine::new(program, args.memory << 20);
    machine.qemu = args.qemu.clone().unwrap_or_else(|| kind.emulator().into());
    machine.cpus = args.cpus;
    machine.five_levels = args.five_levels;
    machine.kind = kind;
    machine.backing = match args.backing {
        BackingName::Anonymous => Backing::Anonymous,
        BackingName::Memfd => Backing::Memfd,
    };
    machine.accel = match args.accel {
        AccelName::Tcg => Accel::Tcg,
        AccelName::Kvm => Accel::Kvm,
    };
    if args.shell {
        return match machine.run_on_terminal()? {
            Ended::Done => Ok(ExitCode::SUCCESS),
            ended => bail!("the guest ended: {ended}"),
        };
    }

    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot catch Ctrl-C")?;
    }
    let asked = Arc::clone(&stop);
    let booted = Guest::boot(&machine, move || asked.load(Ordering::Relaxed));
    let mut guest = match booted {
        Err(isotherm_qemu::Error::Interrupted) => return Ok(ExitCode::from(130)),
        booted => booted?,
    };
    let mut done = Vec::new();
    let outcome = steps::run(&mut guest, args.memory << 20, args.rounds, &mut |step| {
        eprintln!("guest: {}: {}", step.name, step.verdict());
        done.push(step);
    });
    let ok = outcome.is_ok() && done.iter().all(|step| step.ok);
    if args.json {
        let report = Report {
            machine: machine.kind,
            backing: machine.backing,
            accel: machine.accel,
            cpus: machine.cpus,
            five_levels: machine.five_levels,
            memory: machine.memory,
            steps: &done,
            ok,
        };
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", table::render(&done));
    }
    match outcome {
        Err(isotherm_qemu::Error::Interrupted) => {
            eprintln!("cargo xtask guest: interrupted; the guest was ended");
            return Ok(ExitCode::from(130));
        }
        outcome => outcome?,
    }
    guest.exit()?;
    if !ok {
        bail!("not every step was ok; see the table");
    }
    Ok(ExitCode::SUCCESS)
}
