//! The wire: garbage, limits, keep-alive, slow and vanishing clients, keys.

use std::{
    io::{Read as _, Write as _},
    net::Shutdown,
    time::{Duration, Instant},
};

use tokenspeed_server::{engine_setup::GenerationDefaults, http::state::ServerConfig};

use crate::support::{
    MODEL, TestServer,
    client::{self, connect, head, parse, read_reply},
    config,
};

const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];

fn with(config: ServerConfig) -> TestServer {
    TestServer::with(config, GenerationDefaults::default())
}

#[test]
fn stray_traffic() {
    let server = TestServer::start();
    let noise: Vec<u8> = (0..1024_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let tls_hello = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[7; 506]].concat();
    for bytes in [noise, tls_hello, b"\r\n\r\n".to_vec(), b"GET\r\n\r\n".to_vec()] {
        let mut socket = connect(server.address);
        let _ = socket.write_all(&bytes);
        let _ = socket.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        assert!(answer.is_empty() || parse(&answer).status / 100 == 4, "{:?}", String::from_utf8_lossy(&answer));
    }
    let idle = connect(server.address);
    let mut old = connect(server.address);
    old.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("sent");
    assert_eq!(read_reply(&mut old).status, 404);
    server.assert_alive();
    drop(idle);
}

#[test]
fn pipelined_requests_on_one_connection() {
    let server = TestServer::start();
    let mut socket = connect(server.address);
    socket
        .write_all(
            b"GET /version HTTP/1.1\r\nHost: t\r\n\r\nGET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
        )
        .expect("sent");
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).expect("answered");
    let text = String::from_utf8(bytes).expect("ASCII");
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 2, "{text}");
    assert!(text.contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn body_limits() {
    let server = with(ServerConfig { max_body_bytes: 10_000, ..config() });
    let blanks = vec![b' '; 50_000_000];
    let reply = client::request(server.address, "POST", "/v1/completions", &JSON, &blanks);
    assert_eq!(reply.status, 413);
    assert_eq!(reply.error()["code"], "request_too_large");
    // Without a length, the limit holds too.
    let mut socket = connect(server.address);
    let head = "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    socket.write_all(head.as_bytes()).expect("sent");
    for _ in 0..20 {
        let _ = socket.write_all(&[b"400\r\n".to_vec(), vec![b' '; 1024], b"\r\n".to_vec()].concat());
    }
    assert_eq!(read_reply(&mut socket).status, 413);
    server.assert_alive();
}

#[test]
fn chunked_body_cut_short_and_body_that_never_comes() {
    let server = with(ServerConfig { read_timeout: Duration::from_millis(200), ..config() });
    let mut socket = connect(server.address);
    socket
        .write_all(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"pro")
        .expect("sent");
    socket.shutdown(Shutdown::Write).expect("closed");
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    assert!(answer.is_empty() || parse(&answer).status == 400);
    let mut socket = connect(server.address);
    socket.write_all(head("POST", "/v1/completions", &JSON, 100).as_bytes()).expect("sent");
    assert_eq!(read_reply(&mut socket).status, 408);
    server.wait_idle();
    server.assert_alive();
}

#[test]
fn api_key() {
    let keys = vec!["first".to_owned(), "second".to_owned()];
    let server = with(ServerConfig { api_keys: keys, ..config() });
    let send = |path: &str, key: Option<&str>| {
        let mut headers = JSON.to_vec();
        headers.extend(key.map(|key| ("Authorization", key)));
        let method = if path == "/v1/completions" { "POST" } else { "GET" };
        client::request(
            server.address,
            method,
            path,
            &headers,
            if method == "POST" { br#"{"prompt":"x B"}"# } else { b"" },
        )
    };
    for key in ["Bearer first", "Bearer second"] {
        assert_eq!(send("/v1/completions", Some(key)).status, 200);
    }
    for key in [None, Some("Bearer third"), Some("first"), Some("Bearer")] {
        for path in ["/v1/completions", "/v1/models"] {
            let reply = send(path, key);
            assert_eq!(reply.status, 401, "{path} {key:?}");
            assert_eq!(reply.error()["code"], "invalid_api_key");
            assert!(!reply.text().contains("first"));
        }
    }
    for path in ["/health", "/readiness", "/metrics", "/version"] {
        assert_eq!(send(path, None).status, 200, "{path}");
    }
}

#[test]
fn concurrency_limit_and_overload_say_when_to_retry() {
    let server = with(ServerConfig { max_concurrent_requests: 2, ..config() });
    let hanging: Vec<_> = (0..2)
        .map(|_| {
            let mut socket = connect(server.address);
            let body = format!(r#"{{"model":"{MODEL}","prompt":"x W"}}"#);
            socket.write_all(head("POST", "/v1/completions", &JSON, body.len()).as_bytes()).expect("sent");
            socket.write_all(body.as_bytes()).expect("sent");
            socket
        })
        .collect();
    wait(|| server.engine.running() == 2);
    let reply = server.complete("x B", "");
    assert_eq!(reply.status, 429);
    assert_eq!(reply.header("retry-after").as_deref(), Some("1"));
    // Probes are never turned away.
    assert_eq!(server.get("/health").status, 200);
    drop(hanging);
    server.wait_idle();
    server.assert_alive();
    server.engine.overload(true);
    let reply = server.complete("x B", "");
    assert_eq!((reply.status, reply.header("retry-after").as_deref()), (429, Some("7")));
    server.engine.overload(false);
    server.assert_alive();
}

pub fn wait(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(15), "nothing happened");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn abort_frees_blocks() {
    let server = TestServer::start();
    for stream in ["", r#","stream":true"#] {
        for n in [1, 3] {
            let aborted = server.engine.aborted();
            let body = format!(r#"{{"model":"{MODEL}","prompt":"x W","n":{n},"max_tokens":100{stream}}}"#);
            let mut socket = connect(server.address);
            socket.write_all(head("POST", "/v1/completions", &JSON, body.len()).as_bytes()).expect("sent");
            socket.write_all(body.as_bytes()).expect("sent");
            wait(|| server.engine.running() == n);
            drop(socket);
            server.wait_idle();
            assert_eq!(server.engine.aborted(), aborted + n, "{stream} {n}");
        }
    }
    let aborted = server.engine.aborted();
    for _ in 0..20 {
        server.assert_alive();
    }
    assert_eq!(server.engine.aborted(), aborted, "a normal end is no abort");
    // After tokens have flowed, too.
    let body = format!(r#"{{"model":"{MODEL}","prompt":"x E","max_tokens":250,"stream":true}}"#);
    let mut socket = connect(server.address);
    socket.write_all(head("POST", "/v1/completions", &JSON, body.len()).as_bytes()).expect("sent");
    socket.write_all(body.as_bytes()).expect("sent");
    let mut some = [0; 600];
    socket.read_exact(&mut some).expect("chunks");
    drop(socket);
    server.wait_idle();
    let page = server.get("/metrics").text();
    assert!(page.contains(r#"tokenspeed_choices_finished_total{reason="abort"} 9"#), "{page}");
}

#[test]
fn cancelling_one_of_two_leaves_the_other() {
    let server = TestServer::start();
    let send = |prompt: &str| {
        let body = format!(r#"{{"model":"{MODEL}","prompt":"{prompt}","max_tokens":200,"stream":true}}"#);
        let mut socket = connect(server.address);
        let headers = [JSON[0], ("X-Request-Id", "same")];
        socket.write_all(head("POST", "/v1/completions", &headers, body.len()).as_bytes()).expect("sent");
        socket.write_all(body.as_bytes()).expect("sent");
        socket
    };
    let (first, mut second) = (send("x E"), send("x E"));
    wait(|| server.engine.running() == 2);
    drop(first);
    let events = client::events(&read_reply(&mut second));
    assert_eq!(client::joined(&events, 0).len(), 200);
}

#[test]
fn large_and_small_requests_at_once() {
    let server = TestServer::start();
    let address = server.address;
    // A body above the inline limit takes the other path.
    let large = format!(r#"{{"prompt":"x B","metadata":{{"a":"{}"}}}}"#, "m".repeat(40_000));
    let threads: Vec<_> = (0..17)
        .map(|index| {
            let large = large.clone();
            std::thread::spawn(move || match index % 3 {
                0 => client::post(address, "/v1/completions", &large).json()["choices"][0]["text"].clone(),
                1 => {
                    client::post(address, "/v1/completions", r#"{"prompt":"x B"}"#).json()["choices"][0]["text"].clone()
                }
                _ => {
                    let reply = client::post(address, "/v1/completions", r#"{"prompt":"x B","stream":true}"#);
                    client::joined(&client::events(&reply), 0).into()
                }
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().expect("answered"), "alpha beta gamma delta");
    }
}
