//! Ridge regression for several outputs at once, in f64.

/// Sums of `w · x xᵀ` and `w · x yᵀ` over samples.
#[derive(Debug)]
pub(super) struct Normal {
    inputs: usize,
    outputs: usize,
    /// Lower triangle is enough, but all of it is kept.
    xx: Vec<f64>,
    xy: Vec<f64>,
}

impl Normal {
    pub fn new(inputs: usize, outputs: usize) -> Self {
        Self { inputs, outputs, xx: vec![0.0; inputs * inputs], xy: vec![0.0; inputs * outputs] }
    }

    /// A sample. Only differences between outputs are fitted: their mean is taken away.
    pub fn add(&mut self, x: &[f32], y: &[f32]) {
        assert_eq!((x.len(), y.len()), (self.inputs, self.outputs));
        let mean = y.iter().map(|v| f64::from(*v)).sum::<f64>() / y.len() as f64;
        for (i, a) in x.iter().enumerate() {
            let a = f64::from(*a);
            let row = &mut self.xx[i * self.inputs..][..self.inputs];
            row.iter_mut().zip(x).for_each(|(sum, b)| *sum += a * f64::from(*b));
            let row = &mut self.xy[i * self.outputs..][..self.outputs];
            row.iter_mut().zip(y).for_each(|(sum, b)| *sum += a * (f64::from(*b) - mean));
        }
    }

    /// The matrix `[outputs, inputs]` that minimises the squared error plus `ridge` times the mean of the inputs' energy
    /// times its own square. `None` if the samples are not finite or all zero.
    pub fn solve(mut self, ridge: f64) -> Option<Vec<f32>> {
        let n = self.inputs;
        let energy = (0..n).map(|i| self.xx[i * n + i]).sum::<f64>() / n as f64;
        (0..n).for_each(|i| self.xx[i * n + i] += ridge * energy);
        let l = cholesky(&self.xx, n)?;
        // Two triangular systems, all outputs at a time.
        let m = self.outputs;
        for i in 0..n {
            let (done, rest) = self.xy.split_at_mut(i * m);
            let row = &mut rest[..m];
            for (k, other) in done.chunks_exact(m).enumerate() {
                row.iter_mut().zip(other).for_each(|(a, b)| *a -= l[i * n + k] * b);
            }
            row.iter_mut().for_each(|a| *a /= l[i * n + i]);
        }
        for i in (0..n).rev() {
            let (head, done) = self.xy.split_at_mut((i + 1) * m);
            let row = &mut head[i * m..];
            for (k, other) in (i + 1..n).zip(done.chunks_exact(m)) {
                row.iter_mut().zip(other).for_each(|(a, b)| *a -= l[k * n + i] * b);
            }
            row.iter_mut().for_each(|a| *a /= l[i * n + i]);
        }
        Some((0..m).flat_map(|o| (0..n).map(move |i| (o, i))).map(|(o, i)| self.xy[i * m + o] as f32).collect())
    }
}

/// The lower factor of a positive definite matrix.
fn cholesky(a: &[f64], n: usize) -> Option<Vec<f64>> {
    let mut l = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..=i {
            let dot: f64 = (0..j).map(|k| l[i * n + k] * l[j * n + k]).sum();
            let rest = a[i * n + j] - dot;
            l[i * n + j] = match i == j {
                true if rest > 0.0 && rest.is_finite() => rest.sqrt(),
                true => return None,
                false => rest / l[j * n + j],
            };
        }
    }
    Some(l)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Outputs that are linear in the inputs are found again, up to each sample's mean.
    #[test]
    fn a_linear_map_is_recovered() {
        let truth = [[1.0, -2.0, 0.5], [0.25, 3.0, -1.0], [-1.25, -1.0, 0.5f32]];
        let mut normal = Normal::new(3, 3);
        for i in 0..20u32 {
            let x = [(i * 7 % 11) as f32 - 5.0, (i * 5 % 13) as f32 - 6.0, (i * 3 % 7) as f32 - 3.0];
            let y = truth.map(|row| 10.0 + row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>());
            normal.add(&x, &y);
        }
        let fitted = normal.solve(1e-12).expect("positive definite");
        for (fitted, truth) in fitted.iter().zip(truth.iter().flatten()) {
            assert!((fitted - truth).abs() < 1e-5, "{fitted} {truth}");
        }
    }

    #[test]
    fn nothing_to_fit_is_no_fit() {
        assert_eq!(Normal::new(2, 2).solve(1e-3), None);
        let mut normal = Normal::new(2, 2);
        normal.add(&[f32::NAN, 1.0], &[1.0, 2.0]);
        assert_eq!(normal.solve(1e-3), None);
    }
}
