//! ZMTP 3.0 over TCP (rfc.zeromq.org/spec/23), as much as a publishing side needs: greeting without security, the READY
//! command, and messages of several parts. Peers are libzmq's SUB, DEALER and REQ sockets.
//!
//! By hand: the crate `zeromq` brings 14 others and rebuilds most of the tree with other features, for two server sides of
//! a protocol whose frames are a flag, a length and bytes.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Longest frame taken from a peer: subscriptions and replay requests are short.
const FRAME_MAX: u64 = 64 * 1024;
/// Parts of a message taken from a peer, at most.
const PARTS_MAX: usize = 16;

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// What a peer sends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// A message, all parts.
    Message(Vec<Vec<u8>>),
    /// A command, its name and its data.
    Command(Vec<u8>, Vec<u8>),
}

/// Exchange greetings and properties with a peer; `socket_type` is this side's.
pub(super) async fn greet(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), socket_type: &str) -> io::Result<()> {
    // Signature, version 3.0, mechanism NULL, not a server of that mechanism, filler.
    let mut own = [0u8; 64];
    (own[0], own[8], own[9], own[10]) = (0xff, 1, 0x7f, 3);
    own[12..16].copy_from_slice(b"NULL");
    stream.write_all(&own).await?;
    let mut theirs = [0u8; 64];
    stream.read_exact(&mut theirs).await?;
    if theirs[0] != 0xff || theirs[9] & 1 == 0 || theirs[10] < 3 || &theirs[12..17] != b"NULL\0" {
        return Err(wrong("not a ZMTP 3 peer without security"));
    }
    let mut ready = vec![5];
    ready.extend(b"READY");
    ready.push(11);
    ready.extend(b"Socket-Type");
    ready.extend((socket_type.len() as u32).to_be_bytes());
    ready.extend(socket_type.as_bytes());
    write_frame(stream, COMMAND, &ready).await?;
    match read(stream).await? {
        Incoming::Command(name, _) if name == b"READY" => Ok(()),
        _ => Err(wrong("the peer did not say READY")),
    }
}

async fn write_frame(stream: &mut (impl AsyncWrite + Unpin), flags: u8, body: &[u8]) -> io::Result<()> {
    match u8::try_from(body.len()) {
        Ok(short) => stream.write_all(&[flags, short]).await?,
        Err(_) => {
            stream.write_all(&[flags | LONG]).await?;
            stream.write_all(&(body.len() as u64).to_be_bytes()).await?;
        }
    }
    stream.write_all(body).await
}

/// Send a message of several parts.
pub(super) async fn write(stream: &mut (impl AsyncWrite + Unpin), parts: &[&[u8]]) -> io::Result<()> {
    for (at, part) in parts.iter().enumerate() {
        write_frame(stream, if at + 1 < parts.len() { MORE } else { 0 }, part).await?;
    }
    stream.flush().await
}

/// The next message or command. Not to be dropped half-way: what was read is lost then.
pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Incoming> {
    let mut parts = Vec::new();
    loop {
        let flags = stream.read_u8().await?;
        let length = if flags & LONG == 0 { stream.read_u8().await?.into() } else { stream.read_u64().await? };
        if flags > (MORE | LONG | COMMAND) || length > FRAME_MAX || parts.len() == PARTS_MAX {
            return Err(wrong("a frame that no subscriber sends"));
        }
        let mut body = vec![0; length as usize];
        stream.read_exact(&mut body).await?;
        if flags & COMMAND != 0 {
            let name = body.first().map(|&n| usize::from(n)).filter(|&n| n < body.len());
            let n = name.ok_or_else(|| wrong("a command without a name"))?;
            return Ok(Incoming::Command(body[1..=n].to_vec(), body[n + 1..].to_vec()));
        }
        parts.push(body);
        if flags & MORE == 0 {
            return Ok(Incoming::Message(parts));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_any_size_arrive() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let (mut a, mut b) = tokio::io::duplex(1 << 20);
            let (one, two) = tokio::join!(greet(&mut a, "PUB"), greet(&mut b, "SUB"));
            one.and(two).expect("both speak ZMTP");
            let long = vec![7u8; 300];
            write(&mut a, &[b"topic", b"", &long]).await.expect("sent");
            let wanted = Incoming::Message(vec![b"topic".to_vec(), Vec::new(), long]);
            assert_eq!(read(&mut b).await.expect("read"), wanted);
            write_frame(&mut a, COMMAND, b"\x04PINGdata").await.expect("sent");
            assert_eq!(read(&mut b).await.expect("read"), Incoming::Command(b"PING".to_vec(), b"data".to_vec()));
            for bad in [&[8u8, 0][..], &[2, 255, 0, 0, 0, 0, 0, 0, 0], &[4, 1, 9]] {
                a.write_all(bad).await.expect("sent");
                assert_eq!(read(&mut b).await.expect_err("refused").kind(), io::ErrorKind::InvalidData, "{bad:?}");
            }
        });
    }
}
