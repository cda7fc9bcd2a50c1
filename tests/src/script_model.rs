//! A model folder whose answers are scripts: what the API layer does with text can then be tried exactly, on any backend.
//!
//! A one-layer Llama whose embedding is the identity, whose attention and MLP are zero, and whose head sends each token
//! to one fixed successor. A byte is a token, so the LAST byte of the prompt picks the script; every script consists of
//! tokens of its own, cut where text must not be cut (inside characters, stop strings, JSON, markers). Nothing about
//! attention or caches can be learned from it. Context: 256 tokens; the head has more rows than the tokenizer has ids.
//!
//! | last byte | answer |
//! |---|---|
//! | `A` | `ok 🙂 🦜 é fin`, cut inside characters |
//! | `B` | `alpha b` `eta ga` `mma delta` |
//! | `C` | one tool call |
//! | `D` | two tool calls, the second without arguments |
//! | `E` | `tick tock ` for ever |
//! | `F` | nothing |
//! | `H` | a JSON object |
//! | `J` | `hi`, ended by id 256, which only generation_config.json calls an end |
//! | `T` | `think text `, the control token `</think>`, ` answer` |
//! | `Z` | nothing; a head row past the last id would win if it were sampled |
//! | other | nothing |

use std::{collections::BTreeMap, io, path::Path};

use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};

/// `<|endoftext|>`: beginning of sequence, and an end by generation_config.json.
pub const END_OF_TEXT: u32 = 256;
/// `<|im_end|>`: the end of sequence.
pub const IM_END: u32 = 258;
/// `</think>`, a control token.
pub const END_OF_THINKING: u32 = 259;
/// Tokens of prompt and answer together.
pub const CONTEXT: usize = 256;

const CONTROLS: [(&str, u32); 4] =
    [("<|endoftext|>", END_OF_TEXT), ("<|im_start|>", 257), ("<|im_end|>", IM_END), ("</think>", END_OF_THINKING)];

/// Script C's text.
pub const ONE_CALL: &str =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par\\\"is\"}}\n</tool_call>";
/// Script D's text.
pub const TWO_CALLS: &str = "<tool_call>\n{\"name\": \"f_one\", \"arguments\": {\"x\": 1}}\n</tool_call>\n\
                             <tool_call>\n{\"name\": \"f_two\", \"arguments\": {}}\n</tool_call>";
/// Script H's text.
pub const JSON_OBJECT: &str = "{\"a\": 1, \"b\": [true, null], \"c\": \"\\u00e9\"}";

/// Pieces and successors of all scripts.
struct Script {
    /// Bytes of every id: single bytes, control tokens, then the scripts' pieces.
    pieces: Vec<Vec<u8>>,
    successor: BTreeMap<u32, u32>,
}

impl Script {
    fn new() -> Self {
        let bytes = (0..=255u8).map(|byte| vec![byte]);
        let controls = CONTROLS.iter().map(|(text, _)| text.as_bytes().to_vec());
        Self { pieces: bytes.chain(controls).collect(), successor: BTreeMap::new() }
    }

    fn add_piece(&mut self, piece: &[u8]) -> u32 {
        assert!(!self.pieces.iter().any(|p| p == piece), "a piece with two successors: {piece:?}");
        self.pieces.push(piece.to_vec());
        self.pieces.len() as u32 - 1
    }

    /// `trigger`, then each of `ids`, then `end`.
    fn chain(&mut self, trigger: u8, ids: &[u32], end: u32) {
        let from = std::iter::once(u32::from(trigger)).chain(ids.iter().copied());
        let to = ids.iter().copied().chain([end]);
        self.successor.extend(from.zip(to));
    }

    fn pieces(&mut self, pieces: &[&[u8]]) -> Vec<u32> {
        pieces.iter().map(|piece| self.add_piece(piece)).collect()
    }

    /// Cut `text` into short pieces that no script uses yet.
    fn cut(&mut self, text: &str) -> Vec<u32> {
        let mut cuts = Vec::new();
        let done = self.cut_rest(text.as_bytes(), &mut cuts);
        assert!(done, "no way to cut {text:?} into unused pieces");
        cuts.iter().map(|piece| self.add_piece(piece)).collect()
    }

