//! What a user may choose for a device, with `--backend-option KEY=VALUE`.

use tokenspeed_backend_api::{
    sdk::{Fault, Options, Support},
    support::Rounding,
};

/// Numbers that matrix products multiply. Sums are f32 in either case, and so is everything outside of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Both factors are rounded to bf16: what the matrix units are fast at, and the default.
    Bf16,
    /// As bf16, but weights of dense products become e4m3 at load, a scale per row; rows that meet them or MXFP4 experts, which stay as
    /// they are, are rounded to e4m3, a scale for every 32 values, and so is what expanded latent attention multiplies: matrix units
    /// take all of it at twice the speed. The README lists what stays bf16.
    Fp8,
    /// f32 factors; an eighth of the speed or less. For telling rounding from mistakes.
    F32,
}

/// Which kernels an op may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// The specialised ones where the shape is theirs, and the default.
    Best,
    /// The portable ones alone, which take every shape: a second reference, and what specialised ones are compared with.
    Portable,
}

/// When decode programs are recorded once and replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Graphs {
    /// Programs of at most [`GRAPH_TOKENS`] tokens.
    On,
    /// Every launch is queued by the host.
    Off,
}

/// How latent attention multiplies where a request brings many tokens; see `ops/mla_prefill.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlaPrefill {
    /// As everywhere: queries meet latent rows, so that a token's bits do not depend on how its prompt was cut. The default.
    Absorbed,
    /// Keys and values per head are made first, a third of the products. Bits are others, so they depend on the cut. With
    /// [`Precision::Fp8`] the products are those of e4m3.
    Expanded,
}

/// Most tokens of a program that is captured: its grids are of full capacity, which larger ones would waste time on.
pub const GRAPH_TOKENS: u32 = 256;

/// Options of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `precision=bf16|fp8|f32`.
    pub precision: Precision,
    /// `graphs=on|off`.
    pub graphs: Graphs,
    /// `kernels=best|portable`.
    pub kernels: Kernels,
    /// `mla_prefill=absorbed|expanded`.
    pub mla_prefill: MlaPrefill,
}

impl Settings {
    /// From the options' text.
    ///
    /// # Errors
    /// An unknown option or value, by name; options that contradict each other.
    pub fn parse(options: &[(&str, &str)]) -> Result<Self, Fault> {
        let mut options = Options::new(options)?;
        let precision = options
            .choice("precision", &[("bf16", Precision::Bf16), ("fp8", Precision::Fp8), ("f32", Precision::F32)])?;
        let graphs = options.choice("graphs", &[("on", Graphs::On), ("off", Graphs::Off)])?;
        let kernels = options.choice("kernels", &[("best", Kernels::Best), ("portable", Kernels::Portable)])?;
        let forms = [("absorbed", MlaPrefill::Absorbed), ("expanded", MlaPrefill::Expanded)];
        let mla_prefill = options.choice("mla_prefill", &forms)?;
        options.finish()?;
        if mla_prefill == MlaPrefill::Expanded && (precision == Precision::F32 || kernels == Kernels::Portable) {
            return Err(Fault::invalid("mla_prefill=expanded needs kernels=best and precision=bf16 or fp8"));
        }
        Ok(Self { precision, graphs, kernels, mla_prefill })
    }

    /// Whether ops may take kernels that are made for some shapes alone.
    pub fn specialised(&self) -> bool {
        self.kernels == Kernels::Best
    }

    /// Whether products take f32 factors.
    pub fn exact(&self) -> bool {
        self.precision == Precision::F32
    }

    /// Factors of products that are not e4m3, as kernel names call them.
    pub fn factors(&self) -> &'static str {
        match self.precision {
            Precision::Bf16 | Precision::Fp8 => "bf16",
            Precision::F32 => "f32",
        }
    }

    /// Bytes of such a factor.
    pub fn factor_bytes(&self) -> usize {
        match self.precision {
            Precision::Bf16 | Precision::Fp8 => 2,
            Precision::F32 => 4,
        }
    }

    /// The answer of an op with products of such factors: it says what they round.
    pub fn rounded(&self, mut support: Support) -> Support {
        if !self.exact() {
            support.rounding = Rounding::Bf16;
        }
        support
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_used_or_refused() {
        let settings = Settings::parse(&[("precision", "f32"), ("graphs", "off"), ("kernels", "portable")]).unwrap();
        let want = Settings {
            precision: Precision::F32,
            graphs: Graphs::Off,
            kernels: Kernels::Portable,
            mla_prefill: MlaPrefill::Absorbed,
        };
        assert_eq!(settings, want);
        assert_eq!(Settings::parse(&[("mla_prefill", "expanded")]).unwrap().mla_prefill, MlaPrefill::Expanded);
        let both = Settings::parse(&[("mla_prefill", "expanded"), ("precision", "f32")]);
        assert!(both.unwrap_err().message.contains("precision=bf16"));
        assert!(Settings::parse(&[("precision", "fp4")]).unwrap_err().message.contains("bf16, fp8, f32"));
        assert!(Settings::parse(&[("streams", "2")]).unwrap_err().message.contains("streams"));
    }
}
