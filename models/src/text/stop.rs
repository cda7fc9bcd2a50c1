//! Stop strings over a text stream.
//!
//! Text is held back only while it is a real prefix of a stop string (a Knuth-Morris-Pratt state per string, O(1)
//! amortised per byte), so nothing of a stop string is ever sent and nothing else waits. The match that ends first
//! wins, and of those the one that starts first: the answer then does not depend on how tokens cut the text.
//! An empty stop string is refused (it matches everywhere); no stop strings at all is fine.

/// A stop string cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stop: entry {index} is empty; an empty stop string would match everywhere")]
pub struct EmptyStop {
    /// Position in the list.
    pub index: usize,
}

/// Looks for one string in a stream of bytes.
#[derive(Clone, Debug)]
pub(crate) struct Needle {
    text: String,
    /// For each matched length, the length of the longest proper border.
    border: Vec<usize>,
    matched: usize,
}

impl Needle {
    pub(crate) fn new(text: &str) -> Self {
        let bytes = text.as_bytes();
        assert!(!bytes.is_empty(), "an empty needle would match everywhere");
        let mut border = vec![0; bytes.len() + 1];
        let mut length = 0;
        for at in 1..bytes.len() {
            while length > 0 && bytes[at] != bytes[length] {
                length = border[length];
            }
            length += usize::from(bytes[at] == bytes[length]);
            border[at + 1] = length;
        }
        Self { text: text.to_owned(), border, matched: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// How many of the last bytes may yet turn out to begin the string.
    pub(crate) fn open(&self) -> usize {
        if self.matched == self.len() { self.border[self.matched] } else { self.matched }
    }

    /// Feed one byte; true when it completes the string.
    pub(crate) fn feed(&mut self, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        if self.matched == bytes.len() {
            self.matched = self.border[self.matched];
        }
        while self.matched > 0 && bytes[self.matched] != byte {
            self.matched = self.border[self.matched];
        }
        self.matched += usize::from(bytes[self.matched] == byte);
        self.matched == bytes.len()
    }
}

/// What a push gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopOutput {
    /// Text that can be sent now.
    pub text: String,
    /// Index of the stop string that was found, if one was; the stream ends here.
    pub stopped_by: Option<usize>,
}

/// Cuts a stream at the first stop string.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    needles: Vec<Needle>,
    /// Keep the stop string in the text.
    include: bool,
    held: String,
    stopped: bool,
}

impl StopMatcher {
    /// For these stop strings. `include`: the text ends with the stop string instead of before it.
    pub fn new<S: AsRef<str>>(stops: &[S], include: bool) -> Result<Self, EmptyStop> {
        if let Some(index) = stops.iter().position(|stop| stop.as_ref().is_empty()) {
            return Err(EmptyStop { index });
        }
        let needles = stops.iter().map(|stop| Needle::new(stop.as_ref())).collect();
        Ok(Self { needles, include, held: String::new(), stopped: false })
    }

