//! Just enough HTTP/1.1 for one streamed answer: a POST, then server-sent events, chunked or until the end.
//!
//! The demo must not need curl or a client crate. Rejected: `ureq`, which brings TLS into the build of a task runner.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::Duration,
};

/// Posts JSON and calls `event` with the data of each event up to `[DONE]`. A stream that ends earlier is an error.
pub fn post_events(
    address: &str,
    path: &str,
    json: &str,
    mut event: impl FnMut(&str) -> Result<(), String>,
) -> Result<(), String> {
    let mut stream = TcpStream::connect(address).map_err(|e| format!("cannot connect to {address}: {e}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(120))).map_err(|e| e.to_string())?;
    let length = json.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nAccept: text/event-stream\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{json}"
    );
    stream.write_all(request.as_bytes()).map_err(|e| format!("sending to {address}: {e}"))?;
    read_events(BufReader::new(stream), &mut event)
}

fn read_events(mut from: impl BufRead, event: &mut impl FnMut(&str) -> Result<(), String>) -> Result<(), String> {
    let status = line(&mut from)?;
    let mut chunked = false;
    loop {
        let header = line(&mut from)?.to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        chunked |= header.starts_with("transfer-encoding:") && header.contains("chunked");
    }
    let mut body: Box<dyn BufRead + '_> =
        if chunked { Box::new(BufReader::new(Chunks { from, left: 0, ended: false })) } else { Box::new(from) };
    if status.split(' ').nth(1) != Some("200") {
        let mut text = String::new();
        body.take(4096).read_to_string(&mut text).map_err(|e| format!("{status}, and then {e}"))?;
        return Err(format!("the server answered {status}: {text}"));
    }
    loop {
        let mut text = String::new();
        if body.read_line(&mut text).map_err(|e| format!("reading the answer: {e}"))? == 0 {
            return Err("the answer ended before [DONE]".into());
        }
        match text.trim_end().strip_prefix("data:").map(str::trim_start) {
            Some("[DONE]") => return Ok(()),
            Some(data) => event(data)?,
            // Empty lines between events, comments that keep the connection alive.
            None => {}
        }
    }
}

fn line(from: &mut impl BufRead) -> Result<String, String> {
    let mut line = String::new();
    match from.read_line(&mut line) {
        Ok(0) => Err("the server closed the connection without an answer".into()),
        Ok(_) => Ok(line.trim_end().to_string()),
        Err(e) => Err(format!("reading the answer: {e}")),
    }
}

/// Removes chunked transfer coding.
struct Chunks<R> {
    from: R,
    left: usize,
    ended: bool,
}

impl<R: BufRead> Read for Chunks<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let invalid = |text: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, text.to_string());
        if self.ended {
            return Ok(0);
        }
        if self.left == 0 {
            let mut size = String::new();
            self.from.read_line(&mut size)?;
            let digits = size.split(';').next().unwrap_or("").trim();
            self.left = usize::from_str_radix(digits, 16).map_err(|_| invalid("a chunk without a size"))?;
            if self.left == 0 {
                self.ended = true;
                return Ok(0);
            }
        }
        let wanted = buffer.len().min(self.left);
        let n = self.from.read(&mut buffer[..wanted])?;
        if n == 0 {
            return Err(invalid("the connection ended inside a chunk"));
        }
        self.left -= n;
        if self.left == 0 {
            let mut end = [0; 2];
            self.from.read_exact(&mut end)?;
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(answer: &str) -> Result<Vec<String>, String> {
        let mut all = Vec::new();
        read_events(answer.as_bytes(), &mut |data| {
            all.push(data.to_string());
            Ok(())
        })
        .map(|()| all)
    }

    #[test]
    fn reads_events_plain_and_across_chunks() {
        let plain = "HTTP/1.1 200 OK\r\n\r\ndata: {\"a\":1}\n\n: ping\n\ndata: {\"b\":2}\n\ndata: [DONE]\n\n";
        assert_eq!(events(plain).unwrap(), ["{\"a\":1}", "{\"b\":2}"]);
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\ndata: on\r\n12\r\ne\n\ndata: [DONE]\n\n\r\n0\r\n\r\n";
        assert_eq!(events(chunked).unwrap(), ["one"]);
    }

    #[test]
    fn a_cut_stream_and_an_error_are_errors() {
        assert!(events("HTTP/1.1 200 OK\r\n\r\ndata: a\n\n").unwrap_err().contains("before [DONE]"));
        let refused = events("HTTP/1.1 400 Bad Request\r\n\r\n{\"error\":{}}").unwrap_err();
        assert!(refused.contains("400") && refused.contains("error"), "{refused}");
        assert!(events("").is_err());
        let cut = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\ndata: a";
        assert!(events(cut).unwrap_err().contains("inside a chunk"));
    }
}
