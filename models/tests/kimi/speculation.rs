//! Verify and replay: candidates leave no trace, accepted ones are as if decoded.

use crate::{
    fixture::{Model, Request, full, prompt, step},
    host_walker::{Host, Mode},
};
use tokenspeed_models::kimi::{GraphOptions, tiny};

const KDA: usize = 1;

/// Bytes of state slot `slot` in every state tensor but the records.
fn slot(host: &Host<'_>, slot: usize) -> Vec<Vec<u8>> {
    let states = host.caches[KDA].iter().enumerate().filter(|(i, _)| i % 3 != 2);
    states.map(|(_, bytes)| bytes.chunks_exact(bytes.len() / 8).nth(slot).expect("a slot").to_vec()).collect()
}

#[test]
fn replay_equals_decoding() {
    let options = GraphOptions { candidates: 4, ..GraphOptions::EXACT };
    let model = Model::new("speculation", &tiny::k3(), options);
    let (verify, replay) = (model.graphs.verify.as_ref().expect("asked"), model.graphs.replay.as_ref().expect("asked"));
    let ids = prompt(30);
    let expected = full(&mut model.host(Mode::Exact), &model, &ids);
    for accepted in 0..=4 {
        let mut host = model.host(Mode::Exact);
        let prefix = Request { row: 0, computed: 0, read: 0, write: 2 };
        host.run(&model.graphs.forward, &step(&[(prefix, &ids[..21])]));
        let before = slot(&host, 2);

        // Right candidates as far as they are accepted, wrong ones after.
        let mut candidates = ids[21..25].to_vec();
        candidates[accepted..].iter_mut().for_each(|id| *id = 7);
        let request = Request { computed: 21, read: 2, ..prefix };
        let logits = host.run(verify, &step(&[(request, &candidates)]));
        assert!(logits[..accepted] == expected[21..21 + accepted], "{accepted} accepted: logits");
        assert!(slot(&host, 2) == before, "{accepted} accepted: verifying moved the state");

        host.run(replay, &step(&[(request, &ids[21..21 + accepted])]));
        let mut decoded = model.host(Mode::Exact);
        decoded.run(&model.graphs.forward, &step(&[(prefix, &ids[..21])]));
        for i in 21..21 + accepted {
            let request = Request { computed: i as u32, read: 2, ..prefix };
            decoded.run(&model.graphs.forward, &step(&[(request, &ids[i..=i])]));
        }
        assert!(slot(&host, 2) == slot(&decoded, 2), "{accepted} accepted: states");

        let request = Request { computed: 21 + accepted as u32, ..request };
        let logits = host.run(&model.graphs.forward, &step(&[(request, &ids[21 + accepted..])]));
        assert!(logits == expected[21 + accepted..], "{accepted} accepted: what follows");
    }
}
