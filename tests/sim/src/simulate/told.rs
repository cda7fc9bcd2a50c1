//! What a router knows: a picture of the prefix cache made from its events alone, against the cache itself; and what a
//! request must find by that picture.

use std::{collections::BTreeMap, sync::Arc};

use tokenspeed_core::{
    cache::events::{BlockEvent, Mirror, Tier},
    engine::EngineState,
    request::Request,
};

use crate::check::{Check, Failure, ensure};

/// A block as it was announced.
#[derive(Debug)]
struct Block {
    /// What it continues.
    parent: Option<u64>,
    /// Who can find it, if it is the first of a text.
    salt: Option<Arc<str>>,
    tokens: Vec<u32>,
}

/// A reader of the engine's block events.
#[derive(Debug, Default)]
pub(super) struct Told {
    mirror: Mirror,
    /// By name.
    texts: BTreeMap<u64, Block>,
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
            match event {
                BlockEvent::Stored { hash, parent, tokens, salt, .. } => {
                    self.texts.insert(hash, Block { parent, salt, tokens });
                }
                BlockEvent::Removed { .. } => {}
                BlockEvent::Cleared => self.texts.clear(),
            }
            self.next += 1;
        }
        ensure(self.mirror.blocks == cached(), Check::Events, || {
            format!("tick {tick}: the events tell of other pages than are cached, or of other parents")
        })
    }

    /// Names of the blocks in host memory.
    pub fn in_host_memory(&self) -> impl Iterator<Item = u64> + '_ {
        self.mirror.blocks.keys().filter(|(tier, _)| *tier == Tier::Host).map(|(_, hash)| *hash)
    }

    /// Tokens at the beginning of a request's prompt, or of `text` that it has become, that the picture has: on the device,
    /// and anywhere. At least the last token is always computed.
    pub fn known(&self, request: &Request, text: &[u32], page_tokens: u32) -> [u32; 2] {
        let mut known = [0; 2];
        let mut parent = None;
        let is_on_device = |hash| self.mirror.blocks.contains_key(&(Tier::Device, hash));
        let is_anywhere = |hash| is_on_device(hash) || self.mirror.blocks.contains_key(&(Tier::Host, hash));
        for page in text[..text.len() - 1].chunks_exact(page_tokens as usize) {
            let continues = |(_, block): &(&u64, &Block)| {
                let is_same = parent.is_some() || block.salt.as_deref() == request.cache_salt.as_deref();
                block.parent == parent && is_same && block.tokens == page
            };
            let Some(hash) = self.texts.iter().filter(continues).map(|(hash, _)| *hash).find(|h| is_anywhere(*h))
            else {
                break;
            };
            if is_on_device(hash) && known[0] == known[1] {
                known[0] += page_tokens;
            }
            known[1] += page_tokens;
            parent = Some(hash);
        }
        known
    }
}
