//! Values of goals that come from a file or a command, looked up on a thread of their own: a command may take its time.

use isotherm_linux::schemes::{SharedEngine, lock};
use isotherm_schemes::Source;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often they are looked up.
const EVERY: Duration = Duration::from_millis(500);

/// Scheme, goal, and where the value comes from.
pub type Inputs = Arc<Mutex<Vec<(usize, usize, Source)>>>;

/// Looks them up until nobody else has the list any more. It is not waited for: a command that hangs holds up nothing.
///
/// # Errors
/// When the system gives no thread.
pub fn start(inputs: &Inputs, engine: &SharedEngine) -> std::io::Result<()> {
    let (inputs, engine) = (Arc::downgrade(inputs), Arc::downgrade(engine));
    std::thread::Builder::new()
        .name("isotherm-goals".into())
        .spawn(move || {
            while let Some(list) = inputs.upgrade() {
                let sources = list.lock().unwrap_or_else(PoisonError::into_inner).clone();
                drop(list);
                for input in sources {
                    let value = value_of(&input.2);
                    let (Some(engine), Some(list)) = (engine.upgrade(), inputs.upgrade()) else { return };
                    let mut engine = lock(&engine);
                    // A command takes its time, and other schemes may be in force by now.
                    if list.lock().unwrap_or_else(PoisonError::into_inner).contains(&input) {
                        engine.set_goal_input(input.0, input.1, value);
                    }
                }
                std::thread::sleep(EVERY);
            }
        })
        .map(drop)
}

/// The first number of a file, or of what a command prints; none if there is none: its scheme does nothing then.
pub fn value_of(source: &Source) -> Option<u64> {
    let text = match source {
        Source::File(path) => std::fs::read_to_string(path).ok()?,
        Source::Command(words) => {
            let (program, arguments) = words.split_first()?;
            let mut command = Command::new(program);
            command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
            let output = command.output().ok().filter(|output| output.status.success())?;
            String::from_utf8_lossy(&output.stdout).into_owned()
        }
    };
    first_number(&text)
}

/// The whole part of the first word that is a number: the 99 of `p99` is part of a name.
fn first_number(text: &str) -> Option<u64> {
    let word = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let end = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    word.get(..end)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_counts() {
        assert_eq!(first_number("p99: 1234.5 us\n17"), Some(1234));
        assert_eq!((first_number("none"), first_number("")), (None, None));
        let echo = |text: &str| Source::Command(vec!["echo".into(), text.into()]);
        assert_eq!((value_of(&echo("latency 42")), value_of(&echo("-"))), (Some(42), None));
        assert_eq!(value_of(&Source::Command(vec!["false".into()])), None);
        assert_eq!(value_of(&Source::File("/no/such/file".into())), None);
    }
}
