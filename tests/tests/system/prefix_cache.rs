//! *Prefix cache*: the same again, the same for somebody else, and that there is reuse at all.

use serde_json::json;
use tokenspeed_core::request::Request;
use tokenspeed_server::engine_setup::load_frontend;

use crate::{
    batch_invariance::ids,
    support::{
        finish, finish_all, greedy, load,
        models::{self, long_tests},
        serving::Serving,
        submit,
    },
};

/// Asked five times in a row, then by eight at once: always what was answered first.
fn same_again(model: &str, words: &str, prompt: &[u32]) {
    let engine = load(model, words).engine;
    let request = greedy(prompt, 12);
    let first = finish(submit(&*engine, request.clone()));
    for round in 0..4 {
        let again = finish(submit(&*engine, request.clone()));
        assert_eq!(again.numbers(), first.numbers(), "{words}: round {round}");
        assert!(again.usage.cached_tokens > 0, "{words}: nothing was reused");
    }
    for (n, answer) in finish_all(&*engine, vec![request; 8]).iter().enumerate() {
        assert_eq!(answer.numbers(), first.numbers(), "{words}: {n} of eight at once");
    }
}

/// Case 84.
#[test]
fn prefix_cache_wrong_output() {
    let smollm2 = models::smollm2();
    let text = "A cat sat on a mat and thought about dinner. ".repeat(52);
    let prompt = load_frontend(&smollm2).expect("a tokenizer").encode(&text, true).expect("encodes");
    assert!(prompt.len() > 500, "{} tokens", prompt.len());
    same_again(&smollm2, "--max-model-len 640 --chunked-prefill-size 100", &prompt);
    if long_tests() {
        same_again(&smollm2, "--max-model-len 640", &prompt);
    }
    let hybrid = models::small_kimi();
    for words in ["--mode exact", "--mode exact --chunked-prefill-size 16", "--mode fast --chunked-prefill-size 64"] {
        same_again(&hybrid.model(), &format!("--max-model-len 640 {words}"), &ids(3, 500));
    }
}

/// Case 88, the salt part: only equal salts share, and none is not an empty one. On the wire and on a hybrid model too.
#[test]
fn cache_collision_across_salts() {
    for folder in [models::tiny(), models::small_kimi()] {
        let server = Serving::start(load(&folder.model(), "--max-model-len 256"));
        let prompt = ids(7, 200);
        let salts = [json!(null), json!("X"), json!("ab"), json!("a"), json!("b"), json!("abc"), json!("x")];
        let ask = |salt: &serde_json::Value| {
            let fields = json!({"max_tokens": 4, "temperature": 0, "ignore_eos": true, "cache_salt": salt});
            let answer = server.completion(json!(prompt), fields);
            (answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0), answer["choices"].clone())
        };
        let first = salts.clone().map(|salt| ask(&salt));
        let again = salts.clone().map(|salt| ask(&salt));
        for (salt, ((cold, text), (warm, same))) in salts.iter().zip(first.iter().zip(&again)) {
            assert_eq!((*cold, *warm), (0, 192), "salt {salt}");
            assert_eq!((text, same), (&first[0].1, &first[0].1), "a salt changes no answer: {salt}");
        }
        let empty = server.complete(json!(prompt), json!({"max_tokens": 1, "cache_salt": ""}));
        if empty.status == 200 {
            assert_eq!(empty.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0), 0);
        } else {
            empty.error();
        }
    }
}

/// Case 89: prompts of everyday length are reused on a hybrid model as well, and the start says from what length on.
#[test]
fn prefix_cache_silent_no_op() {
    let (hybrid, smollm2) = (models::small_kimi(), models::smollm2());
    for model in [hybrid.model(), smollm2] {
        let loaded = load(&model, "--max-model-len 640");
        let page = loaded.engine.limits().prefix_granularity;
        let printed = format!("{:?}", loaded.info.preflight);
        assert!(printed.contains(&format!("on, from {page} tokens on")), "{printed}");
        for n in [100, 561] {
            let prompt = ids(n, n as usize);
            let cold = finish(submit(&*loaded.engine, greedy(&prompt, 1)));
            let longer: Request = greedy(&[&prompt[..], &[9, 8, 7]].concat(), 1);
            let warm = finish(submit(&*loaded.engine, longer));
            assert_eq!(
                (cold.usage.cached_tokens, warm.usage.cached_tokens),
                (0, n / page * page),
                "{model}: {n} tokens"
            );
        }
        // Figures are told after the events; what is asked next is answered after both.
        loaded.engine.flush_cache().expect("nothing runs");
        let metrics = loaded.engine.metrics();
        assert_eq!(metrics.cached_tokens, u64::from(100 / page * page + 561 / page * page));
        assert_eq!(metrics.cacheable_tokens, u64::from(page), "as printed");
    }
}
