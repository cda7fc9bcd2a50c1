//! Configuration from GGUF metadata.
use crate::files::*;
use std::path::Path;
use tokenspeed_models::config::{Architecture, LlamaConfig, RopeScaling, RopeStyle, from_gguf};
use tokenspeed_models::weights::gguf;

enum V {
    U(u32),
    F(f32),
    S(&'static str),
    Us(&'static [u32]),
    B(bool),
}
use V::{B, F, S, U, Us};

fn encode(key: &str, value: &V) -> Vec<u8> {
    match value {
        U(v) => gguf_key(key, 4, &v.to_le_bytes()),
        F(v) => gguf_key(key, 6, &v.to_le_bytes()),
        B(v) => gguf_key(key, 7, &[u8::from(*v)]),
        S(v) => gguf_key(key, 8, &gguf_string(v)),
        Us(list) => {
            let data: Vec<u8> = list.iter().flat_map(|v| v.to_le_bytes()).collect();
            gguf_key(key, 9, &[&4u32.to_le_bytes(), (list.len() as u64).to_le_bytes().as_slice(), &data].concat())
        }
    }
}

/// A small valid set of keys for `architecture`, with some replaced or added; `None` removes.
fn parse(architecture: &'static str, changes: &[(&str, Option<V>)], tensors: &[&str]) -> Result<LlamaConfig, String> {
    let base = [
        ("vocab_size", U(96)),
        ("context_length", U(128)),
        ("embedding_length", U(64)),
        ("feed_forward_length", U(160)),
        ("block_count", U(2)),
        ("attention.head_count", U(4)),
        ("attention.head_count_kv", U(2)),
        ("attention.layer_norm_rms_epsilon", F(1e-5)),
        ("rope.freq_base", F(10000.0)),
    ];
    let changed = |key: &str| changes.iter().any(|(k, _)| *k == key);
    let mut keys = vec![];
    if !changed("general.architecture") {
        keys.push(encode("general.architecture", &S(architecture)));
    }
    for (key, value) in base.iter().filter(|(key, _)| !changed(key)) {
        keys.push(encode(&format!("{architecture}.{key}"), value));
    }
    for (key, value) in changes {
        let full = if key.starts_with("general.") || key.starts_with("tokenizer.") {
            (*key).to_owned()
        } else {
            format!("{architecture}.{key}")
        };
        keys.extend(value.as_ref().map(|v| encode(&full, v)));
    }
    let file = [gguf_head(0, keys.len() as u64), keys.concat()].concat();
    let metadata = gguf::parse(&file, Path::new("m.gguf")).expect("well-formed").metadata;
    from_gguf(&metadata, |name| tensors.contains(&name)).map_err(|e| {
        let message = e.to_string();
        assert!(!message.contains('\n'), "{message}");
        message.strip_prefix("m.gguf: ").expect("begins with its file").to_owned()
    })
}

#[test]
fn llama() {
    let ids = [
        ("tokenizer.ggml.bos_token_id", Some(U(1))),
        ("tokenizer.ggml.eos_token_id", Some(U(9))),
        ("tokenizer.ggml.eot_token_id", Some(U(2))),
    ];
    let c = parse("llama", &ids, &["output.weight"]).expect("good");
    assert_eq!((c.architecture, c.head_dim, c.rope.style), (Architecture::Llama, 16, RopeStyle::Pairs));
    assert_eq!((c.bos_id, c.eos_ids.as_slice(), c.tied_embeddings), (Some(1), [2, 9].as_slice(), false));
    assert!((c.rms_norm_eps - 1e-5).abs() < 1e-11 && !c.qkv_bias);
}

/// What GGUF says by the presence of tensors.
#[test]
fn presence_of_tensors() {
    let c = parse("llama", &[], &["blk.0.attn_q.bias", "blk.0.attn_output.bias"]).expect("good");
    assert!(c.tied_embeddings && c.qkv_bias && c.o_bias && !c.mlp_bias);
}

#[test]
fn qwen() {
    let qwen2 = parse("qwen2", &[], &[]).expect("good");
    assert!(qwen2.qkv_bias && qwen2.rope.style == RopeStyle::Halves);
    let qwen3 = parse("qwen3", &[("attention.key_length", Some(U(32)))], &[]).expect("good");
    assert!(qwen3.qk_norm && qwen3.head_dim == 32 && !qwen3.qkv_bias);
}

#[test]
fn defaults() {
    let tokens = V::S("x");
    let c = parse(
        "llama",
        &[("attention.head_count_kv", None), ("rope.freq_base", None), ("general.name", Some(tokens))],
        &[],
    );
    let c = c.expect("good");
    assert_eq!((c.n_kv_heads, c.rope.theta, c.rope.scaling), (4, 10_000.0, RopeScaling::None));
    let uniform = parse("llama", &[("attention.head_count_kv", Some(Us(&[2, 2])))], &[]).expect("good");
    assert_eq!(uniform.n_kv_heads, 2);
}

#[test]
fn rope_scaling() {
    let linear = parse("llama", &[("rope.scale_linear", Some(F(2.0)))], &[]).expect("good");
    assert_eq!((linear.rope.scaling, linear.context_tokens_max), (RopeScaling::Linear { factor: 2.0 }, 256));
    let yarn = parse(
        "qwen2",
        &[
            ("rope.scaling.type", Some(S("yarn"))),
            ("rope.scaling.factor", Some(F(4.0))),
            ("rope.scaling.original_context_length", Some(U(128))),
        ],
        &[],
    )
    .expect("good");
    assert!((yarn.rope.magnitude() - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
    assert_eq!(yarn.context_tokens_max, 512);
}

/// `rope_freqs.weight` divides: that is how llama3 scaling is stored.
#[test]
fn frequency_divisors() {
    let c = parse("llama", &[], &[]).expect("good");
    let plain = c.rope.inverse_frequencies(None);
    let divided = c.rope.inverse_frequencies(Some(&[1.0, 1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 8.0]));
    assert_eq!((divided[0], divided[4], divided[7]), (plain[0], plain[4] / 2.0, plain[7] / 8.0));
}

#[test]
fn refusals_name_the_key() {
    let cases: Vec<(&str, Option<V>, &str)> = vec![
        ("general.architecture", Some(S("gpt2")), "field `general.architecture` = `gpt2` is not supported"),
        ("general.architecture", None, "field `general.architecture` is missing"),
        ("general.architecture", Some(U(1)), "key `general.architecture` is an unsigned integer, but a string"),
        ("block_count", None, "field `llama.block_count` is missing"),
        ("block_count", Some(S("2")), "key `llama.block_count` is a string, but an unsigned integer is needed"),
        ("block_count", Some(U(0)), "field `llama.block_count` is 0"),
        ("block_count", Some(U(u32::MAX)), "field `llama.block_count` is 4294967295"),
        ("feed_forward_length", None, "field `llama.feed_forward_length` is 0"),
        ("attention.head_count", Some(U(0)), "field `llama.attention.head_count` is 0"),
        ("attention.head_count", Some(Us(&[4, 2])), "field `llama.attention.head_count` = a list of different values"),
        ("attention.head_count_kv", Some(U(3)), "field `llama.attention.head_count_kv` is 3: it must divide"),
        ("attention.value_length", Some(U(8)), "field `llama.attention.value_length` = 8"),
        ("attention.layer_norm_rms_epsilon", Some(F(f32::NAN)), "`llama.attention.layer_norm_rms_epsilon` is NaN"),
        ("attention.causal", Some(B(false)), "field `llama.attention.causal` = false"),
        ("expert_count", Some(U(8)), "field `llama.expert_count` = 8 is not supported"),
        ("logit_scale", Some(F(0.5)), "field `llama.logit_scale` = 0.5"),
        ("rope.freq_base", Some(F(0.0)), "field `llama.rope.freq_base` is 0"),
        ("rope.dimension_count", Some(U(18)), "rotated part"),
        ("rope.scaling.type", Some(S("longrope")), "field `llama.rope.scaling.type` = `longrope`"),
        ("rope.scaling.type", Some(S("linear")), "field `llama.rope.scaling.factor` is missing"),
        ("vocab_size", None, "field `llama.vocab_size` is missing"),
    ];
    for (key, value, want) in cases {
        let message = parse("llama", &[(key, value)], &[]).expect_err(key);
        assert!(message.contains(want), "{key}: {message}");
    }
}

#[test]
fn unknown_keys_are_reported() {
    let c = parse("llama", &[("mystery", Some(U(1)))], &[]).expect("good");
    assert_eq!(c.ignored_fields, ["llama.mystery"]);
}
