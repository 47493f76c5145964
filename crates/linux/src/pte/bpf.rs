//! The bpf(2) calls that loading and running one program takes.
//!
//! `aya-obj` parses the object and relocates it against the running kernel's BTF; it has no loader for
//! BPF_PROG_TYPE_SYSCALL, hence these few calls.

use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_insn, bpf_map_type, bpf_prog_type};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// # Safety
/// `attr` must be filled in as `cmd` demands: every pointer in it valid for the length that goes with it.
unsafe fn bpf(cmd: bpf_cmd, attr: &mut bpf_attr) -> io::Result<i64> {
    // SAFETY: the caller vouches for the pointers inside attr; attr itself is valid for its size.
    let ret = unsafe { libc::syscall(libc::SYS_bpf, cmd as u32, &raw mut *attr, size_of::<bpf_attr>()) };
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// # Safety
/// As for [`bpf`], and `cmd` must be one that returns a new file descriptor.
unsafe fn bpf_fd(cmd: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: passed on to the caller.
    let fd = unsafe { bpf(cmd, attr)? };
    // SAFETY: the kernel just opened this descriptor for us (with O_CLOEXEC) and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn zeroed() -> bpf_attr {
    // SAFETY: bpf_attr is a union of plain integers and pointers-as-integers; all zeroes is a value of it.
    unsafe { std::mem::zeroed() }
}

/// Loads type information (BPF_BTF_LOAD).
pub fn load_btf(btf: &[u8]) -> io::Result<OwnedFd> {
    let mut attr = zeroed();
    // SAFETY: writing a Copy field of a zeroed union; the variant is the one BPF_BTF_LOAD reads.
    let args = unsafe { &mut attr.__bindgen_anon_7 };
    args.btf = btf.as_ptr() as u64;
    args.btf_size = btf.len() as u32;
    // SAFETY: btf points to btf_size readable bytes that outlive the call.
    unsafe { bpf_fd(bpf_cmd::BPF_BTF_LOAD, &mut attr) }
}

/// Creates an array map of one element that can be mmapped.
pub fn create_shared_array(value_size: u32) -> io::Result<OwnedFd> {
    const BPF_F_MMAPABLE: u32 = 1 << 10;
    let mut attr = zeroed();
    // SAFETY: writing Copy fields of a zeroed union; the variant is the one BPF_MAP_CREATE reads.
    let args = unsafe { &mut attr.__bindgen_anon_1 };
    args.map_type = bpf_map_type::BPF_MAP_TYPE_ARRAY as u32;
    args.key_size = 4;
    args.value_size = value_size;
    args.max_entries = 1;
    args.map_flags = BPF_F_MMAPABLE;
    // SAFETY: no pointers in these arguments.
    unsafe { bpf_fd(bpf_cmd::BPF_MAP_CREATE, &mut attr) }
}

/// A program ready to be loaded.
pub struct Program<'a> {
    pub insns: &'a [bpf_insn],
    pub license: &'a CStr,
    pub btf: BorrowedFd<'a>,
    pub func_info: &'a [u8],
    pub func_info_rec_size: usize,
    pub func_info_cnt: usize,
}

/// When a program is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RunBy {
    /// By BPF_PROG_RUN (BPF_PROG_TYPE_SYSCALL).
    Us,
    /// By a tracepoint that it is attached to (BPF_PROG_TYPE_RAW_TRACEPOINT).
    Tracepoint,
}

/// Loads a program.
///
/// # Errors
/// The system's error and, where the verifier said something, the end of its log.
pub fn load_program(program: &Program<'_>, run_by: RunBy) -> Result<OwnedFd, (io::Error, String)> {
    const BPF_F_SLEEPABLE: u32 = 1 << 4;
    let load = |log: &mut [u8]| {
        let mut attr = zeroed();
        // SAFETY: writing Copy fields of a zeroed union; the variant is the one BPF_PROG_LOAD reads.
        let args = unsafe { &mut attr.__bindgen_anon_3 };
        (args.prog_type, args.prog_flags) = match run_by {
            RunBy::Us => (bpf_prog_type::BPF_PROG_TYPE_SYSCALL as u32, BPF_F_SLEEPABLE),
            RunBy::Tracepoint => (bpf_prog_type::BPF_PROG_TYPE_RAW_TRACEPOINT as u32, 0),
        };
        args.insn_cnt = program.insns.len() as u32;
        args.insns = program.insns.as_ptr() as u64;
        args.license = program.license.as_ptr() as u64;
        args.prog_btf_fd = program.btf.as_raw_fd() as u32;
        args.func_info = program.func_info.as_ptr() as u64;
        args.func_info_rec_size = program.func_info_rec_size as u32;
        args.func_info_cnt = program.func_info_cnt as u32;
        if !log.is_empty() {
            args.log_level = 1;
            args.log_size = log.len() as u32;
            args.log_buf = log.as_mut_ptr() as u64;
        }
        // SAFETY: instructions, licence, function info and log are slices that outlive the call, with their
        // own lengths beside them.
        unsafe { bpf_fd(bpf_cmd::BPF_PROG_LOAD, &mut attr) }
    };
    load(&mut []).or_else(|_| {
        let mut log = vec![0u8; 1 << 20];
        load(&mut log).map_err(|error| {
            let text = String::from_utf8_lossy(log.split(|b| *b == 0).next().unwrap_or_default());
            let lines: Vec<&str> = text.trim_end().lines().rev().take(12).collect();
            (error, lines.into_iter().rev().collect::<Vec<_>>().join("\n"))
        })
    })
}

/// Has the kernel run a program whenever it comes by a tracepoint, until what is returned is closed
/// (BPF_RAW_TRACEPOINT_OPEN).
pub fn attach_raw_tracepoint(program: BorrowedFd<'_>, tracepoint: &CStr) -> io::Result<OwnedFd> {
    let mut attr = zeroed();
    attr.raw_tracepoint.name = tracepoint.as_ptr() as u64;
    attr.raw_tracepoint.prog_fd = program.as_raw_fd() as u32;
    // SAFETY: the name is a string that ends in a zero byte and outlives the call.
    unsafe { bpf_fd(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr) }
}

/// Runs a loaded program once with `ctx` as its context, which the program may change (BPF_PROG_RUN).
pub fn run<T: Copy>(program: BorrowedFd<'_>, ctx: &mut T) -> io::Result<()> {
    let mut attr = zeroed();
    // SAFETY: writing Copy fields of a zeroed union; the variant is the one BPF_PROG_RUN reads.
    let args = unsafe { &mut attr.test };
    args.prog_fd = program.as_raw_fd() as u32;
    args.ctx_in = (&raw mut *ctx) as u64;
    args.ctx_size_in = size_of::<T>() as u32;
    // SAFETY: ctx is exclusively borrowed, of the size given, and of a Copy type the program writes integers to.
    unsafe { bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr) }.map(drop)
}
