//! Instruction-set tiers and their detection.
//!
//! A tier is chosen once, when the device opens, and passed to every kernel by value. Results may differ between
//! tiers, never within one, so a tier is also what tests force.
//!
//! Rejected: per-function feature detection. Two kernels of one program could then disagree about the tier.

use std::{fmt, str::FromStr};

/// An instruction-set tier. Ordered: a later tier needs all features of the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// No assumption beyond the compilation target; any CPU (NEON kernels would join here as a tier of their own).
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 and AMX-BF16 tiles, with the operating system's permission to use them.
    Amx,
}

/// The user asked for a tier this CPU does not have, or one that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LevelError {
    /// The CPU or the operating system lacks it.
    #[error("instruction-set tier `{asked}` is not available on this CPU; the best one is `{best}`")]
    Unavailable {
        /// What was asked for.
        asked: Level,
        /// The highest tier that works here.
        best: Level,
    },
    /// Not a tier's name.
    #[error("unknown instruction-set tier `{0}`; use portable, avx2, avx512 or amx")]
    Unknown(String),
}

impl Level {
    /// Every tier, lowest first.
    pub const ALL: [Level; 4] = [Level::Portable, Level::Avx2, Level::Avx512, Level::Amx];

    /// The highest tier of this machine. For AMX this also asks the operating system for the tile state, once per
    /// process; the answer holds for every thread.
    pub fn detect() -> Level {
        Self::ALL.into_iter().rev().find(|l| l.available()).unwrap_or(Level::Portable)
    }

    /// This tier if the machine has it.
    pub fn checked(self) -> Result<Level, LevelError> {
        if self.available() { Ok(self) } else { Err(LevelError::Unavailable { asked: self, best: Self::detect() }) }
    }

    /// Whether the machine has this tier.
    pub fn available(self) -> bool {
        match self {
            Level::Portable => true,
            Level::Avx2 => has_avx2(),
            Level::Avx512 => has_avx2() && has_avx512(),
            Level::Amx => has_avx2() && has_avx512() && has_amx(),
        }
    }

    /// The tier's name, as users type it.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
            Level::Amx => "amx",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = LevelError;

    fn from_str(name: &str) -> Result<Self, LevelError> {
        Self::ALL.into_iter().find(|l| l.name() == name).ok_or_else(|| LevelError::Unknown(name.to_owned()))
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// CPUID leaf 7 bits 22 (AMX-BF16) and 24 (AMX-TILE), and the tile state granted by the kernel. Intel SDM volume 1,
/// chapter 18; Linux `Documentation/arch/x86/xstate.rst`.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn has_amx() -> bool {
    use std::{arch::x86_64::__cpuid_count, sync::OnceLock};
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(|| {
        let edx = __cpuid_count(7, 0).edx;
        let cpu = edx & (1 << 22) != 0 && edx & (1 << 24) != 0;
        // SAFETY: the call takes two integers and touches no memory of ours; an old kernel answers with an error.
        cpu && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) } == 0
    })
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn has_amx() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_amx() -> bool {
    false
}

/// The tiers this machine can test.
#[cfg(test)]
pub(crate) fn testable() -> Vec<Level> {
    Level::ALL.into_iter().filter(|l| l.available()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_are_named() {
        for level in Level::ALL {
            assert_eq!(level.name().parse(), Ok(level));
        }
        assert!("sse9".parse::<Level>().unwrap_err().to_string().contains("sse9"));
    }

    #[test]
    fn detected_tier_is_available_and_highest() {
        let best = Level::detect();
        assert_eq!(best.checked(), Ok(best));
        assert!(Level::ALL.into_iter().filter(|l| *l > best).all(|l| l.checked().is_err()));
    }
}
