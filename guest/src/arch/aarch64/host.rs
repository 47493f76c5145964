//! The host as the guest sees it: there is no balloon on this machine.

use super::clock::Clock;
use core::convert::Infallible;

/// Nobody to give memory to.
pub struct Host(());

impl Host {
    /// There is none to be found.
    pub fn find(_ram: u64) -> Result<Self, Infallible> {
        Ok(Self(()))
    }

    /// Whether there is a balloon.
    pub fn is_there(&self) -> bool {
        false
    }

    /// Whether free memory can be reported.
    pub fn can_report(&self) -> bool {
        false
    }

    /// Nothing is reported in any case.
    pub fn set_reporting(&mut self, _on: bool) {}

    /// Does what the host wants: nothing.
    pub fn serve(&mut self, _clock: &Clock) -> Result<(), Infallible> {
        Ok(())
    }

    /// Reports all free memory: none is.
    pub fn sweep(&mut self, _clock: &Clock) -> Result<(), Infallible> {
        Ok(())
    }

    /// Takes memory back out of the balloon: there is none in it.
    pub fn make_room(&mut self, _frames: u64) -> Result<(), Infallible> {
        Ok(())
    }

    /// Bytes and batches that were reported.
    pub fn reported(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Bytes that were hinted.
    pub fn hinted(&self) -> u64 {
        0
    }

    /// Bytes in the balloon.
    pub fn ballooned(&self) -> u64 {
        0
    }
}
