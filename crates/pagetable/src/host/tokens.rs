//! How often tokens are held.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::HostMachine;
use crate::machine::Tokens;

/// Counts them, and passes on what is said of them.
#[derive(Default)]
pub(super) struct Held {
    /// Modulo 2^64, relative to those that `map_token` put there.
    counts: Mutex<HashMap<u64, u64>>,
    beside: OnceLock<Arc<dyn Tokens>>,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Held").field(&self.beside.get().is_some()).finish()
    }
}

impl Held {
    fn counts(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, token: u64, more: u64) {
        let mut counts = self.counts();
        let held = counts.entry(token).or_default();
        *held = held.wrapping_add(more);
    }

    pub fn share(&self, token: u64) {
        self.add(token, 1);
        if let Some(tokens) = self.beside.get() {
            tokens.share(token);
        }
    }

    pub fn release(&self, token: u64) {
        self.add(token, u64::MAX);
        if let Some(tokens) = self.beside.get() {
            tokens.release(token);
        }
    }
}

impl HostMachine {
    /// Passes on what is said of tokens from here on, to the first for whom this is called.
    pub fn set_tokens(&self, tokens: Arc<dyn Tokens>) {
        let _ = self.tokens.beside.set(tokens);
    }

    /// How often each token is held by entries, relative to those that [`map_token`](crate::AddressSpace::map_token)
    /// put there.
    #[must_use]
    pub fn token_balance(&self, token: u64) -> i64 {
        self.tokens.counts().get(&token).map_or(0, |&n| n as i64)
    }
}
