//! Hold a checkpoint against the weights a config needs.

use super::{
    Notice,
    error::{ModelError, TensorMismatch},
    is_weight_format,
};
use crate::{
    config::LlamaConfig,
    graph::WeightPlan,
    weights::{Checkpoint, Format, Tensor, quoted},
};
use std::collections::HashSet;
use tokenspeed_backend_api::dtype::DType;

/// The head's tensor where it is surplus or absent: the one place where checkpoints and configs are known to disagree.
const HF_HEAD: &str = "lm_head.weight";
const GGUF_ROPE_DIVISORS: &str = "rope_freqs.weight";

/// For each planned weight, in order, the checkpoint's tensor and its stored format.
pub(super) fn resolve<'a>(
    config: &LlamaConfig,
    plan: &[WeightPlan],
    checkpoint: &'a Checkpoint,
    notices: &mut Vec<Notice>,
) -> Result<Vec<(&'a Tensor, DType)>, ModelError> {
    let is_gguf = checkpoint.metadata().is_some();
    let name = |w: &'_ WeightPlan| if is_gguf { w.gguf.clone() } else { w.hf.clone() };
    let missing: Vec<String> = plan.iter().map(name).filter(|n| checkpoint.get(n).is_none()).collect();
    if let Some(first) = missing.first() {
        return Err(missing_error(config, checkpoint, first, missing.len()));
    }
    let mut found = Vec::with_capacity(plan.len());
    for weight in plan {
        let tensor = checkpoint.get(&name(weight)).expect("nothing is missing");
        let mismatch = |cause| ModelError::Tensor {
            file: checkpoint.file_of(tensor).to_owned(),
            tensor: quoted(&tensor.name),
            cause,
        };
        if tensor.shape != weight.dims {
            let (actual, expected) = (tensor.shape.clone(), weight.dims.clone());
            return Err(mismatch(TensorMismatch::Shape { actual, expected }));
        }
        match tensor.format {
            Format::Known(dtype) if is_weight_format(dtype) => found.push((tensor, dtype)),
            other => return Err(mismatch(TensorMismatch::Format(other.name()))),
        }
    }
    check_surplus(config, &found, checkpoint, notices)?;
    Ok(found)
}

/// GGUF's frequency divisors, if the file has them.
pub(super) fn rope_divisors<'a>(
    config: &LlamaConfig,
    checkpoint: &'a Checkpoint,
) -> Result<Option<&'a Tensor>, ModelError> {
    let Some(tensor) = checkpoint.metadata().and_then(|_| checkpoint.get(GGUF_ROPE_DIVISORS)) else { return Ok(None) };
    let expected = vec![config.rope.rotary_dims / 2];
    let cause = if tensor.shape != expected {
        TensorMismatch::Shape { actual: tensor.shape.clone(), expected }
    } else if tensor.format != Format::Known(DType::F32) {
        TensorMismatch::Format(tensor.format.name())
    } else {
        return Ok(Some(tensor));
    };
    Err(ModelError::Tensor { file: checkpoint.path().to_owned(), tensor: tensor.name.clone(), cause })
}

fn missing_error(config: &LlamaConfig, checkpoint: &Checkpoint, first: &str, count: usize) -> ModelError {
    let others = if count > 1 { format!(" (and {} more)", count - 1) } else { String::new() };
    let shard = checkpoint.unlisted().iter().find(|(tensor, _)| tensor == first);
    let hint = match shard {
        Some((_, shard)) => format!("; shard `{}` has it, but the index does not list it", quoted(shard)),
        None if first == HF_HEAD => format!(
            "; tie_word_embeddings is false (the default for {}), so the model needs its own output head",
            config.architecture.name()
        ),
        None => String::new(),
    };
    ModelError::Tensor {
        file: checkpoint.path().to_owned(),
        tensor: first.to_owned(),
        cause: TensorMismatch::Missing { others, hint },
    }
}

fn check_surplus(
    config: &LlamaConfig,
    found: &[(&Tensor, DType)],
    checkpoint: &Checkpoint,
    notices: &mut Vec<Notice>,
) -> Result<(), ModelError> {
    let used: HashSet<&str> = found.iter().map(|(tensor, _)| tensor.name.as_str()).collect();
    let mut unexpected = Vec::new();
    let mut harmless = 0;
    for tensor in checkpoint.tensors().iter().filter(|t| !used.contains(t.name.as_str())) {
        if tensor.name == HF_HEAD && config.tied_embeddings {
            notices.push(surplus_head(found[0].0, tensor, checkpoint));
        } else if tensor.name.ends_with(".rotary_emb.inv_freq") {
            // Old checkpoints saved this buffer; it follows from the config.
            harmless += 1;
        } else if checkpoint.metadata().is_none() || tensor.name != GGUF_ROPE_DIVISORS {
            unexpected.push(tensor);
        }
    }
    if harmless > 0 {
        let text = format!("{harmless} `rotary_emb.inv_freq` tensors ignored: the config says the same");
        notices.push(Notice { is_warning: false, text });
    }
    if let Some((tensor, shard)) = checkpoint.unlisted().first() {
        let n = checkpoint.unlisted().len();
        let text = format!(
            "{n} tensors are in shards but not in the index, ignored; the first is `{}` in `{}`",
            quoted(tensor),
            quoted(shard)
        );
        notices.push(Notice { is_warning: true, text });
    }
    let Some(first) = unexpected.first() else { return Ok(()) };
    let others = if unexpected.len() > 1 { format!(" (nor are {} more)", unexpected.len() - 1) } else { String::new() };
    Err(ModelError::Tensor {
        file: checkpoint.file_of(first).to_owned(),
        tensor: quoted(&first.name),
        cause: TensorMismatch::Unexpected { others },
    })
}

/// The config says tied, the file has a head all the same: the config wins, and a difference is worth a warning.
fn surplus_head(embedding: &Tensor, head: &Tensor, checkpoint: &Checkpoint) -> Notice {
    let equal = head.format == embedding.format
        && head.shape == embedding.shape
        && checkpoint.bytes(head) == checkpoint.bytes(embedding);
    let text = if equal {
        format!("`{HF_HEAD}` repeats the embedding table (tie_word_embeddings is true), ignored")
    } else {
        format!(
            "`{HF_HEAD}` DIFFERS from the embedding table although tie_word_embeddings is true; the config wins, the \
             head is ignored (set tie_word_embeddings to false to use it)"
        )
    };
    Notice { is_warning: !equal, text }
}
