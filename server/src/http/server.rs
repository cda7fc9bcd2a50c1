//! The listening socket, its connections, and the end of the server.
//!
//! The port is bound before anything loads, so a port in use is known within a second and probes see "loading" instead
//! of a refused connection.

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use hyper::{server::conn::http1, service::service_fn};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::{
    io::{HyperIo, HyperTimer},
    router,
    state::ServerState,
};
use crate::error::CliError;

/// Request head, all headers together.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Number of headers.
const HEADERS_MAX: usize = 100;
/// How long connections may take to send what is ready once all requests have ended.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Bind, or say in one line why not.
pub fn bind(host: &str, port: u16) -> Result<TcpListener, CliError> {
    let place = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    // On Unix the standard library sets SO_REUSEADDR, so that a restart does not wait for old connections.
    let listener = TcpListener::bind((host, port)).map_err(|error| {
        let (what, hint) = match error.kind() {
            io::ErrorKind::AddrInUse => {
                ("the address is already in use", "stop the other server, or choose another --port (0 = any free one)")
            }
            io::ErrorKind::PermissionDenied => ("not allowed to listen on the address", "choose a --port above 1023"),
            io::ErrorKind::AddrNotAvailable => ("no such address on this machine", "check --host"),
            _ => ("cannot listen on the address", "check --host and --port"),
        };
        let what = match error.kind() {
            io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied | io::ErrorKind::AddrNotAvailable => what.into(),
            _ => format!("{what}: {error}"),
        };
        CliError::new(what, place.clone(), hint)
    })?;
    listener
        .set_nonblocking(true)
        .map_err(|error| CliError::new(format!("cannot use the socket: {error}"), place, ""))?;
    Ok(listener)
}

/// The address as a URL that works on this machine.
pub fn url(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => format!("http://127.0.0.1:{}", v4.port()),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => format!("http://[::1]:{}", v6.port()),
        _ => format!("http://{address}"),
    }
}

/// Serve until `stop` resolves, then drain: refuse new requests, let running ones end within the drain time, end the
/// others with an error, flush, return. Must run inside a tokio runtime with time and I/O.
pub async fn serve(state: Arc<ServerState>, listener: TcpListener, stop: impl Future<Output = ()>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    // Idle connections cost little, and are bounded too.
    let connection_max =
        state.config.max_concurrent_requests.saturating_mul(2).saturating_add(64).min(Semaphore::MAX_PERMITS);
    let places = Arc::new(Semaphore::new(connection_max));
    let (closing, _) = watch::channel(false);
    let accept = async {
        loop {
            // A place first: beyond the limit, connections wait in the kernel's queue.
            let Ok(place) = places.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((socket, _)) => {
                    let _ = socket.set_nodelay(true);
                    tokio::spawn(connection(state.clone(), HyperIo(socket), closing.subscribe(), place));
                }
                // Out of file handles and the like: wait for some to be returned, do not spin.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let drain = async {
        stop.await;
        state.drain();
        if !idle_within(&state, state.config.drain_timeout).await {
            state.expire();
            idle_within(&state, FLUSH_TIMEOUT).await;
        }
    };
    tokio::select! {
        () = accept => {}
        () = drain => {}
    }
    drop(listener);
    let _ = closing.send(true);
    let all = connection_max as u32;
    let _ = tokio::time::timeout(FLUSH_TIMEOUT, places.acquire_many(all)).await;
    Ok(())
}

async fn idle_within(state: &ServerState, limit: Duration) -> bool {
    let deadline = tokio::time::Instant::now() + limit;
    while state.active() > 0 {
        if tokio::time::Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    true
}

async fn connection(
    state: Arc<ServerState>,
    io: HyperIo,
    mut closing: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
) {
    let read_timeout = state.config.read_timeout;
    let service = service_fn(move |request| {
        let state = state.clone();
        async move { Ok::<_, Infallible>(router::handle(state, request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(HyperTimer).header_read_timeout(read_timeout).max_buf_size(HEAD_BYTES_MAX).max_headers(HEADERS_MAX);
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    // Errors are the client's: garbage, a reset, a time-out. hyper has answered where an answer was possible.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = closing.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
