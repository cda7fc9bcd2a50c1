//! A small model of the Llama family as the draft of a larger one with the same tokens.
//!
//! Its graph is the one it would be served with, moved: its cache becomes one more component of the target's, and its
//! weights get [`PREFIX`] before their names, because both models have a `norm`. The row at position p is made from tokens
//! up to p, as in any model, so cached pages suit every continuation. One graph serves for both passes: what follows the
//! text and what follows a guess are the same question.
//!
//! Rejected: a second engine with a cache of its own. Hits, evictions and preemption of both would have to be kept equal.
#![forbid(unsafe_code)]

use crate::eagle3::PREFIX;
use tokenspeed_backend_api::{
    graph::{ComponentSpec, Graph, Ref, WeightBytes, WeightSource, WeightSpec},
    op::OpKind,
};

/// Add the draft's part of the cache to the target's graphs (at least one), and move the draft's graph to where they are.
///
/// # Panics
/// If the draft has more than one cache component, or the target has a draft already: this is for graphs of the Llama
/// family.
pub fn attach(mut draft: Graph, target: &mut [Graph]) -> Graph {
    let [own] = &draft.components[..] else { panic!("a draft of the Llama family has one component") };
    let component = ComponentSpec { name: "draft".into(), kind: own.kind.clone() };
    let mut at = 0;
    for graph in target.iter_mut() {
        assert!(graph.components.iter().all(|c| c.name != "draft"), "a draft is attached already");
        assert_eq!(graph.ops[0].kind, OpKind::TableUpdate, "graphs begin with it");
        at = graph.component(component.clone());
        graph.ops[0].operands.push(Ref::Table { component: at });
    }
    draft.components.clone_from(&target.first().expect("a target").components);
    draft.weights.iter_mut().for_each(|w| w.name.insert_str(0, PREFIX));
    for op in &mut draft.ops {
        match op.kind {
            OpKind::TableUpdate => {
                op.operands = (0..draft.components.len()).map(|component| Ref::Table { component }).collect();
                continue;
            }
            OpKind::KvWrite | OpKind::PagedAttention => op.attrs.i[0] = at as i64,
            _ => {}
        }
        op.label.insert_str(0, PREFIX);
        for operand in &mut op.operands {
            match operand {
                Ref::Cache { component, .. } | Ref::Table { component } => *component = at,
                Ref::Value(_) | Ref::Weight(_) | Ref::Relay | Ref::Side { .. } => {}
            }
        }
    }
    draft
}

/// A model's weights under the names that [`attach`] gives them.
#[derive(Debug)]
pub struct Prefixed<T>(pub T);

impl<T: WeightSource> WeightSource for Prefixed<T> {
    fn regions(&self) -> Vec<&[u8]> {
        self.0.regions()
    }

    fn weight(&self, spec: &WeightSpec) -> Result<WeightBytes<'_>, String> {
        let name = spec.name.strip_prefix(PREFIX).ok_or_else(|| format!("`{}` is not the draft's", spec.name))?;
        self.0.weight(&WeightSpec { name: name.to_owned(), ..spec.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenspeed_backend_api::{
        dtype::DType,
        graph::{CacheTensor, ComponentKind},
        op::Attrs,
    };

    fn model(names: &[&str]) -> Graph {
        let mut graph = Graph::default();
        for name in names {
            let tensor = CacheTensor { name: "k".into(), dtype: DType::F32, inner: vec![1, 4] };
            graph.component(ComponentSpec {
                name: (*name).into(),
                kind: ComponentKind::Paged { tensors: vec![tensor] },
            });
        }
        let tables: Vec<Ref> = (0..names.len()).map(|component| Ref::Table { component }).collect();
        graph.push(OpKind::TableUpdate, Attrs::default(), &tables, "table_update");
        let w = graph.weight("norm", &[4], DType::F32);
        let cache = Ref::Cache { component: 0, tensor: 0 };
        graph.push(OpKind::KvWrite, Attrs::default(), &[w, cache, Ref::Table { component: 0 }], "write");
        graph
    }

    #[test]
    fn the_draft_moves_behind_the_targets_components() {
        let mut target = vec![model(&["mla", "taps"]), model(&["mla", "taps"])];
        let draft = attach(model(&["kv"]), &mut target);
        let names: Vec<&str> = draft.components.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["mla", "taps", "draft"]);
        assert!(target.iter().all(|t| t.components == draft.components && t.ops[0].operands == draft.ops[0].operands));
        let write = &draft.ops[1];
        assert_eq!(
            (write.attrs.i[0], write.label.as_str(), draft.weights[0].name.as_str()),
            (2, "draft.write", "draft.norm")
        );
        assert_eq!(write.operands[1..], [Ref::Cache { component: 2, tensor: 0 }, Ref::Table { component: 2 }]);
        assert_eq!(target[0].weights[0].name, "norm");
    }
}
