//! The graph of one rank, and where ranks exchange values.
//!
//! Built as the graph of the rank's narrower model, then walked once, following what each value is: the same on every
//! rank, this rank's share, or this rank's summand. A summand may be added to another summand; before anything else
//! reads it, it is exchanged, right after the op that makes it. The walk also proves the table: a share where all of a
//! value is needed, or a weight whose slice is not what the narrow model asks for, is an error and not a wrong number.
//!
//! The op catalogue has no collectives yet. When it has, an exchange becomes an op at the place that is recorded here.

use super::{
    SplitError,
    table::{Cut, ExpertSplit, Rule, Split},
};
use crate::kimi::{
    builder::attrs,
    config::KimiConfig,
    stack::{GraphOptions, Graphs},
};
use tokenspeed_backend_api::{
    catalogue,
    dtype::DType,
    graph::{Graph, GraphOp, Ref, Vary},
    op::OpKind,
};

/// A point where all ranks stop, having run the ops up to `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Index of the op after which it happens.
    pub after: usize,
    /// What happens.
    pub kind: ExchangeKind,
}

/// What ranks exchange. Indices are into the graph's values, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeKind {
    /// `value` becomes the sum over all ranks, in rank order in f32, so that every rank has the same bits.
    Sum {
        /// Of every rank.
        value: usize,
    },
    /// `whole` becomes the `part` of all ranks side by side, in rank order.
    Gather {
        /// Of every rank.
        part: usize,
        /// Written by the exchange.
        whole: usize,
    },
}

/// The graph of one rank.
#[derive(Clone, Debug)]
pub struct RankGraph {
    /// Its ops, with this rank's slices as weights and caches.
    pub graph: Graph,
    /// In order of `after`.
    pub exchanges: Vec<Exchange>,
}

/// The graphs of one rank: [`Graphs`], divided.
#[derive(Clone, Debug)]
pub struct RankGraphs {
    /// Logits of the step's tokens.
    pub forward: RankGraph,
    /// The same for candidate tokens.
    pub verify: Option<RankGraph>,
    /// Advances the recurrent states over accepted candidates.
    pub replay: Option<RankGraph>,
}

impl RankGraphs {
    /// Divide a model. Every rank has the same ops, values and exchanges; weights differ in content, not in shape.
    pub fn new(config: &KimiConfig, options: GraphOptions, split: Split) -> Result<Self, SplitError> {
        if split.experts == ExpertSplit::Id && split.ranks > 1 && config.moe.experts > 0 {
            return Err(SplitError::ExpertsById);
        }
        let (whole, narrow) = (Graphs::new(config, options), Graphs::new(&split.narrow(config), options));
        let divide = |whole: Graph, narrow: Graph| divide(config, split, &whole, narrow);
        let both = |whole: Option<Graph>, narrow: Option<Graph>| {
            whole.zip(narrow).map(|(whole, narrow)| divide(whole, narrow)).transpose()
        };
        Ok(Self {
            forward: divide(whole.forward, narrow.forward)?,
            verify: both(whole.verify, narrow.verify)?,
            replay: both(whole.replay, narrow.replay)?,
        })
    }
}

impl RankGraph {
    /// Ranges of ops between exchanges, each with the exchanges after it; the last one may have none.
    pub fn segments(&self) -> Vec<(std::ops::Range<usize>, Vec<ExchangeKind>)> {
        let mut segments: Vec<(std::ops::Range<usize>, Vec<ExchangeKind>)> = Vec::new();
        for exchange in &self.exchanges {
            match segments.last_mut() {
                Some((ops, kinds)) if ops.end == exchange.after + 1 => kinds.push(exchange.kind),
                last => {
                    let start = last.map_or(0, |(ops, _)| ops.end);
                    segments.push((start..exchange.after + 1, vec![exchange.kind]));
                }
            }
        }
        let start = segments.last().map_or(0, |(ops, _)| ops.end);
        if start < self.graph.ops.len() {
            segments.push((start..self.graph.ops.len(), Vec::new()));
        }
        segments
    }
}

/// What a value is, across ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Across {
    /// The same everywhere.
    Same,
    /// Some heads or channels of it.
    Share,
    /// A summand of it.
    Summand,
}

struct Walk {
    graph: Graph,
    cuts: Vec<Option<Cut>>,
    ops: Vec<GraphOp>,
    /// By value: what it is and which op made it.
    made: Vec<Option<(Across, usize)>>,
    /// Summands that were added up before any exchange.
    added: Vec<usize>,
    exchanges: Vec<Exchange>,
}

