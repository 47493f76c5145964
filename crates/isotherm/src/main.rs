//! The command line of Isotherm.

/// Tells the user something, a line on standard error. Nothing depends on whether it is still read: a recording goes on
/// when it is not.
macro_rules! say {
    ($($text:tt)*) => {{
        crate::say_line(&format!($($text)*));
    }};
}

/// The same without going on to the next line, for progress.
macro_rules! say_on_the_line {
    ($($text:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!($($text)*));
    }};
}

/// Returns from the function: what was asked for makes no sense, whatever the machine and the files are.
macro_rules! misuse {
    ($($text:tt)*) => { return Err(anyhow::Error::new(crate::Misuse(format!($($text)*)))) };
}

mod args;
mod background;
mod closed;
mod commands;
mod convert;
mod doctor;
mod help;
mod lab;
mod live;
mod manual;
mod output;
mod reader;
mod reading;
mod record;
mod report;
mod scheme;
mod stop;
mod terminal;
mod top;

use clap::{CommandFactory, FromArgMatches};
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    closed::refuse();
    // Help is fitted to the terminal only where there is something to say: it takes as long as all else that comes before the command.
    let fitted = |_| help::command(terminal::size(std::io::stdout()).0).try_get_matches();
    let matches = match args::Cli::command().try_get_matches().or_else(fitted) {
        Ok(matches) => matches,
        Err(instead) => return said_instead(instead),
    };
    let cli = args::Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if !has_much_to_put_away(&cli.command) {
        // A closed pipe (`isotherm report raw | head`) ends the program quietly, as it does others.
        // SAFETY: before any thread is started; SIG_DFL is a valid disposition.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    match commands::run(cli) {
        // What was made is of what is left: a script must not take it for all.
        Ok(code) if code == ExitCode::SUCCESS && reading::is_lost() => ExitCode::FAILURE,
        Ok(code) => code,
        Err(error) if error.is::<Unread>() => ExitCode::from(reader::LEFT),
        Err(error) => {
            tell(&error);
            if error.is::<Misuse>() { ExitCode::from(MISUSED) } else { ExitCode::FAILURE }
        }
    }
}

/// Help, a version, or what is wrong with the command line.
fn said_instead(mut text: clap::Error) -> ExitCode {
    use clap::error::{ContextKind, ContextValue};
    if let Some(ContextValue::String(word)) = text.get(ContextKind::InvalidArg)
        && word
            .strip_prefix('-')
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
    {
        // That it could be given to the command that is run is no help to who meant the value of an option.
        let tip = format!("'{word}' would be a negative value, and no option before it takes one");
        text.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    if let Some(ContextValue::String(word)) = text.get(ContextKind::InvalidSubcommand) {
        let places = help::places_of(word);
        if !places.is_empty() {
            let tip = format!("there is {}", places.join(", "));
            text.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        }
    }
    let printed = text.print().and_then(|()| std::io::stdout().flush());
    match printed {
        Err(error) if !text.use_stderr() => {
            say!("isotherm: cannot write to standard output: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(text.exit_code()).unwrap_or(MISUSED)),
    }
}

/// Whether a command ends properly when nobody reads its standard output any more ([`reader`]): it has a recording to finish, a
/// command to wait for, processes to give back as they were.
fn has_much_to_put_away(command: &args::Command) -> bool {
    use args::{Command, SchemeCommand};
    matches!(command, Command::Record(_) | Command::Lab(_) | Command::Scheme(SchemeCommand::Apply(_)))
}

/// Nobody reads standard output any more: nothing is left to say, and nobody to be told.
#[derive(Debug)]
struct Unread;

impl std::fmt::Display for Unread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nobody reads standard output any more")
    }
}

impl std::error::Error for Unread {}

/// Writes a line, or several, to standard error. Names of processes, hosts and files may stand in it: nothing of them reaches
/// the terminal as an escape sequence.
fn say_line(text: &str) {
    let text = closed::with_cause(text).map_or(text.into(), std::borrow::Cow::Owned);
    let _ = writeln!(std::io::stderr(), "{}", isotherm_record::printable_lines(&text));
}

/// The status for a command line that is wrong, as of one that cannot be parsed.
const MISUSED: u8 = 2;

/// What is wrong with the command line.
#[derive(Debug)]
struct Misuse(String);

impl std::fmt::Display for Misuse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}

/// Says what went wrong and why.
fn tell(error: &anyhow::Error) {
    say!("isotherm: {}", words(error));
}

/// What went wrong and why. Many errors name their cause in their own sentence; it is not said twice.
fn words(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !said.contains(&cause) {
            said.push_str(if said.is_empty() { "" } else { ": " });
            said.push_str(&cause);
        }
    }
    let remedy = remedy(error.chain()).filter(|_| !said.contains("ulimit")).unwrap_or_default();
    said + remedy
}

/// What helps against an error that may come from anything that opens a file.
fn remedy<'a>(
    mut chain: impl Iterator<Item = &'a (dyn std::error::Error + 'static)>,
) -> Option<&'static str> {
    let is_limit = |cause: &(dyn std::error::Error + 'static)| {
        let code = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
        matches!(code, Some(libc::EMFILE | libc::ENFILE))
    };
    chain.any(is_limit).then_some(
        "; too many files are open: raise the limit with `ulimit -n`, or LimitNOFILE= of the systemd unit (fs.file-max, if it is \
         the whole machine's)",
    )
}
