//! Several zones: of the memory of several nodes, or of memory that differs in what it is good for.

use crate::error::{GetError, PutError};
use crate::{Mobility, Order, OwnedBlock, Zone};

/// A zone, and the node that its memory is nearest to.
#[derive(Clone, Copy, Debug)]
pub struct NodeZone<'z, 'm> {
    /// The number of the node, the caller's.
    pub node: u16,
    /// The zone.
    pub zone: &'z Zone<'m>,
}

/// Zones in the order in which they are asked for memory: Linux' zonelist.
///
/// ```
/// use isotherm_frames::*;
/// # use std::mem::MaybeUninit;
/// # const CONFIG: Config = Config::new(1);
/// # let ranges = [[FrameRange::new(0, 512)], [FrameRange::new(512, 1024)]];
/// # let mut metadata = ranges.map(|ranges| vec![MaybeUninit::uninit(); metadata_size(&ranges, &CONFIG)]);
/// # let [first, second] = &mut metadata;
/// # // SAFETY: no memory stands behind the numbers.
/// # let near = unsafe { Zone::new(&CONFIG, &ranges[0], first) }?;
/// # // SAFETY: as above.
/// # let far = unsafe { Zone::new(&CONFIG, &ranges[1], second) }?;
/// // Nodes 0 and 1, as far apart as ACPI's SLIT says of neighbours.
/// let mut zones = [NodeZone { node: 1, zone: &far }, NodeZone { node: 0, zone: &near }];
/// let zones = Zones::nearest_first(0, &mut zones, |from, to| if from == to { 10 } else { 20 });
/// let here = zones.get(0, Order::HUGE, Mobility::Movable)?;
/// let there = zones.get(0, Order::HUGE, Mobility::Movable)?;
/// assert!(near.contains(here.frame) && far.contains(there.frame));
/// zones.put(0, here)?;
/// zones.put(0, there)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Zones<'z, 'm> {
    zones: &'z [NodeZone<'z, 'm>],
}

impl<'z, 'm> Zones<'z, 'm> {
    /// Zones in the given order.
    #[must_use]
    pub const fn new(zones: &'z [NodeZone<'z, 'm>]) -> Self {
        Self { zones }
    }

    /// Zones for a node: those of the nearest node first, and of nodes as far as each other, or of one node, in the given order
    /// (Linux' `build_zonelists`). `distance` is that from a node to another, in any unit.
    pub fn nearest_first(
        node: u16,
        zones: &'z mut [NodeZone<'z, 'm>],
        distance: impl Fn(u16, u16) -> u32,
    ) -> Self {
        for end in 1..zones.len() {
            let mut at = end;
            while at > 0 && distance(node, zones[at].node) < distance(node, zones[at - 1].node) {
                zones.swap(at, at - 1);
                at -= 1;
            }
        }
        Self { zones }
    }

    /// Allocates a block from the first zone that would stay above its watermark `low`; if there is none, from the first that stays
    /// above `min`.
    ///
    /// # Errors
    /// No zone has one. That blocks are being reported, so that another try may do better, goes before what the first zone says.
    pub fn get(&self, cpu: usize, order: Order, mobility: Mobility) -> Result<OwnedBlock, GetError> {
        for NodeZone { zone, .. } in self.zones {
            // Without a lock: it may have changed since, and then the zone itself says no to what would take it below `min`.
            if zone.free_frames() >= zone.watermarks().low.saturating_add(order.frames())
                && let Ok(block) = zone.get(cpu, order, mobility)
            {
                return Ok(block);
            }
        }
        let mut failed = None;
        for NodeZone { zone, .. } in self.zones {
            match zone.get(cpu, order, mobility) {
                Ok(block) => return Ok(block),
                Err(error @ GetError::Reporting { .. }) => failed = Some(error),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.unwrap_or(GetError::OutOfMemory { order, free: 0 }))
    }

    /// Frees a block, to the zone that it is of.
    ///
    /// # Errors
    /// As [`Zone::put`]; [`PutError::Foreign`] if it is of no zone.
    pub fn put(&self, cpu: usize, block: OwnedBlock) -> Result<(), PutError> {
        match self.zones.iter().find(|of| of.zone.contains(block.frame)) {
            Some(NodeZone { zone, .. }) => zone.put(cpu, block),
            None => Err(PutError::Foreign(block.into_block())),
        }
    }

    /// The zones, in order.
    pub fn iter(&self) -> impl Iterator<Item = &'z NodeZone<'z, 'm>> {
        self.zones.iter()
    }
}
