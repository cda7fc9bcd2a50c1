//! Which crate may depend on which, read from `cargo metadata`.
//!
//! Normal and build dependencies follow the table below. Development dependencies may add the two vendor-neutral
//! backends, so that `core` can be tested on real arithmetic.

use serde_json::Value;

use crate::tree::Violation;

const NEUTRAL_BACKENDS: &[&str] = &["tokenspeed-reference-cpu", "tokenspeed-null"];
const API: &str = "tokenspeed-backend-api";

/// Workspace crates that the crate in `folder` may use; `None` = no limit.
fn allowed(folder: &str) -> Option<Vec<String>> {
    let names = |list: &[&str]| Some(list.iter().map(|s| s.to_string()).collect::<Vec<_>>());
    match folder {
        "backend-api" => names(&[]),
        // The task runner prints documents from the op catalogue.
        "core" | "models" | "xtask" => names(&[API]),
        "server" => names(&[&[API, "tokenspeed-core", "tokenspeed-models"], NEUTRAL_BACKENDS].concat()),
        "tests" => None,
        backend => {
            let backend = backend.strip_prefix("backends/")?;
            // A plugin is the thin shared library around the backend in its parent folder.
            match backend.strip_suffix("/plugin") {
                Some(parent) => Some(vec![API.into(), format!("tokenspeed-{parent}")]),
                None => names(&[API]),
            }
        }
    }
}

/// Checks every member of the workspace.
pub fn check(metadata: &Value) -> Vec<Violation> {
    let root = metadata["workspace_root"].as_str().unwrap_or_default();
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let members: Vec<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    let mut violations = Vec::new();
    for package in packages {
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        let manifest = manifest.strip_prefix(root).unwrap_or(manifest).trim_start_matches('/');
        let Some(allowed) = allowed(manifest.strip_suffix("/Cargo.toml").unwrap_or(manifest)) else { continue };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let name = dependency["name"].as_str().unwrap_or_default();
            let development = dependency["kind"].as_str() == Some("dev");
            let fine = !members.contains(&name)
                || allowed.iter().any(|a| a == name)
                || development && NEUTRAL_BACKENDS.contains(&name);
            if !fine {
                let list = if allowed.is_empty() { "no workspace crate".into() } else { allowed.join(", ") };
                violations.push(Violation::new(manifest, 0, format!("may depend on {list}, not on {name}")));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn workspace(folder: &str, name: &str, dependency: &str, kind: Option<&str>) -> Value {
        let other =
            |n: &str| json!({"name": n, "manifest_path": format!("/w/tests/{n}/Cargo.toml"), "dependencies": []});
        json!({"workspace_root": "/w", "packages": [
            {"name": name, "manifest_path": format!("/w/{folder}/Cargo.toml"),
             "dependencies": [{"name": dependency, "kind": kind}, {"name": "serde", "kind": null}]},
            other("tokenspeed-core"), other("tokenspeed-models"), other("tokenspeed-backend-api"),
            other("tokenspeed-null"), other("tokenspeed-amd-gfx950")]})
    }

    #[test]
    fn catches_each_forbidden_edge() {
        for (folder, name, dependency) in [
            ("backend-api", "a", "tokenspeed-core"),
            ("core", "a", "tokenspeed-models"),
            ("models", "a", "tokenspeed-core"),
            ("core", "a", "tokenspeed-null"),
            ("server", "a", "tokenspeed-amd-gfx950"),
            ("backends/null", "a", "tokenspeed-core"),
            ("backends/null/plugin", "a", "tokenspeed-amd-gfx950"),
            ("xtask", "a", "tokenspeed-core"),
        ] {
            let found = check(&workspace(folder, name, dependency, None));
            assert_eq!(found.len(), 1, "{folder} -> {dependency}");
            assert!(found[0].message.contains(dependency), "{}", found[0]);
        }
    }

    #[test]
    fn allows_the_layout() {
        for (folder, dependency, kind) in [
            ("core", "tokenspeed-backend-api", None),
            ("server", "tokenspeed-core", None),
            ("backends/null/plugin", "tokenspeed-null", None),
            ("core", "tokenspeed-null", Some("dev")),
            ("tests", "tokenspeed-amd-gfx950", None),
        ] {
            assert_eq!(check(&workspace(folder, "a", dependency, kind)), [], "{folder} -> {dependency}");
        }
    }
}
