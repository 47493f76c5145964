//! Changes of rate that many cells show together.
//!
//! Of memory that is accessed now and then, at random, a cell's windows show a page or two: it takes it seconds to tell half a Hz from
//! a tenth, and until then what it saw before holds. All cells of a stretch have their windows at the same time, and tell in one.

use super::cell::State;
use super::spread::for_cells;
use super::target::Watched;
use super::tuning::Tuning;

/// Begins the evidence of cells anew whose stretch's last windows can hardly come from the rates so far. Only cells whose pages go each
/// by itself count: of a loop all cells may have been passed by chance.
pub(super) fn judge_rows(target: &mut Watched, now: u64, tuning: &Tuning) {
    for stretch in
        target.stretches.iter().filter(|s| s.known && s.seen > 1 && s.rate() > 0.0 && !s.is_hot(tuning))
    {
        let (mut hits, mut expected, mut exposure) = (0.0, 0.0, 0.0);
        let (mut observations, mut cells) = (0.0, 0.0);
        for_cells(&mut target.blocks, stretch.range, |_, cell| {
            if cell.observations >= tuning.each && cell.evidence.row.1 > 0.0 && is_seen(cell.state) {
                let row = cell.evidence.row;
                (hits, exposure) = (hits + row.0, exposure + row.1);
                expected += cell.rate() * row.1;
                observations += f32::from(cell.observations.min(tuning.most_observations));
                cells += 1.0;
            }
        });
        // Of few the rest is not known by.
        if cells < tuning.rows_least || 2.0 * cells < stretch.seen as f32 {
            continue;
        }
        let apart = hits * tuning.apart_row < expected || hits > expected * tuning.apart_row;
        let of = observations / cells;
        if !apart || (hits - expected) * (hits - expected) * of <= tuning.no_chance * expected {
            continue;
        }
        target.changed = true;
        for_cells(&mut target.blocks, stretch.range, |_, cell| {
            if cell.observations >= tuning.each && is_seen(cell.state) {
                cell.evidence.begin_with_row((hits / cells, exposure / cells), now);
            }
        });
    }
}

const fn is_seen(state: State) -> bool {
    !matches!(state, State::Absent | State::Blind(_))
}
