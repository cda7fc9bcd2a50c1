//! Request bodies in, with limits; response bodies out.

use std::{
    convert::Infallible,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::{chunk::ChunkWriter, error::ApiError, state::ActiveRequest, stream::EventBody};

/// A response body.
#[derive(Debug)]
pub enum ResponseBody {
    /// Known at once; `None` when taken.
    Whole(Option<Bytes>),
    /// Server-sent events; `None` when over.
    Events(Option<Box<EventBody>>),
}

impl ResponseBody {
    /// A body known at once.
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()).filter(|bytes| !bytes.is_empty()))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Events(slot) => {
                let Some(events) = slot else { return Poll::Ready(None) };
                // A fault of ours while writing one answer must not look like the end of that answer.
                match catch_unwind(AssertUnwindSafe(|| events.poll(context))) {
                    Ok(Poll::Pending) => Poll::Pending,
                    Ok(Poll::Ready(frame)) => {
                        if frame.is_none() || events.is_over() {
                            *slot = None;
                        }
                        Poll::Ready(frame.map(|bytes| Ok(Frame::data(bytes))))
                    }
                    Err(_) => {
                        *slot = None;
                        let mut out = BytesMut::new();
                        ChunkWriter::error(&mut out, &ApiError::internal("The server failed while answering."));
                        ChunkWriter::done(&mut out);
                        Poll::Ready(Some(Ok(Frame::data(out.freeze()))))
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None) | Self::Events(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

/// Read a request body of at most `limit_bytes`; each piece must come within `timeout`.
pub async fn read(
    mut body: Incoming,
    limit_bytes: usize,
    timeout: Duration,
    active: &mut ActiveRequest,
) -> Result<BytesMut, ApiError> {
    let announced = body.size_hint().lower();
    if announced > limit_bytes as u64 {
        return Err(ApiError::too_large(limit_bytes));
    }
    let mut whole = BytesMut::with_capacity(announced.min(1 << 20) as usize);
    loop {
        let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        match tokio::time::timeout(timeout, frame).await {
            Err(_) => return Err(ApiError::body_timeout()),
            Ok(None) => return Ok(whole),
            Ok(Some(Err(_))) => return Err(ApiError::bad_request("The request body was cut short.")),
            Ok(Some(Ok(frame))) => {
                let Ok(data) = frame.into_data() else { continue };
                if whole.len() + data.len() > limit_bytes {
                    return Err(ApiError::too_large(limit_bytes));
                }
                active.buffer(data.len())?;
                whole.extend_from_slice(&data);
            }
        }
    }
}
