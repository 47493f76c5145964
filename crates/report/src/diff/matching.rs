//! Which memory of one recording is which of another.
//!
//! Addresses say nothing: they are drawn anew for each process. What has a name is matched by program and name. Anonymous
//! memory of one program is matched by order and size: of all ways to pair runs without crossing, the one in which the
//! paired sizes are most alike, large ones counting for more.

use super::run::{AreaProfile, RunProfile};
use std::collections::HashMap;

/// Sizes further apart than this factor are not the same memory. A guess.
const MOST_UNLIKE: f64 = 4.0;

/// Sizes that differ by no more than this share are the same. A guess: stacks and arenas of threads differ by nothing, hash tables that
/// grew by more.
const LIKE: f64 = 0.02;

/// Runs paired by order and size, of each program; smaller ones are paired by rank of size.
const MOST_PAIRED: usize = 128;

/// Memory that is the same in all recordings: for each of them, which of its areas.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Matched {
    pub program: String,
    pub object: bool,
    pub name: String,
    /// Which of several of that name, from 1; 0 where there is only one.
    pub nr: usize,
    pub anonymous: bool,
    /// Another may have been taken for it.
    pub is_mistakable: bool,
    size: u64,
    pub of_run: Vec<Option<usize>>,
}

/// Matches the areas of all recordings.
pub(super) fn matched(runs: &[RunProfile]) -> Vec<Matched> {
    let mut all: Vec<Matched> = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let before = all.clone();
        let mut named: HashMap<(&str, bool, &str), usize> = HashMap::new();
        for (i, known) in before.iter().enumerate().filter(|(_, m)| !m.anonymous) {
            named.insert((&known.program, known.object, &known.name), i);
        }
        let mut anonymous: HashMap<&str, Vec<usize>> = HashMap::new();
        for (i, area) in run.areas.iter().enumerate() {
            if area.anonymous {
                anonymous.entry(&area.program).or_default().push(i);
                continue;
            }
            match named.get(&(area.program.as_str(), area.object, area.name.as_str())) {
                Some(known) => all[*known].of_run[at] = Some(i),
                None => all.push(fresh(area, at, i, runs.len())),
            }
        }
        let mut programs: Vec<_> = anonymous.into_iter().collect();
        programs.sort();
        for (program, here) in programs {
            let known: Vec<usize> =
                (0..all.len()).filter(|&i| all[i].anonymous && all[i].program == program).collect();
            let sizes =
                |list: &[usize], of: &dyn Fn(usize) -> u64| list.iter().map(|&i| of(i)).collect::<Vec<u64>>();
            let pairs = align(&sizes(&known, &|i| all[i].size), &sizes(&here, &|i| run.areas[i].size));
            for (j, area) in here.into_iter().enumerate() {
                match pairs.iter().find(|(_, b)| *b == j) {
                    Some((a, _)) => all[known[*a]].of_run[at] = Some(area),
                    None => all.push(fresh(&run.areas[area], at, area, runs.len())),
                }
            }
        }
    }
    let mut count: HashMap<(String, bool, String), usize> = HashMap::new();
    for one in &all {
        *count.entry((one.program.clone(), one.object, one.name.clone())).or_default() += 1;
    }
    let mut given: HashMap<(String, bool, String), usize> = HashMap::new();
    for one in &mut all {
        let key = (one.program.clone(), one.object, one.name.clone());
        if count.get(&key).is_some_and(|n| *n > 1) {
            let nr = given.entry(key).or_default();
            *nr += 1;
            one.nr = *nr;
        }
    }
    find_mistakable(&mut all, runs);
    all
}

/// Anonymous memory is only surely the same where it is as large in all recordings, and nothing else of the program is: a heap that an
/// allocator puts together of pieces is cut otherwise in each run.
fn find_mistakable(all: &mut [Matched], runs: &[RunProfile]) {
    let is_like = |a: u64, b: u64| a.abs_diff(b) as f64 <= LIKE * a.max(b) as f64;
    let sizes_of = |one: &Matched| {
        let sizes =
            one.of_run.iter().enumerate().map(|(at, area)| area.map_or(0, |i| runs[at].areas[i].size));
        sizes.fold((u64::MAX, 0), |(least, most), size| (least.min(size), most.max(size)))
    };
    let mut of_program: HashMap<&str, Vec<u64>> = HashMap::new();
    for one in all.iter().filter(|one| one.anonymous) {
        of_program.entry(&one.program).or_default().push(sizes_of(one).1);
    }
    of_program.values_mut().for_each(|sizes| sizes.sort_unstable());
    let found: Vec<bool> = all
        .iter()
        .map(|one| {
            let (least, most) = sizes_of(one);
            let others = of_program.get(&*one.program).map_or(&[][..], |sizes| sizes);
            let at = others.partition_point(|size| *size < most);
            // Itself is one of them.
            let near = [at.checked_sub(1), Some(at + 1)].into_iter().flatten();
            let has_double = near.filter_map(|i| others.get(i)).any(|size| is_like(*size, most));
            one.anonymous && others.len() > 1 && (!is_like(least, most) || has_double)
        })
        .collect();
    all.iter_mut().zip(found).for_each(|(one, found)| one.is_mistakable = found);
}

