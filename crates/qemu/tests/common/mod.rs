//! What all tests with the guest program do: boot it, speak to it.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use isotherm_qemu::{Error, Guest, Kind, Machine};
use std::time::Duration;

/// How long the guest may take for a command.
pub const PATIENCE: Duration = Duration::from_secs(120);
pub const MIB: u64 = 1 << 20;

/// The guest program in so many bytes of RAM.
pub fn machine(memory: u64) -> Machine {
    Machine::new(std::env::var_os("ISOTHERM_GUEST").expect("ISOTHERM_GUEST names the guest program"), memory)
}

/// arm64 with so many processors, the program of `ISOTHERM_GUEST_ARM64`.
#[allow(dead_code, reason = "not all of the tests are about arm64")]
pub fn arm64(cpus: u32) -> Machine {
    let program =
        std::env::var_os("ISOTHERM_GUEST_ARM64").expect("ISOTHERM_GUEST_ARM64 names the guest program");
    let kind = Kind::Virt;
    Machine { kind, qemu: kind.emulator().into(), cpus, ..Machine::new(program, 256 * MIB) }
}

/// Boots it.
pub fn boot(machine: &Machine) -> Guest {
    Guest::boot(machine, || false).unwrap()
}

/// Commands as a test gives them.
pub trait Speak {
    /// One that succeeds.
    fn say(&mut self, command: &str) -> isotherm_qemu::Reply;
    /// One that the guest refuses; its reason.
    fn refused(&mut self, command: &str) -> String;
    /// A figure of `stats`.
    fn stat(&mut self, name: &str) -> u64;
}

impl Speak for Guest {
    fn say(&mut self, command: &str) -> isotherm_qemu::Reply {
        self.ask(command, PATIENCE).unwrap()
    }

    fn refused(&mut self, command: &str) -> String {
        match self.ask(command, PATIENCE) {
            Err(Error::Refused { reason, .. }) => reason,
            other => panic!("{command:?} was not refused: {other:?}"),
        }
    }

    fn stat(&mut self, name: &str) -> u64 {
        self.say("stats").get(name).unwrap()
    }
}
