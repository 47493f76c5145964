//! The snapshots of a record, one region at a time.

use super::measure::Measure;
use super::number::Number;
use super::read::State;
use crate::RecordedAttrs;
use crate::rec::MAX_REGIONS;
use crate::spool::counted;
use isotherm_damon::{RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// The snapshots of a stream.
pub(super) struct Snapshots<'a, 'b> {
    pub(super) state: &'a mut State<'b>,
    pub(super) stream: TargetId,
    pub(super) intervals: RecordedAttrs,
}

impl<'de> DeserializeSeed<'de> for Snapshots<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Snapshots<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of snapshots")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Self { state, stream, intervals } = self;
        while let Some(found) = seq.next_element_seed(OneSnapshot { state: &mut *state, intervals })? {
            let Some(end_ns) = found.end_time.time_ns(1) else {
                state.spool.skip("snapshots without a time");
                continue;
            };
            if found.too_large {
                state.seen.too_large += 1;
                continue;
            }
            let start_ns = found.start_time.time_ns(1).unwrap_or(end_ns);
            let sample_ns = found.sample_ns(end_ns.saturating_sub(start_ns));
            let targets = vec![TargetSnapshot::new(stream, found.regions)];
            state.last_ns = end_ns;
            let pushed =
                state.spool.push(Snapshot { start_ns, end_ns, sample_ns, max_nr_accesses: 0, targets });
            state.keep(pushed)?;
        }
        Ok(())
    }
}

struct OneSnapshot<'a, 'b> {
    state: &'a mut State<'b>,
    intervals: RecordedAttrs,
}

/// What a snapshot says.
#[derive(Default)]
struct Found {
    start_time: Number,
    end_time: Number,
    regions: Vec<RegionSnapshot>,
    too_large: bool,
    sample_interval_us: Number,
}

impl Found {
    /// Sampling interval of a snapshot of this length; 0 when it does not say.
    fn sample_ns(&self, length_ns: u64) -> u64 {
        let sample_ns = self.sample_interval_us.time_ns(1000).unwrap_or(0);
        // damo (3.4.3) itself writes nanoseconds into this field when it writes plain numbers. An interval longer than
        // the whole snapshot gives it away.
        if length_ns > 0 && sample_ns > length_ns && sample_ns / 1000 <= length_ns {
            sample_ns / 1000
        } else {
            sample_ns
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum SnapshotKey {
    StartTime,
    EndTime,
    Regions,
    DamosStats,
    SampleIntervalUs,
    #[serde(other)]
    Other,
}

impl<'de> DeserializeSeed<'de> for OneSnapshot<'_, '_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Found, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OneSnapshot<'_, '_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a snapshot")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found, A::Error> {
        let mut found = Found::default();
        while let Some(key) = map.next_key()? {
            match key {
                SnapshotKey::StartTime => found.start_time = map.next_value()?,
                SnapshotKey::EndTime => found.end_time = map.next_value()?,
                SnapshotKey::SampleIntervalUs => found.sample_interval_us = map.next_value()?,
                SnapshotKey::DamosStats => {
                    self.state.seen.stats += u64::from(map.next_value::<Option<IgnoredAny>>()?.is_some());
                }
                SnapshotKey::Regions => map.next_value_seed(Regions {
                    state: &mut *self.state,
                    intervals: self.intervals,
                    found: &mut found,
                })?,
                SnapshotKey::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }
}

struct Regions<'a, 'b, 'c> {
    state: &'a mut State<'b>,
    intervals: RecordedAttrs,
    found: &'c mut Found,
}

impl<'de> DeserializeSeed<'de> for Regions<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Regions<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of regions")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Self { state, intervals, found } = self;
        let seen = &mut state.seen;
        while let Some(region) = seq.next_element::<JsonRegion>()? {
            seen.passed += u64::from(region.sz_filter_passed.0);
            seen.probes += u64::from(region.probe_hits.0);
            match region.region(intervals) {
                _ if found.too_large => {}
                None => seen.bad_regions += 1,
                Some(_) if found.regions.len() >= MAX_REGIONS => {
                    found.too_large = true;
                    found.regions = Vec::new();
                }
                Some(region) => found.regions.push(region),
            }
        }
        Ok(())
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JsonRegion {
    start: Number,
    end: Number,
    nr_accesses: Measure,
    age: Measure,
    sz_filter_passed: Something,
    probe_hits: Something,
}

/// Whether there is anything: neither `null` nor an empty list.
#[derive(Default)]
struct Something(bool);

impl<'de> Deserialize<'de> for Something {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SomethingVisitor)
    }
}

struct SomethingVisitor;

impl<'de> Visitor<'de> for SomethingVisitor {
    type Value = Something;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Something, E> {
        Ok(Something(false))
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<Something, E> {
        Ok(Something(true))
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<Something, E> {
        Ok(Something(true))
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<Something, E> {
        Ok(Something(true))
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<Something, E> {
        Ok(Something(true))
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<Something, E> {
        Ok(Something(true))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Something, A::Error> {
        let mut any = false;
        while seq.next_element::<IgnoredAny>()?.is_some() {
            any = true;
        }
        Ok(Something(any))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Something, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Something(true))
    }
}

impl JsonRegion {
    fn region(&self, intervals: RecordedAttrs) -> Option<RegionSnapshot> {
        let samples = match &self.nr_accesses {
            Measure { counted: Number::Missing, scaled } if intervals.sample_us > 0 => {
                scaled.count()? / 100.0 * intervals.aggr_us as f64 / intervals.sample_us as f64
            }
            Measure { counted, .. } => counted.count()?,
        };
        let age = match &self.age {
            Measure { counted: Number::Missing, scaled } => {
                let aggr_ns = intervals.aggr_us.saturating_mul(1000).max(1);
                scaled.time_ns(1000).map(|ns| ns as f64 / aggr_ns as f64)
            }
            Measure { counted, .. } => counted.count(),
        };
        if samples < 0.0 {
            return None;
        }
        // Casts from float saturate.
        let age = age.unwrap_or(0.0).round() as u32;
        Some(counted(self.start.bytes()?, self.end.bytes()?, samples.round() as u32, age))
    }
}
