//! A client that writes bytes and reads bytes, so that tests see the wire and not a library's view of it.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;

/// A response, read to its end.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("the body is UTF-8")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn header(&self, name: &str) -> Option<String> {
        let prefix = format!("{}:", name.to_ascii_lowercase());
        let line = self.head.lines().find(|line| line.to_ascii_lowercase().starts_with(&prefix))?;
        Some(line[prefix.len()..].trim().to_owned())
    }

    /// The `error` object, whose shape is checked.
    pub fn error(&self) -> Value {
        let json = self.json();
        let error = json.get("error").unwrap_or_else(|| panic!("no error in {json}")).clone();
        for key in ["message", "type", "param", "code"] {
            assert!(error.get(key).is_some(), "no {key} in {error}");
        }
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()));
        error
    }

    /// Refused with this status, about this parameter.
    pub fn assert_refused(&self, status: u16, param: &str) {
        let error = self.error();
        assert_eq!(self.status, status, "{error}");
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().is_some_and(|message| message.contains(param)), "{error}");
    }
}

pub fn post(address: SocketAddr, path: &str, body: &str) -> Reply {
    request(address, "POST", path, &[("Content-Type", "application/json")], body.as_bytes())
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).expect("connected");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
    socket
}

pub fn head(method: &str, path: &str, headers: &[(&str, &str)], length: usize) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if length > 0 || method == "POST" {
        head.push_str(&format!("Content-Length: {length}\r\n"));
    }
    head + "\r\n"
}

pub fn request(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
    let mut socket = connect(address);
    socket.write_all(head(method, path, headers, body.len()).as_bytes()).expect("sent");
    // The server may answer and close before it has read a body it refuses.
    let _ = socket.write_all(body);
    read_reply(&mut socket)
}

/// Read to the end of the connection.
pub fn read_reply(socket: &mut TcpStream) -> Reply {
    let mut bytes = Vec::new();
    // A reset after the answer (unread body) still leaves the answer.
    let _ = socket.read_to_end(&mut bytes);
    parse(&bytes)
}

pub fn parse(bytes: &[u8]) -> Reply {
    let split = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let split = split.unwrap_or_else(|| panic!("no response head in {:?}", String::from_utf8_lossy(bytes)));
    let head = String::from_utf8(bytes[..split].to_vec()).expect("an ASCII head");
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let mut body = bytes[split + 4..].to_vec();
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        body = dechunk(&body);
    }
    Reply { status, head, body }
}

fn dechunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..end]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
        let size = size.expect("a chunk size");
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&bytes[end + 2..end + 2 + size]);
        bytes = &bytes[end + 2 + size + 2..];
    }
    panic!("the stream was cut: {:?}", String::from_utf8_lossy(&body));
}

/// The events of a stream that ended with `[DONE]`. Every data line must be a chunk or an error.
pub fn events(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(reply.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")));
    let text = reply.text();
    let mut blocks: Vec<&str> = text.split_terminator("\n\n").collect();
    assert_eq!(blocks.pop(), Some("data: [DONE]"), "{text}");
    let events: Vec<Value> = blocks
        .iter()
        .map(|block| {
            let data = block.strip_prefix("data: ").unwrap_or_else(|| panic!("not a data line: {block}"));
            serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))
        })
        .collect();
    assert!(events.iter().all(|event| event.get("choices").is_some() || event.get("error").is_some()), "{text}");
    events
}

/// What the deltas (or texts) of one choice join to.
pub fn joined(events: &[Value], choice: u64) -> String {
    let mut text = String::new();
    for event in events {
        for part in event["choices"].as_array().into_iter().flatten().filter(|part| part["index"] == choice) {
            text.push_str(part["text"].as_str().unwrap_or(""));
            text.push_str(part["delta"]["content"].as_str().unwrap_or(""));
        }
    }
    text
}

/// Every finish reason of one choice.
pub fn finishes(events: &[Value], choice: u64) -> Vec<String> {
    let choices = events.iter().flat_map(|event| event["choices"].as_array().cloned().unwrap_or_default());
    let own = choices.filter(|part| part["index"] == choice);
    own.filter_map(|part| part["finish_reason"].as_str().map(str::to_owned)).collect()
}
