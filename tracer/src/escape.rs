//! Text that came from elsewhere, made safe to show.
//!
//! Device names, process names and namespace names are chosen by whoever owns them. Shown as they are, they could
//! move the cursor, recolour the screen, forge a line of the report or reverse its order. Whatever could do that is
//! shown as `\u{…}` instead; the backslash is doubled, so that nobody can fake an escape either.

use std::fmt::{self, Write};

/// Displays a string with everything escaped that is not plain visible text.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '\\' => f.write_str("\\\\")?,
                _ if is_harmful(character) => write!(f, "{}", character.escape_unicode())?,
                _ => f.write_char(character)?,
            }
        }
        Ok(())
    }
}

/// The string with everything escaped that is not plain visible text.
pub fn escape(text: &str) -> String {
    Escaped(text).to_string()
}

/// Whether a character acts on the terminal or on its neighbours instead of being seen: controls (C0, DEL, C1),
/// line and paragraph separators, bidirectional controls, invisible and formatting characters, blanks that look
/// like a space and are none, combining marks that pile up, private use and noncharacters.
pub fn is_harmful(character: char) -> bool {
    character.is_control()
        || (character.is_whitespace() && character != ' ')
        || matches!(
            u32::from(character),
            0x00ad                  // soft hyphen
                | 0x0300..=0x036f   // combining marks
                | 0x061c            // Arabic letter mark
                | 0x115f..=0x1160   // Hangul fillers
                | 0x17b4..=0x17b5   // Khmer invisible vowels
                | 0x180b..=0x180f   // Mongolian variation selectors
                | 0x200b..=0x200f   // zero width, direction marks
                | 0x202a..=0x202e   // embeddings and overrides
                | 0x2060..=0x206f   // word joiner, isolates
                | 0x2800            // blank Braille
                | 0x3164            // Hangul filler
                | 0xe000..=0xf8ff   // private use
                | 0xfe00..=0xfe0f   // variation selectors
                | 0xfeff            // byte order mark
                | 0xffa0            // halfwidth Hangul filler
                | 0xfff0..=0xfffb   // interlinear annotation
                | 0xfffe..=0xffff   // noncharacters
                | 0x1_d173..=0x1_d17a // musical formatting
                | 0xe_0000..=0x10_ffff // tags, variation selectors, private use
        )
}

#[cfg(test)]
mod tests {
    use super::escape;
    use proptest::prelude::*;

    #[track_caller]
    fn check(input: &str, expect: &str) {
        assert_eq!(escape(input), expect);
    }

    #[test]
    fn plain_names_stay() {
        check("cilium_wg0", "cilium_wg0");
        check("kube-proxy: café 東京 →", "kube-proxy: café 東京 →");
    }

    #[test]
    fn terminal_sequences_are_shown_not_obeyed() {
        check("\x1b[2J", "\\u{1b}[2J");
        check("a\u{9b}31m", "a\\u{9b}31m");
        check("a\r\nproven", "a\\u{d}\\u{a}proven");
        check("\u{7f}\0\x07", "\\u{7f}\\u{0}\\u{7}");
    }

    #[test]
    fn order_and_visibility_cannot_be_changed() {
        check("\u{202e}0gw", "\\u{202e}0gw");
        check("a\u{2066}b\u{2069}", "a\\u{2066}b\\u{2069}");
        check("et\u{200b}h0", "et\\u{200b}h0");
        check("\u{feff}\u{2028}\u{a0}", "\\u{feff}\\u{2028}\\u{a0}");
        check("\u{e0041}", "\\u{e0041}");
    }

    #[test]
    fn an_escape_cannot_be_forged() {
        check("\\u{202e}", "\\\\u{202e}");
    }

    proptest! {
        #[test]
        fn what_is_shown_is_harmless_and_tells_inputs_apart(a in any::<String>(), b in any::<String>()) {
            prop_assert!(!escape(&a).chars().any(super::is_harmful));
            prop_assert_eq!(a == b, escape(&a) == escape(&b));
        }
    }
}
