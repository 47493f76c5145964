//! What a call costs, and what each thing that it does.

use super::OUTLIER;

/// Ticks with clears whose cost is remembered, and as how many of them the prices at first count.
const CLEARS_REMEMBERED: f64 = 64.0;
const CLEARS_AT_FIRST: f64 = 4.0;

/// What calls cost that do several things each: by the call, and by the thing. A price by the thing alone, learnt from calls that do
/// three, is several times that of one of many, and then there is only enough for three.
#[derive(Debug)]
pub(super) struct Line {
    pub call_ns: f64,
    pub each_ns: f64,
    /// Sums of products of calls, things, and time.
    calls_calls: f64,
    calls_each: f64,
    each_each: f64,
    calls_time: f64,
    each_time: f64,
}

impl Line {
    /// As prices are taken to be at first: of calls that do one thing, and of calls that do eight.
    pub fn new(call_ns: f64, each_ns: f64) -> Self {
        let zero = Self {
            call_ns,
            each_ns,
            calls_calls: 0.0,
            calls_each: 0.0,
            each_each: 0.0,
            calls_time: 0.0,
            each_time: 0.0,
        };
        [1.0, 8.0].iter().fold(zero, |mut line, each| {
            let ns = call_ns + each * each_ns;
            line.add(CLEARS_AT_FIRST / 2.0 * weight(ns), 1.0, *each, ns);
            line
        })
    }

    /// What so many calls that do so many things cost, ns.
    fn of(&self, calls: f64, each: f64) -> f64 {
        calls * self.call_ns + each * self.each_ns
    }

    fn add(&mut self, weight: f64, calls: f64, each: f64, ns: f64) {
        self.calls_calls += weight * calls * calls;
        self.calls_each += weight * calls * each;
        self.each_each += weight * each * each;
        self.calls_time += weight * calls * ns;
        self.each_time += weight * each * ns;
    }

    /// Takes in that so many calls that did so many things took so long.
    pub fn learn(&mut self, calls: f64, each: f64, ns: f64) {
        // One call that took a hundred times as long says nothing of the next.
        let ns = ns.min(OUTLIER * self.of(calls, each));
        let kept = 1.0 - 1.0 / CLEARS_REMEMBERED;
        for sum in [
            &mut self.calls_calls,
            &mut self.calls_each,
            &mut self.each_each,
            &mut self.calls_time,
            &mut self.each_time,
        ] {
            *sum *= kept;
        }
        // Each counts by how far it is off as a part of what it costs, or the largest would tell all.
        self.add(weight(self.of(calls, each)), calls, each, ns);
        let (cc, ce, ee) = (self.calls_calls, self.calls_each, self.each_each);
        let apart = cc * ee - ce * ce;
        // Where all calls do as many things, only the sum is known: it is shared out as before.
        if apart > 1e-2 * cc * ee {
            self.call_ns = (self.calls_time * ee - self.each_time * ce) / apart;
            self.each_ns = (self.each_time * cc - self.calls_time * ce) / apart;
        } else {
            let was = ce * self.call_ns + ee * self.each_ns;
            let factor = if was > 0.0 { self.each_time / was } else { 1.0 };
            (self.call_ns, self.each_ns) = (self.call_ns * factor, self.each_ns * factor);
        }
        // Neither is free: what one seems to be below that is the other's.
        if self.call_ns < 0.0 {
            (self.call_ns, self.each_ns) = (0.0, self.each_time / ee.max(1e-30));
        }
        // What a call of one does is at least a sixteenth of it.
        let least = if calls > 0.0 { self.call_ns / 16.0 } else { 0.0 };
        if self.each_ns < least {
            self.each_ns = least;
            self.call_ns = ((self.calls_time - least * ce) / cc.max(1e-30)).max(0.0);
        }
        self.each_ns = self.each_ns.max(200.0);
    }
}

fn weight(ns: f64) -> f64 {
    let us = (ns / 1000.0).max(0.1);
    1.0 / (us * us)
}
