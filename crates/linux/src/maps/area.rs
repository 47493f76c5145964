//! Mappings joined for display.

use super::{Mapping, MappingKind};
use isotherm_damon::AddrRange;
use std::sync::Arc;

/// Mappings that people think of as one: the segments of a library, the pieces a protection change cut the heap into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// From the first mapping's start to the last one's end.
    pub range: AddrRange,
    /// Name of the mappings, empty for anonymous memory.
    pub name: Arc<str>,
    /// Their kind.
    pub kind: MappingKind,
    /// Bytes mapped; less than the range where a file's segments leave gaps.
    pub mapped: u64,
    /// How many mappings it stands for.
    pub mappings: usize,
}

/// Joins successive mappings of one name if they touch, and segments of one file also across gaps, as long as no other
/// mapping lies between.
pub(super) fn join(mappings: &[Mapping]) -> Vec<Area> {
    let mut areas: Vec<Area> = Vec::new();
    for mapping in mappings {
        let kind = mapping.kind();
        match areas.last_mut() {
            Some(area)
                if area.name == mapping.name
                    && (area.range.end == mapping.range.start
                        || matches!(kind, MappingKind::File | MappingKind::DeletedFile)) =>
            {
                area.range.end = mapping.range.end;
                area.mapped = area.mapped.saturating_add(mapping.range.size());
                area.mappings += 1;
            }
            _ => areas.push(Area {
                range: mapping.range,
                name: Arc::clone(&mapping.name),
                kind,
                mapped: mapping.range.size(),
                mappings: 1,
            }),
        }
    }
    areas
}
