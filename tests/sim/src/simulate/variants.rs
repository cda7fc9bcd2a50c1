//! Metamorphic runs: the same requests on other configurations hear the same. Independent of the oracle.

use std::collections::BTreeMap;

use tokenspeed_backend_api::{backend::Backend, exec::Via};
use tokenspeed_core::{
    driver::cost::Cost,
    engine::ComponentClass,
    request::Event,
    scheduler::policy::Order,
    speculation::{BRANCHES_MAX, DRAFT_MAX, SpeculationConfig},
};

use super::run;
use crate::{
    check::{Check, Failure, ensure},
    ears::Tally,
    generate::add_draft,
    scenario::{Origin, Scenario},
};

/// Changes a configuration, or leaves it alone, in a way that no text may show.
type Change = fn(&mut Scenario);

const CHANGES: [(&str, Change); 20] = [
    ("without prefix cache", |s| s.config.prefix_cache = false),
    ("with prefix cache", |s| s.config.prefix_cache = true),
    ("in chunks of one token", |s| s.config.chunked_prefill_size = 1),
    ("in whole prompts", |s| s.config.chunked_prefill_size = 8192),
    ("one at a time", |s| s.config.max_num_seqs = 1),
    ("programs and walker swapped", |s| {
        s.via = if s.via == Via::Program { Via::Walker } else { Via::Program };
    }),
    ("boundaries told or not", |s| {
        if s.config.components_of(ComponentClass::State).next().is_some() {
            let is_told = s.arrivals.iter().any(|arrival| !arrival.boundaries.is_empty());
            let other = if is_told { vec![] } else { vec![500, 1000] };
            s.arrivals.iter_mut().for_each(|arrival| arrival.boundaries = other.clone());
        }
    }),
    ("steps planned ahead or not", |s| s.overlaps = !s.overlaps),
    ("fused op and parts swapped", |s| s.refuses_fused = !s.refuses_fused),
    ("speculation switched", |s| {
        s.config.speculation = s.config.speculation.is_none().then(SpeculationConfig::default);
        s.config.draft = None;
        s.config.max_logit_rows += 40;
    }),
    ("sampled on the device or by the host", |s| {
        s.config.relay = !s.config.relay;
    }),
    ("draft model switched", |s| match (&s.config.draft, s.config.speculation) {
        (Some(_), _) => s.config.draft = None,
        (None, Some(_)) => add_draft(&mut s.config),
        (None, None) => {}
    }),
    ("chain and tree switched", |s| {
        if let Some(speculation) = &mut s.config.speculation {
            speculation.branches = if speculation.branches == 0 { BRANCHES_MAX } else { 0 };
            s.config.max_batch_tokens += 40;
            s.config.max_logit_rows += 40;
        }
    }),
    ("other guesses", |s| {
        if let Some(speculation) = &mut s.config.speculation {
            speculation.draft_max = DRAFT_MAX + 1 - speculation.draft_max;
            speculation.ngram = 4 - speculation.ngram;
        }
    }),
    ("host memory switched", |s| {
        let pages = s.config.blocks_per_row * 20;
        let host = if s.config.host_pages == 0 { (pages, 10) } else { (0, 0) };
        (s.config.host_pages, s.config.host_states) = host;
    }),
    ("shortest prefill first or not", |s| {
        s.config.scheduling.order = match s.config.scheduling.order {
            Order::FirstCome => Order::ShortestPrefill,
            Order::ShortestPrefill => Order::FirstCome,
        };
    }),
    ("prompts coalesced or not", |s| {
        s.config.scheduling.coalescing_ns = if s.config.scheduling.coalescing_ns == 0 { 20_000 } else { 0 };
    }),
    ("with a forecast or without", |s| {
        let wide_is_dear = Cost { fixed_ns: 1.0, row_ns: 1e3, token_ns: 1.0 };
        s.forecast = if s.forecast.is_none() { Some(wide_is_dear) } else { None };
    }),
    ("masks made elsewhere or not", |s| s.lends_masks = !s.lends_masks),
    ("with plenty of memory", |s| {
        let pages = s.config.blocks_per_row * s.config.max_num_seqs;
        for component in &mut s.config.components {
            component.n_blocks += if component.class == ComponentClass::Paged { pages } else { 4 };
        }
    }),
];

/// Compare a scenario without faults with its variants.
pub fn compare(backend: &Backend, scenario: &Scenario, tally: &mut Tally) -> Result<(), Failure> {
    let mut calm = scenario.clone();
    calm.faults.clear();
    calm.load_faults.clear();
    calm.config.max_waiting = 4096;
    calm.queue_delay_ns = None;
    for arrival in &mut calm.arrivals {
        arrival.abort = None;
        if let Origin::Turn { waits, .. } = &mut arrival.text.origin {
            *waits = true;
        }
    }
    let wanted = run(backend, &calm)?.heard;
    for (name, change) in CHANGES {
        let mut other = calm.clone();
        change(&mut other);
        if other == calm {
            continue;
        }
        let config = &mut other.config;
        let least = config.max_num_seqs + config.chunk_grid();
        config.max_batch_tokens = config.max_batch_tokens.max(least);
        config.max_logit_rows = config.max_logit_rows.max(least);
        let heard = run(backend, &other).map_err(|f| Failure { what: format!("{name}: {}", f.what), ..f })?.heard;
        tally.variants += 1;
        let differs = first_difference(&wanted, &heard);
        ensure(differs.is_none(), Check::Variant, || format!("{name}: request {differs:?} heard something else"))?;
    }
    Ok(())
}

fn first_difference(a: &BTreeMap<u32, Vec<Event>>, b: &BTreeMap<u32, Vec<Event>>) -> Option<u32> {
    a.keys().chain(b.keys()).find(|label| a.get(label) != b.get(label)).copied()
}
