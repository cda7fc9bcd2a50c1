//! API keys: compared in constant time, never logged.

use hyper::{HeaderMap, header::AUTHORIZATION};

use super::error::ApiError;

/// Check the bearer token against the accepted keys; no keys, no check.
pub fn check(headers: &HeaderMap, keys: &[String]) -> Result<(), ApiError> {
    if keys.is_empty() {
        return Ok(());
    }
    let sent = headers.get(AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
    let token = match sent.split_at_checked(7) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => token.trim_ascii(),
        _ => return Err(ApiError::unauthorized()),
    };
    // All keys are compared, whichever matches, so that time tells nothing.
    let matched = keys.iter().fold(false, |matched, key| matched | same(key.as_bytes(), token));
    if matched { Ok(()) } else { Err(ApiError::unauthorized()) }
}

/// Equality whose time depends on the length of `sent` alone.
fn same(key: &[u8], sent: &[u8]) -> bool {
    let mut difference = usize::from(key.len() != sent.len());
    for (index, byte) in sent.iter().enumerate() {
        let expected = key.get(index).copied().unwrap_or(0);
        difference |= usize::from(std::hint::black_box(byte ^ expected));
    }
    std::hint::black_box(difference) == 0 && !key.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, value.parse().expect("a header value"));
        headers
    }

    #[test]
    fn only_a_whole_key_matches() {
        let keys = ["secret".to_owned(), "other".to_owned()];
        assert!(check(&with("Bearer secret"), &keys).is_ok());
        assert!(check(&with("bearer other"), &keys).is_ok());
        for wrong in ["Bearer secre", "Bearer secret2", "Bearer ", "Basic secret", "secret", "Bearer Secret"] {
            assert!(check(&with(wrong), &keys).is_err(), "{wrong}");
        }
        assert!(check(&HeaderMap::new(), &keys).is_err());
        assert!(check(&HeaderMap::new(), &[]).is_ok());
        assert!(check(&with("Bearer "), &[String::new()]).is_err());
    }
}
