//! Long texts are cut before anything else, as the published tokenizer cuts them, so that ids agree there too.
//!
//! The reference hands its encoder at most 400,000 characters at a time, and within those no more than 25,000 characters
//! in a row that are all white space or all not. A cut stops merges across it, so the cuts are part of the format.
//! White space here is Python's `str.isspace`.

const CHARS_MAX: usize = 400_000;
const RUN_CHARS_MAX: usize = 25_000;

fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// The slices of a text; none is empty.
pub(crate) fn slices(text: &str) -> Vec<&str> {
    // Both limits count characters, of which there are at most as many as bytes.
    if text.len() <= RUN_CHARS_MAX {
        return if text.is_empty() { Vec::new() } else { vec![text] };
    }
    let mut cuts = vec![0];
    let (mut count, mut run, mut in_space) = (0, 0, false);
    for (at, c) in text.char_indices() {
        let space = is_space(c);
        if count == CHARS_MAX {
            cuts.push(at);
            (count, run, in_space) = (0, 0, space);
        }
        count += 1;
        if run > 0 && space != in_space {
            run = 1;
        } else {
            run += 1;
            if run > RUN_CHARS_MAX {
                cuts.push(at);
                run = 1;
            }
        }
        in_space = space;
    }
    cuts.push(text.len());
    cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_lengths_are_cut_where_the_reference_cuts() {
        let lengths = |text: &str| slices(text).iter().map(|slice| slice.chars().count()).collect::<Vec<_>>();
        assert_eq!(lengths(&"é".repeat(60_000)), [25_000, 25_000, 10_000]);
        assert_eq!(lengths(&format!("{}{}", "a".repeat(25_000), " ".repeat(25_001))), [50_000, 1]);
        assert_eq!(lengths(&"ab ".repeat(200_000)), [400_000, 200_000]);
        assert_eq!(lengths(&format!("{}\u{1c}{}", " ".repeat(20_000), " ".repeat(20_000))), [25_000, 15_001]);
        assert_eq!(lengths(&"a".repeat(400_001)).len(), 17);
        assert!(slices("").is_empty());
    }
}
