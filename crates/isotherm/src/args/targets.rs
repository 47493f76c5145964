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
    #[arg(short, long, conflicts_with_all = ["pid", "cgroup", "comm", "cmdline", "user", "command", "no_children"])]
    pub all: bool,
    /// Watch the processes whose name (as `ps -o comm` prints it) matches a shell's pattern, as they come and go; repeatable.
    /// `*` stands for any characters, `?` for one. Names, command lines and users of one kind: any; of several: all must match
    #[arg(long, value_name = "PATTERN")]
    pub comm: Vec<String>,
    /// Watch the processes whose whole command line matches, a space between arguments, like '*--port 6379*'; repeatable
    #[arg(long, value_name = "PATTERN")]
    pub cmdline: Vec<String>,
    /// Watch the processes of a user (the effective one); repeatable
    #[arg(long, value_name = "NAME|UID")]
    pub user: Vec<String>,
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
        !self.all && !self.has_rule() && !self.is_named()
    }

    /// Whether a process, control group or command is named.
    pub fn is_named(&self) -> bool {
        !(self.pid.is_empty() && self.cgroup.is_empty() && self.command.is_empty())
    }

    /// Whether processes are chosen by what they are.
    pub fn has_rule(&self) -> bool {
        !(self.comm.is_empty() && self.cmdline.is_empty() && self.user.is_empty())
    }

    /// What they are chosen by, as it was given: `--comm nginx or php*, --user www-data`.
    pub fn rule(&self) -> String {
        let kinds = [("--comm", &self.comm), ("--cmdline", &self.cmdline), ("--user", &self.user)];
        let given = kinds.into_iter().filter(|(_, patterns)| !patterns.is_empty());
        given
            .map(|(option, patterns)| format!("{option} {}", patterns.join(" or ")))
            .collect::<Vec<_>>()
            .join(", ")
    }
}
