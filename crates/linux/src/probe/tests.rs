use super::*;
use isotherm_testing::ProgramCopy;

fn facts() -> KernelFacts {
    let mut facts = KernelFacts::gather();
    facts.machine = "x86_64".to_owned();
    facts.release = "6.12.1".to_owned();
    facts.lockdown = "none".to_owned();
    facts.initial_user_namespace = true;
    facts.capabilities = ["CAP_BPF", "CAP_PERFMON", "CAP_SYS_NICE", "CAP_SYS_PTRACE", "CAP_SYS_ADMIN"]
        .map(str::to_owned)
        .to_vec();
    facts
}

fn no_trial() -> io::Result<Trial> {
    Err(io::Error::from_raw_os_error(11))
}

fn missing(finding: Finding) -> (String, String) {
    let Missing { reason, remedy } = finding.unwrap_err();
    assert!(!reason.is_empty() && !remedy.is_empty());
    (reason, remedy)
}

#[test]
fn whatever_is_missing_has_a_reason_and_a_remedy() {
    let report = probe();
    for capability in &report.capabilities {
        assert!(!capability.detail.is_empty(), "{capability:?}");
        let missing = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        assert_eq!(missing(&capability.reason), !capability.available, "{capability:?}");
        assert_eq!(missing(&capability.remedy), !capability.available, "{capability:?}");
    }
    let backends = report.capabilities.iter().filter(|c| c.kind == CapabilityKind::Backend);
    assert_eq!(backends.map(|c| &*c.name).collect::<Vec<_>>(), ["pte", "idle", "kernel", "refs"]);
}

#[test]
fn the_rootless_backend_is_always_there() {
    let report = probe();
    let refs = report.get(CapabilityKind::Backend, "refs").unwrap();
    assert!(refs.available, "{refs}");
    assert!(report.best_backend().is_some());
}

#[test]
fn a_report_survives_json() {
    let report = probe();
    let json = serde_json::to_string_pretty(&report).unwrap();
    assert!(json.contains("\"kind\": \"backend\""));
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
}

#[test]
fn what_pte_lacks_is_named_first_things_first() {
    let reason = |change: &dyn Fn(&mut KernelFacts)| {
        let mut facts = facts();
        change(&mut facts);
        missing(backends::pte_prerequisites(&facts, &no_trial()))
    };
    let (why, _) = reason(&|facts| facts.machine = "riscv64".to_owned());
    assert!(why.contains("riscv64"));
    let (why, what) = reason(&|facts| facts.release = "5.10.0-30-amd64".to_owned());
    assert!(why.contains("older than 5.17") && what.contains("Debian 12"));
    // The rest shows only where the kernel has type information.
    if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
        println!("skipped: this kernel has no /sys/kernel/btf/vmlinux");
        return;
    }
    let (why, what) = reason(&|facts| facts.lockdown = "confidentiality".to_owned());
    assert!(why.contains("confidentiality") && what.contains("lockdown=integrity"));
    let (why, what) = reason(&|facts| facts.capabilities.retain(|c| c == "CAP_SYS_ADMIN"));
    assert_eq!(why, "missing CAP_SYS_NICE, CAP_SYS_PTRACE");
    assert!(what.contains("setcap"));
    let (why, _) = reason(&|facts| facts.initial_user_namespace = false);
    assert!(why.contains("user namespace"));
    let (why, _) = reason(&|_| {});
    assert!(why.contains("no process could be made"));
}

#[test]
fn without_swap_anonymous_memory_stays() {
    let mut facts = facts();
    (facts.swap_total, facts.swap_free) = (0, 0);
    assert!(missing(actions::swap(&facts)).0.contains("no swap"));
    facts.swap_total = 1 << 30;
    assert!(missing(actions::swap(&facts)).0.contains("full"));
    (facts.swap_free, facts.zswap) = (512 << 20, true);
    assert_eq!(actions::swap(&facts).unwrap(), "512 of 1024 MiB of swap are free, compressed by zswap first");
}

#[test]
fn advice_is_really_tried() {
    let trial = Trial::start().unwrap();
    let subject = trial.process().pid();
    // 12345 is no advice of any kernel.
    let error = trial.advise(12_345).unwrap_err().raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    assert!(matches!(
        error,
        Some(rustix::io::Errno::INVAL | rustix::io::Errno::PERM | rustix::io::Errno::NOSYS)
    ));
    let facts = KernelFacts::gather();
    if facts.has("CAP_SYS_NICE") && facts.version() >= (5, 10) && !facts.seccomp_filter {
        for advice in [advice::COLD, advice::PAGEOUT, advice::WILLNEED] {
            trial.advise(advice).unwrap();
        }
    } else {
        println!("skipped: no process_madvise for this user");
    }
    assert!(trial.process().is_alive());
    drop(trial);
    // Nothing of it stays: it ends by itself and is waited for.
    while crate::process::Process::open(subject)
        .is_ok_and(|process| process.info().is_ok_and(|i| i.parent == std::process::id()))
    {
        std::thread::yield_now();
    }
}

#[test]
fn without_root_it_says_what_root_would_add() {
    if !rustix::process::geteuid().is_root() {
        let report = probe();
        assert!(!report.get(CapabilityKind::Backend, "pte").unwrap().available);
        assert!(!report.get(CapabilityKind::Scope, "other users").unwrap().available);
        assert_eq!(report.best_backend().unwrap().name, "refs");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let copy = ProgramCopy::make(&std::env::current_exe().unwrap(), dir.path()).unwrap();
    let mut command = copy.as_nobody();
    command.args(["--exact", "probe::tests::without_root_it_says_what_root_would_add"]).current_dir("/");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
