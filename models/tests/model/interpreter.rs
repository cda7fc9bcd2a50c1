//! The dumbest possible execution of a graph: one sequence, f64, no paging. It holds a model's graph (operand order,
//! attributes, shapes) against the golden logits without any backend.
use std::collections::HashMap;
use tokenspeed_backend_api::{
    dtype::DType,
    graph::{Graph, GraphOp, Ref, WeightBytes, WeightSource},
    op::{OpKind, ROPE_PAIRS},
    quant::dequantize_row,
};
use tokenspeed_models::loader::Model;

type Rows = Vec<Vec<f64>>;

/// Logits of `ids` at `rows`.
pub fn logits(model: &Model, ids: &[u32], rows: &[usize]) -> Rows {
    let mut run =
        Run { graph: &model.graph, source: &model.weights, ids, rows, values: HashMap::new(), caches: HashMap::new() };
    for op in &model.graph.ops {
        run.op(op);
    }
    run.values.remove(&model.graph.logits.expect("a graph has logits")).expect("and computes them")
}

struct Run<'a> {
    graph: &'a Graph,
    source: &'a dyn WeightSource,
    ids: &'a [u32],
    rows: &'a [usize],
    values: HashMap<usize, Rows>,
    caches: HashMap<(usize, usize), Rows>,
}

