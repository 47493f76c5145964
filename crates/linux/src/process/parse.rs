//! The texts of `/proc/PID/{stat,status,statm}` as values. Pure: no file is touched here.
//!
//! Fields are those of proc_pid_stat(5) and proc_pid_status(5).

use crate::proc_file::parse_number;

/// Flag of a kernel thread in field 9 of `stat` (include/linux/sched.h).
const PF_KTHREAD: u64 = 0x0020_0000;

/// What one reading of `/proc/PID/stat` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub comm: String,
    pub state: u8,
    pub parent: u32,
    pub kernel_thread: bool,
    /// Clock ticks from boot to the process's start. Kept by exec.
    pub start_time: u64,
    /// Bytes mapped.
    pub vsize: u64,
    pub image: Image,
    /// As waitpid(2) would report it, once the process is a zombie; 0 without leave to trace it.
    pub exit_code: i32,
}

/// Where exec put the program: another image, another exec. All zero without leave to trace the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Image {
    start_code: u64,
    end_code: u64,
    start_stack: u64,
    arg_start: u64,
    env_end: u64,
}

impl Image {
    pub(crate) fn is_known(self) -> bool {
        self.start_stack != 0
    }
}

/// Parses `/proc/PID/stat`. The name may hold blanks and parentheses, so fields count from the last one.
pub(crate) fn stat(text: &[u8]) -> Option<Stat> {
    let open = text.iter().position(|&b| b == b'(')?;
    let close = text.iter().rposition(|&b| b == b')')?;
    let comm = String::from_utf8_lossy(text.get(open + 1..close)?).into_owned();
    let fields: Vec<&[u8]> =
        text.get(close + 1..)?.split(u8::is_ascii_whitespace).filter(|f| !f.is_empty()).collect();
    // Numbered as in the manual page, where the state is field 3.
    let field = |n: usize| fields.get(n - 3).copied();
    let number = |n: usize| field(n).and_then(parse_number);
    Some(Stat {
        comm,
        state: *field(3)?.first()?,
        parent: u32::try_from(number(4)?).ok()?,
        kernel_thread: number(9)? & PF_KTHREAD != 0,
        start_time: number(22)?,
        vsize: number(23)?,
        image: Image {
            start_code: number(26)?,
            end_code: number(27)?,
            start_stack: number(28)?,
            // Older than 3.5, or a sandbox's idea of /proc: what is missing never changes.
            arg_start: number(48).unwrap_or(0),
            env_end: number(51).unwrap_or(0),
        },
        exit_code: number(52).and_then(|n| i32::try_from(n).ok()).unwrap_or(0),
    })
}

/// The value of `key` in a file of `Key:\tvalue` lines.
pub(crate) fn status_field<'a>(text: &'a [u8], key: &str) -> Option<&'a [u8]> {
    text.split(|&b| b == b'\n')
        .find_map(|line| line.strip_prefix(key.as_bytes())?.strip_prefix(b":"))
        .map(<[u8]>::trim_ascii)
}

/// The value of `key` in bytes, from a line such as `VmRSS:     123 kB`.
pub(crate) fn status_bytes(text: &[u8], key: &str) -> Option<u64> {
    let value = status_field(text, key)?;
    parse_number(value.strip_suffix(b"kB")?)?.checked_mul(1024)
}

/// Pages mapped and pages resident, from `/proc/PID/statm`.
pub(crate) fn statm(text: &[u8]) -> Option<(u64, u64)> {
    let mut fields = text.split(u8::is_ascii_whitespace);
    Some((parse_number(fields.next()?)?, parse_number(fields.next()?)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STAT: &str = "4242 (a) b (c) S 17 4242 4242 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 3 0 \
        987654 8392704 1020 18446744073709551615 1000 2000 3000 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 \
        4000 4100 4200 4300 4400 4500 4600 256\n";

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let stat = stat(STAT.as_bytes()).unwrap();
        assert_eq!(stat.comm, "a) b (c");
        assert_eq!((stat.state, stat.parent, stat.start_time, stat.vsize), (b'S', 17, 987_654, 8_392_704));
        assert!(!stat.kernel_thread);
        assert_eq!(stat.exit_code, 256);
        let image =
            Image { start_code: 1000, end_code: 2000, start_stack: 3000, arg_start: 4300, env_end: 4600 };
        assert_eq!(stat.image, image);
    }

    #[test]
    fn status_fields_are_found_by_their_whole_name() {
        let text = b"Name:\tx\nVmLckX:\t9 kB\nVmLck:\t     12 kB\nPPid:\t7\nHugetlbPages:\t 2048 kB\n";
        assert_eq!(status_bytes(text, "VmLck"), Some(12 << 10));
        assert_eq!(status_bytes(text, "HugetlbPages"), Some(2 << 20));
        assert_eq!(status_bytes(text, "PPid"), None);
        assert_eq!(status_field(text, "PPid"), Some(&b"7"[..]));
        assert_eq!(status_field(text, "VmSwap"), None);
        assert_eq!(statm(b"100 42 7 1 0 5 0\n"), Some((100, 42)));
    }

    proptest! {
        #[test]
        fn cut_or_damaged_texts_never_panic(cut in 0..STAT.len(), at in 0..STAT.len(), byte: u8) {
            let mut text = STAT.as_bytes().to_vec();
            text[at] = byte;
            text.truncate(cut);
            let _ = stat(&text);
            let _ = status_bytes(&text, "4242 (a) b (c) S 17");
            let _ = statm(&text);
        }

        #[test]
        fn rubbish_never_panics(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = stat(&text);
            let _ = status_bytes(&text, "VmRSS");
            let _ = statm(&text);
        }
    }
}