fn divide(config: &KimiConfig, split: Split, whole: &Graph, mut narrow: Graph) -> Result<RankGraph, SplitError> {
    let mut cuts = Vec::new();
    for (spec, full) in narrow.weights.iter_mut().zip(&whole.weights) {
        assert_eq!(spec.name, full.name, "graphs of one model have the same weights in the same order");
        let rule = Rule::of(config, &spec.name)?;
        let cut = split.cut(rule, &spec.name, &full.dims);
        let mut dims = full.dims.clone();
        cut.iter().for_each(|cut| dims[cut.axis] = cut.len);
        // The narrow model keeps the vocabulary and the latent space.
        if dims != spec.dims && spec.dims != full.dims {
            let reason = format!("the rule makes it {dims:?}, the model of a rank asks for {:?}", spec.dims);
            return Err(SplitError::Rule { label: spec.name.clone(), reason });
        }
        spec.dims = dims;
        cuts.push(cut);
    }
    let ops = std::mem::take(&mut narrow.ops);
    let made = vec![None; narrow.values.len()];
    let mut walk = Walk { graph: narrow, cuts, ops: Vec::new(), made, added: Vec::new(), exchanges: Vec::new() };
    for op in ops {
        walk.op(op)?;
    }
    walk.gather_logits(config.vocab_size);
    walk.graph.ops = walk.ops;
    walk.exchanges.sort_by_key(|e| e.after);
    Ok(RankGraph { graph: walk.graph, exchanges: walk.exchanges })
}

fn defect(op: &GraphOp, reason: impl Into<String>) -> SplitError {
    SplitError::Rule { label: op.label.clone(), reason: format!("{}: {}", op.kind, reason.into()) }
}

impl Walk {
    fn op(&mut self, op: GraphOp) -> Result<(), SplitError> {
        use OpKind::*;
        let result = match op.kind {
            Gemm => return self.product(op),
            MoeInput => return self.moe_input(op),
            // The norm needs whole rows and the product a rank's columns: in parts.
            MoeOutput => {
                for part in catalogue::basic(op, &mut self.graph) {
                    self.made.resize(self.graph.values.len(), None);
                    self.op(part)?;
                }
                return Ok(());
            }
            Add => self.sum(&op)?,
            Experts => {
                self.same(&op)?;
                let cut = op.operands.iter().any(|r| matches!(r, Ref::Weight(w) if self.cuts[*w].is_some()));
                if cut { Across::Summand } else { Across::Same }
            }
            TableUpdate | Embedding | RmsNorm | AttnResMix | RouterTopk | RowGather | MlaWrite => {
                self.same(&op)?;
                Across::Same
            }
            // The low-rank input of the decay is the same everywhere, beside shares.
            KdaRecord => self.by_head(&op, true)?,
            KdaMix => self.by_head(&op, op.attrs.i[2] == 1)?,
            ShortConv | L2Norm | KdaGate | Sigmoid | KdaStep | KdaChunk | KdaVerify | KdaReplay | GatedRmsNorm
            | SituMul | SiluMul | SigmoidMul | MlaAbsorb | MlaAttention | MlaValue | MlaMix => {
                self.by_head(&op, false)?
            }
            _ => return Err(defect(&op, "no rule for this op over ranks")),
        };
        self.push(op, result);
        Ok(())
    }

    fn push(&mut self, op: GraphOp, result: Across) {
        let at = self.ops.len();
        for value in values(&op) {
            self.made[value].get_or_insert((result, at));
        }
        self.ops.push(op);
    }

    /// Inputs of an op: values that an earlier op made.
    fn inputs(&self, op: &GraphOp) -> Vec<(usize, Across)> {
        values(op).filter_map(|v| self.made[v].map(|(across, _)| (v, across))).collect()
    }

    /// Sum a summand over ranks, right after it was made.
    fn exchange(&mut self, op: &GraphOp, value: usize) -> Result<(), SplitError> {
        if self.added.contains(&value) {
            return Err(defect(op, "reads a summand that was already added to another"));
        }
        let (across, after) = self.made[value].as_mut().expect("an input was made");
        *across = Across::Same;
        self.exchanges.push(Exchange { after: *after, kind: ExchangeKind::Sum { value } });
        Ok(())
    }

    /// All inputs are the same everywhere, after exchanges.
    fn same(&mut self, op: &GraphOp) -> Result<(), SplitError> {
        for (value, across) in self.inputs(op) {
            match across {
                Across::Same => {}
                Across::Summand => self.exchange(op, value)?,
                Across::Share => return Err(defect(op, "reads a share where all of a value is needed")),
            }
        }
        Ok(())
    }

