//! How a run ends.

use crate::console::write_line_in_distress;
use crate::power::end;
use core::panic::PanicInfo;

/// How a run ends. QEMU's exit status is twice the code plus one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum End {
    /// As asked for.
    Done = 0,
    /// The program found itself wrong.
    Panic = 1,
    /// The processor raised an exception.
    Fault = 2,
    /// A page no longer held what was written to it.
    Lost = 3,
    /// The machine is not one this program can run on.
    Unfit = 4,
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let message = info.message();
    match info.location() {
        Some(at) => write_line_in_distress(format_args!("panic: {message} at {}:{}", at.file(), at.line())),
        None => write_line_in_distress(format_args!("panic: {message}")),
    }
    end(End::Panic)
}
