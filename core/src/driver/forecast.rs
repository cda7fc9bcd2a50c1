//! What a backend says its steps will take, asked once at start, before anything can be measured.
//!
//! The forecast is a first idea, not a fact: only ratios of its figures are used (a wider step against a narrower one, a prompt token
//! against a decode-only step), and each is replaced by what is measured. A backend without a model does not answer, and everything
//! begins with tries. The questions are of decode-only steps of every width that has a cost of its own, and of one long chunk
//! beside decoding requests. Each request is taken to have [`CONTEXT`] tokens behind it; a guess is asked for as a row of its own, so
//! that what it costs is rather over- than underrated. Of models that check guesses in a pass of their own, the forward pass stands for
//! both. Rejected: asking per step with the step's own contexts. A call into the backend per candidate width is no part of
//! planning, and the level that measured steps move follows the contexts.

use tokenspeed_backend_api::backend::Load;

use super::{StepRunner, cost::Cost};
use crate::{
    engine::{EngineConfig, Pass},
    speculation::width::COSTS,
};

/// Tokens behind each request.
const CONTEXT: u32 = 1024;
/// Most decoding requests beside a chunk.
const BESIDE: u32 = 16;
/// Most tokens of that chunk.
const CHUNK: u32 = 1024;

/// A backend's answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Nanoseconds of decode-only steps of 1, 2, 3, … tokens.
    pub widths_ns: Vec<u64>,
    /// The same and prompts as a line; `None` if no prompt token costs anything by the forecast.
    pub cost: Option<Cost>,
}

impl Forecast {
    /// Ask `runner`; `None` if it has no model.
    ///
    /// # Errors
    /// The runner's: a device that cannot answer is not well.
    pub fn ask(config: &EngineConfig, runner: &dyn StepRunner) -> Result<Option<Self>, String> {
        Self::of(config, |load| runner.forecast(Pass::Forward, load))
    }

    /// The same of anything that forecasts.
    ///
    /// # Errors
    /// Those of `ask`.
    pub fn of(
        config: &EngineConfig,
        mut ask: impl FnMut(&Load) -> Result<Option<u64>, String>,
    ) -> Result<Option<Self>, String> {
        let context = CONTEXT.min(config.max_model_len);
        let most_rows = config.max_num_seqs;
        let widest = (COSTS as u32).min(config.max_batch_tokens).min(config.max_logit_rows);
        let decode = |n: u32| Load {
            n_tokens: n,
            n_rows: n.min(most_rows),
            n_logit_rows: n,
            attention_pairs: u64::from(n) * u64::from(context),
        };
        let mut widths_ns = Vec::with_capacity(widest as usize);
        for n in 1..=widest {
            let Some(ns) = ask(&decode(n))? else { return Ok(None) };
            widths_ns.push(ns);
        }
        let beside = BESIDE.min(most_rows - 1).min(widest);
        let chunk = CHUNK.min(config.chunked_prefill_size).min(config.max_batch_tokens - beside);
        let (Some(&one_ns), Some(&all_ns)) = (widths_ns.first(), widths_ns.get((beside.max(1) - 1) as usize)) else {
            return Ok(None);
        };
        if one_ns == 0 {
            return Ok(None);
        }
        let mut mixed = decode(beside);
        (mixed.n_tokens, mixed.n_rows) = (beside + chunk, beside + 1);
        (mixed.n_logit_rows, mixed.attention_pairs) =
            (beside + 1, mixed.attention_pairs + u64::from(chunk) * u64::from(context));
        let Some(mixed_ns) = ask(&mixed)? else { return Ok(None) };
        let row_ns = all_ns.saturating_sub(one_ns) as f64 / f64::from(beside.saturating_sub(1).max(1));
        let fixed_ns = (one_ns as f64 - row_ns).max(0.0);
        let decode_ns = fixed_ns + row_ns * f64::from(beside);
        let token_ns = (mixed_ns as f64 - decode_ns) / f64::from(chunk.max(1));
        let cost = (token_ns > 0.0).then_some(Cost { fixed_ns, row_ns, token_ns });
        Ok(Some(Self { widths_ns, cost }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> EngineConfig {
        let mut config = EngineConfig::paged(4096, 64, 1 + 640, 50);
        (config.max_num_seqs, config.table_rows) = (32, 32);
        config
    }

    #[test]
    fn a_line_is_found_from_answers_on_a_line() {
        let ns = |load: &Load| {
            let prompt = load.n_tokens - load.n_tokens.min(load.n_logit_rows);
            10_000 + 500 * u64::from(load.n_logit_rows) + 20 * u64::from(prompt)
        };
        let mut asked = 0;
        let forecast = Forecast::of(&config(), |load| {
            asked += 1;
            assert!(load.n_rows <= 32 && load.n_rows <= load.n_tokens && load.n_logit_rows <= load.n_tokens);
            Ok(Some(ns(load)))
        });
        let forecast = forecast.unwrap().unwrap();
        assert_eq!(forecast.widths_ns[..3], [10_500, 11_000, 11_500]);
        assert_eq!(asked, forecast.widths_ns.len() + 1, "each width once, and a chunk");
        let cost = forecast.cost.unwrap();
        assert!((cost.fixed_ns - 10_000.0).abs() < 1e-6 && (cost.row_ns - 500.0).abs() < 1e-6, "{cost:?}");
        assert!((19.0..21.0).contains(&cost.token_ns), "{cost:?}");
    }

    #[test]
    fn no_answer_and_no_time_are_no_forecast_and_a_fault_is_one() {
        assert_eq!(Forecast::of(&config(), |_| Ok(None)), Ok(None));
        assert_eq!(Forecast::of(&config(), |_| Ok(Some(0))), Ok(None), "as of a backend that takes no time at all");
        assert_eq!(Forecast::of(&config(), |_| Err("lost".into())), Err("lost".into()));
        let flat = Forecast::of(&config(), |_| Ok(Some(7))).unwrap().unwrap();
        assert_eq!(flat.cost, None, "prompts are not free");
    }

    #[test]
    fn the_smallest_engine_is_asked_too() {
        let mut config = EngineConfig::paged(64, 64, 3, 50);
        (config.max_num_seqs, config.table_rows) = (1, 1);
        (config.max_batch_tokens, config.max_logit_rows, config.chunked_prefill_size) = (65, 65, 64);
        let forecast = Forecast::of(&config, |load| Ok(Some(1_000 + u64::from(load.n_tokens)))).unwrap().unwrap();
        assert_eq!(forecast.widths_ns.len(), 65);
        assert!(forecast.cost.unwrap().token_ns > 0.0);
    }
}
