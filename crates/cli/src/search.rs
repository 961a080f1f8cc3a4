//! The search of live tables: shown are lines that contain what the user types after `/`.

use crossterm::event::KeyCode;

/// Text that lines must contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Search {
    pub(crate) text: String,
    /// Keys go into the text.
    pub(crate) typing: bool,
}

impl Search {
    /// Takes a key while typing; whether it meant something.
    pub(crate) fn key(&mut self, code: KeyCode) -> bool {
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
