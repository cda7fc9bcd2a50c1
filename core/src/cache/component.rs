//! Where a cached prefix can be resumed: only at a boundary where **every** component can.
//!
//! Pages of all paged components live in one node, so a matched node resumes them all. A recurrent state cannot be
//! rebuilt from pages: it resumes where a snapshot of it was stored, and nowhere else.

use super::{index::PrefixIndex, node::NodeId};

/// One component's view of a matched path of pages.
pub trait Resume {
    /// The deepest boundary, in pages, at or below `at_most`, where this component can go on; 0 is always possible.
    fn deepest(&self, path: &[NodeId], at_most: usize) -> usize;
}

/// Per-token rows in the matched pages themselves.
#[derive(Clone, Copy, Debug)]
pub struct PagedRows;

impl Resume for PagedRows {
    fn deepest(&self, _path: &[NodeId], at_most: usize) -> usize {
        at_most
    }
}

/// A recurrent state, with snapshots at the ends of some pages.
#[derive(Clone, Copy, Debug)]
pub struct StateSnapshots<'a>(pub &'a PrefixIndex);

impl Resume for StateSnapshots<'_> {
    fn deepest(&self, path: &[NodeId], at_most: usize) -> usize {
        path[..at_most].iter().rposition(|&node| self.0.has_snapshot(node)).map_or(0, |at| at + 1)
    }
}

/// The deepest boundary, in pages, where all components resume.
///
/// Each answer can only lower the bound, and lowering it may move another component off its boundary, hence the loop;
/// the minimum of the separate answers would be wrong.
pub fn joint_match(components: &[&dyn Resume], path: &[NodeId]) -> usize {
    let mut boundary = path.len();
    loop {
        let lowered = components.iter().fold(boundary, |at_most, component| {
            let deepest = component.deepest(path, at_most);
            assert!(deepest <= at_most, "a component may not raise the boundary");
            deepest
        });
        if lowered == boundary {
            return boundary;
        }
        boundary = lowered;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Every(usize);

    impl Resume for Every {
        fn deepest(&self, _path: &[NodeId], at_most: usize) -> usize {
            at_most / self.0 * self.0
        }
    }

    #[test]
    fn every_component_must_resume_there() {
        let path: Vec<NodeId> = (0..17).map(NodeId).collect();
        assert_eq!(joint_match(&[&PagedRows], &path), 17);
        assert_eq!(joint_match(&[&Every(4), &Every(6)], &path), 12, "the minimum of 16 and 12 happens to be right");
        assert_eq!(joint_match(&[&Every(4), &Every(7)], &path), 0, "the minimum of 16 and 14 is not");
    }
}
