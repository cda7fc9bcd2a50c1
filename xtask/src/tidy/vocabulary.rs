//! Words that a layer must not use, from the table in `docs/vocabulary.md`.
//!
//! A row reads `| layer | word, word | say instead |`; a layer is a folder of the root. Only code counts: comments may
//! explain what the layer does not know. Words match as whole parts, so `block_table` also catches `BlockTable`.

use crate::{
    rust_text::{has_parts, mask, parts},
    tree::{File, Violation},
};

const DOCUMENT: &str = "docs/vocabulary.md";
const HEADING: &str = "## Words a layer must not use";

/// Uses of a word in a layer that must not know it.
pub fn check(files: &[File]) -> Vec<Violation> {
    let Some(document) = files.iter().find(|f| f.path == DOCUMENT).and_then(|f| f.text.as_deref()) else {
        return vec![Violation::new(DOCUMENT, 0, "missing")];
    };
    let rules = rules(document);
    if rules.is_empty() {
        return vec![Violation::new(DOCUMENT, 0, format!("no table under `{HEADING}`"))];
    }
    let mut violations = Vec::new();
    for file in files {
        let Some(text) = file.rust() else { continue };
        let of_layer: Vec<_> = rules.iter().filter(|r| file.path.starts_with(&format!("{}/", r.layer))).collect();
        if of_layer.is_empty() {
            continue;
        }
        for (number, line) in mask(text).code.lines().enumerate() {
            for rule in of_layer.iter().filter(|r| has_parts(line, &r.parts)) {
                let message = format!("`{}` is no word of {}; say {}", rule.word, rule.layer, rule.instead);
                violations.push(Violation::new(&file.path, number + 1, message));
            }
        }
    }
    violations
}

#[derive(Debug)]
struct Rule {
    layer: String,
    word: String,
    parts: Vec<String>,
    instead: String,
}

fn rules(document: &str) -> Vec<Rule> {
    let section = document.split(HEADING).nth(1).unwrap_or("");
    let section = section.split("\n## ").next().unwrap_or("");
    let mut rules = Vec::new();
    // The first two rows are the titles and the rule under them.
    for line in section.lines().filter(|l| l.starts_with('|')).skip(2) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [layer, words, instead] = cells[..] else { continue };
        for word in words.split(',').map(|w| w.trim().trim_matches('`')).filter(|w| !w.is_empty()) {
            rules.push(Rule {
                layer: layer.trim_matches('`').into(),
                word: word.into(),
                parts: parts(word),
                instead: instead.into(),
            });
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# V\n\n## Words a layer must not use\n\n| layer | words | say |\n|---|---|---|\n\
                         | `server` | `block_table`, `state_slot` | nothing |\n\n## Else\n| `core` | `engine` | x |\n";

    #[test]
    fn catches_a_word_of_another_layer() {
        let files = [
            File::fake(DOCUMENT, TABLE),
            File::fake(
                "server/src/a.rs",
                "struct BlockTable;\n// block_table is not known here\nlet old_state_slot = 1;",
            ),
            File::fake("core/src/a.rs", "let block_table = engine;"),
        ];
        let lines: Vec<_> = check(&files).iter().map(|v| (v.path.clone(), v.line)).collect();
        assert_eq!(lines, [("server/src/a.rs".to_string(), 1), ("server/src/a.rs".to_string(), 3)]);
    }

    #[test]
    fn a_lost_table_is_a_violation() {
        assert_eq!(check(&[File::fake(DOCUMENT, "# V\n")]).len(), 1);
        assert_eq!(check(&[]).len(), 1);
    }
}
