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

/// Send `body` to `path` and read the stream to its end.
pub async fn stream(target: &Target, path: &str, body: &Value, timeout: Duration) -> Result<Sample, String> {
    match tokio::time::timeout(timeout, exchange(target, path, body)).await {
        Ok(result) => result,
        Err(_) => Err(format!("no answer within {} s", timeout.as_secs())),
    }
}

async fn exchange(target: &Target, path: &str, body: &Value) -> Result<Sample, String> {
    let failed = |error: io::Error| format!("{}: {error}", target.authority);
    let start = Instant::now();
    let mut socket = TcpStream::connect(&target.authority).await.map_err(failed)?;
    let _ = socket.set_nodelay(true);
    let body = body.to_string();
    let key = target.api_key.as_ref().map_or(String::new(), |key| format!("Authorization: Bearer {key}\r\n"));
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n{key}Content-Length: {}\r\nConnection: close\r\n\r\n",
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
        let message = rest.split("\r\n\r\n").nth(1).unwrap_or("").trim();
        return Err(format!("status {status}: {message}"));
    }
    read_events(&mut reader, start).await
}

/// Chunk framing lines lie between event lines and do not start with `data:`, so they need no decoding: this server
/// sends each event whole within a chunk.
async fn read_events(reader: &mut BufReader<TcpStream>, start: Instant) -> Result<Sample, String> {
    let mut sample = Sample::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        let count = reader.read_until(b'\n', &mut line).await.map_err(|error| error.to_string())?;
        if count == 0 {
            return Err("the stream ended before [DONE]".into());
        }
        let Some(data) = line.strip_prefix(b"data: ") else { continue };
        if data.trim_ascii() == b"[DONE]" {
            sample.whole = start.elapsed();
            return Ok(sample);
        }
        let event: Value = serde_json::from_slice(data).map_err(|error| format!("bad event: {error}"))?;
        if let Some(error) = event.get("error") {
            return Err(error["message"].as_str().unwrap_or("unknown error").to_owned());
        }
        let choice = &event["choices"][0];
        let texts = [&choice["text"], &choice["delta"]["content"], &choice["delta"]["reasoning_content"]];
        let has_text = texts.iter().any(|text| text.as_str().is_some_and(|text| !text.is_empty()));
        if has_text && sample.first_token.is_none() {
            sample.first_token = Some(start.elapsed());
        }
        if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
            sample.prompt_tokens = usage["prompt_tokens"].as_u64().unwrap_or(0);
            sample.completion_tokens = usage["completion_tokens"].as_u64().unwrap_or(0);
            sample.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
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
}
