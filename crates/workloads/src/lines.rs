//! Making the lines of the truth of what is planned and mapped.

use crate::area::backing;
use crate::crew::Areas;
use crate::plan::Plan;
use crate::run::RunError;
use crate::truth::{AreaLine, Page, VERSION, Workload};

pub(crate) fn workload_line(plan: &Plan, pid: u32, clock: &str) -> Workload {
    Workload {
        version: VERSION,
        pattern: plan.pattern.clone(),
        pid,
        page: plan.page,
        unit: plan.unit,
        clock: clock.to_owned(),
        seed: plan.seed,
        time_scale: plan.time_scale,
        hot_hz: plan.hot_hz,
        params: serde_json::to_value(&plan.params).unwrap_or_default(),
    }
}

/// What this process's own areas are and what backs them: those of `process` for whose index `which` says so, with it.
pub(crate) fn area_lines(
    plan: &Plan,
    process: usize,
    areas: &Areas,
    which: impl Fn(usize) -> bool,
) -> Result<Vec<(usize, AreaLine)>, RunError> {
    const PATH: &str = "/proc/self/smaps";
    let smaps = std::fs::read_to_string(PATH).map_err(|source| RunError::Proc { path: PATH, source })?;
    let own = plan.areas.iter().enumerate().filter(|(index, a)| a.process == process && which(*index));
    let line = |(index, planned): (usize, &crate::AreaPlan)| {
        let area = areas.get(index)?;
        let (start, end) = (area.start() as u64, (area.start() + area.size()) as u64);
        let (resident_bytes, huge_bytes) = backing(&smaps, start, end);
        let resident_wanted = if planned.populate { end - start } else { resident_bytes };
        let huge_wanted = if plan.page == Page::Huge { resident_bytes } else { 0 };
        let backed_as_asked = resident_bytes == resident_wanted && huge_bytes == huge_wanted;
        let (pid, name, unit, shared) = (std::process::id(), planned.name.clone(), plan.unit, planned.shared);
        let line =
            AreaLine { pid, name, start, end, unit, resident_bytes, huge_bytes, backed_as_asked, shared };
        Some((index, line))
    };
    Ok(own.filter_map(line).collect())
}
