//! Answer to "can you run this op on these shapes?", shared by the host's wrapper and the plugin's SDK.

use crate::{abi::*, sized};

/// Whether a backend runs an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Answer {
    /// The host expands the op, or refuses the model by name.
    No = TS_SUPPORT_NO,
    /// Runs.
    Yes = TS_SUPPORT_YES,
    /// Runs, but the decomposition may be faster.
    YesSlow = TS_SUPPORT_YES_SLOW,
}

/// What a repeated run may change in the bits of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Determinism {
    /// Same inputs, same bits, whatever shares the batch.
    BatchInvariant = TS_DETERMINISM_BATCH_INVARIANT,
    /// Same inputs and same batch, same bits.
    RunToRun = TS_DETERMINISM_RUN_TO_RUN,
    /// No promise. An unknown class of a newer plugin is read as this.
    None = TS_DETERMINISM_NONE,
}

/// What an op rounds on the way; the catalogue's tolerance depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Rounding {
    /// f32 or better.
    F32 = TS_ROUNDING_F32,
    /// Factors of matrix products are bf16, sums f32.
    Bf16 = TS_ROUNDING_BF16,
    /// Factors of matrix products are e4m3 with a scale per row or group of a row, sums f32.
    Fp8 = TS_ROUNDING_FP8,
}

/// An operand to be packed once, at load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pack {
    /// Which operand.
    pub operand: u32,
    /// Layout id to put into the tensor descriptor, never 0.
    pub layout: u32,
    /// Size of the packed form.
    pub bytes: u64,
}

/// Most operands of an op that can be packed.
pub const PACKS: usize = 1 + TS_MORE_PACKS;

/// Answer for one concrete op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Support {
    /// Yes or no.
    pub answer: Answer,
    /// Kernel name, at most 63 bytes.
    pub implementation: String,
    /// Why not, at most 191 bytes.
    pub reason: String,
    /// May be recorded into a captured segment.
    pub capture_safe: bool,
    /// Determinism class.
    pub determinism: Determinism,
    /// What is rounded.
    pub rounding: Rounding,
    /// Scratch wanted in the activations binding.
    pub workspace_bytes: u64,
    /// Estimated nanoseconds at the full shape; `None` = unknown.
    pub cost_ns: Option<u64>,
    /// Operands to pack at load, each named once; at most [`PACKS`].
    pub packs: Vec<Pack>,
}

impl Support {
    /// Supported, batch-invariant, capture-safe, no workspace, no packing.
    pub fn yes(implementation: impl Into<String>) -> Self {
        Self {
            answer: Answer::Yes,
            implementation: implementation.into(),
            reason: String::new(),
            capture_safe: true,
            determinism: Determinism::BatchInvariant,
            rounding: Rounding::F32,
            workspace_bytes: 0,
            cost_ns: None,
            packs: Vec::new(),
        }
    }

    /// Refused because of `reason`.
    pub fn no(reason: impl Into<String>) -> Self {
        let mut s = Self::yes(String::new());
        (s.answer, s.reason, s.capture_safe) = (Answer::No, reason.into(), false);
        s
    }

    /// Whether the op runs at all.
    pub fn is_supported(&self) -> bool {
        self.answer != Answer::No
    }

    /// As the C struct.
    pub fn to_abi(&self) -> ts_support {
        let mut s: ts_support = sized::zeroed();
        s.answer = self.answer as u32;
        s.capture_safe = self.capture_safe.into();
        s.determinism = self.determinism as u32;
        s.rounding = self.rounding as u32;
        s.workspace_bytes = self.workspace_bytes;
        s.cost_ns = self.cost_ns.unwrap_or(0);
        assert!(self.packs.len() <= PACKS, "{} operands to pack, {PACKS} fit", self.packs.len());
        let (first, more) = self.packs.split_first().map_or((None, &[][..]), |(first, more)| (Some(first), more));
        (s.pack_operand, s.pack_layout, s.pack_bytes) =
            first.map_or((TS_NO_OPERAND, 0, 0), |p| (p.operand, p.layout, p.bytes));
        s.n_more_packs = more.len() as u32;
        for (to, p) in s.more_packs.iter_mut().zip(more) {
            *to = ts_pack { operand: p.operand, layout: p.layout, bytes: p.bytes };
        }
        sized::text_to(&mut s.implementation, &self.implementation);
        sized::text_to(&mut s.reason, &self.reason);
        s
    }

