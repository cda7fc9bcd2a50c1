//! What a grammar costs per token: `mask_cost MODEL…` prints, for each model's vocabulary and each of a few forms, how
//! long it takes to compile the form and to fill a mask, over answers whose tokens are drawn evenly from what is allowed.
//! `kimi:163840` stands for a made-up vocabulary of that size in Kimi K3's layout.

use std::{sync::Arc, time::Instant};

use serde_json::json;
use tokenspeed_core::grammar::TokenMask;
use tokenspeed_models::text::{Tokenizer, kimi};
use tokenspeed_server::{
    engine_setup::load_frontend,
    frontend::TextFrontend,
    grammar::{Answer, Form, Grammars, Wish},
    text_frontend::{ModelFrontend, TextChoices},
};

const TOKENS: usize = 400;
const ANSWERS: u64 = 5;

fn frontend(model: &str) -> Result<Arc<dyn TextFrontend>, Box<dyn std::error::Error>> {
    let Some(vocab_size) = model.strip_prefix("kimi:") else { return Ok(load_frontend(model)?) };
    let folder = std::env::temp_dir().join(format!("tokenspeed-mask-cost-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let ids = kimi::tiny_tokenizer(&folder, vocab_size.parse()?, 1)?;
    let tokenizer = Tokenizer::from_folder(&folder)?;
    std::fs::remove_dir_all(&folder)?;
    Ok(Arc::new(ModelFrontend::new(Arc::new(tokenizer), vec![ids.eos], TextChoices::default())?))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tool = json!({"type": "object", "properties": {
        "path": {"type": "string"}, "line": {"type": "integer", "minimum": 1}, "mode": {"enum": ["read", "write", "append"]},
        "edits": {"type": "array", "items": {"type": "object", "properties": {"old": {"type": "string"}, "new": {"type": "string"}},
            "required": ["old", "new"], "additionalProperties": false}}},
        "required": ["path", "mode", "edits"], "additionalProperties": false});
    let forms = [
        ("any JSON object", Form::Schema(json!({"type": "object"}))),
        ("tool arguments", Form::Schema(tool)),
        ("a choice of 3", Form::Choice(["yes", "no", "perhaps"].map(str::to_owned).to_vec())),
        ("regex, dates", Form::Regex("([0-9]{4}-[0-9]{2}-[0-9]{2} [a-z]+\\n)*".into())),
    ];
    for model in std::env::args().skip(1) {
        let frontend = frontend(&model)?;
        let vocab_size = frontend.vocab_size();
        let grammars = Grammars::new(Arc::clone(&frontend));
        let begin = Instant::now();
        let first = Wish { answer: Answer::Text(Form::Regex("a".into())), param: String::new(), is_chat: false };
        grammars.compile_here(first, false)?;
        println!("{model}: {vocab_size} ids, vocabulary read in {:.0} ms", begin.elapsed().as_secs_f64() * 1e3);
        for (name, form) in &forms {
            let wish = Wish { answer: Answer::Text(form.clone()), param: String::new(), is_chat: false };
            let begin = Instant::now();
            let first = grammars.compile_here(wish, false)?;
            let compile_ms = begin.elapsed().as_secs_f64() * 1e3;
            let (mut masks_us, mut accepts_us, mut opens_us) = (Vec::new(), Vec::new(), Vec::new());
            let mut random = 1u64;
            for _ in 0..ANSWERS {
                let begin = Instant::now();
                let mut constraint = first.fresh();
                opens_us.push(begin.elapsed().as_secs_f64() * 1e6);
                let mut mask = TokenMask::new(vocab_size);
                for _ in 0..TOKENS {
                    let begin = Instant::now();
                    mask.clear();
                    constraint.mask(&mut mask)?;
                    masks_us.push(begin.elapsed().as_secs_f64() * 1e6);
                    let ends = |id: &u32| frontend.eos_ids().contains(id);
                    let allowed: Vec<u32> = (0..vocab_size).filter(|id| mask.allows(*id) && !ends(id)).collect();
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let Some(&id) = allowed.get((random >> 33) as usize % allowed.len().max(1)) else { break };
                    let begin = Instant::now();
                    constraint.accept(id)?;
                    accepts_us.push(begin.elapsed().as_secs_f64() * 1e6);
                    if constraint.is_complete() {
                        break;
                    }
                }
            }
            let at = |list: &mut Vec<f64>, share: f64| {
                list.sort_by(f64::total_cmp);
                list.get(((list.len() - 1) as f64 * share) as usize).copied().unwrap_or_default()
            };
            println!(
                "  {name:16} compiled in {compile_ms:6.1} ms; mask {:6.0} µs median, {:6.0} p99, {:6.0} most; accept {:5.1} µs; \
                 open {:4.0} µs; {} masks",
                at(&mut masks_us, 0.5),
                at(&mut masks_us, 0.99),
                at(&mut masks_us, 1.0),
                at(&mut accepts_us, 0.5),
                at(&mut opens_us, 0.5),
                masks_us.len()
            );
        }
    }
    Ok(())
}
