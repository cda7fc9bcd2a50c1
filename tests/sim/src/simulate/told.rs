//! What a router knows: a picture of the prefix cache made from its events alone, against the cache itself.

use tokenspeed_core::{cache::events::Mirror, engine::EngineState};

use crate::check::{Check, Failure, ensure};

/// A reader of the engine's block events.
#[derive(Debug, Default)]
pub(super) struct Told {
    mirror: Mirror,
    next: u64,
}

impl Told {
    /// Read on, from a new picture if events were lost meanwhile, and compare.
    pub fn read(&mut self, engine: &EngineState, tick: u32) -> Result<(), Failure> {
        let events = engine.cache_events();
        let cached = || engine.cached_blocks().map(|(tier, hash, parent)| ((tier, hash), parent)).collect();
        if self.next < events.oldest() {
            (self.mirror.blocks, self.next) = (cached(), events.next());
        }
        while let Some(event) = events.get(self.next) {
            let fits = self.mirror.apply(&event);
            fits.map_err(|what| Failure::new(Check::Events, format!("tick {tick}: {what}")))?;
            self.next += 1;
        }
        ensure(self.mirror.blocks == cached(), Check::Events, || {
            format!("tick {tick}: the events tell of other pages than are cached, or of other parents")
        })
    }
}