impl Run<'_> {
    fn op(&mut self, op: &GraphOp) {
        let o = &op.operands;
        match op.kind {
            OpKind::TableUpdate => assert!(matches!(o[..], [Ref::Table { .. }])),
            OpKind::Embedding => {
                let table = self.weight(o[0]);
                self.set(o[1], self.ids.iter().map(|id| table[*id as usize].clone()).collect());
            }
            OpKind::Gemm => {
                let (x, w, bias) = (self.get(o[0]), self.weight(o[1]), op.attrs.i[0] == 1);
                assert_eq!(o.len(), 3 + usize::from(bias));
                let b = if bias { self.weight(o[2]).remove(0) } else { vec![0.0; w.len()] };
                assert_eq!((x[0].len(), w.len()), (w[0].len(), self.width(o[o.len() - 1])), "{}", op.label);
                let y = x.iter().map(|x| w.iter().zip(&b).map(|(w, b)| dot(x, w) + b).collect()).collect();
                self.set(o[o.len() - 1], y);
            }
            OpKind::RmsNorm => {
                let y = rmsnorm(&self.get(o[0]), &self.weight(o[1])[0], op.attrs.f[0]);
                self.set(o[2], y);
            }
            OpKind::AddRmsNorm => {
                let sum = zip(&self.get(o[0]), &self.get(o[1]), |a, b| a + b);
                self.set(o[4], rmsnorm(&sum, &self.weight(o[2])[0], op.attrs.f[0]));
                self.set(o[3], sum);
            }
            OpKind::SiluMul => {
                let y = zip(&self.get(o[0]), &self.get(o[1]), |g, u| g / (1.0 + (-g).exp()) * u);
                self.set(o[2], y);
            }
            OpKind::RowGather => {
                let x = self.get(o[0]);
                self.set(o[1], self.rows.iter().map(|r| x[*r].clone()).collect());
            }
            OpKind::Rope => self.rope(op),
            OpKind::KvWrite => {
                let Ref::Cache { component, tensor } = o[1] else { panic!("{}", op.label) };
                assert_eq!((op.attrs.i[0], o[2]), (component as i64, Ref::Table { component }));
                let x = self.get(o[0]);
                assert!(self.caches.insert((component, tensor), x).is_none(), "written twice: {}", op.label);
            }
            OpKind::PagedAttention => self.attention(op),
            other => panic!("unexpected {other}"),
        }
    }

    fn rope(&mut self, op: &GraphOp) {
        let o = &op.operands;
        let frequencies = self.weight(o[1]).remove(0);
        let (dim, n) = (self.inner(o[2])[1], frequencies.len());
        let magnitude = if op.attrs.f[0] == 0.0 { 1.0 } else { op.attrs.f[0] };
        let mut x = self.get(o[0]);
        for (position, row) in x.iter_mut().enumerate() {
            for head in row.chunks_mut(dim) {
                for (i, f) in frequencies.iter().enumerate() {
                    let (a, b) = if op.attrs.i[0] == ROPE_PAIRS { (2 * i, 2 * i + 1) } else { (i, i + n) };
                    let (sin, cos) = (position as f64 * f).sin_cos();
                    let (u, v) = (head[a] * magnitude, head[b] * magnitude);
                    (head[a], head[b]) = (u * cos - v * sin, v * cos + u * sin);
                }
            }
        }
        self.set(o[2], x);
    }

    fn attention(&mut self, op: &GraphOp) {
        let [q, k, v, Ref::Table { .. }, y] = op.operands[..] else { panic!("{}", op.label) };
        let cache = |r: Ref| match r {
            Ref::Cache { component, tensor } => self.caches[&(component, tensor)].clone(),
            _ => panic!("{}", op.label),
        };
        let (q, k, v) = (self.get(q), cache(k), cache(v));
        let [heads, dim] = self.inner(y)[..] else { panic!("{}", op.label) };
        let group = heads / (k[0].len() / dim);
        let (window, scale) = (op.attrs.i[1] as usize, op.attrs.f[0]);
        let mut out = Vec::new();
        for (t, q) in q.iter().enumerate() {
            let first = if window == 0 { 0 } else { (t + 1).saturating_sub(window) };
            let mut row = Vec::new();
            for (h, q) in q.chunks(dim).enumerate() {
                let at = h / group * dim;
                let scores: Vec<f64> = (first..=t).map(|s| dot(q, &k[s][at..at + dim]) * scale).collect();
                let max = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                row.extend(
                    (0..dim)
                        .map(|d| weights.iter().enumerate().map(|(i, w)| w * v[first + i][at + d]).sum::<f64>() / sum),
                );
            }
            out.push(row);
        }
        self.set(y, out);
    }

    fn weight(&self, r: Ref) -> Rows {
        let Ref::Weight(index) = r else { panic!("{r:?} is no weight") };
        let spec = &self.graph.weights[index];
        let found = self.source.weight(spec).expect("every weight of the graph exists");
        let regions = self.source.regions();
        let bytes = match &found {
            WeightBytes::Mapped { region, offset, bytes } => &regions[*region][*offset as usize..][..*bytes as usize],
            WeightBytes::Owned(bytes) => bytes.as_ref(),
        };
        let mut values = vec![0f32; spec.dims.iter().product::<u64>() as usize];
        dequantize_row(spec.dtype, bytes, &mut values);
        let row = spec.dims[spec.dims.len() - 1] as usize;
        values.chunks(row).map(|row| row.iter().map(|v| f64::from(*v)).collect()).collect()
    }

    fn get(&self, r: Ref) -> Rows {
        let Ref::Value(index) = r else { panic!("{r:?} is no value") };
        self.values
            .get(&index)
            .unwrap_or_else(|| panic!("{} read before written", self.graph.values[index].name))
            .clone()
    }

    fn set(&mut self, r: Ref, rows: Rows) {
        let Ref::Value(index) = r else { panic!("{r:?} is no value") };
        assert!(rows.iter().all(|row| row.len() == self.width(r)), "{}", self.graph.values[index].name);
        assert!(self.values.insert(index, rows).is_none(), "{} written twice", self.graph.values[index].name);
    }

    fn inner(&self, r: Ref) -> Vec<usize> {
        let Ref::Value(index) = r else { panic!("{r:?} is no value") };
        self.graph.values[index].inner.iter().map(|d| *d as usize).collect()
    }

    fn width(&self, r: Ref) -> usize {
        self.inner(r).iter().product()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn zip(a: &Rows, b: &Rows, f: impl Fn(f64, f64) -> f64) -> Rows {
    a.iter().zip(b).map(|(a, b)| a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect()).collect()
}

/// Over chunks as long as `w`: the last dimension.
fn rmsnorm(x: &Rows, w: &[f64], eps: f64) -> Rows {
    let one = |chunk: &[f64]| {
        let scale = (dot(chunk, chunk) / w.len() as f64 + eps).sqrt();
        chunk.iter().zip(w).map(|(x, w)| x / scale * w).collect::<Vec<f64>>()
    };
    x.iter().map(|row| row.chunks(w.len()).flat_map(one).collect()).collect()
}

/// Format of a weight of the model's graph.
pub fn dtype(model: &Model, name: &str) -> DType {
    model.graph.weights.iter().find(|w| w.name == name).expect("a weight of the graph").dtype
}
