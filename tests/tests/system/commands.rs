//! Commands as a library: what they print, and that each failure is one line and a hint, before anything large happens.

use clap::Parser as _;
use serde_json::{Value, json};
use tokenspeed_server::{
    cli::{self, Cli},
    error::CliError,
};

use crate::support::{self, models};

fn run(line: &[&str]) -> Result<(), CliError> {
    let words = ["tokenspeed"].iter().chain(line);
    cli::run(Cli::try_parse_from(words).unwrap_or_else(|e| panic!("{line:?}: {e}")))
}

/// Fails with one line that says `parts`, and perhaps a hint of one line.
fn assert_fails(line: &[&str], parts: &[&str]) {
    let error = run(line).expect_err("it must not succeed");
    let text = error.render();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() <= 2 && lines[0].starts_with("error: "), "{line:?}: {text}");
    assert!(lines.get(1).is_none_or(|hint| hint.starts_with("  hint: ")), "{line:?}: {text}");
    for part in parts {
        assert!(text.contains(part), "{line:?}: no {part:?} in {text}");
    }
}

#[test]
fn missing_and_bad_models() {
    assert_fails(&["run", "no-such-model", "--prompt", "x"], &["no such model", "no-such-model", "hint"]);
    let folder = models::Folder::new("bad-models");
    assert_fails(&["run", &folder.model(), "--prompt", "x"], &["holds no model", "config.json"]);
    let text = folder.write("notes.txt", "hello");
    assert_fails(&["run", &text, "--prompt", "x"], &["not a model file"]);
    for (name, bytes) in [
        ("empty.gguf", &b""[..]),
        ("short.gguf", b"GGUF\x03\0\0\0"),
        ("magic.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 98362432\n"),
        ("counts.gguf", b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\x01\0\0\0\0\0\0\0"),
        ("version.gguf", b"GGUF\x63\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
    ] {
        let path = folder.write(name, bytes);
        assert_fails(&["run", &path, "--prompt", "x"], &[name]);
        assert_fails(&["plan", &path], &[name]);
    }
    let tiny = models::Folder::new("cut");
    let path = tiny.file("cut.gguf");
    tokenspeed_models::tiny::Tiny::llama()
        .write_gguf(std::path::Path::new(&path), tokenspeed_backend_api::dtype::DType::Q8_0)
        .expect("written");
    let whole = std::fs::read(&path).expect("there");
    tiny.write("cut.gguf", &whole[..whole.len() - 100]);
    assert_fails(&["run", &path, "--prompt", "x"], &["cut.gguf"]);
}

#[test]
fn missing_and_truncated_shards() {
    let folder = models::script();
    let weights = folder.file("model.safetensors");
    let whole = std::fs::read(&weights).expect("there");
    folder.write("model.safetensors", &whole[..whole.len() - 4096]);
    assert_fails(&["run", &folder.model(), "--prompt", "x"], &["model.safetensors"]);
    std::fs::remove_file(weights).expect("there");
    assert_fails(&["run", &folder.model(), "--prompt", "x"], &["safetensors"]);
    let sharded = models::script();
    std::fs::remove_file(sharded.file("model.safetensors")).expect("there");
    let map = json!({"weight_map": {"model.norm.weight": "model-00002-of-00003.safetensors"}});
    sharded.write("model.safetensors.index.json", map.to_string());
    assert_fails(&["run", &sharded.model(), "--prompt", "x"], &["model-00002-of-00003.safetensors"]);
}

#[test]
fn bad_configs() {
    for (content, part) in [
        ("{", "config.json"),
        ("[]", "config.json"),
        (r#"{"architectures": ["MambaForCausalLM"], "model_type": "mamba"}"#, "MambaForCausalLM"),
        (r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": -1}"#, "hidden_size"),
    ] {
        let folder = models::script();
        folder.write("config.json", content);
        assert_fails(&["run", &folder.model(), "--prompt", "x"], &[part]);
        assert_fails(&["plan", &folder.model()], &[part]);
    }
    let folder = models::script();
    folder.write("tokenizer.json", "{");
    assert_fails(&["run", &folder.model(), "--prompt", "x"], &["tokenizer.json"]);
    let folder = models::script();
    let template = folder.write("broken.jinja", "{% for m in messages %}");
    assert_fails(&["run", &folder.model(), "--prompt", "x", "--chat-template", &template], &["template"]);
    assert_fails(&["run", &folder.model(), "--prompt", "x", "--chat-template", "/no/such.jinja"], &["/no/such.jinja"]);
}

#[test]
fn bad_engine_options() {
    let folder = models::script();
    let model = folder.model();
    let fails = |options: &str, parts: &[&str]| {
        let mut line = vec!["run", &model, "--prompt", "x"];
        line.extend(options.split_whitespace());
        assert_fails(&line, parts);
    };
    fails("--backend no-such-backend", &["no-such-backend", "tokenspeed backends"]);
    fails("--backend /no/such/plugin.so", &["/no/such/plugin.so"]);
    fails("--backend-option colour=blue", &["colour", "reference-cpu"]);
    fails("--backend-option threads=many", &["threads", "many"]);
    fails("--backend null --mode exact", &["mode", "null"]);
    fails("--mode fast-int8", &["fast-int8"]);
    fails("--max-model-len 100000", &["100000", "256"]);
    fails("--memory 1MiB", &["1048576", "--memory"]);
}

#[test]
fn logits_reads_back() {
    let folder = models::tiny();
    let out = folder.file("logits.json");
    run(&["logits", &folder.model(), "--ids", "1,2,3,4,5", "--out", &out]).expect("computed");
    let json: Value = serde_json::from_slice(&std::fs::read(&out).expect("written")).expect("JSON");
    let rows = json["logits"].as_array().expect("rows");
    assert_eq!(rows.len(), 5);
    assert!(rows.iter().all(|row| row.as_array().map(Vec::len) == Some(384)));
    // The engine's own greedy choice after the same prompt, among the tokens that exist.
    let loaded = support::load(&folder.model(), "");
    let answer = support::finish(support::submit(&*loaded.engine, support::greedy(&[1, 2, 3, 4, 5], 1)));
    let exist = loaded.frontend.vocab_size() as usize;
    let last = &rows[4].as_array().expect("a row")[..exist];
    let last: Vec<f64> = last.iter().map(|v| v.as_f64().expect("a number")).collect();
    let max = last.iter().copied().fold(f64::MIN, f64::max);
    let logprob = last[answer.ids[0] as usize] - max - last.iter().map(|l| (l - max).exp()).sum::<f64>().ln();
    assert!((logprob - f64::from(answer.logprobs[0].logprob)).abs() < 1e-5);
    assert_fails(&["logits", &folder.model(), "--ids", "1,384", "--out", &out], &["384"]);
    assert_fails(&["logits", &folder.model(), "--ids", "1", "--out", "/no/such/folder/x"], &["/no/such/folder/x"]);
}

#[test]
fn plan_and_backends_explain() {
    let folder = models::tiny();
    let model = folder.model();
    run(&["plan", &model]).expect("a plan");
    run(&["backends", "--explain", &model]).expect("a table");
    run(&["backends", "--backend", "null", "--explain", &model]).expect("a table");
    assert_fails(&["plan", &model, "--tp", "2"], &["--tp"]);
    assert_fails(&["backends", "--backend", "no-such-backend"], &["no-such-backend"]);
    // A plan needs no weights and is about these.
    std::fs::remove_file(folder.file("model.safetensors")).expect("there");
    let options = support::options(&model, "--memory 64MiB");
    let table = tokenspeed_server::engine_setup::plan(&options, 1).expect("a plan").render();
    for part in ["reference-cpu", "bytes per token", "context 256", "2 layers"] {
        assert!(table.contains(part), "no {part:?} in\n{table}");
    }
    // 2 layers of 2 heads of 16, keys and values, 4 bytes.
    assert!(table.contains("512 bytes per token"), "{table}");
}

#[test]
fn run_and_tokenize_work() {
    let folder = models::script();
    run(&["run", &folder.model(), "--prompt", "x B", "--memory", "100MiB"]).expect("an answer");
    run(&["run", &folder.model(), "--chat", "--prompt", "x B", "--json", "--memory", "100MiB"]).expect("an answer");
    run(&["tokenize", &folder.model(), "x B"]).expect("ids");
}

#[test]
fn conform_refuses_a_backend_without_maths() {
    assert_fails(&["conform", "null", "--only", "rmsnorm"], &["checks failed", "null"]);
    assert_fails(&["conform", "no-such-backend"], &["no-such-backend"]);
    run(&["conform", "reference-cpu", "--only", "rmsnorm", "--backend-option", "threads=1"]).expect("it passes");
}
