//! From keys and clicks to what they ask for.

use super::screen::Target;
use super::state::{Action, Prompt, Shown, State};
use crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};

/// What is at a place of the screen.
pub trait Places {
    /// What can be clicked there.
    fn target(&self, x: u16, y: u16) -> Option<Target>;
    /// The address that the heatmap shows there.
    fn address(&self, x: u16, y: u16) -> Option<u64>;
    /// What the heatmap shows there, in words.
    fn words(&self, x: u16, y: u16) -> Option<String>;
}

/// What an event asks for, if anything.
pub fn action(event: &Event, state: &State, places: &impl Places) -> Option<Action> {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => of_key(*key, state),
        Event::Mouse(mouse) => of_mouse(*mouse, state, places),
        _ => None,
    }
}

fn of_key(key: KeyEvent, state: &State) -> Option<Action> {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Some(Action::Quit),
            KeyCode::Char('z') => Some(Action::Suspend),
            KeyCode::Char('l') => Some(Action::Redraw),
            KeyCode::Char('f') => Some(Action::Page(1)),
            KeyCode::Char('b') => Some(Action::Page(-1)),
            // Some terminals send it for Backspace.
            KeyCode::Char('h') if state.prompt.is_some() => Some(Action::Erase),
            KeyCode::Char('u') if state.prompt.is_some() => Some(Action::EraseAll),
            _ => None,
        };
    }
    if state.prompt.is_some() {
        return match key.code {
            KeyCode::Enter => Some(Action::Accept),
            KeyCode::Esc => Some(Action::Back),
            KeyCode::Backspace => Some(Action::Erase),
            KeyCode::Char(c) => Some(Action::Type(c)),
            _ => None,
        };
    }
    if state.help {
        // As many lines as a small screen has, but for some, which are seen again.
        const PAGE: isize = 16;
        let is_long = state.help_at.1 > 0;
        return Some(match key.code {
            KeyCode::Char('q') => Action::Quit,
            KeyCode::Up | KeyCode::Char('k') if is_long => Action::HelpBy(-1),
            KeyCode::Down | KeyCode::Char('j') if is_long => Action::HelpBy(1),
            KeyCode::PageUp if is_long => Action::HelpBy(-PAGE),
            KeyCode::PageDown if is_long => Action::HelpBy(PAGE),
            KeyCode::Home if is_long => Action::HelpBy(isize::MIN),
            KeyCode::End if is_long => Action::HelpBy(isize::MAX),
            _ => Action::Help,
        });
    }
    let entered = state.entered.is_some();
    Some(match key.code {
        KeyCode::Char('q') => Action::Quit,
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => Action::Help,
        KeyCode::Esc | KeyCode::Backspace => Action::Back,
        KeyCode::Up | KeyCode::Char('k') => Action::Move(-1),
        KeyCode::Down | KeyCode::Char('j') => Action::Move(1),
        KeyCode::PageUp => Action::Page(-1),
        KeyCode::PageDown => Action::Page(1),
        KeyCode::Home | KeyCode::Char('g') => Action::First,
        KeyCode::End | KeyCode::Char('G') => Action::Last,
        KeyCode::Enter => Action::Enter,
        KeyCode::Char('s') => Action::SortNext,
        KeyCode::Char('S') => Action::SortBefore,
        KeyCode::Char('r') => Action::Reverse,
        KeyCode::Char('/' | 'f') => Action::Ask(Prompt::Filter),
        KeyCode::Char('w') => Action::Ask(Prompt::Save),
        KeyCode::Char('p' | ' ') => Action::Pause,
        KeyCode::Char('u') => Action::Window,
        KeyCode::Char('c') => Action::ColdSince,
        KeyCode::Char('+' | '=') if entered => Action::Zoom(0.5, None),
        KeyCode::Char('-') if entered => Action::Zoom(2.0, None),
        KeyCode::Char('0') if entered => Action::Show(Shown::Hot),
        KeyCode::Char('{') if entered => Action::Pan(0.5),
        KeyCode::Char('}') if entered => Action::Pan(-0.5),
        KeyCode::Char('[') if entered => Action::Stretch(1),
        KeyCode::Char(']') if entered => Action::Stretch(-1),
        KeyCode::Left if entered => Action::Travel(-10),
        KeyCode::Right if entered => Action::Travel(10),
        KeyCode::Char('n') if entered => Action::Now,
        KeyCode::Tab if entered => Action::Parts,
        KeyCode::Right if !entered => Action::Enter,
        _ => return None,
    })
}

fn of_mouse(mouse: MouseEvent, state: &State, places: &impl Places) -> Option<Action> {
    let (x, y) = (mouse.column, mouse.row);
    if state.help {
        return match mouse.kind {
            MouseEventKind::Down(_) => Some(Action::Help),
            MouseEventKind::ScrollUp => Some(Action::HelpBy(-3)),
            MouseEventKind::ScrollDown => Some(Action::HelpBy(3)),
            _ => None,
        };
    }
    match mouse.kind {
        MouseEventKind::Down(MouseButton::Left) => match places.target(x, y) {
            Some(Target::Head(column)) => Some(Action::SortBy(column)),
            Some(Target::Row(at)) => {
                let selected = state.entered.as_ref().map_or(state.cursor.at, |e| e.cursor.at);
                // The first click selects, the second opens.
                Some(if selected == at { Action::Enter } else { Action::Select(at) })
            }
            None => places.words(x, y).map(Action::Say),
        },
        MouseEventKind::Down(MouseButton::Right) => Some(Action::Back),
        MouseEventKind::ScrollUp => Some(match places.address(x, y) {
            Some(at) => Action::Zoom(0.7, Some(at)),
            None => Action::Move(-3),
        }),
        MouseEventKind::ScrollDown => Some(match places.address(x, y) {
            Some(at) => Action::Zoom(1.0 / 0.7, Some(at)),
            None => Action::Move(3),
        }),
        _ => None,
    }
}
