//! `rope_scaling` / `rope_parameters` of a Hugging Face config, in all spellings that exist.

use super::{
    error::ConfigError,
    fields::{Fields, show},
    rope::{Rope, RopeScaling, RopeStyle, yarn_magnitude},
};

const SUPPORTED: &str = "default, linear, llama3, yarn";

/// Every field any supported kind knows. Others would change the frequencies in ways unknown to us.
const KNOWN: [&str; 15] = [
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "finetuned",
];

/// Read the rotary embedding of a config whose `max_position_embeddings` is `positions`.
pub(super) fn read(config: &Fields, head_dim: u64, positions: u64) -> Result<Rope, ConfigError> {
    let scaling = match (config.object("rope_parameters")?, config.object("rope_scaling")?) {
        (Some(_), Some(_)) => {
            return Err(config.invalid(
                "rope_scaling",
                "given beside `rope_parameters`",
                "only one of the two can hold",
            ));
        }
        (parameters, scaling) => parameters.or(scaling),
    };
    let mut theta = config.float("rope_theta")?;
    let mut partial = config.float("partial_rotary_factor")?;
    let mut kind = RopeScaling::None;
    if let Some(fields) = &scaling {
        if let Some(unknown) = fields.keys().find(|key| !KNOWN.contains(key)) {
            let value = fields.get(unknown).map_or("null".to_owned(), show);
            return Err(fields.unsupported(unknown, value, KNOWN.join(", ")));
        }
        theta = fields.float("rope_theta")?.or(theta);
        partial = fields.float("partial_rotary_factor")?.or(partial);
        kind = read_kind(config, fields, positions)?;
    }
    let theta = theta.unwrap_or(10_000.0);
    if theta <= 1.0 {
        return Err(config.invalid("rope_theta", theta, "it must be above 1"));
    }
    if partial.is_some_and(|p| p != 1.0) {
        let value = partial.map_or(String::new(), |p| p.to_string());
        return Err(config.unsupported("partial_rotary_factor", value, "1"));
    }
    Ok(Rope { style: RopeStyle::Halves, theta, rotary_dims: head_dim, scaling: kind })
}

fn read_kind(config: &Fields, fields: &Fields, positions: u64) -> Result<RopeScaling, ConfigError> {
    let field = if fields.get("rope_type").is_some() { "rope_type" } else { "type" };
    let kind = fields.str(field)?;
    // A stretch below 1 is possible in none of the methods; 0 would divide by it.
    let factor = || match fields.need_float("factor")? {
        f if f >= 1.0 => Ok(f),
        f => Err(fields.invalid("factor", f, "it must be at least 1")),
    };
    let positive = |fields: &Fields, field: &str, default: Option<f64>| match fields.float(field)?.or(default) {
        Some(f) if f > 0.0 => Ok(f),
        Some(f) => Err(fields.invalid(field, f, "it must be positive")),
        None => Err(fields.missing(field)),
    };
    const ORIGINAL: &str = "original_max_position_embeddings";
    let outer_original = config.float(ORIGINAL)?;
    match kind {
        // `rope_parameters` without scaling carries only `rope_theta`.
        None if fields.keys().all(|k| k == "rope_theta" || k == "partial_rotary_factor") => Ok(RopeScaling::None),
        None => Err(fields.missing("rope_type")),
        Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: factor()? }),
        Some("llama3") => {
            let low_freq_factor = positive(fields, "low_freq_factor", None)?;
            let high_freq_factor = positive(fields, "high_freq_factor", None)?;
            if high_freq_factor <= low_freq_factor {
                return Err(fields.invalid("high_freq_factor", high_freq_factor, "it must be above low_freq_factor"));
            }
            let original_tokens = positive(fields, ORIGINAL, outer_original)?;
            Ok(RopeScaling::Llama3 { factor: factor()?, low_freq_factor, high_freq_factor, original_tokens })
        }
        Some("yarn") => {
            let factor = factor()?;
            let original_tokens = positive(fields, ORIGINAL, outer_original.or(Some(positions as f64)))?;
            let beta_fast = positive(fields, "beta_fast", Some(32.0))?;
            let beta_slow = positive(fields, "beta_slow", Some(1.0))?;
            if beta_fast < beta_slow {
                return Err(fields.invalid("beta_fast", beta_fast, "it must not be below beta_slow"));
            }
            let magnitudes = (fields.float("mscale")?, fields.float("mscale_all_dim")?);
            let default = match magnitudes {
                (Some(a), Some(b)) if a != 0.0 && b != 0.0 => yarn_magnitude(factor, a) / yarn_magnitude(factor, b),
                _ => yarn_magnitude(factor, 1.0),
            };
            let attention_factor = positive(fields, "attention_factor", Some(default))?;
            let truncate = fields.bool("truncate")?.unwrap_or(true);
            Ok(RopeScaling::Yarn { factor, original_tokens, beta_fast, beta_slow, attention_factor, truncate })
        }
        Some(other) => Err(fields.unsupported(field, format!("`{}`", crate::weights::quoted(other)), SUPPORTED)),
    }
}
