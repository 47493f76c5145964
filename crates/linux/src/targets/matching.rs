//! Targets by a rule: names, command lines and users that processes have now, or come to have.
//!
//! One read of `/proc/PID/status`, some 20 us, tells the name and the user; a command line is read only where these match. A
//! process is looked at when it is born, at the two looks after that, since most run their program and change their user
//! by then, and later in turn, so many a look. A target is looked at in turn as well.

use super::EndReason;
use super::births::Births;
use super::candidates::Candidate;
use super::family::{all_pids, self_pid};
use super::tracker::{Origin, Tracker, next_in_turn};
use crate::actions::glob_matches;
use crate::clock::Budget;
use crate::proc_file::{read_into, read_text};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Longest name of a process in bytes (TASK_COMM_LEN, without the 0).
const LONGEST_COMM: usize = 15;
/// Others looked at in turn, a look: a thousand processes within eight looks, at some 2.5 ms each.
const OTHERS_A_LOOK: usize = 128;
/// Looks in turn that are done however little CPU time is left.
const LEAST_A_LOOK: usize = 8;
/// So many looks a newborn is looked at again before it waits for its turn.
const LOOKS_WHILE_YOUNG: u8 = 2;

/// Which processes are targets, by what they are. Of one kind any that matches will do; of every kind that is stated, one must.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessRule {
    comms: Vec<String>,
    cmdlines: Vec<String>,
    uids: BTreeSet<u32>,
}

/// What is wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A pattern is empty.
    #[error("an empty pattern matches no process; `*` matches every one")]
    EmptyPattern,
    /// No such user.
    #[error("no user {0:?} in /etc/passwd; see `getent passwd`, or give the number of the user")]
    UnknownUser(String),
}

impl ProcessRule {
    /// Adds a pattern of names, a shell's. Returns what is matched instead if no name is as long: what the kernel keeps of it.
    ///
    /// # Errors
    /// It is empty.
    pub fn add_comm(&mut self, pattern: &str) -> Result<Option<String>, RuleError> {
        if pattern.is_empty() {
            return Err(RuleError::EmptyPattern);
        }
        let is_plain = !pattern.contains(['*', '?']);
        let cut = (is_plain && pattern.len() > LONGEST_COMM).then(|| {
            String::from_utf8_lossy(pattern.as_bytes().get(..LONGEST_COMM).unwrap_or_default()).into_owned()
        });
        self.comms.push(cut.clone().unwrap_or_else(|| pattern.to_owned()));
        Ok(cut)
    }

    /// Adds a pattern of whole command lines: the arguments with a space between any two.
    ///
    /// # Errors
    /// It is empty.
    pub fn add_cmdline(&mut self, pattern: &str) -> Result<(), RuleError> {
        if pattern.is_empty() {
            return Err(RuleError::EmptyPattern);
        }
        self.cmdlines.push(pattern.to_owned());
        Ok(())
    }

    /// Adds a user, by name (of `/etc/passwd`) or number: the effective one of a process.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn add_user(&mut self, user: &str) -> Result<(), RuleError> {
        let uid = match user.parse() {
            Ok(uid) => Some(uid),
            Err(_) => uid_of(&read_text("/etc/passwd").unwrap_or_default(), user),
        };
        self.uids.insert(uid.ok_or_else(|| RuleError::UnknownUser(user.to_owned()))?);
        Ok(())
    }

    /// Whether it states nothing. Such a rule matches no process.
    pub fn is_empty(&self) -> bool {
        self.comms.is_empty() && self.cmdlines.is_empty() && self.uids.is_empty()
    }

    fn matches(&self, comm: &str, uid: u32, cmdline: impl FnOnce() -> String) -> bool {
        let any = |patterns: &[String], text: &str| {
            patterns.is_empty()
                || patterns.iter().any(|pattern| glob_matches(pattern.as_bytes(), text.as_bytes()))
        };
        !self.is_empty()
            && (self.uids.is_empty() || self.uids.contains(&uid))
            && any(&self.comms, comm)
            && (self.cmdlines.is_empty() || any(&self.cmdlines, &cmdline()))
    }
}

fn uid_of(passwd: &str, name: &str) -> Option<u32> {
    let mut users = passwd.lines().map(|line| line.split(':'));
    users.find_map(|mut fields| (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?)
}

/// What `/proc/PID/status` tells of a process.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    comm: String,
    uid: u32,
    parent: u32,
    tgid: u32,
    /// Kernel threads have no memory, nor what ended.
    has_memory: bool,
}

impl Status {
    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let number = |name: &str, nth: usize| field(name)?.split_ascii_whitespace().nth(nth)?.parse().ok();
        // Of white space only what separates it is no part of the name.
        let comm = text.lines().find_map(|line| line.strip_prefix("Name:\t"))?;
        Some(Self {
            comm: comm.replace("\\n", "\n").replace("\\\\", "\\"),
            uid: number("Uid:", 1)?,
            parent: number("PPid:", 0)?,
            tgid: number("Tgid:", 0)?,
            has_memory: field("VmSize:").is_some(),
        })
    }

    fn of(pid: u32) -> Option<Self> {
        Self::parse(&read_text(format!("/proc/{pid}/status")).ok()?)
    }
}

