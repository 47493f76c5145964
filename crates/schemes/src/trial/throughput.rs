//! How much actions get done in a quota's time: what a recording does not say, and what decides under a quota of time.

use isotherm_damon::schemes::{Action, Scheme};
use isotherm_report::units::format_size;

/// Bytes a second where nobody measured: a guess, some 0.5 us a page. Paging out to compressed memory is 5 to 50 times slower.
const ASSUMED: u64 = 8 << 30;

/// What an action gets done in a second of a quota's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throughput {
    /// The action; `None`: all that no other entry is for.
    pub action: Option<Action>,
    /// Bytes tried a second of the quota's time, above 0.
    pub bytes_per_s: u64,
    /// Where the figure comes from, to be put after "as": "measured here just now".
    pub source: String,
}

/// The throughput of a scheme's action, if its quota limits time, and what is said of it.
pub(super) fn of(scheme: &Scheme, title: &str, known: &[Throughput]) -> (u64, Option<String>) {
    let own = known.iter().find(|one| one.action == Some(scheme.action));
    let found =
        own.or_else(|| known.iter().find(|one| one.action.is_none())).filter(|one| one.bytes_per_s > 0);
    let bytes = found.map_or(ASSUMED, |one| one.bytes_per_s);
    let said = scheme.quota.time.is_some().then(|| {
        let action = scheme.action;
        let size = format_size(bytes);
        match found {
            Some(one) => {
                format!("scheme {title}: {action} gets {size} done in a second of the quota's time, as {}", one.source)
            }
            None => format!(
                "scheme {title}: {action} was taken to get {size} done in a second of the quota's time, which nobody measured"
            ),
        }
    });
    (bytes, said)
}
