//! Runs a divided model on the host: all ranks in one thread, one after the other between exchanges.

use crate::host_walker::{Host, Mode, Run};
use tokenspeed_backend_api::{graph::WeightSource, step::StepData};
use tokenspeed_models::kimi::slicing::{ExchangeKind, RankGraph};

/// A group of ranks.
pub struct Group<'a> {
    pub hosts: Vec<Host<'a>>,
    graphs: Vec<RankGraph>,
    /// An exchange to leave out, for tests of the tests.
    pub skipped: Option<usize>,
}

impl<'a> Group<'a> {
    pub fn new(graphs: Vec<RankGraph>, sources: &[&'a dyn WeightSource]) -> Self {
        let hosts = graphs.iter().zip(sources).map(|(g, source)| Host::new(&g.graph, *source, Mode::Exact));
        Self { hosts: hosts.collect(), graphs, skipped: None }
    }

    /// One step; every rank must end with the same logits, bit for bit.
    pub fn run(&mut self, step: &StepData) -> Vec<Vec<f32>> {
        self.run_graphs(&self.graphs.clone(), step)
    }

    /// The same with other graphs over the same caches.
    pub fn run_graphs(&mut self, graphs: &[RankGraph], step: &StepData) -> Vec<Vec<f32>> {
        let mut runs: Vec<Run> = graphs.iter().map(|g| Run::new(&g.graph, step)).collect();
        let mut nth = 0;
        for (ops, exchanges) in graphs[0].segments() {
            for (host, run) in self.hosts.iter_mut().zip(&mut runs) {
                host.ops(run, ops.clone());
            }
            for kind in exchanges {
                if self.skipped != Some(nth) {
                    exchange(&mut runs, kind);
                }
                nth += 1;
            }
        }
        let logits = runs[0].logits();
        if self.skipped.is_none() {
            let bits = |rows: &[Vec<f32>]| rows.iter().flatten().map(|v| v.to_bits()).collect::<Vec<_>>();
            runs.iter().for_each(|run| assert!(bits(&run.logits()) == bits(&logits), "ranks disagree"));
        }
        logits
    }
}

fn exchange(runs: &mut [Run], kind: ExchangeKind) {
    let (from, to) = match kind {
        ExchangeKind::Sum { value } => (value, value),
        ExchangeKind::Gather { part, whole } => (part, whole),
    };
    let mut result = runs[0].floats(from);
    for run in &runs[1..] {
        for (row, other) in result.iter_mut().zip(run.floats(from)) {
            match kind {
                ExchangeKind::Sum { .. } => row.iter_mut().zip(other).for_each(|(a, b)| *a += b),
                ExchangeKind::Gather { .. } => row.extend(other),
            }
        }
    }
    runs.iter_mut().for_each(|run| run.set(to, &result));
}
