//! What several files could not see, together.

/// Sentences on what could not be seen, each once.
///
/// A recorder counts from its beginning to its end. So of what it says again and again with other figures, in one file of its
/// run after the other, the last holds for all of the run.
#[derive(Debug, Default)]
pub(super) struct BlindSpots(Vec<Spot>);

#[derive(Debug)]
struct Spot {
    run: String,
    sentence: String,
}

impl BlindSpots {
    /// Adds what a file of `run` says; empty: nobody knows which run that was.
    pub fn add(&mut self, run: &str, sentences: &[String]) {
        for sentence in sentences {
            let said = |spot: &Spot| spot.sentence == *sentence;
            let renewed = |spot: &Spot| {
                !run.is_empty()
                    && spot.run == run
                    && without_figures(&spot.sentence) == without_figures(sentence)
            };
            match self.0.iter().position(renewed) {
                Some(at) => self.0[at].sentence.clone_from(sentence),
                None if self.0.iter().any(said) => {}
                None => self.0.push(Spot { run: run.to_owned(), sentence: sentence.clone() }),
            }
        }
    }

    /// All of them, in the order in which they were first said.
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences: Vec<String> = Vec::new();
        for Spot { sentence, .. } in &self.0 {
            if !sentences.contains(sentence) {
                sentences.push(sentence.clone());
            }
        }
        sentences
    }
}

/// A sentence without its numbers, but for those that name a process.
fn without_figures(sentence: &str) -> Vec<&str> {
    let is_figure = |word: &str| {
        let word = word.trim_end_matches([',', ';', ':', '.']);
        !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit() || b == b'.')
    };
    let mut before = "";
    let mut words = Vec::new();
    for word in sentence.split(' ') {
        if before == "pid" || !is_figure(word) {
            words.push(word);
        }
        before = word;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(files: &[(&str, &[&str])]) -> Vec<String> {
        let mut spots = BlindSpots::default();
        for (run, sentences) in files {
            spots.add(run, &sentences.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
        }
        spots.sentences()
    }

    #[test]
    fn all_files_are_heard_and_of_a_run_the_last_figures_hold() {
        assert_eq!(
            joined(&[("a", &["shared: 1 %"]), ("a", &["locked: 2 %"])]),
            ["shared: 1 %", "locked: 2 %"]
        );
        let grew = [("a", &["shared: 1.5 % of the pages"][..]), ("a", &["shared: 12 % of the pages"])];
        assert_eq!(joined(&grew), ["shared: 12 % of the pages"]);
        // Of another run it is another figure, and of runs without a name nobody knows.
        for runs in [["a", "b"], ["", ""]] {
            let spots =
                joined(&[(runs[0], &["shared: 1 %"]), (runs[1], &["shared: 2 %"]), (runs[0], &["coarse"])]);
            assert_eq!(spots, ["shared: 1 %", "shared: 2 %", "coarse"]);
        }
        assert_eq!(joined(&[("a", &["coarse"]), ("b", &["coarse"])]), ["coarse"]);
    }

    #[test]
    fn numbers_that_name_a_process_are_no_figures() {
        let spots = joined(&[
            ("a", &["another isotherm, pid 7, 1 process"]),
            ("a", &["another isotherm, pid 8, 1 process"]),
        ]);
        assert_eq!(spots.len(), 2);
    }
}
