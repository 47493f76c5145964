//! The PL011 of QEMU's virt.

/// Its registers.
const BASE: u64 = 0x0900_0000;
const DATA: u64 = 0;
const FLAGS: u64 = 0x18;
const CONTROL: u64 = 0x30;
const INTERRUPT_MASK: u64 = 0x38;
const INTERRUPT_CLEAR: u64 = 0x44;
/// Of the flags: nothing has come in; no room to send.
const EMPTY: u32 = 1 << 4;
const FULL: u32 = 1 << 5;
/// Something has come in, or has stayed for a while.
const RECEIVED: u32 = 1 << 4 | 1 << 6;

fn read(register: u64) -> u32 {
    // SAFETY: the device's page is mapped, and these registers exist.
    unsafe { ((BASE + register) as *const u32).read_volatile() }
}

fn write(register: u64, value: u32) {
    // SAFETY: as in `read`.
    unsafe { ((BASE + register) as *mut u32).write_volatile(value) }
}

/// The port.
pub struct Port(());

impl Port {
    /// Opens it: what comes in raises an interrupt.
    pub fn open() -> Option<Self> {
        const ENABLE: u32 = 1 | 1 << 8 | 1 << 9;
        write(CONTROL, ENABLE);
        write(INTERRUPT_MASK, RECEIVED);
        Some(Self(()))
    }

    /// The port as it was opened, for a last word.
    pub fn take() -> Option<Self> {
        Some(Self(()))
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            while read(FLAGS) & FULL != 0 {
                core::hint::spin_loop();
            }
            write(DATA, byte.into());
        }
    }

    /// A byte that has come in.
    pub fn receive(&mut self) -> Option<u8> {
        (read(FLAGS) & EMPTY == 0).then(|| read(DATA) as u8)
    }
}

/// Takes the interrupt back; the next byte raises it again.
pub fn acknowledge() {
    write(INTERRUPT_CLEAR, RECEIVED);
}
