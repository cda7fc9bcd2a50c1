//! Prints how long the Rust files are. Printed and not enforced: a number in a build log keeps people honest without
//! inviting them to cut a file at a line count.

use crate::tree::File;

const LISTED: usize = 10;

/// Median and the largest files, in lines.
pub fn summary(files: &[File]) -> String {
    let mut sizes: Vec<(usize, &str)> =
        files.iter().filter_map(|f| Some((f.rust()?.lines().count(), f.path.as_str()))).collect();
    sizes.sort_by(|a, b| b.cmp(a));
    let median = sizes.get(sizes.len() / 2).map_or(0, |s| s.0);
    let mut text = format!("{} Rust files, median {median} lines; the largest:", sizes.len());
    for (lines, path) in sizes.iter().take(LISTED) {
        text += &format!("\n  {lines:5} {path}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_the_largest_first() {
        let files = [
            File::fake("a.rs", "1\n2\n3"),
            File::fake("b.rs", "1"),
            File::fake("c.rs", "1\n2"),
            File::fake("d.md", "1"),
        ];
        let text = summary(&files);
        assert!(text.starts_with("3 Rust files, median 2 lines"), "{text}");
        assert!(text.find("a.rs") < text.find("c.rs") && !text.contains("d.md"), "{text}");
    }
}
