//! Links go to public, well-known places: an internal mirror or somebody's server must not slip into a committed file.

use crate::tree::{File, Violation};

/// A host is fine if it is one of these or a subdomain of one.
const KNOWN: &[&str] = &[
    "github.com",
    "crates.io",
    "docs.rs",
    "rust-lang.org",
    "pypi.org",
    "python.org",
    "huggingface.co",
    "arxiv.org",
    "apache.org",
    "opensource.org",
    "openai.com",
    "opencompute.org",
    "json-schema.org",
    "prometheus.io",
    "unicode.org",
    "w3.org",
    "ietf.org",
    "rfc-editor.org",
    "wikipedia.org",
    "example.com",
    "example.org",
    "localhost",
    "127.0.0.1",
    "0.0.0.0",
];

/// Links to hosts that are not on the list.
pub fn check(files: &[File]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files {
        let Some(text) = &file.text else { continue };
        for (number, line) in text.lines().enumerate() {
            for host in hosts(line).filter(|h| !is_known(h)) {
                let message = format!("`{host}` is not among the known hosts of xtask/src/tidy/url_hosts.rs");
                violations.push(Violation::new(&file.path, number + 1, message));
            }
        }
    }
    violations
}

fn hosts(line: &str) -> impl Iterator<Item = &str> {
    line.split("://").skip(1).map(|rest| {
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "-._@".contains(c))).unwrap_or(rest.len());
        let host = &rest[..end];
        host.rsplit_once('@').map_or(host, |(_, host)| host).trim_end_matches('.')
    })
}

fn is_known(host: &str) -> bool {
    // A format string (`http://{address}`) leaves no host, and one without a dot is no public name.
    host.is_empty()
        || !host.contains('.')
        || KNOWN.iter().any(|k| host == *k || host.strip_suffix(k).is_some_and(|h| h.ends_with('.')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn catches_an_unknown_host() {
        // Put together here, so that this file itself stays clean.
        let mirror = ["https:", "//mirror.corp.internal/simple"].concat();
        let user = ["http:", "//me:secret@10.1.2.3/"].concat();
        assert_eq!(check(&[File::fake("README.md", &mirror)]).len(), 1);
        assert_eq!(check(&[File::fake("README.md", &["see ", "ftp:", "//notgithub.com/x"].concat())]).len(), 1);
        assert_eq!(check(&[File::fake("a.toml", &user)]).len(), 0, "a colon ends the host: `me` has no dot");
        assert_eq!(check(&[File::fake("README.md", "https://static.crates.io/a http://127.0.0.1:80 http://{a}")]), []);
    }
}