fn fresh(area: &AreaProfile, run: usize, index: usize, nr_runs: usize) -> Matched {
    let mut of_run = vec![None; nr_runs];
    of_run[run] = Some(index);
    Matched {
        program: area.program.clone(),
        object: area.object,
        name: area.name.clone(),
        nr: 0,
        anonymous: area.anonymous,
        is_mistakable: false,
        size: area.size,
        of_run,
    }
}

/// What pairing two sizes is worth; `None`: they are not the same memory.
fn worth(a: u64, b: u64) -> Option<f64> {
    let unlike = (a.max(1) as f64 / b.max(1) as f64).ln().abs() / MOST_UNLIKE.ln();
    (unlike <= 1.0).then(|| (1.05 - unlike) * (a.min(b).max(2) as f64).log2())
}

/// Pairs of two lists without crossing, of most worth. Of long lists those that are not among the largest are paired by rank
/// of size, equals in order.
fn align(a: &[u64], b: &[u64]) -> Vec<(usize, usize)> {
    let by_size = |list: &[u64]| {
        let mut at: Vec<usize> = (0..list.len()).collect();
        at.sort_by_key(|i| std::cmp::Reverse(list[*i]));
        let smaller = at.split_off(at.len().min(MOST_PAIRED));
        at.sort_unstable();
        (at, smaller)
    };
    let ((in_a, small_a), (in_b, small_b)) = (by_size(a), by_size(b));
    let mut best = vec![vec![0.0; in_b.len() + 1]; in_a.len() + 1];
    for i in (0..in_a.len()).rev() {
        for j in (0..in_b.len()).rev() {
            let paired = worth(a[in_a[i]], b[in_b[j]]).map_or(0.0, |w| w + best[i + 1][j + 1]);
            best[i][j] = f64::max(paired, f64::max(best[i + 1][j], best[i][j + 1]));
        }
    }
    let (mut i, mut j, mut pairs) = (0, 0, Vec::new());
    while i < in_a.len() && j < in_b.len() {
        let paired = worth(a[in_a[i]], b[in_b[j]]).map(|w| w + best[i + 1][j + 1]);
        if paired.is_some_and(|w| w >= best[i][j] - 1e-9) {
            pairs.push((in_a[i], in_b[j]));
            (i, j) = (i + 1, j + 1);
        } else if best[i + 1][j] >= best[i][j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    // What has no partner among the largest may have one among the smaller.
    let unpaired = |large: &[usize], small: Vec<usize>, taken: &dyn Fn(usize) -> bool, list: &[u64]| {
        let mut rest: Vec<usize> = large.iter().copied().filter(|at| !taken(*at)).chain(small).collect();
        rest.sort_by_key(|at| (std::cmp::Reverse(list[*at]), *at));
        rest
    };
    let rest_a = unpaired(&in_a, small_a, &|at| pairs.iter().any(|(i, _)| *i == at), a);
    let rest_b = unpaired(&in_b, small_b, &|at| pairs.iter().any(|(_, j)| *j == at), b);
    if a.len().max(b.len()) > MOST_PAIRED {
        let (mut i, mut j) = (0, 0);
        while i < rest_a.len() && j < rest_b.len() {
            let (x, y) = (rest_a[i], rest_b[j]);
            match worth(a[x], b[y]) {
                Some(_) => {
                    pairs.push((x, y));
                    (i, j) = (i + 1, j + 1);
                }
                // The larger one is like nothing that is left.
                None if a[x] > b[y] => i += 1,
                None => j += 1,
            }
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = 1 << 20;

    #[test]
    fn runs_are_paired_by_order_and_size() {
        assert_eq!(align(&[M, 64 * M, 8 * M], &[M, 70 * M, 8 * M]), [(0, 0), (1, 1), (2, 2)]);
        // One more in between, and one that went.
        assert_eq!(align(&[64 * M, 8 * M], &[64 * M, 512 * M, 8 * M]), [(0, 0), (1, 2)]);
        assert_eq!(align(&[64 * M, 2 * M, 8 * M], &[64 * M, 8 * M]), [(0, 0), (2, 1)]);
        assert_eq!(align(&[64 * M], &[M]), []);
        assert_eq!(align(&[], &[M]), []);
    }

    #[test]
    fn of_long_lists_the_largest_are_paired_with_each_other() {
        let (mut a, mut b) = (vec![M; 300], vec![M; 400]);
        (a[150], b[399]) = (100 * M, 100 * M);
        assert!(align(&a, &b).contains(&(150, 399)));
    }

    #[test]
    fn what_is_not_among_the_largest_is_paired_too() {
        // The one in use is the smallest of two hundred.
        let mut a: Vec<u64> = vec![64 * M; 200];
        a[77] = 20 * M;
        let b = a.clone();
        assert_eq!(align(&a, &b).len(), 200);
        assert!(align(&a, &b).contains(&(77, 77)));
        // One that only one side has keeps none of the others from its partner.
        let more: Vec<u64> = std::iter::once(900 * M).chain(a.iter().copied()).collect();
        let pairs = align(&more, &b);
        assert_eq!(pairs.len(), 200);
        assert!(pairs.contains(&(78, 77)));
    }
}