    /// Whether a C struct of so many bytes, the caller's, can hold the answer.
    pub(crate) fn fits(&self, struct_size: u32) -> bool {
        self.packs.len() <= 1 || struct_size as usize >= size_of::<ts_support>()
    }

    /// From the C struct. An answer this version does not know counts as no, and so does one that asks for more packing than it knows.
    pub fn from_abi(s: &ts_support) -> Self {
        let (answer, unknown) = match s.answer {
            _ if s.n_more_packs as usize > TS_MORE_PACKS => {
                (Answer::No, Some(format!("the backend asks to pack {} operands", 1 + u64::from(s.n_more_packs))))
            }
            TS_SUPPORT_YES => (Answer::Yes, None),
            TS_SUPPORT_YES_SLOW => (Answer::YesSlow, None),
            TS_SUPPORT_NO => (Answer::No, None),
            other => (Answer::No, Some(format!("the backend gave the unknown answer {other}"))),
        };
        let determinism = match s.determinism {
            TS_DETERMINISM_BATCH_INVARIANT => Determinism::BatchInvariant,
            TS_DETERMINISM_RUN_TO_RUN => Determinism::RunToRun,
            _ => Determinism::None,
        };
        // Zero-filled structs of C plugins mean "no packing" too: layout 0 is the canonical layout.
        let mut packs = Vec::new();
        if s.pack_operand != TS_NO_OPERAND && s.pack_layout != 0 {
            packs.push(Pack { operand: s.pack_operand, layout: s.pack_layout, bytes: s.pack_bytes });
        }
        let more = s.more_packs.iter().take(s.n_more_packs as usize);
        packs.extend(more.map(|p| Pack { operand: p.operand, layout: p.layout, bytes: p.bytes }));
        Self {
            answer,
            implementation: sized::text_from(&s.implementation),
            reason: unknown.unwrap_or_else(|| sized::text_from(&s.reason)),
            capture_safe: s.capture_safe != 0,
            determinism,
            // An unknown class of a newer plugin is held to the tightest tolerance.
            rounding: match s.rounding {
                TS_ROUNDING_BF16 => Rounding::Bf16,
                TS_ROUNDING_FP8 => Rounding::Fp8,
                _ => Rounding::F32,
            },
            workspace_bytes: s.workspace_bytes,
            cost_ns: (s.cost_ns != 0).then_some(s.cost_ns),
            packs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let mut yes = Support::yes("gemm_avx2");
        yes.cost_ns = Some(12);
        for operand in 1..=PACKS as u32 {
            yes.packs.push(Pack { operand, layout: 3 * operand, bytes: 640 });
            assert_eq!(Support::from_abi(&yes.to_abi()), yes);
        }
        for rounding in [Rounding::F32, Rounding::Bf16, Rounding::Fp8] {
            yes.rounding = rounding;
            assert_eq!(Support::from_abi(&yes.to_abi()), yes);
        }
        let no = Support::no("K = 33 is not a multiple of 32");
        assert_eq!(Support::from_abi(&no.to_abi()), no);
    }

    #[test]
    fn a_host_that_knows_one_operand_gets_no_answer_for_two() {
        let (old, new) = (std::mem::offset_of!(ts_support, more_packs) as u32, size_of::<ts_support>() as u32);
        let mut yes = Support::yes("x");
        let pack = Pack { operand: 1, layout: 3, bytes: 640 };
        yes.packs.push(pack);
        assert!(yes.fits(old));
        yes.packs.push(Pack { operand: 2, ..pack });
        assert!(!yes.fits(old) && yes.fits(new));
    }

    #[test]
    fn more_packing_than_known_is_no() {
        let mut s = Support::yes("x").to_abi();
        s.n_more_packs = TS_MORE_PACKS as u32 + 1;
        assert!(!Support::from_abi(&s).is_supported());
    }

    #[test]
    fn unknown_answer_is_no() {
        let mut s = Support::yes("x").to_abi();
        s.answer = 9;
        assert!(!Support::from_abi(&s).is_supported());
    }
}
