//! A client for one streamed request over HTTP/1.1: just enough to measure our own and similar servers.

use std::{
    io,
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

use super::report::Sample;

/// Where to send requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// host:port
    pub authority: String,
    /// For `Authorization`.
    pub api_key: Option<String>,
}

impl Target {
    /// From `http://host:port`, a trailing slash or `/v1` allowed.
    pub fn parse(url: &str, api_key: Option<String>) -> Result<Self, String> {
        let rest = url.strip_prefix("http://").ok_or("must start with http:// (there is no TLS in this client)")?;
        let authority = rest.trim_end_matches('/').trim_end_matches("/v1");
        if authority.is_empty() || authority.contains('/') || authority.chars().any(char::is_whitespace) {
            return Err("must look like http://host:port".into());
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:80") };
        Ok(Self { authority, api_key })
    }
}

/// A streamed answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// Times and counts.
    pub sample: Sample,
    /// All its text.
    pub text: String,
    /// Token ids of the answer, from servers that tell them (`return_token_ids`).
    pub ids: Option<Vec<u32>>,
    /// The server sent usage figures.
    pub has_usage: bool,
    /// They say how many prompt tokens were cached.
    pub has_cached: bool,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The server refused the request; it would refuse it again.
    #[error("status {status}: {message}")]
    Refused {
        /// HTTP status, not 200.
        status: String,
        /// Its body.
        message: String,
    },
    /// No connection, no answer in time, or a broken one.
    #[error("{0}")]
    Failed(String),
}

/// Send `body` to `path` and read the stream to its end.
pub async fn stream(target: &Target, path: &str, body: &Value, timeout: Duration) -> Result<Sample, String> {
    let reply = stream_reply(target, path, body, timeout).await;
    reply.map(|reply| reply.sample).map_err(|error| error.to_string())
}

/// The same with what was answered.
pub async fn stream_reply(target: &Target, path: &str, body: &Value, timeout: Duration) -> Result<Reply, ClientError> {
    let exchange = async {
        let start = Instant::now();
        let mut reader = send(target, "POST", path, Some(body)).await?;
        read_events(&mut reader, start).await.map_err(ClientError::Failed)
    };
    in_time(timeout, exchange).await
}

/// Send a request and read its JSON answer.
pub async fn call(
    target: &Target,
    method: &str,
    path: &str,
    body: Option<&Value>,
    timeout: Duration,
) -> Result<Value, ClientError> {
    let exchange = async {
        let mut reader = send(target, method, path, body).await?;
        let (is_chunked, mut body) = (read_head(&mut reader).await?, Vec::new());
        reader.read_to_end(&mut body).await.map_err(|error| ClientError::Failed(error.to_string()))?;
        let body = if is_chunked { unchunked(&body) } else { Some(body) };
        let value = body.and_then(|body| serde_json::from_slice(&body).ok());
        value.ok_or_else(|| ClientError::Failed(format!("{path}: the answer is not JSON")))
    };
    in_time(timeout, exchange).await
}

async fn in_time<T>(
    timeout: Duration,
    exchange: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    let late = |_| ClientError::Failed(format!("no answer within {} s", timeout.as_secs()));
    tokio::time::timeout(timeout, exchange).await.map_err(late)?
}

/// Send a request and read the status line; only 200 goes on.
async fn send(
    target: &Target,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<BufReader<TcpStream>, ClientError> {
    let failed = |error: io::Error| ClientError::Failed(format!("{}: {error}", target.authority));
    let mut socket = TcpStream::connect(&target.authority).await.map_err(failed)?;
    let _ = socket.set_nodelay(true);
    let body = body.map(Value::to_string).unwrap_or_default();
    let key = target.api_key.as_ref().map_or(String::new(), |key| format!("Authorization: Bearer {key}\r\n"));
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n{key}Content-Length: {}\r\nConnection: close\r\n\r\n",
        target.authority,
        body.len()
    );
    socket.write_all(head.as_bytes()).await.map_err(failed)?;
    socket.write_all(body.as_bytes()).await.map_err(failed)?;
    let mut reader = BufReader::new(socket);
    let mut line = String::new();
    reader.read_line(&mut line).await.map_err(failed)?;
    let status = line.split_whitespace().nth(1).unwrap_or("").to_owned();
    if status != "200" {
        let mut rest = String::new();
        let _ = reader.read_to_string(&mut rest).await;
        let message = rest.split("\r\n\r\n").nth(1).unwrap_or("").trim().to_owned();
        return Err(ClientError::Refused { status, message });
    }
    Ok(reader)
}

