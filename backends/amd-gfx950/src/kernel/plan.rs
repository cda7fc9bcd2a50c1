//! A program's launches, decided once: kernel, arguments, and a grid that depends on the step's counts alone.
//!
//! Arguments never change from step to step. What does change (counts, tokens, tables) is read by the kernels from the
//! parameter block in device memory, so a captured graph is replayed without touching its nodes.

use std::{ffi::c_void, sync::Arc};

use tokenspeed_backend_api::{graph::Vary, sdk::Bucket};

use super::{
    launch::{Argument, Kernel, LaunchError},
    library::Library,
};
use crate::{
    hip::{HipError, Queue},
    ops::{Ahead, Expansion},
};

/// More arguments than any kernel has.
const ARGUMENTS_MAX: usize = 48;

/// Steps that tell what an extent counts, and how many at a time.
const STEPS: [Bucket; 2] = [
    Bucket { max_tokens: 1, max_rows: 1, max_logit_rows: 1 },
    Bucket { max_tokens: 4099, max_rows: 301, max_logit_rows: 77 },
];

/// Work-groups along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Always as many.
    Fixed(u32),
    /// One for every `each` entries of what `count` counts, times `times`.
    Per {
        /// What is counted; not [`Vary::Fixed`].
        count: Vary,
        /// Entries per work-group.
        each: u32,
        /// Work-groups per such share.
        times: u32,
    },
    /// One for every `each` things, of which every entry of what `count` counts brings `times`.
    Things {
        /// What is counted; not [`Vary::Fixed`].
        count: Vary,
        /// Things per entry.
        times: u32,
        /// Things per work-group.
        each: u32,
    },
    /// Of the work-groups of [`Extent::Per`], those from `from` on, and `most` at most.
    Part {
        /// What is counted; not [`Vary::Fixed`].
        count: Vary,
        /// Entries per share.
        each: u32,
        /// Work-groups per share.
        times: u32,
        /// The first one.
        from: u32,
        /// So many at most.
        most: u32,
    },
    /// Enough for groups of at most `each` things of one kind, where every entry of what `count` counts brings `times` things
    /// and there are `plus` kinds: each kind leaves at most one group unfilled.
    Share {
        /// What is counted; not [`Vary::Fixed`].
        count: Vary,
        /// Things per entry.
        times: u32,
        /// Things per work-group.
        each: u32,
        /// Kinds.
        plus: u32,
    },
    /// Enough for groups of at most `each` tokens of one request; see `query_tile` in `kernels/step.py`.
    QueryTiles {
        /// Tokens per work-group.
        each: u32,
    },
    /// One for every `each` of the positions `from`..`from + most` of contexts that a step expands, one behind the other; see
    /// `ops/mla_prefill.rs`. None where there are no such positions.
    Context {
        /// The first position.
        from: u64,
        /// Positions at most.
        most: u64,
        /// Positions per work-group.
        each: u64,
    },
    /// Those of a launch of expanded attention; see [`Expansion::jobs`].
    ExpandedJobs {
        /// The first position of its round.
        from: u64,
        /// Positions of a round.
        size: u64,
        /// Number of the launch in its round.
        wave: u64,
        /// Heads.
        heads: u64,
    },
    /// As many, or none in a step that expands the contexts of all its requests.
    Rest(u32),
}

impl Extent {
    /// One.
    pub const ONE: Extent = Extent::Fixed(1);

    /// Enough work-groups for `dims0` entries at `each` per group: of the step's count if the dimension varies.
    pub fn rows(count: Vary, dims0: usize, each: u32) -> Self {
        match count {
            Vary::Fixed => Extent::Fixed((dims0 as u32).div_ceil(each)),
            count => Extent::Per { count, each, times: 1 },
        }
    }

    /// Work-groups for so many entries, of a step or of a whole bucket, and what the step expands.
    fn groups(self, counts: &Bucket, expansion: Expansion) -> u32 {
        let of = |count| counts.most(count).expect("an extent of a fixed size is Extent::Fixed");
        match self {
            Extent::Fixed(n) => n,
            Extent::Per { count, each, times } => of(count).div_ceil(each) * times,
            Extent::Things { count, times, each } => (of(count) * times).div_ceil(each),
            Extent::Part { count, each, times, from, most } => {
                (of(count).div_ceil(each) * times).saturating_sub(from).min(most)
            }
            Extent::Share { count, times, each, plus } => {
                let things = of(count) * times;
                things.min(things / each + plus)
            }
            Extent::Context { from, most, each } => {
                expansion.positions.saturating_sub(from).min(most).div_ceil(each) as u32
            }
            Extent::ExpandedJobs { from, size, wave, heads } => expansion.jobs(from, size, wave, heads) as u32,
            Extent::Rest(n) => n * u32::from(expansion.rest),
            // Each request leaves at most one group unfilled.
            Extent::QueryTiles { each } => (counts.max_tokens / each + counts.max_rows).min(counts.max_tokens),
        }
    }
}

