//! Every Rust source is reachable from a target through `mod`, `#[path]` or `include!`.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
};

use serde_json::Value;

use crate::{
    rust_text::mask,
    tree::{File, Violation},
};

/// Folders whose sources are compiled as programs of their own, outside the workspace.
const PROGRAM_FOLDERS: &[&str] = &["/compile_fail/", "/fixtures/", "/vendor-check/"];

/// The root sources of all targets, relative to the workspace.
pub fn roots(metadata: &Value, root: &Path) -> Vec<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|p| p["targets"].as_array().into_iter().flatten());
    let sources = targets.filter_map(|t| Path::new(t["src_path"].as_str()?).strip_prefix(root).ok());
    sources.map(|p| p.to_string_lossy().into_owned()).collect()
}

/// Sources that no root reaches.
pub fn check(files: &[File], roots: &[String]) -> Vec<Violation> {
    let sources: HashMap<&str, &str> = files.iter().filter_map(|f| Some((f.path.as_str(), f.rust()?))).collect();
    let mut alive: BTreeSet<String> = BTreeSet::new();
    let mut open: Vec<(String, bool)> = roots.iter().map(|r| (r.clone(), true)).collect();
    while let Some((path, is_root)) = open.pop() {
        let Some(text) = sources.get(path.as_str()) else { continue };
        if alive.insert(path.clone()) {
            open.extend(children(&path, text, is_root).into_iter().map(|p| (p, false)));
        }
    }
    let dead = sources.keys().filter(|p| !alive.contains(**p) && !PROGRAM_FOLDERS.iter().any(|f| p.contains(f)));
    let mut dead: Vec<_> =
        dead.map(|p| Violation::new(p, 0, "no `mod` reaches this file: declare or delete it")).collect();
    dead.sort_by(|a, b| a.path.cmp(&b.path));
    dead
}

/// Files that `path` may declare: for `mod x;` both `x.rs` and `x/mod.rs`, inside inline modules too.
fn children(path: &str, text: &str, is_root: bool) -> Vec<String> {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = name.trim_end_matches(".rs");
    let own = if is_root || stem == "mod" { folder.to_string() } else { join(folder, stem) };
    let code = mask(text).code;
    let mut found = Vec::new();
    let mut inline: Vec<(String, usize)> = Vec::new();
    let mut depth = 0;
    let mut previous: [&str; 2] = ["", ""];
    for token in tokens(&code) {
        match token {
            "{" => {
                depth += 1;
                if previous[0] == "mod" {
                    inline.push((previous[1].to_string(), depth));
                }
            }
            "}" => {
                inline.retain(|(_, at)| *at < depth);
                depth = depth.saturating_sub(1);
            }
            ";" if previous[0] == "mod" => {
                let base = inline.iter().fold(own.clone(), |base, (name, _)| join(&base, name));
                found.push(join(&base, &format!("{}.rs", previous[1])));
                found.push(join(&base, &format!("{}/mod.rs", previous[1])));
            }
            _ => {}
        }
        previous = [previous[1], token];
    }
    for marker in ["#[path = \"", "include!(\""] {
        for rest in text.split(marker).skip(1) {
            if let Some((relative, _)) = rest.split_once('"') {
                found.push(normal(&join(folder, relative)));
            }
        }
    }
    found
}

fn tokens(code: &str) -> impl Iterator<Item = &str> {
    code.split_inclusive(|c: char| !(c.is_alphanumeric() || c == '_')).flat_map(|piece| {
        let split = piece.char_indices().next_back().filter(|(_, c)| !(c.is_alphanumeric() || *c == '_'));
        let at = split.map_or(piece.len(), |(at, _)| at);
        [&piece[..at], piece[at..].trim()].into_iter().filter(|t| !t.is_empty())
    })
}

fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.into() } else { format!("{folder}/{name}") }
}

fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn catches_a_file_without_mod() {
        let files = [
            File::fake(
                "core/src/lib.rs",
                "pub mod a;\nmod b { pub mod inner; }\n// mod lost;\n#[path = \"../x/odd.rs\"]\nmod odd;",
            ),
            File::fake("core/src/a.rs", "mod deep;"),
            File::fake("core/src/a/deep.rs", ""),
            File::fake("core/src/b/inner/mod.rs", ""),
            File::fake("core/x/odd.rs", ""),
            File::fake("core/src/lost.rs", ""),
            File::fake("tests/compile_fail/use_after_free.rs", ""),
        ];
        let found = check(&files, &["core/src/lib.rs".into()]);
        assert_eq!(found.iter().map(|v| v.path.as_str()).collect::<Vec<_>>(), ["core/src/lost.rs"]);
    }
}