/// Skip the header; true if the body comes in chunks.
async fn read_head(reader: &mut BufReader<TcpStream>) -> Result<bool, ClientError> {
    let mut is_chunked = false;
    let mut line = String::new();
    loop {
        line.clear();
        let count = reader.read_line(&mut line).await.map_err(|error| ClientError::Failed(error.to_string()))?;
        let text = line.trim().to_ascii_lowercase();
        if count == 0 || text.is_empty() {
            return Ok(is_chunked);
        }
        is_chunked |= text.strip_prefix("transfer-encoding:").is_some_and(|value| value.contains("chunked"));
    }
}

/// A body without its chunk framing; `None` if that is broken.
fn unchunked(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::with_capacity(body.len());
    loop {
        let end = body.windows(2).position(|two| two == b"\r\n")?;
        let size = std::str::from_utf8(&body[..end]).ok()?.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(whole);
        }
        let from = end + 2;
        let to = from.checked_add(size)?;
        whole.extend_from_slice(body.get(from..to)?);
        body = body.get(to.checked_add(2)?..)?;
    }
}

/// Chunk framing lines lie between event lines and do not start with `data:`, so they need no decoding: this server
/// sends each event whole within a chunk.
async fn read_events(reader: &mut BufReader<TcpStream>, start: Instant) -> Result<Reply, String> {
    let mut reply = Reply::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        let count = reader.read_until(b'\n', &mut line).await.map_err(|error| error.to_string())?;
        if count == 0 {
            return Err("the stream ended before [DONE]".into());
        }
        let Some(data) = line.strip_prefix(b"data: ") else { continue };
        if data.trim_ascii() == b"[DONE]" {
            reply.sample.whole = start.elapsed();
            return Ok(reply);
        }
        let event: Value = serde_json::from_slice(data).map_err(|error| format!("bad event: {error}"))?;
        if let Some(error) = event.get("error") {
            return Err(error["message"].as_str().unwrap_or("unknown error").to_owned());
        }
        let choice = &event["choices"][0];
        for text in [&choice["text"], &choice["delta"]["reasoning_content"], &choice["delta"]["content"]] {
            if let Some(text) = text.as_str().filter(|text| !text.is_empty()) {
                reply.sample.first_token.get_or_insert_with(|| start.elapsed());
                reply.text.push_str(text);
            }
        }
        if let Some(ids) = choice["token_ids"].as_array() {
            let ids = ids.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok());
            reply.ids.get_or_insert_default().extend(ids);
        }
        if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
            let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
            reply.sample.prompt_tokens = usage["prompt_tokens"].as_u64().unwrap_or(0);
            reply.sample.completion_tokens = usage["completion_tokens"].as_u64().unwrap_or(0);
            reply.sample.cached_tokens = cached.unwrap_or(0);
            (reply.has_usage, reply.has_cached) = (true, cached.is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let authority = |url: &str| Target::parse(url, None).map(|target| target.authority);
        assert_eq!(authority("http://127.0.0.1:8000/v1/").as_deref(), Ok("127.0.0.1:8000"));
        assert_eq!(authority("http://host").as_deref(), Ok("host:80"));
        assert_eq!(authority("http://[::1]:9").as_deref(), Ok("[::1]:9"));
        assert!(authority("https://host").is_err());
        assert!(authority("http://").is_err());
        assert!(authority("http://host/other").is_err());
    }

    #[test]
    fn chunks_are_joined() {
        assert_eq!(unchunked(b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n").as_deref(), Some(&b"abc0123456789"[..]));
        for broken in [&b""[..], b"3\r\nab", b"x\r\n", b"ffffffffffffffff\r\na\r\n", b"1\r\na\r\n"] {
            assert_eq!(unchunked(broken), None, "{broken:?}");
        }
    }
}
