//! Words that are almost those expected.

/// The word of `known` that `word` is a misspelling of, if it looks like one.
pub(crate) fn meant<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    // What is longer than any word is none, and would take long to compare.
    if word.len() > 40 {
        return None;
    }
    let word = word.to_ascii_lowercase().replace('-', "_");
    let near = known.into_iter().map(|candidate| (distance(&word, candidate), candidate));
    let (distance, candidate) = near.min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + candidate.len() / 4).then(|| candidate.to_owned())
}

/// Letters to insert, delete or replace.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            row.push((last[j + 1] + 1).min(row[j] + 1).min(last[j] + usize::from(x != *y)));
        }
        last = row;
    }
    last.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_found_and_another_word_is_not() {
        let known = ["min_size", "min_age", "max_age", "pageout", "lru_prio"];
        assert_eq!(meant("min_szie", known).as_deref(), Some("min_size"));
        assert_eq!(meant("page_out", known).as_deref(), Some("pageout"));
        assert_eq!(meant("LRU-prio", known).as_deref(), Some("lru_prio"));
        assert_eq!(meant("colour", known), None);
        assert_eq!(meant(&"min_size".repeat(1000), known), None);
        assert_eq!((distance("", "abc"), distance("abc", ""), distance("abc", "abd")), (3, 3, 1));
    }
}
