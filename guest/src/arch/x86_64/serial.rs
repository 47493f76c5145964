//! COM1.

use uart_16550::backend::PioBackend;
use uart_16550::spec::registers::IER;
use uart_16550::{Config, Uart16550};

/// The port.
pub struct Port(Uart16550<PioBackend>);

impl Port {
    /// Opens it: what comes in raises an interrupt.
    pub fn open() -> Option<Self> {
        let mut port = Self::take()?;
        let config = Config { interrupts: IER::DATA_READY, ..Config::default() };
        port.0.init(config).is_ok().then_some(port)
    }

    /// The port as it was opened, for a last word.
    pub fn take() -> Option<Self> {
        // SAFETY: COM1's ports, which nothing else uses; whoever has opened them before is this very processor, or has hung.
        unsafe { Uart16550::new_port(0x3f8) }.ok().map(Self)
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.0.send_bytes_exact(bytes);
    }

    /// A byte that has come in.
    pub fn receive(&mut self) -> Option<u8> {
        self.0.try_receive_byte().ok()
    }
}