    fn cut_rest<'a>(&self, rest: &'a [u8], cuts: &mut Vec<&'a [u8]>) -> bool {
        if rest.is_empty() {
            return true;
        }
        for length in 2..=rest.len().min(24) {
            let (piece, after) = rest.split_at(length);
            if cuts.contains(&piece) || self.pieces.iter().any(|p| p == piece) {
                continue;
            }
            cuts.push(piece);
            if self.cut_rest(after, cuts) {
                return true;
            }
            cuts.pop();
        }
        false
    }
}

fn scripts() -> Script {
    let mut script = Script::new();
    // 🙂 in two tokens, 🦜 in three, é as e and a combining accent whose two bytes are apart.
    let cut_characters = [&b"ok "[..], b"\xF0\x9F", b"\x99\x82", b" \xF0", b"\x9F\xA6", b"\x9C e\xCC", b"\x81 fin"];
    let ids = script.pieces(&cut_characters);
    script.chain(b'A', &ids, IM_END);
    let ids = script.pieces(&[b"alpha b", b"eta ga", b"mma delta"]);
    script.chain(b'B', &ids, IM_END);
    for (trigger, text) in [(b'C', ONE_CALL), (b'D', TWO_CALLS)] {
        let ids = script.cut(text);
        script.chain(trigger, &ids, IM_END);
    }
    let ids = script.pieces(&[b"tick ", b"tock "]);
    script.chain(b'E', &ids, ids[0]);
    script.chain(b'F', &[], IM_END);
    let ids = script.cut(JSON_OBJECT);
    script.chain(b'H', &ids, IM_END);
    let ids = script.pieces(&[b"hi"]);
    script.chain(b'J', &ids, END_OF_TEXT);
    let mut ids = script.pieces(&[b"think t", b"ext "]);
    ids.push(END_OF_THINKING);
    ids.extend(script.pieces(&[b" ans", b"wer"]));
    script.chain(b'T', &ids, IM_END);
    script
}

/// The byte alphabet of byte-level vocabularies: printable Latin-1 as itself, the other bytes from U+0100 on.
fn alphabet() -> Vec<char> {
    let printable = |byte: u32| (33..127).contains(&byte) || (161..173).contains(&byte) || (174..256).contains(&byte);
    let mut next = 256;
    let of_byte = (0..256).map(|byte| {
        let code = if printable(byte) { byte } else { next };
        next += u32::from(!printable(byte));
        char::from_u32(code).expect("below U+0200 everything is a character")
    });
    of_byte.collect()
}

fn floats(values: Vec<f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

fn write_weights(path: &Path, script: &Script, rows: usize) -> io::Result<()> {
    let width = rows;
    let mut embedding = vec![0.0; rows * width];
    let mut head = vec![0.0; rows * width];
    for token in 0..rows {
        embedding[token * width + token] = 1.0;
        let next = script.successor.get(&(token as u32)).copied().unwrap_or(IM_END);
        head[next as usize * width + token] = 1.0;
    }
    head[(rows - 1) * width + usize::from(b'Z')] = 2.0; // an id that does not exist
    let ones = || floats(vec![1.0; width]);
    let zeros = |count: usize| floats(vec![0.0; count]);
    let inner = 64;
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = vec![
        ("model.embed_tokens.weight".into(), vec![rows, width], floats(embedding)),
        ("lm_head.weight".into(), vec![rows, width], floats(head)),
        ("model.norm.weight".into(), vec![width], ones()),
    ];
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    for name in ["input_layernorm", "post_attention_layernorm"] {
        tensors.push((layer(name), vec![width], ones()));
    }
    for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
        tensors.push((layer(&format!("self_attn.{name}")), vec![width, width], zeros(width * width)));
    }
    for (name, shape) in [("gate_proj", [inner, width]), ("up_proj", [inner, width]), ("down_proj", [width, inner])] {
        tensors.push((layer(&format!("mlp.{name}")), shape.to_vec(), zeros(inner * width)));
    }
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("shapes and bytes agree"))
    });
    safetensors::serialize_to_file(views, None, path).map_err(io::Error::other)
}

