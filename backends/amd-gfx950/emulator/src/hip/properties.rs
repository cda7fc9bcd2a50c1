//! What the emulated device says about itself: an MI355X.
//!
//! Offsets are those of `hipDeviceProp_tR0600` in the public HIP 7 header; a test compiles that header and compares.

use crate::machine::LDS_BYTES;

/// Bytes of the structure.
pub const BYTES: usize = 1472;

/// Member, offset, bytes; for the test that compares with the header.
pub const LAYOUT: &[(&str, usize, usize)] = &[
    ("name", 0, 256),
    ("totalGlobalMem", 288, 8),
    ("sharedMemPerBlock", 296, 8),
    ("regsPerBlock", 304, 4),
    ("warpSize", 308, 4),
    ("maxThreadsPerBlock", 320, 4),
    ("maxThreadsDim", 324, 12),
    ("maxGridSize", 336, 12),
    ("clockRate", 348, 4),
    ("totalConstMem", 352, 8),
    ("major", 360, 4),
    ("minor", 364, 4),
    ("multiProcessorCount", 388, 4),
    ("integrated", 396, 4),
    ("canMapHostMemory", 400, 4),
    ("concurrentKernels", 576, 4),
    ("pciBusID", 584, 4),
    ("unifiedAddressing", 604, 4),
    ("memoryClockRate", 608, 4),
    ("memoryBusWidth", 612, 4),
    ("l2CacheSize", 616, 4),
    ("maxThreadsPerMultiProcessor", 624, 4),
    ("sharedMemPerMultiprocessor", 640, 8),
    ("cooperativeLaunch", 688, 4),
    ("sharedMemPerBlockOptin", 696, 8),
    ("gcnArchName", 1160, 256),
    ("maxSharedMemoryPerMultiProcessor", 1416, 8),
    ("isLargeBar", 1464, 4),
];

/// Lanes of a work-group.
pub const MAX_GROUP: u32 = 1024;
const COMPUTE_UNITS: u64 = 256;
const CLOCK_KHZ: u64 = 2_400_000;

fn value(member: &str, ordinal: i32, memory_bytes: u64) -> u64 {
    match member {
        "totalGlobalMem" => memory_bytes,
        "sharedMemPerBlock"
        | "sharedMemPerMultiprocessor"
        | "sharedMemPerBlockOptin"
        | "maxSharedMemoryPerMultiProcessor" => LDS_BYTES.into(),
        "regsPerBlock" => 65536,
        "warpSize" => 64,
        "maxThreadsPerBlock" => MAX_GROUP.into(),
        "clockRate" => CLOCK_KHZ,
        "totalConstMem" => 2_147_483_647,
        "major" => 9,
        "minor" => 5,
        "multiProcessorCount" => COMPUTE_UNITS,
        "canMapHostMemory" | "concurrentKernels" | "unifiedAddressing" | "cooperativeLaunch" | "isLargeBar" => 1,
        "pciBusID" => ordinal as u64 + 1,
        // 8 TB/s over a bus of 8192 bits.
        "memoryClockRate" => 2_000_000,
        "memoryBusWidth" => 8192,
        "l2CacheSize" => 4 << 20,
        "maxThreadsPerMultiProcessor" => 2048,
        _ => 0,
    }
}

/// The structure's bytes.
pub fn bytes(ordinal: i32, memory_bytes: u64, architecture: &str) -> Vec<u8> {
    let mut out = vec![0; BYTES];
    for (member, offset, len) in LAYOUT {
        let to = &mut out[*offset..offset + len];
        let text = match *member {
            "name" => "gfx950 emulator (no GPU)",
            "gcnArchName" => architecture,
            "maxThreadsDim" | "maxGridSize" => {
                let limits: [u32; 3] = if *member == "maxGridSize" { [i32::MAX as u32; 3] } else { [MAX_GROUP; 3] };
                for (i, limit) in limits.iter().enumerate() {
                    to[4 * i..4 * i + 4].copy_from_slice(&limit.to_le_bytes());
                }
                continue;
            }
            _ => {
                to.copy_from_slice(&value(member, ordinal, memory_bytes).to_le_bytes()[..*len]);
                continue;
            }
        };
        // A zero ends it.
        let len = text.len().min(to.len() - 1);
        to[..len].copy_from_slice(&text.as_bytes()[..len]);
    }
    out
}

/// Attributes by number in the header, with the member that says the same.
pub const ATTRIBUTES: &[(u32, &str, &str)] = &[
    (5, "hipDeviceAttributeClockRate", "clockRate"),
    (10, "hipDeviceAttributeCooperativeLaunch", "cooperativeLaunch"),
    (19, "hipDeviceAttributeL2CacheSize", "l2CacheSize"),
    (56, "hipDeviceAttributeMaxThreadsPerBlock", "maxThreadsPerBlock"),
    (57, "hipDeviceAttributeMaxThreadsPerMultiProcessor", "maxThreadsPerMultiProcessor"),
    (59, "hipDeviceAttributeMemoryBusWidth", "memoryBusWidth"),
    (60, "hipDeviceAttributeMemoryClockRate", "memoryClockRate"),
    (63, "hipDeviceAttributeMultiprocessorCount", "multiProcessorCount"),
    (71, "hipDeviceAttributeMaxRegistersPerBlock", "regsPerBlock"),
    (74, "hipDeviceAttributeMaxSharedMemoryPerBlock", "sharedMemPerBlock"),
    (87, "hipDeviceAttributeWarpSize", "warpSize"),
];

/// An attribute by number.
pub fn attribute(number: u32) -> Option<i32> {
    let (_, _, member) = ATTRIBUTES.iter().find(|(n, ..)| *n == number)?;
    Some(value(member, 0, 0) as i32)
}
