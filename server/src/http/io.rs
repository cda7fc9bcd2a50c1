//! Tokio sockets and timers in the shape hyper wants.
//!
//! Sixty lines instead of `hyper-util`, which brings a second HTTP client and a connection pool. Reads pass through a
//! small buffer on the stack: request bodies are not the hot path, and so no uninitialised memory is touched here.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use hyper::rt;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// A socket for hyper.
#[derive(Debug)]
pub struct HyperIo(pub TcpStream);

impl rt::Read for HyperIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut cursor: rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = [0; 8192];
        let length = cursor.remaining().min(bytes.len());
        let mut buffer = ReadBuf::new(&mut bytes[..length]);
        let polled = Pin::new(&mut self.0).poll_read(context, &mut buffer);
        if matches!(polled, Poll::Ready(Ok(()))) {
            cursor.put_slice(buffer.filled());
        }
        polled
    }
}

impl rt::Write for HyperIo {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, slices)
    }
}

/// Tokio's clock for hyper's header time-out.
#[derive(Clone, Copy, Debug)]
pub struct HyperTimer;

struct HyperSleep(Pin<Box<tokio::time::Sleep>>);

impl Future for HyperSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

impl rt::Sleep for HyperSleep {}

impl rt::Timer for HyperTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(HyperSleep(Box::pin(tokio::time::sleep(duration))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(HyperSleep(Box::pin(tokio::time::sleep_until(deadline.into()))))
    }
}