    /// Add the text of one token. `may_stop`: false while fewer than `min_tokens` tokens were generated, this one
    /// included; a stop string completed by such a token is ordinary text.
    pub fn push(&mut self, text: &str, may_stop: bool) -> StopOutput {
        if self.stopped {
            return StopOutput::default();
        }
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            // The longest of those that end here starts first.
            let mut found: Option<(usize, usize)> = None;
            for (index, needle) in self.needles.iter_mut().enumerate() {
                if needle.feed(byte) && found.is_none_or(|(length, _)| needle.len() > length) {
                    found = Some((needle.len(), index));
                }
            }
            if let (Some((length, index)), true) = (found, may_stop) {
                self.held.push_str(&text[..=at]);
                let keep = if self.include { self.held.len() } else { self.held.len() - length };
                self.held.truncate(keep);
                self.stopped = true;
                return StopOutput { text: std::mem::take(&mut self.held), stopped_by: Some(index) };
            }
        }
        self.held.push_str(text);
        let keep = self.needles.iter().map(Needle::open).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        StopOutput { text: std::mem::replace(&mut self.held, rest), stopped_by: None }
    }

    /// The stream ended otherwise: the text still held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, Option<usize>) {
        let mut matcher = StopMatcher::new(stops, false).unwrap();
        let mut sent = Vec::new();
        for piece in pieces {
            let out = matcher.push(piece, true);
            sent.push(out.text);
            if out.stopped_by.is_some() {
                return (sent, out.stopped_by);
            }
        }
        sent.push(matcher.finish());
        (sent, None)
    }

    const GREEK: &[&str] = &["alpha b", "eta ga", "mma delta"];

    #[test]
    fn stop_string_spanning_tokens_is_never_sent_in_part() {
        assert_eq!(run(&["beta gamma"], GREEK), (vec!["alpha ".into(), "".into(), "".into()], Some(0)));
    }

    #[test]
    fn stop_string_inside_one_token_or_over_all_of_them_is_found() {
        let joined = |stops: &[&str]| run(stops, GREEK).0.concat();
        assert_eq!(joined(&["mma"]), "alpha beta ga");
        assert_eq!(joined(&["zzz", "eta g"]), "alpha b");
        assert_eq!(joined(&["alpha beta gamma delta"]), "");
    }

    #[test]
    fn stop_string_leaking_only_a_real_prefix_is_held_back() {
        let (sent, stopped) = run(&["a stop string of forty-odd characters ......"], GREEK);
        assert_eq!(sent, ["alpha b", "eta g", "amma delt", "a"]);
        assert_eq!(stopped, None);
    }

    #[test]
    fn empty_stop_string_is_refused_and_no_stop_strings_stop_nothing() {
        assert_eq!(StopMatcher::new(&["gamma", ""], false).unwrap_err(), EmptyStop { index: 1 });
        assert!(EmptyStop { index: 1 }.to_string().starts_with("stop:"));
        assert_eq!(run(&[], GREEK).0, ["alpha b", "eta ga", "mma delta", ""]);
    }

    #[test]
    fn min_tokens_makes_an_early_stop_string_ordinary_text() {
        let mut matcher = StopMatcher::new(&["ab"], true).unwrap();
        assert_eq!(matcher.push("xa", false).text, "x");
        assert_eq!(matcher.push("b", false), StopOutput { text: "ab".into(), stopped_by: None });
        assert_eq!(matcher.push("yabz", true), StopOutput { text: "yab".into(), stopped_by: Some(0) });
        assert_eq!(matcher.push("more", true), StopOutput::default());
    }

    /// The definition: first end wins, then the first start.
    fn naive(stops: &[String], text: &str) -> Option<(usize, usize)> {
        (1..=text.len()).find_map(|end| {
            let ends = stops.iter().filter(|stop| text.as_bytes()[..end].ends_with(stop.as_bytes()));
            ends.map(|stop| (end - stop.len(), end)).min()
        })
    }

    #[test]
    fn every_cut_gives_the_same_text_and_agrees_with_the_definition() {
        let mut state = 7u64;
        let mut random = move |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        for _ in 0..2000 {
            let mut word = |n: u64| -> String { (0..n).map(|_| ['a', 'b', 'é'][random(3) as usize]).collect() };
            let stops = [word(3), word(2), word(5)];
            let text = word(14);
            let expected = naive(&stops, &text);
            let visible = &text[..expected.map_or(text.len(), |(start, _)| start)];
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            for &a in &places {
                for &b in places.iter().filter(|&&b| b >= a) {
                    let (sent, stopped) = run(&stops, &[&text[..a], &text[a..b], &text[b..]]);
                    assert_eq!(
                        (sent.concat().as_str(), stopped.is_some()),
                        (visible, expected.is_some()),
                        "{stops:?} {text}"
                    );
                }
            }
        }
    }
}