    /// Works head by head, or channel by channel.
    fn by_head(&mut self, op: &GraphOp, mixed: bool) -> Result<Across, SplitError> {
        let inputs = self.inputs(op);
        for (value, _) in inputs.iter().filter(|(_, across)| *across == Across::Summand) {
            self.exchange(op, *value)?;
        }
        let shares = inputs.iter().filter(|(_, across)| *across == Across::Share).count();
        match shares {
            0 => Ok(Across::Same),
            n if n == inputs.len() || mixed => Ok(Across::Share),
            _ => Err(defect(op, "mixes shares with whole values")),
        }
    }

    fn sum(&mut self, op: &GraphOp) -> Result<Across, SplitError> {
        let inputs = self.inputs(op);
        if inputs.iter().all(|(_, across)| *across == Across::Summand) {
            self.added.extend(inputs.iter().map(|(value, _)| value));
            return Ok(Across::Summand);
        }
        self.same(op)?;
        Ok(Across::Same)
    }

    fn product(&mut self, mut op: GraphOp) -> Result<(), SplitError> {
        let [Ref::Value(x), Ref::Weight(w), Ref::Value(y)] = op.operands[..] else {
            return Err(defect(&op, "not a value times a weight"));
        };
        let across = self.made[x].map_or(Across::Same, |(across, _)| across);
        if across == Across::Summand {
            self.exchange(&op, x)?;
        }
        let share = across == Across::Share;
        let result = match self.cuts[w] {
            None if !share => Across::Same,
            Some(cut) if cut.axis == 0 && !share => {
                // The head: the narrow model has all of the vocabulary.
                if self.graph.values[y].inner.iter().product::<u64>() != cut.len {
                    self.graph.values[y].inner = vec![cut.len];
                }
                Across::Share
            }
            Some(cut) if cut.axis == 1 => {
                if !share {
                    op.operands[0] = Ref::Value(self.columns(x, cut, &op.label));
                }
                Across::Summand
            }
            _ => return Err(defect(&op, "a share meets a weight that is not cut by columns")),
        };
        self.push(op, result);
        Ok(())
    }

    /// Router and latent row are whole on every rank, the shared experts' product is a rank's columns.
    fn moe_input(&mut self, op: GraphOp) -> Result<(), SplitError> {
        self.same(&op)?;
        let cut = |i: usize| match op.operands[i] {
            Ref::Weight(w) => self.cuts[w].map(|cut| cut.axis),
            _ => None,
        };
        let gated = match [1, 2, 3, 4].map(cut) {
            [None, None, None, None] => Across::Same,
            [None, None, Some(0), Some(0)] => Across::Share,
            cuts => return Err(defect(&op, format!("its matrices are cut along {cuts:?}"))),
        };
        let Ref::Value(h) = op.operands[7] else { return Err(defect(&op, "h is not a value")) };
        self.made[h] = Some((gated, self.ops.len()));
        self.push(op, Across::Same);
        Ok(())
    }

    /// This rank's columns of a value that every rank has.
    fn columns(&mut self, x: usize, cut: Cut, label: &str) -> usize {
        let name = format!("{label}.share");
        let vary = self.graph.values[x].vary;
        let Ref::Value(y) = self.graph.value(name.clone(), vary, &[cut.len], DType::F32) else {
            unreachable!("a value was just made")
        };
        self.made.push(None);
        let operands = vec![Ref::Value(x), Ref::Value(y)];
        let slice = GraphOp { kind: OpKind::Slice, attrs: attrs(&[cut.start as i64], &[]), operands, label: name };
        self.push(slice, Across::Share);
        y
    }

    fn gather_logits(&mut self, vocab: u64) {
        let Some(part) = self.graph.logits else { return };
        let (across, after) = self.made[part].expect("logits are made by an op");
        if across != Across::Share {
            return;
        }
        self.graph.values[part].name = "logits.share".into();
        let whole = self.graph.value("logits", Vary::LogitRows, &[vocab], DType::F32);
        let Ref::Value(whole) = whole else { unreachable!("a value was just made") };
        self.graph.logits = Some(whole);
        self.exchanges.push(Exchange { after, kind: ExchangeKind::Gather { part, whole } });
    }
}

fn values(op: &GraphOp) -> impl Iterator<Item = usize> + '_ {
    op.operands.iter().filter_map(|r| match r {
        Ref::Value(v) => Some(*v),
        _ => None,
    })
}
