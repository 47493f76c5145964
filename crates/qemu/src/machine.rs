//! What is booted: the virtual machine, as a command line of QEMU.

use crate::{Ended, Error};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

/// Where `cargo xtask guest --build` leaves the guest program, from the repository's root.
pub const DEFAULT_PROGRAM: &str = "target/guest-program/x86_64-unknown-none/release/isotherm-guest";
/// The same for [`Kind::Virt`].
pub const DEFAULT_PROGRAM_ARM64: &str = "target/guest-program/aarch64-unknown-none/release/isotherm-guest";

/// The kind of machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// `microvm`: no PCI, the balloon on virtio-mmio.
    Microvm,
    /// `q35`: a PC with PCI Express, the balloon on virtio-pci.
    Q35,
    /// `virt`: arm64, no PCI, the balloon on virtio-mmio. Its processors set access flags and dirty state.
    Virt,
}

impl Kind {
    /// The emulator of such machines.
    #[must_use]
    pub const fn emulator(self) -> &'static str {
        match self {
            Self::Microvm | Self::Q35 => "qemu-system-x86_64",
            Self::Virt => "qemu-system-aarch64",
        }
    }
}

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// QEMU's translator, which works everywhere.
    Tcg,
    /// The host's processors.
    Kvm,
}

/// What the guest's RAM is on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backing {
    /// Private anonymous memory: QEMU gives reported memory back with `MADV_DONTNEED`.
    Anonymous,
    /// A memfd mapped shared, as with vhost-user: QEMU punches holes, since `MADV_DONTNEED` does nothing there.
    Memfd,
}

/// A machine to boot.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The kind of machine.
    pub kind: Kind,
    /// What executes it.
    pub accel: Accel,
    /// Processors, 1 to 8.
    pub cpus: u32,
    /// Their model, as QEMU names it; by default the one that has most.
    pub model: Option<String>,
    /// Whether they have page tables of 5 levels, which the guest then uses, and not of 4.
    pub five_levels: bool,
    /// Bytes of RAM, a multiple of 1 MiB.
    pub memory: u64,
    /// What that is on the host.
    pub backing: Backing,
    /// Whether the balloon offers free page reporting.
    pub reporting: bool,
    /// Whether it offers free page hinting, which QEMU asks for when it migrates the machine.
    pub hinting: bool,
    /// The emulator: [`Kind::emulator`]'s, or another.
    pub qemu: PathBuf,
    /// The guest program, an ELF file, for x86-64 with a PVH note.
    pub program: PathBuf,
}

impl Machine {
    /// Two processors with page tables of 4 levels and `memory` bytes, under TCG, with reporting.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>, memory: u64) -> Self {
        Self {
            kind: Kind::Microvm,
            accel: Accel::Tcg,
            cpus: 2,
            model: None,
            five_levels: false,
            memory,
            backing: Backing::Anonymous,
            reporting: true,
            hinting: false,
            qemu: Kind::Microvm.emulator().into(),
            program: program.into(),
        }
    }

    /// Runs the machine with its serial line on this process' own standard input and output, until the guest ends or
    /// QEMU is told to (Ctrl-C).
    ///
    /// # Errors
    /// There is no QEMU or no program.
    pub fn run_on_terminal(&self) -> Result<Ended, Error> {
        self.check_program()?;
        let status = Command::new(&self.qemu).args(self.arguments(None)).status();
        status.map(Ended::from_status).map_err(|source| Error::NoQemu { program: self.qemu.clone(), source })
    }

    pub(crate) fn check_program(&self) -> Result<(), Error> {
        let opened = std::fs::File::open(&self.program).and_then(|file| file.metadata());
        match opened {
            Ok(found) if found.is_dir() => Err(std::io::ErrorKind::IsADirectory.into()),
            other => other.map(drop),
        }
        .map_err(|source| Error::NoProgram { path: self.program.clone(), source })
    }

    /// QEMU's arguments. `monitor` is the number of an open socket it inherits.
    pub(crate) fn arguments(&self, monitor: Option<i32>) -> Vec<OsString> {
        let on = |wanted: bool| if wanted { "on" } else { "off" };
        let mut features = format!("id=balloon,deflate-on-oom=on,free-page-reporting={}", on(self.reporting));
        if self.hinting {
            features.push_str(",free-page-hint=on,iothread=hints");
        }
        // mem-merge=off: pages that KSM merged would make the resident set look smaller than what reporting gave back.
        let (machine, balloon) = match self.kind {
            // Modern virtio-mmio: the legacy form, QEMU's default there, leaves features above 31 out.
            Kind::Microvm => (
                "microvm,acpi=off,rtc=off,mem-merge=off,memory-backend=ram",
                format!("virtio-balloon-device,{features}"),
            ),
            Kind::Q35 => (
                "q35,mem-merge=off,memory-backend=ram",
                format!("virtio-balloon-pci,disable-legacy=on,{features}"),
            ),
            Kind::Virt => (
                "virt,gic-version=2,mem-merge=off,memory-backend=ram",
                format!("virtio-balloon-device,{features}"),
            ),
        };
        let virt = self.kind == Kind::Virt;
        // A small buffer for translations: its default, up to 1 GiB, would hide what is measured.
        let (accel, cpu) = match self.accel {
            Accel::Tcg => ("tcg,thread=multi,tb-size=32", "max"),
            // In a virtual machine the register of these capabilities may refuse to be written, which ends QEMU.
            Accel::Kvm => ("kvm", "host,arch-capabilities=off"),
        };
        let cpu = self.model.as_deref().unwrap_or(cpu);
        let cpu = format!("{cpu}{}", if self.five_levels || virt { "" } else { ",la57=off" });
        let backend = match self.backing {
            Backing::Anonymous => format!("memory-backend-ram,id=ram,size={},share=off", self.memory),
            Backing::Memfd => format!("memory-backend-memfd,id=ram,size={},share=on", self.memory),
        };
        let words = [
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
            "-machine",
            machine,
            "-accel",
            accel,
            "-cpu",
            &cpu,
            "-smp",
            &self.cpus.to_string(),
            "-m",
            &format!("{}M", self.memory >> 20),
            "-object",
            &backend,
            "-chardev",
            if monitor.is_some() { "stdio,id=serial,signal=off" } else { "stdio,id=serial" },
            "-serial",
            "chardev:serial",
            "-kernel",
        ];
        let mut arguments: Vec<_> = words.iter().map(OsString::from).collect();
        arguments.push(self.program.clone().into());
        // Hints are taken by a thread of their own.
        let devices = [
            "-global",
            "virtio-mmio.force-legacy=false",
            "-object",
            "iothread,id=hints",
            "-device",
            &balloon,
        ];
        let exit = if virt {
            ["-semihosting-config", "enable=on,target=native"]
        } else {
            ["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]
        };
        arguments.extend(devices.iter().chain(&exit).map(OsString::from));
        if let Some(fd) = monitor {
            let socket = format!("socket,id=monitor,fd={fd}");
            arguments
                .extend(["-chardev", &socket, "-mon", "chardev=monitor,mode=control"].map(OsString::from));
        }
        arguments
    }
}
