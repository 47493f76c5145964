//! What tests of `pte` on live processes begin with.

use isotherm_linux::probe::pte_prerequisites;
use isotherm_linux::pte::Pte;

/// The operations, as yet without a process; `None`, said so, where the machine or user cannot (in CI as root that is a
/// failure).
pub fn operations() -> Option<Pte> {
    match pte_prerequisites() {
        Ok(_) => Some(Pte::load().unwrap()),
        Err((reason, _)) => {
            let must =
                std::env::var("CI").is_ok_and(|ci| ci == "true") && rustix::process::geteuid().is_root();
            assert!(!must, "skipped, as root in CI: {reason}");
            println!("skipped: {reason}");
            None
        }
    }
}
