//! Text as a tokenizer for words needs it: scripts that are written without spaces get one around each character, and an emoji becomes a
//! word. Documents and queries go through the same function, so a word of two Chinese characters is found as a phrase of two.

use std::fmt::Write as _;

/// The segmented text.
pub fn segmented(text: &str) -> String {
    let mut found = String::with_capacity(text.len() + text.len() / 8);
    for character in text.chars() {
        match character {
            // Variation selectors and the joiner of emojis.
            '\u{fe0e}' | '\u{fe0f}' | '\u{200d}' => {}
            _ if is_unspaced(character) => {
                found.push(' ');
                found.push(character);
                found.push(' ');
            }
            _ if is_pictograph(character) => {
                // Writing to a string can't fail.
                _ = write!(found, " u{:x} ", u32::from(character));
            }
            _ => found.push(character),
        }
    }
    found
}

/// Whether a segmented text has anything that a tokenizer for words finds.
pub fn has_words(segmented: &str) -> bool {
    segmented.chars().any(char::is_alphanumeric)
}

/// Whether a character belongs to a script that is written without spaces: Chinese, Japanese, Thai, Lao, Khmer, Burmese.
fn is_unspaced(character: char) -> bool {
    character.is_alphabetic()
        && matches!(u32::from(character),
            0x0e00..=0x0eff | 0x1000..=0x109f | 0x1780..=0x17ff | 0x3040..=0x30ff | 0x31f0..=0x31ff
            | 0x3400..=0x4dbf | 0x4e00..=0x9fff | 0xf900..=0xfaff | 0xff66..=0xff9f | 0x2_0000..=0x3_ffff)
}

/// Whether a character is an emoji or a similar symbol.
fn is_pictograph(character: char) -> bool {
    matches!(u32::from(character), 0x2190..=0x21ff | 0x2300..=0x23ff | 0x25a0..=0x27bf | 0x2900..=0x297f | 0x2b00..=0x2bff | 0x1_f000..=0x1_faff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ideographs_and_emojis_become_words_and_other_text_stays() {
        assert_eq!(segmented("漢字 ok"), " 漢  字  ok");
        assert_eq!(segmented("a🎉b"), "a u1f389 b");
        assert_eq!(segmented("❤️"), " u2764 ");
        let plain = "Grüezi, мир: fn main() -> 한국어 20°";
        assert_eq!(segmented(plain), plain);
        assert!(has_words(&segmented("🎉")) && has_words("x") && !has_words(&segmented("\" + ()")));
    }
}