/// A launch whose arguments are decided.
#[derive(Debug)]
pub struct Prepared {
    kernel: Arc<Kernel>,
    values: Vec<u64>,
    grid: [Extent; 3],
    /// Index of the op it belongs to.
    pub op: usize,
}

impl Prepared {
    /// Whether there is anything to launch for so many entries in a step that expands nothing.
    pub fn has_groups(&self, counts: &Bucket) -> bool {
        self.grid.iter().all(|e| e.groups(counts, Expansion::NONE) > 0)
    }

    /// Gives arguments other values; none, and `false`, unless all of them keep what the compiler was promised.
    pub(crate) fn set(&mut self, arguments: &[(&str, Argument)]) -> bool {
        let kept = self.kernel.keeps_promises(arguments);
        for (name, value) in arguments.iter().filter(|_| kept) {
            let at = self.kernel.entry.arguments.iter().position(|a| a.name == *name);
            self.values[at.expect("an argument of this kernel")] = value.bits();
        }
        kept
    }

    /// Queues it, for so many entries and what the step expands; a grid without work-groups is skipped. Allocates nothing.
    ///
    /// # Safety
    /// The addresses among the arguments are live device memory of the right extent for these counts.
    ///
    /// # Errors
    /// HIP's.
    pub unsafe fn launch(&self, queue: &Queue, counts: &Bucket, expansion: Expansion) -> Result<(), HipError> {
        let grid = self.grid.map(|e| e.groups(counts, expansion));
        if grid.contains(&0) {
            return Ok(());
        }
        let mut pointers = [std::ptr::null_mut::<c_void>(); ARGUMENTS_MAX];
        for (pointer, value) in pointers.iter_mut().zip(&self.values) {
            *pointer = std::ptr::from_ref(value).cast_mut().cast();
        }
        // SAFETY: one value of eight bytes per argument of the kernel; HIP reads them during the call and writes none.
        unsafe { self.kernel.launch_values(queue, grid, &mut pointers[..self.values.len()]) }
    }
}

/// Launches being collected.
#[derive(Debug)]
pub struct Plan<'a> {
    library: &'a Library,
    /// In order.
    pub launches: Vec<Prepared>,
    /// Index of the op whose launches are being added.
    pub op: usize,
    /// Which launches can leave rows in the format of factors.
    pub ahead: Ahead,
}

impl<'a> Plan<'a> {
    /// Empty.
    pub fn new(library: &'a Library) -> Self {
        Self { library, launches: Vec::new(), op: 0, ahead: Ahead::default() }
    }

    /// The kernels, for asking about constants.
    pub fn library(&self) -> &'a Library {
        self.library
    }

    /// The kernel that a launch takes. Where the arguments do not keep the promises that it was compiled with (multiples of
    /// 16), that is its sibling `<name>_ragged`, if it has one.
    ///
    /// # Errors
    /// The kernel is missing.
    pub fn pick(&self, name: &str, arguments: &[(&str, Argument)]) -> Result<Arc<Kernel>, LaunchError> {
        let kernel = self.library.get(name)?;
        let sibling = format!("{name}_ragged");
        if !kernel.keeps_promises(arguments) && self.library.entry(&sibling).is_ok() {
            return self.library.get(&sibling);
        }
        Ok(kernel)
    }

    /// Adds a launch of what [`Self::pick`] finds.
    ///
    /// # Errors
    /// The kernel is missing, the arguments do not fit it, or its manifest wants another grid.
    pub fn launch(&mut self, name: &str, grid: [Extent; 3], arguments: &[(&str, Argument)]) -> Result<(), LaunchError> {
        let kernel = self.pick(name, arguments)?;
        let values = kernel.values(arguments)?;
        assert!(values.len() <= ARGUMENTS_MAX, "{name} has {} arguments", values.len());
        // A part of what a step might bring is cut by what the step does bring: the formula is of the whole.
        let whole = |extent: &&Extent| !matches!(extent, Extent::Part { .. });
        for (axis, extent) in grid.iter().enumerate().filter(|(_, extent)| whole(extent)) {
            for counts in &STEPS {
                kernel.check_axis(axis, arguments, counts, extent.groups(counts, Expansion::NONE))?;
            }
        }
        self.launches.push(Prepared { kernel, values, grid, op: self.op });
        Ok(())
    }
}
