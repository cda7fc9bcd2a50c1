//! Loading, failing, dying and shutting down.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    time::Duration,
};

use tokenspeed_server::{
    engine_setup::GenerationDefaults,
    http::{
        server::{bind, url},
        state::ServerConfig,
    },
};

use crate::{
    support::{
        MODEL, TestServer,
        client::{self, connect, events, finishes, head, joined, read_reply},
        config,
    },
    transport::wait,
};

const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];

fn begin(server: &TestServer, prompt: &str, fields: &str) -> std::net::TcpStream {
    let body = format!(r#"{{"model":"{MODEL}","prompt":"{prompt}"{fields}}}"#);
    let mut socket = connect(server.address);
    socket.write_all(head("POST", "/v1/completions", &JSON, body.len()).as_bytes()).expect("sent");
    socket.write_all(body.as_bytes()).expect("sent");
    socket
}

#[test]
fn port_in_use() {
    for host in ["127.0.0.1", "0.0.0.0"] {
        let taken = TcpListener::bind((host, 0)).expect("a free port");
        let port = taken.local_addr().expect("an address").port();
        let error = bind(host, port).expect_err("taken");
        assert_eq!(error.to_string(), format!("the address is already in use ({host}:{port})"));
        assert_eq!(error.exit_code, 1);
    }
    assert!(bind("no.such.host.invalid", 0).is_err());
    assert!(bind("192.0.2.1", 0).expect_err("not ours").what.contains("no such address"));
}

#[test]
fn restart_after_open_connections() {
    let mut first = TestServer::start();
    let port = first.address.port();
    let mut open = connect(first.address);
    open.write_all(b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n").expect("sent");
    let mut some = [0; 12];
    open.read_exact(&mut some).expect("answered");
    first.begin_stop();
    first.join();
    let again = bind("127.0.0.1", port).expect("free at once");
    assert_eq!(url(again.local_addr().expect("an address")), format!("http://127.0.0.1:{port}"));
    assert_eq!(url("0.0.0.0:80".parse().expect("an address")), "http://127.0.0.1:80");
    assert_eq!(url("[::]:80".parse().expect("an address")), "http://[::1]:80");
}

#[test]
fn loading_is_503_until_ready() {
    let server = TestServer::loading(config());
    for path in ["/health", "/readiness"] {
        let reply = server.get(path);
        assert_eq!(reply.status, 503);
        assert_eq!(reply.json()["status"], "loading");
    }
    let reply = server.complete("x B", "");
    assert_eq!((reply.status, reply.error()["code"].as_str()), (503, Some("loading")));
    assert!(reply.header("retry-after").is_some());
    assert_eq!(server.get("/metrics").status, 200);
    server.finish_loading(GenerationDefaults::default());
    assert_eq!(server.get("/health").json()["status"], "ok");
    server.assert_alive();
}

#[test]
fn sse_error_handling() {
    let server = TestServer::start();
    for (prompt, text) in [("x Y", ""), ("x X", "abc")] {
        for chat in [false, true] {
            let send = |fields: &str| if chat { server.chat(prompt, fields) } else { server.complete(prompt, fields) };
            let whole = send("");
            assert_eq!(whole.status, 500);
            assert_eq!(whole.error()["message"], "the device was lost");
            let streamed = events(&send(r#","stream":true,"stream_options":{"include_usage":true}"#));
            assert_eq!(joined(&streamed, 0), text);
            assert!(finishes(&streamed, 0).is_empty());
            let last = streamed.last().expect("an error");
            assert_eq!(last["error"]["message"], "the device was lost");
        }
    }
    server.assert_alive();
}

#[test]
fn a_panic_in_one_handler_is_one_500() {
    let server = TestServer::start();
    let reply = server.complete("PANIC", "");
    assert_eq!(reply.status, 500);
    reply.error();
    let large = format!(r#"{{"prompt":"PANIC","metadata":{{"a":"{}"}}}}"#, "m".repeat(40_000));
    assert_eq!(server.post("/v1/completions", &large).status, 500);
    server.assert_alive();
    assert_eq!(server.state.active(), 0);
}

#[test]
fn health_check_tells_of_a_dead_engine() {
    let server = TestServer::start();
    let mut whole = begin(&server, "x W", "");
    let mut streamed = begin(&server, "x W", r#","stream":true"#);
    wait(|| server.engine.running() == 2);
    server.engine.kill();
    let health = server.get("/health");
    assert_eq!((health.status, health.json()["status"].as_str()), (503, Some("dead")));
    assert!(health.text().contains("a test killed it"));
    let reply = server.complete("x B", "");
    assert_eq!((reply.status, reply.error()["code"].as_str()), (503, Some("engine_dead")));
    // Requests that were running are told, although no event ever comes.
    let reply = read_reply(&mut whole);
    assert_eq!((reply.status, reply.error()["code"].as_str()), (503, Some("engine_dead")));
    let events = events(&read_reply(&mut streamed));
    assert_eq!(events.last().expect("an error")["error"]["code"], "engine_dead");
    server.wait_idle();
}

#[test]
fn graceful_shutdown_finishes_what_runs() {
    let mut server = TestServer::start();
    let mut streams: Vec<_> = (0..4).map(|_| begin(&server, "x E", r#","max_tokens":150,"stream":true"#)).collect();
    streams.push(begin(&server, "x E", r#","max_tokens":150"#));
    wait(|| server.engine.running() == 5);
    server.begin_stop();
    wait(|| server.state.is_draining());
    let refused = server.complete("x B", "");
    assert_eq!((refused.status, refused.error()["code"].as_str()), (503, Some("shutting_down")));
    assert_eq!(server.get("/health").json()["status"], "draining");
    let whole = read_reply(&mut streams.pop().expect("five"));
    assert_eq!(whole.json()["usage"]["completion_tokens"], 150);
    for mut stream in streams {
        let events = events(&read_reply(&mut stream));
        assert_eq!(joined(&events, 0).len(), 150);
        assert_eq!(finishes(&events, 0), ["length"]);
    }
    server.join();
    assert!(std::net::TcpStream::connect(server.address).is_err());
}

#[test]
fn graceful_shutdown_ends_the_rest_with_an_error() {
    let mut server = TestServer::with(
        ServerConfig { drain_timeout: Duration::from_millis(100), ..config() },
        GenerationDefaults::default(),
    );
    let mut streamed = begin(&server, "x W", r#","stream":true"#);
    let mut whole = begin(&server, "x W", "");
    wait(|| server.engine.running() == 2);
    server.begin_stop();
    let events = events(&read_reply(&mut streamed));
    assert_eq!(events.last().expect("an error")["error"]["code"], "shutting_down");
    assert!(finishes(&events, 0).is_empty());
    assert_eq!(read_reply(&mut whole).status, 503);
    server.join();
    assert_eq!(server.engine.aborted(), 2);
}

#[test]
fn flush_cache_only_when_idle() {
    let server = TestServer::start();
    let stream = begin(&server, "x W", r#","stream":true"#);
    wait(|| server.engine.running() == 1);
    assert_eq!(server.post("/flush_cache", "").error()["code"], "conflict");
    drop(stream);
    server.wait_idle();
    assert_eq!(client::request(server.address, "POST", "/flush_cache", &[], b"").status, 200);
}
