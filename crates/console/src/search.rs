//! Search in live tables: only lines with the text typed after `/` are shown.

use crossterm::event::KeyCode;

/// Text that shown lines contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// The text. Empty if nothing is searched for.
    pub text: String,
    /// True while keys go into the text.
    pub typing: bool,
}

impl Search {
    /// Handles a key while typing. Returns true if it was used.
    pub fn key(&mut self, code: KeyCode) -> bool {
        match code {
            KeyCode::Char(c) => self.text.push(c),
            KeyCode::Backspace => {
                self.text.pop();
            }
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.text.clear();
            }
            _ => return false,
        }
        true
    }
}
