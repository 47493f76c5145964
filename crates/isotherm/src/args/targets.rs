//! Which processes to watch: the options of everything that looks at live ones.

use clap::Args;
use std::ffi::OsString;

/// Which processes to watch.
#[derive(Clone, Debug, Default, Args)]
pub struct TargetArgs {
    /// Process to watch; repeatable
    #[arg(short, long, value_name = "PID", allow_negative_numbers = true, value_parser = super::parse_pid)]
    pub pid: Vec<u32>,
    /// Control group whose processes to watch, a path below its mount or a whole one; repeatable
    #[arg(long, value_name = "PATH")]
    pub cgroup: Vec<String>,
    /// Watch every process of the machine but kernel threads and isotherm itself. Those that may not be watched are counted
    #[arg(short, long, conflicts_with_all = ["pid", "cgroup", "command", "no_children"])]
    pub all: bool,
    /// Do not watch the targets' children
    #[arg(long)]
    pub no_children: bool,
    /// A command to run and watch
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl TargetArgs {
    /// Whether nothing is named.
    pub fn is_empty(&self) -> bool {
        !self.all && self.pid.is_empty() && self.cgroup.is_empty() && self.command.is_empty()
    }
}
