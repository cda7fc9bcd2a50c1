//! What a tree of guesses needs beside the passes there are: the rows of the accepted branch moved to their places.
//!
//! Works for any graph with paged components, because it looks at nothing else. A model with recurrent state does it in its
//! replay pass; one without gets a pass of its own.
#![forbid(unsafe_code)]

use tokenspeed_backend_api::{
    graph::{ComponentKind, Graph, Ref},
    op::{Attrs, OpKind},
};

/// Move the rows of accepted branches, in every tensor of the paged components that `wanted` names.
pub fn move_branches(graph: &mut Graph, wanted: impl Fn(&str) -> bool) {
    for component in 0..graph.components.len() {
        let spec = &graph.components[component];
        let ComponentKind::Paged { tensors } = &spec.kind else { continue };
        if !wanted(&spec.name) {
            continue;
        }
        let labels: Vec<String> = tensors.iter().map(|tensor| format!("{}.move", tensor.name)).collect();
        let mut attrs = Attrs::default();
        attrs.i[0] = component as i64;
        for (tensor, label) in labels.into_iter().enumerate() {
            let operands = [Ref::Cache { component, tensor }, Ref::Table { component }];
            graph.push(OpKind::KvMove, attrs, &operands, label);
        }
    }
}

/// A pass over the cache of `forward` that does nothing else.
pub fn commit(forward: &Graph, wanted: impl Fn(&str) -> bool) -> Graph {
    let mut graph = Graph { components: forward.components.clone(), ..Graph::default() };
    let tables: Vec<Ref> = (0..graph.components.len()).map(|component| Ref::Table { component }).collect();
    graph.push(OpKind::TableUpdate, Attrs::default(), &tables, "table_update");
    move_branches(&mut graph, wanted);
    graph
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiny::Tiny;
    use tokenspeed_backend_api::dtype::DType;

    #[test]
    fn every_tensor_of_the_wanted_components_is_moved_once() {
        let config = Tiny::llama().model_config().expect("a config");
        let forward = crate::graph::llama::build(&config, DType::F32, |_| DType::F32);
        let graph = commit(&forward, |name| name == "kv");
        assert_eq!(graph.ops.len(), 1 + 2 * config.n_layers as usize);
        assert!(graph.ops[1..].iter().all(|op| op.kind == OpKind::KvMove));
        assert_eq!(commit(&forward, |_| false).ops.len(), 1);
    }
}
