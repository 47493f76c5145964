//! The screen as a text.

use super::*;

/// In a text a block is a block, whatever its colour: rates are digits there.
#[test]
fn a_text_of_a_colour_screen_is_that_of_a_screen_without_colours() {
    let made = Made::new(3, 8);
    let mut plain = made.screen(ColourMode::Plain);
    // The process, then its heap.
    for _ in 0..2 {
        shown(&mut plain, 100, 30);
        press(&mut plain, KeyCode::Enter);
    }
    let wanted = shown(&mut plain, 100, 30);
    assert!(wanted.iter().any(|line| line.contains("999")) && wanted.iter().any(|line| line.contains("???")));
    for mode in [ColourMode::True, ColourMode::Ansi256] {
        let mut screen = made.screen(mode);
        for _ in 0..2 {
            shown(&mut screen, 100, 30);
            press(&mut screen, KeyCode::Enter);
        }
        let before = screen.frame(100, 30).0;
        assert_eq!(text(&screen.without_colours(100, 30)), wanted);
        // What is on the screen stays as it is.
        let (after, scrolls) = screen.frame(100, 30);
        assert!(before == after && scrolls.is_empty(), "{:?}", text(&after));
        assert!(screen.words(30, 8).is_some(), "it can be pointed at");
    }
}