fn cmdline_of(pid: u32) -> String {
    let mut bytes = Vec::new();
    // Gone meanwhile: nothing to match.
    let _ = read_into(format!("/proc/{pid}/cmdline"), &mut bytes);
    let end = bytes.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
    bytes.truncate(end);
    bytes.iter_mut().filter(|b| **b == 0).for_each(|b| *b = b' ');
    String::from_utf8_lossy(&bytes).into_owned()
}

/// This process and its ancestors but the first one: their command lines hold the very patterns (`sudo isotherm ...`).
fn own_pids() -> BTreeSet<u32> {
    let mut pids = BTreeSet::new();
    let mut pid = self_pid();
    while pid > 1 && pids.insert(pid) {
        pid = Status::of(pid).map_or(0, |status| status.parent);
    }
    pids
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Matches,
    Other,
    /// It is gone, or a thread, or can never be a target.
    None,
}

/// Looks for the processes that a rule matches.
pub(super) struct Matching {
    rule: ProcessRule,
    own: BTreeSet<u32>,
    births: Births,
    /// Newborns, and how often they are looked at before they wait for their turn.
    young: BTreeMap<u32, u8>,
    /// Processes that do not match.
    others: BTreeSet<u32>,
    next_other: u32,
    next_target: u32,
}

impl fmt::Debug for Matching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matching").field("rule", &self.rule).finish_non_exhaustive()
    }
}

impl Matching {
    fn verdict(&self, pid: u32) -> Verdict {
        match Status::of(pid) {
            Some(status) if status.tgid != pid || self.own.contains(&pid) || !status.has_memory => {
                Verdict::None
            }
            Some(status) if self.rule.matches(&status.comm, status.uid, || cmdline_of(pid)) => {
                Verdict::Matches
            }
            Some(_) => Verdict::Other,
            None => Verdict::None,
        }
    }

    pub(super) fn allows(&self, pid: u32) -> bool {
        self.verdict(pid) == Verdict::Matches
    }
}

impl Tracker {
    /// Adds every process that matches `rule`, now or later, for as long as it does; not this process and its ancestors, nor
    /// kernel threads. Children of such targets are targets if they match. Returns how many match now. One rule at a time:
    /// another takes its place.
    pub fn add_rule(&mut self, rule: ProcessRule) -> usize {
        let mut matching = Matching {
            rule,
            own: own_pids(),
            births: Births::new(),
            young: BTreeMap::new(),
            others: BTreeSet::new(),
            next_other: 0,
            next_target: 0,
        };
        let mut found = 0;
        for pid in all_pids() {
            match matching.verdict(pid) {
                Verdict::Matches => {
                    found += 1;
                    self.queue_matching(pid);
                    matching.others.insert(pid);
                }
                Verdict::Other => _ = matching.others.insert(pid),
                Verdict::None => {}
            }
        }
        self.matching = Some(matching);
        found
    }

    fn queue_matching(&mut self, pid: u32) {
        if !self.targets.contains_key(&pid) && !self.refused.contains(&pid) {
            self.queue(Candidate { pid, origin: Origin::Matching, parent: None, listed: true });
        }
    }

    pub(super) fn look_for_matching(&mut self, budget: Budget) {
        let Some(mut matching) = self.matching.take() else { return };
        self.look_at_matching_targets(&mut matching, budget);
        if !matching.births.look() {
            let pids: BTreeSet<u32> = all_pids().into_iter().collect();
            let new: Vec<u32> = pids.difference(&matching.others).copied().collect();
            matching.young.extend(new.into_iter().map(|pid| (pid, LOOKS_WHILE_YOUNG)));
            matching.others.retain(|pid| pids.contains(pid));
        }
        while let Some(pid) = matching.births.next() {
            // A pid given out anew is not the one that was refused.
            self.refused.remove(&pid);
            matching.young.insert(pid, LOOKS_WHILE_YOUNG);
        }
        for (pid, looks) in std::mem::take(&mut matching.young) {
            if budget.is_spent() {
                matching.young.insert(pid, looks);
                continue;
            }
            match matching.verdict(pid) {
                Verdict::None => _ = matching.others.remove(&pid),
                verdict => {
                    if verdict == Verdict::Matches {
                        self.queue_matching(pid);
                    } else if looks > 0 {
                        matching.young.insert(pid, looks - 1);
                    }
                    matching.others.insert(pid);
                }
            }
        }
        for nth in 0..OTHERS_A_LOOK.min(matching.others.len()) {
            if nth >= LEAST_A_LOOK && budget.is_spent() {
                break;
            }
            let Matching { others, next_other, .. } = &mut matching;
            let next = others.range(*next_other..).chain(others.range(..*next_other)).next();
            let Some(&pid) = next else { break };
            *next_other = pid.saturating_add(1);
            // Targets have turns of their own.
            if self.targets.contains_key(&pid) {
                continue;
            }
            match matching.verdict(pid) {
                Verdict::Matches => self.queue_matching(pid),
                Verdict::Other => {}
                Verdict::None => _ = matching.others.remove(&pid),
            }
        }
        self.matching = Some(matching);
    }