fn tokenizer(script: &Script) -> Value {
    let alphabet = alphabet();
    let controls: Vec<Value> = CONTROLS
        .iter()
        .map(|(content, id)| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        })
        .collect();
    let vocabulary = script.pieces.iter().enumerate().map(|(id, piece)| {
        let is_control = CONTROLS.iter().any(|(_, control)| *control as usize == id);
        let text = match is_control {
            true => String::from_utf8_lossy(piece).into_owned(),
            false => piece.iter().map(|&byte| alphabet[usize::from(byte)]).collect(),
        };
        (text, Value::from(id))
    });
    let byte_level = |prefix: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": controls,
        "normalizer": null, "pre_tokenizer": byte_level(false), "post_processor": null, "decoder": byte_level(true),
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocabulary.collect::<serde_json::Map<_, _>>(), "merges": []},
    })
}

/// Write the model folder (3.8 MB); it is created if missing.
pub fn write(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let script = scripts();
    let rows = script.pieces.len().div_ceil(64) * 64;
    assert!(rows > script.pieces.len(), "no head row is left past the last id");
    write_weights(&folder.join("model.safetensors"), &script, rows)?;
    let heads = rows / 64;
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": rows, "hidden_size": rows,
        "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": heads, "num_key_value_heads": heads,
        "head_dim": 64, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": false, "attention_bias": false, "bos_token_id": END_OF_TEXT,
        "eos_token_id": IM_END, "torch_dtype": "float32",
    });
    let template = "{% for m in messages %}{{ m['content'] if m['content'] is string else '' }}{% endfor %}";
    let tokenizer_config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>",
        "clean_up_tokenization_spaces": false, "model_max_length": CONTEXT, "chat_template": template,
    });
    let files = [
        ("config.json", config),
        ("generation_config.json", json!({"eos_token_id": [IM_END, END_OF_TEXT]})),
        ("tokenizer.json", tokenizer(&script)),
        ("tokenizer_config.json", tokenizer_config),
    ];
    files.iter().try_for_each(|(name, value)| std::fs::write(folder.join(name), value.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenspeed_models::text::{Controls, SpecialText, Tokenizer};

    fn answer(tokenizer: &Tokenizer, head: &[f32], rows: usize, prompt: &str) -> Vec<u32> {
        let mut last = *tokenizer.encode(prompt, Controls::Parse, true).unwrap().last().unwrap() as usize;
        let mut ids = Vec::new();
        while ids.len() < 60 {
            let column = (0..tokenizer.vocab_size() as usize).map(|row| head[row * rows + last]);
            last = column.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0;
            ids.push(last as u32);
            if [IM_END, END_OF_TEXT].contains(&(last as u32)) {
                break;
            }
        }
        ids
    }

    #[test]
    fn every_script_says_its_lines() {
        let folder = std::env::temp_dir().join(format!("tokenspeed-script-model-{}", std::process::id()));
        write(&folder).unwrap();
        let tokenizer = Tokenizer::from_folder(&folder).unwrap();
        let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let head = tensors.tensor("lm_head.weight").unwrap();
        let rows = head.shape()[0];
        let head: Vec<f32> = head.data().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(rows > tokenizer.vocab_size() as usize);
        let say = |prompt: &str| {
            let ids = answer(&tokenizer, &head, rows, prompt);
            (tokenizer.decode(&ids, SpecialText::Skip).unwrap(), ids.len(), *ids.last().unwrap())
        };
        assert_eq!(say("x A"), ("ok 🙂 🦜 e\u{301} fin".into(), 8, IM_END));
        assert_eq!(say("x B"), ("alpha beta gamma delta".into(), 4, IM_END));
        assert_eq!(say("x C"), (ONE_CALL.into(), 41, IM_END));
        assert_eq!(say("x D"), (TWO_CALLS.into(), 44, IM_END));
        assert_eq!(say("x E"), ("tick tock ".repeat(30), 60, tokenizer.id_of("tockĠ").unwrap()));
        assert_eq!(say("x F"), (String::new(), 1, IM_END));
        assert_eq!(say("x H").0, JSON_OBJECT);
        assert_eq!(say("x J"), ("hi".into(), 2, END_OF_TEXT));
        assert_eq!(say("x T"), ("think text  answer".into(), 6, IM_END));
        assert_eq!(say("x Z"), (String::new(), 1, IM_END));
    }
}
