//! What Linux' own selftests of memory management (`tools/testing/selftests/mm`) expect, as cases of ours: the ideas of its tests of
//! copy-on-write (`cow.c`), of moves (`mremap_test.c`) and of what `/proc/PID/pagemap` says (`pagemap_ioctl.c`), rewritten for
//! programs whose faults are resolved as a kernel resolves them. On four formats, with each layout of memory that those tests have.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod cow;
mod mremap;
mod pagemap;
mod program;