    /// Those that match no more cease to be targets.
    fn look_at_matching_targets(&mut self, matching: &mut Matching, budget: Budget) {
        for nth in 0..OTHERS_A_LOOK.min(self.targets.len()) {
            if nth >= LEAST_A_LOOK && budget.is_spent() {
                break;
            }
            let Some(pid) = next_in_turn(&self.targets, &mut matching.next_target) else { break };
            let Some(target) = self.targets.get(&pid) else { break };
            if target.origin != Origin::Matching
                || matching.verdict(pid) != Verdict::Other
                || !target.process.is_alive()
            {
                continue;
            }
            self.forget_target(pid, EndReason::MatchesNoMore);
            matching.others.insert(pid);
            if self.options.follow_children {
                // It may be a target for another reason, as the child of one that was named.
                self.newborn(pid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(comms: &[&str], cmdlines: &[&str], uids: &[u32]) -> ProcessRule {
        let mut rule = ProcessRule::default();
        comms.iter().for_each(|p| assert_eq!(rule.add_comm(p), Ok(None)));
        cmdlines.iter().for_each(|p| rule.add_cmdline(p).unwrap());
        rule.uids.extend(uids);
        rule
    }

    #[test]
    fn of_one_kind_any_matches_and_of_different_kinds_all_must() {
        let line = || "nginx: worker process".to_owned();
        let cases = [
            (rule(&[], &[], &[]), false),
            (rule(&["nginx"], &[], &[]), true),
            (rule(&["ngin"], &[], &[]), false),
            (rule(&["redis*", "n?inx"], &[], &[]), true),
            (rule(&["nginx"], &["*master*"], &[]), false),
            (rule(&["nginx"], &["*master*", "*worker*"], &[33]), true),
            (rule(&["nginx"], &["*worker*"], &[0]), false),
            (rule(&[], &[], &[0, 33]), true),
        ];
        for (rule, want) in cases {
            assert_eq!(rule.matches("nginx", 33, line), want, "{rule:?}");
        }
    }

    #[test]
    fn a_command_line_is_read_only_where_the_rest_matches() {
        let unread = || -> String { panic!("read") };
        assert!(!rule(&["a"], &["*"], &[]).matches("b", 0, unread));
        assert!(!rule(&[], &["*"], &[1]).matches("b", 0, unread));
    }

    #[test]
    fn names_are_cut_as_the_kernel_cuts_them() {
        let mut rule = ProcessRule::default();
        assert_eq!(rule.add_comm("123456789012345"), Ok(None));
        assert_eq!(rule.add_comm("1234567890123456"), Ok(Some("123456789012345".into())));
        assert_eq!(rule.add_comm("12345678901234567*"), Ok(None));
        assert_eq!(rule.add_comm(""), Err(RuleError::EmptyPattern));
        assert_eq!(rule.add_cmdline(""), Err(RuleError::EmptyPattern));
    }

    #[test]
    fn users_are_found_by_name_and_number() {
        let passwd = "root:x:0:0::/root:/bin/sh\nbroken\nbad:x:y\nwww:x:33:33::/:/bin/false\n";
        assert_eq!(uid_of(passwd, "www"), Some(33));
        assert_eq!(["bad", "broken", "", "ww"].map(|name| uid_of(passwd, name)), [None; 4]);
        let mut rule = ProcessRule::default();
        assert_eq!((rule.add_user("4000000"), rule.add_user("root")), (Ok(()), Ok(())));
        assert_eq!(rule.uids, BTreeSet::from([0, 4_000_000]));
        assert!(matches!(rule.add_user("-1"), Err(RuleError::UnknownUser(_))));
    }

    #[test]
    fn the_status_of_a_process_is_read() {
        let own = Status::of(self_pid()).unwrap();
        assert!(own.has_memory && own.tgid == self_pid() && own.uid == rustix::process::geteuid().as_raw());
        // The first process of a container may be the parent: it is no ancestor that is left out.
        assert_eq!(own.parent, std::os::unix::process::parent_id());
        assert_eq!(own_pids().contains(&own.parent), own.parent > 1);
        let text = "Name:\ta\\nb \nTgid:\t7\nPPid:\t2\nUid:\t1\t2\t3\t4\n";
        let want = Status { comm: "a\nb ".into(), uid: 2, parent: 2, tgid: 7, has_memory: false };
        assert_eq!(Status::parse(text), Some(want));
        assert_eq!(Status::parse("Name:\tx\nUid:\tz\n"), None);
    }
}
