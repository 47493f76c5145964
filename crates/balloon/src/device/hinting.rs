//! The host's side of free page hinting (virtio 1.3, 5.5.6.5): which round is under way.

use crate::config::CommandId;

/// The first id given out, QEMU's choice.
const FIRST: u32 = 0x8000_0000;

/// Where free page hinting stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hinting {
    /// The host wants no hints; the guest keeps what it hinted before.
    #[default]
    Stopped,
    /// The host has asked, the guest has not answered yet.
    Requested(CommandId),
    /// The guest is hinting.
    Running(CommandId),
    /// The guest has hinted all that is free. No further hints count, until the next request.
    Complete(CommandId),
    /// The host is done with all hints: the guest may use what it hinted.
    Done,
}

#[derive(Debug, Default)]
pub(super) struct HintState {
    state: Hinting,
    last: Option<CommandId>,
}

impl HintState {
    pub fn state(&self) -> Hinting {
        self.state
    }

    /// What the configuration shows.
    pub fn command(&self) -> CommandId {
        match self.state {
            Hinting::Stopped | Hinting::Complete(_) => CommandId::STOP,
            Hinting::Requested(id) | Hinting::Running(id) => id,
            Hinting::Done => CommandId::DONE,
        }
    }

    /// A new round, under an id that differs from that of the last 2^32 - 2 rounds.
    pub fn request(&mut self) -> CommandId {
        let id = match self.last {
            None => CommandId(FIRST),
            Some(CommandId(u32::MAX)) => CommandId::FIRST,
            Some(CommandId(id)) => CommandId(id + 1),
        };
        self.last = Some(id);
        self.state = Hinting::Requested(id);
        id
    }

    pub fn stop(&mut self) {
        self.state = Hinting::Stopped;
    }

    pub fn done(&mut self) {
        self.state = Hinting::Done;
    }

    /// A command of the driver; `false` if it belongs to no round of now.
    pub fn command_received(&mut self, id: CommandId) -> bool {
        match (self.state, id) {
            (Hinting::Requested(wanted), id) if id == wanted => {
                self.state = Hinting::Running(id);
                true
            }
            (Hinting::Running(running), CommandId::STOP) => {
                self.state = Hinting::Complete(running);
                true
            }
            // The end of a round that the host has stopped meanwhile.
            (_, CommandId::STOP) => true,
            _ => false,
        }
    }

    pub fn is_running(&self) -> bool {
        matches!(self.state, Hinting::Running(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_runs_from_the_guests_answer_to_its_stop() {
        let mut hints = HintState::default();
        assert_eq!(hints.command(), CommandId::STOP);
        let id = hints.request();
        assert_eq!((hints.command(), hints.is_running()), (id, false));
        assert!(!hints.command_received(CommandId(id.0 + 1)), "an id that was not given out");
        assert!(hints.command_received(id));
        assert_eq!((hints.command(), hints.is_running()), (id, true));
        assert!(!hints.command_received(id), "twice");
        assert!(hints.command_received(CommandId::STOP));
        assert_eq!((hints.command(), hints.state()), (CommandId::STOP, Hinting::Complete(id)));
        hints.done();
        assert_eq!(hints.command(), CommandId::DONE);
        assert_ne!(hints.request(), id);
    }

    #[test]
    fn a_stop_for_the_last_round_does_not_end_the_next() {
        let mut hints = HintState::default();
        hints.request();
        let id = hints.request();
        assert!(hints.command_received(CommandId::STOP));
        assert_eq!(hints.state(), Hinting::Requested(id));
    }

    #[test]
    fn ids_pass_over_the_reserved_ones() {
        let mut hints = HintState { last: Some(CommandId(u32::MAX)), ..HintState::default() };
        assert_eq!(hints.request(), CommandId::FIRST);
        assert!(hints.command().is_request());
    }
}
