//! Actions on their way to the recording.

use super::audit::Names;
use isotherm_linux::actions::Audit;
use isotherm_record::SchemeAction;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, PoisonError};

/// Actions that may wait to be written; a recorder takes them at least every second.
const WAITING: usize = 16_384;

/// How many could not be recorded, since they came faster than they could be written.
pub type Lost = Arc<AtomicU64>;

/// What hears of actions, and where they come out for the recorder.
pub fn channel(names: Names) -> (Audit, Receiver<SchemeAction>, Lost) {
    let (sender, receiver): (SyncSender<SchemeAction>, _) = sync_channel(WAITING);
    let lost = Lost::default();
    let missed = Arc::clone(&lost);
    let audit: Audit = Box::new(move |applied| {
        let names = names.lock().unwrap_or_else(PoisonError::into_inner);
        let action = SchemeAction {
            time_ns: applied.time_ns,
            target: applied.target.0,
            start: applied.range.start,
            end: applied.range.end,
            scheme: names.get(applied.scheme).cloned().unwrap_or_default(),
            action: applied.action.name().to_owned(),
            tried: applied.tried,
            applied: applied.applied,
        };
        if sender.try_send(action).is_err() {
            missed.fetch_add(1, Ordering::Relaxed);
        }
    });
    (audit, receiver, lost)
}
