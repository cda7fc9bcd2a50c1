//! A real engine over a model that is nothing but noise: whatever is well formed in its answers, the grammar made so.

use std::sync::Arc;

use tokenspeed_core::{
    driver::{DriverConfig, EngineHandle, StepRunner},
    engine::{EngineConfig, Pass},
    speculation::SpeculationConfig,
    step::StepReader,
};
use tokenspeed_server::{
    engine_setup::{Loaded, ModelInfo},
    frontend::TextFrontend,
};

use super::{TestServer, config};

/// Rows of logits that no token has; they are the largest.
const PADDING: u32 = 20;

/// Logits are a function of the last token, its place and a seed.
struct Noise {
    vocab_size: u32,
    /// Ids made likelier, so that strings come to an end.
    likely: Vec<u32>,
    logits: Vec<f32>,
}

fn hash(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

impl StepRunner for Noise {
    fn run(&mut self, _pass: Pass, step: &[u8], _n_logit_rows: u32) -> Result<(), String> {
        let step = StepReader::read(step).map_err(|e| e.to_string())?;
        self.logits.clear();
        for &at in &step.logit_rows {
            let token = step.tokens[at as usize];
            // Few positions differ, so that texts repeat themselves and guesses are sometimes right.
            let state = hash(u64::from(token.id.cast_unsigned()) << 8 | u64::from(token.position % 3));
            let from = self.logits.len();
            self.logits.extend((0..self.vocab_size).map(|id| (hash(state ^ u64::from(id)) >> 40) as f32 / 4e6));
            for &id in &self.likely {
                self.logits[from + id as usize] += 2.0;
            }
            self.logits.extend([100.0; PADDING as usize]);
        }
        Ok(())
    }

    fn logits(&self, _pass: Pass) -> &[f32] {
        &self.logits
    }

    fn status(&self) -> Result<(), String> {
        Ok(())
    }
}

/// A server of noise behind any text rules.
pub fn server(frontend: Arc<dyn TextFrontend>, likely: &[&str], guesses: bool) -> TestServer {
    let vocab_size = frontend.vocab_size();
    let mut engine = EngineConfig::paged(4096, 16, 8 * 256 + 1, vocab_size + PADDING);
    engine.tokenizer_vocab_size = vocab_size;
    engine.eos_ids = frontend.eos_ids().to_vec();
    engine.max_logit_rows += 200;
    engine.speculation = guesses.then_some(SpeculationConfig { draft_max: 7, ngram: 2, branches: 0 });
    let likely = likely.iter().flat_map(|text| frontend.encode(text, false).expect("encoded")).collect();
    let runner = Box::new(Noise { vocab_size, likely, logits: Vec::new() });
    let engine = EngineHandle::start(engine, DriverConfig::default(), runner).expect("an engine");
    let server = TestServer::loading(config());
    server.state.set_ready(Loaded { engine, frontend, info: ModelInfo::default() });
    server
}
