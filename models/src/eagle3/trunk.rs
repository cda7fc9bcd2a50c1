//! A draft whose head is worth fitting: random, but so that its last hidden state still tells the next token's embedding
//! and the taps apart.
//!
//! The projections a token's embedding goes through (latent, value, output) are random rotations, and queries are tied to
//! keys, so that a row attends to itself and to rows of the same token. A trunk of independent random matrices would
//! average the embedding away over all positions, and no head could bring it back.

use super::{
    Eagle3Config,
    tiny::{self, Draw, Made, encode},
};
use crate::kimi::KimiConfig;

/// Sizes of a fitted draft: nothing narrower than the stream lies in an embedding's way.
pub(super) fn config(target: &KimiConfig) -> Eagle3Config {
    let config = tiny::config(target);
    let latent = target.hidden_size.next_multiple_of(2);
    Eagle3Config { q_rank: latent, kv_rank: latent, v_dim: target.hidden_size.div_ceil(config.heads), ..config }
}

/// Random weights, all but the head.
pub(super) fn weights(config: &Eagle3Config, seed: u64) -> Vec<Made> {
    let mut made = tiny::weights(config, seed);
    let h = config.hidden_size as usize;
    let latent = config.kv_rank as usize;
    let rotation = |name: &str, rows, columns| orthogonal(&mut Draw::new(seed, name), rows, columns);
    let to_latent = rotation("latent", latent, h);
    let keys = rotation("keys", (config.heads * config.nope_dim) as usize, latent);
    let values = rotation("values", (config.heads * config.v_dim) as usize, latent);
    let output = rotation("output", h, (config.heads * config.v_dim) as usize);
    for (tensor, bytes) in &mut made {
        let (rows, columns) = (tensor.dims[0] as usize, *tensor.dims.last().expect("a shape") as usize);
        let mut draw = Draw::new(seed, &tensor.name);
        let mut noise = |scale: f32| draw.normal() * scale / (columns as f32).sqrt();
        let values: Vec<f32> = match tensor.name.as_str() {
            "layers.0.self_attn.q_a_proj.weight" | "layers.0.self_attn.kv_a_proj_with_mqa.weight" => (0..rows)
                .flat_map(|r| (0..columns).map(move |c| (r, c)))
                .map(|(r, c)| if r < latent && c < h { to_latent[r][c] } else { noise(TAPS_IN_LATENT) })
                .collect(),
            "layers.0.self_attn.q_b_proj.weight" => {
                let (nope, head) = (config.nope_dim as usize, (config.nope_dim + config.rope_dim) as usize);
                let row = |r: usize| (r / head, r % head);
                (0..rows)
                    .flat_map(|r| (0..columns).map(move |c| (r, c)))
                    .map(|(r, c)| match row(r) {
                        (h, i) if i < nope => keys[h * nope + i][c] * SHARPNESS,
                        _ => noise(1.0),
                    })
                    .collect()
            }
            "layers.0.self_attn.kv_b_proj.weight" => {
                let (nope, v) = (config.nope_dim as usize, config.v_dim as usize);
                let row = |r: usize| (r / (nope + v), r % (nope + v));
                (0..rows)
                    .flat_map(|r| {
                        let (h, i) = row(r);
                        if i < nope { keys[h * nope + i].clone() } else { values[h * v + i - nope].clone() }
                    })
                    .collect()
            }
            "layers.0.self_attn.o_proj.weight" => output.iter().flatten().map(|w| w * ATTENTION).collect(),
            "layers.0.mlp.down_proj.weight" => (0..rows * columns).map(|_| noise(MLP)).collect(),
            "fc.weight" => (0..rows * columns).map(|_| noise(TAPS)).collect(),
            _ => continue,
        };
        *bytes = encode(tensor.dtype, &values);
    }
    made
}

/// Size of what attention, MLP and taps add to the stream, before it is normalised.
const ATTENTION: f32 = 16.0;
const MLP: f32 = 0.3;
const TAPS: f32 = 1.0;
/// Share of the taps in latents.
const TAPS_IN_LATENT: f32 = 0.1;
/// Factor on scores.
const SHARPNESS: f32 = 6.0;

/// Rows or columns (the fewer of both) of unit length at right angles, by Gram-Schmidt on random ones.
fn orthogonal(draw: &mut Draw, rows: usize, columns: usize) -> Vec<Vec<f32>> {
    let (n, width) = (rows.min(columns), rows.max(columns));
    let mut basis: Vec<Vec<f64>> = Vec::new();
    while basis.len() < n {
        let mut v: Vec<f64> = (0..width).map(|_| f64::from(draw.normal())).collect();
        for b in &basis {
            let dot: f64 = v.iter().zip(b).map(|(x, y)| x * y).sum();
            v.iter_mut().zip(b).for_each(|(x, y)| *x -= dot * y);
        }
        let length = v.iter().map(|x| x * x).sum::<f64>().sqrt();
        basis.push(v.into_iter().map(|x| x / length).collect());
    }
    let at = |r: usize, c: usize| if rows <= columns { basis[r][c] } else { basis[c][r] };
    (0..rows).map(|r| (0..columns).map(|c| at(r, c) as f32).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotations_keep_lengths() {
        for (rows, columns) in [(7, 5), (5, 5), (3, 8)] {
            let m = orthogonal(&mut Draw::new(1, "x"), rows, columns);
            let dot = |a: usize, b: usize| -> f32 {
                if rows <= columns {
                    m[a].iter().zip(&m[b]).map(|(x, y)| x * y).sum()
                } else {
                    m.iter().map(|row| row[a] * row[b]).sum()
                }
            };
            for a in 0..rows.min(columns) {
                (0..=a).for_each(|b| assert!((dot(a, b) - f32::from(a == b)).abs() < 1e-5, "{a} {b}"));
            }
        }
    }
}
