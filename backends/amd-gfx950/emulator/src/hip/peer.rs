//! Access of one device's kernels to another device's memory, one way each: a device enables its own access to a peer. Copies need none.

use super::{Status, api, put, runtime};

fn peers(of: i32) -> Result<std::sync::MutexGuard<'static, std::collections::HashSet<i32>>, Status> {
    Ok(runtime().device(of)?.peers.lock().unwrap_or_else(|e| e.into_inner()))
}

/// Takes back what a device enabled.
pub fn forget(of: i32) -> Result<(), Status> {
    peers(of)?.clear();
    Ok(())
}

api! {
    /// All devices reach each other; none is its own peer.
    fn hipDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32) {
        runtime().device(device)?;
        runtime().device(peer)?;
        put(can, i32::from(device != peer))
    }
}
api! {
    /// Lets kernels of the current device use a peer's memory, that of later allocations included.
    fn hipDeviceEnablePeerAccess(peer: i32, flags: u32) {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        runtime().device(peer)?;
        let own = runtime().healthy()?;
        if own == peer {
            return Err(Status::INVALID_DEVICE);
        }
        if peers(own)?.insert(peer) { Ok(()) } else { Err(Status::PEER_ALREADY_ENABLED) }
    }
}
api! {
    /// Takes that back.
    fn hipDeviceDisablePeerAccess(peer: i32) {
        runtime().device(peer)?;
        if peers(runtime().healthy()?)?.remove(&peer) { Ok(()) } else { Err(Status::PEER_NOT_ENABLED) }
    }
}
