//! Who goes first: policies as small values behind one trait.
//!
//! A policy orders the requests of one priority class that have prompt tokens to compute, waiting or running, and may
//! keep new ones waiting for a while. Classes themselves are strict, decoding is never a policy's business (every
//! decoding request gets its token first), and memory is always lost in order of arrival, last first, whatever the
//! policy: so the first in order can always go on and nothing is stuck. A preempted request returns before any new one of
//! its class, under every policy. Time is what the caller of `plan` says it is, so ranks that plan alike agree.
//!
//! Rejected: policies that reorder the list of running requests. Order of memory and order of service would then be one,
//! and a short prompt could throw out a long one that is nearly done.

mod coalescing;
mod first_come;
mod shortest_prefill;
pub mod turns;

pub use coalescing::Coalescing;
pub use first_come::FirstCome;
pub use shortest_prefill::ShortestPrefill;

/// A request of which prompt tokens remain to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefill {
    /// Tokens to compute: the prompt without what the cache had when it was last looked at.
    pub remaining: u32,
    /// Steps in which a later request of its class computed prompt tokens while this one had to wait.
    pub overtaken_steps: u32,
}

/// A new request in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// As in [`Prefill`].
    pub remaining: u32,
    /// Nanoseconds since it was submitted.
    pub waited_ns: u64,
}

/// Decides about prefill. Pure: the same arguments give the same answer.
pub trait Policy: std::fmt::Debug + Send {
    /// As in `--scheduling-policy`.
    fn name(&self) -> &'static str;

    /// Place among the requests of one class: smaller goes first, equal ones in order of arrival.
    fn place(&self, prefill: &Prefill) -> u64;

    /// True if [`Policy::place`] is the same for all, so that nobody need ask.
    fn is_first_come(&self) -> bool {
        false
    }

    /// Whether a step can be planned while the one before it runs: false if what is decided depends on the time, or on
    /// requests that may come meanwhile.
    fn plans_ahead(&self) -> bool {
        false
    }

    /// Whether new requests are kept waiting although they might fit. Asked only when the step has other work and none
    /// of it is prefill. `room`: prompt tokens that the step can take; `waiters`: new requests in order of service.
    fn holds(&self, room: u32, waiters: &mut dyn Iterator<Item = Waiter>) -> bool {
        let _ = (room, waiters);
        false
    }
}

/// Order of service within a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// See [`FirstCome`].
    #[default]
    FirstCome,
    /// See [`ShortestPrefill`].
    ShortestPrefill,
}

/// Which policy, and its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulingConfig {
    /// Order of service within a class.
    pub order: Order,
    /// Most steps in which a request is overtaken, with [`Order::ShortestPrefill`].
    pub overtaken_steps_max: u32,
    /// How long a new request may be kept waiting for others to share its forward pass, in nanoseconds; 0 = not at all.
    pub coalescing_ns: u64,
}

impl Default for SchedulingConfig {
    fn default() -> Self {
        Self { order: Order::default(), overtaken_steps_max: 64, coalescing_ns: 0 }
    }
}

impl SchedulingConfig {
    /// The policy it describes.
    pub fn policy(&self) -> Box<dyn Policy> {
        let order: Box<dyn Policy> = match self.order {
            Order::FirstCome => Box::new(FirstCome),
            Order::ShortestPrefill => Box::new(ShortestPrefill { overtaken_steps_max: self.overtaken_steps_max }),
        };
        match self.coalescing_ns {
            0 => order,
            wait_ns_max => Box::new(Coalescing { order, wait_ns_max }),
        }
    }
}
