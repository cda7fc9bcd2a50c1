//! Public faults, one test per kind, and the promises of the scheduler.

use super::{fake::Rig, oracle};
use crate::{
    engine::{EngineConfig, Pass, SubmitError},
    request::{Event, FinishReason, Request, RequestId, SamplingParams},
    step::StepReader,
    validate::RequestErrorKind,
};

const PAGE: u32 = 16;

fn config(max_model_len: u32, n_pages: u32) -> EngineConfig {
    let mut config = EngineConfig::paged(max_model_len, PAGE, n_pages + 1, 50);
    config.tokenizer_vocab_size = 45;
    config
}

fn greedy(max_tokens: u32) -> SamplingParams {
    SamplingParams { temperature: 0.0, max_tokens, ..SamplingParams::default() }
}

fn request(prompt: Vec<u32>, sampling: SamplingParams) -> Request {
    Request { prompt, sampling, ..Request::default() }
}

/// A prompt of its own for each salt.
fn prompt(salt: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * i + salt * 7 + i / 3) % 45).collect()
}

fn cached_tokens(rig: &Rig, id: RequestId) -> u32 {
    oracle::without_cached_tokens(&rig.heard[&id]).1
}

/// Run one request alone on a model that always says `script`, whatever it sees.
fn scripted(mut config: EngineConfig, script: &[u32], sampling: SamplingParams) -> (Vec<u32>, FinishReason, u32) {
    config.eos_ids = vec![40, 41];
    let mut rig = Rig::new(config);
    let width = rig.engine.config().vocab_size as usize;
    let id = rig.submit(request(vec![1, 2, 3], sampling));
    while let Some(plan) = rig.plan() {
        let mut row = vec![0.0; width * plan.n_logit_rows as usize];
        row[script[rig.ids(id).len()] as usize] = 10.0;
        rig.finish_step_with(plan, &row);
    }
    let Event::Finished { reason, usage } = *rig.end(id) else { panic!("{:?}", rig.end(id)) };
    (rig.ids(id), reason, usage.completion_tokens)
}

#[test]
fn case_31_cached_tokens_are_true() {
    for (prefix_cache, expected) in [(true, [0, 288, 288]), (false, [0, 0, 0])] {
        let mut config = config(512, 64);
        config.prefix_cache = prefix_cache;
        let mut rig = Rig::new(config);
        let longer = [prompt(1, 300), vec![1, 2, 3, 4, 5]].concat();
        for (text, wanted) in [prompt(1, 300), prompt(1, 300), longer].into_iter().zip(expected) {
            let id = rig.submit(request(text, greedy(1)));
            rig.run_to_idle(10);
            assert_eq!(cached_tokens(&rig, id), wanted);
        }
        assert_eq!(rig.engine.metrics().cached_tokens, u64::from(expected.iter().sum::<u32>()));
    }
}

#[test]
fn case_31_generated_pages_are_reused_by_the_next_turn() {
    let mut rig = Rig::new(config(512, 64));
    let first = rig.submit(request(prompt(1, 20), greedy(40)));
    rig.run_to_idle(60);
    // 20 + 40 tokens, the last of which was never computed: 59 tokens, 3 whole pages.
    let conversation = [prompt(1, 20), rig.ids(first), vec![3; 10]].concat();
    let second = rig.submit(request(conversation, greedy(1)));
    rig.run_to_idle(10);
    assert_eq!(cached_tokens(&rig, second), 48);
}

#[test]
fn case_35_max_tokens_zero_scores_the_prompt() {
    let mut rig = Rig::new(config(256, 32));
    let scoring = request(prompt(1, 40), SamplingParams { prompt_logprobs: Some(1), ..greedy(0) });
    for request in [scoring.clone(), request(prompt(1, 40), greedy(0)), request(vec![7], scoring.sampling.clone())] {
        let id = rig.submit(request.clone());
        rig.run_to_idle(10);
        let (events, _) = oracle::without_cached_tokens(&rig.heard[&id]);
        assert_eq!(events, oracle::alone(&request, rig.engine.config()));
        let Event::Started { prompt_logprobs, .. } = &events[0] else { panic!("{events:?}") };
        let wanted = request.sampling.prompt_logprobs.map(|_| request.prompt.len() - 1);
        assert_eq!(prompt_logprobs.as_ref().map(Vec::len), wanted);
        let Event::Finished { reason, usage } = events[1] else { panic!("{events:?}") };
        assert_eq!((reason, usage.completion_tokens), (FinishReason::Length, 0));
    }
    let one = rig.submit(request(prompt(1, 40), greedy(1)));
    rig.run_to_idle(10);
    assert_eq!(rig.ids(one).len(), 1);
}

#[test]
fn case_35_prompt_scores_do_not_depend_on_chunks_or_logit_rows() {
    for (chunk, extra_rows) in [(8192, 0), (16, 0), (16, 100), (5, 3)] {
        let mut config = config(256, 32);
        config.chunked_prefill_size = chunk;
        config.max_logit_rows = config.max_num_seqs + config.chunk_grid() + extra_rows;
        let mut rig = Rig::new(config);
        let scoring = request(prompt(1, 100), SamplingParams { prompt_logprobs: Some(3), ..greedy(4) });
        let ids: Vec<_> = (0..3).map(|_| rig.submit(scoring.clone())).collect();
        rig.run_to_idle(200);
        for id in ids {
            let (events, _) = oracle::without_cached_tokens(&rig.heard[&id]);
            assert_eq!(events, oracle::alone(&scoring, rig.engine.config()));
        }
    }
}

#[test]
fn case_36_finish_reason_where_the_cap_meets_the_end() {
    let text = [5, 6, 7, 40];
    let run = |script: &[u32], max_tokens| scripted(config(256, 32), script, greedy(max_tokens));
    assert_eq!(run(&text, 2), (vec![5, 6], FinishReason::Length, 2));
    assert_eq!(run(&text, 3), (vec![5, 6, 7], FinishReason::Length, 3));
    assert_eq!(run(&text, 4), (vec![5, 6, 7, 40], FinishReason::Stop, 4));
    assert_eq!(run(&text, 9), (vec![5, 6, 7, 40], FinishReason::Stop, 4));
    assert_eq!(run(&[41], 1), (vec![41], FinishReason::Stop, 1), "a second end-of-sequence id ends too (case 64)");
    assert_eq!(run(&[8; 7], 7), (vec![8; 7], FinishReason::Length, 7));
    let to_the_context = scripted(config(32, 32), &[8; 40], greedy(1000));
    assert_eq!(to_the_context, (vec![8; 29], FinishReason::Length, 29), "3 prompt tokens and 29 fill 32");
}

#[test]
fn case_65_ignore_eos_and_min_tokens_know_every_end() {
    let text = [5, 6, 7, 40, 41, 9, 10, 11, 40, 12];
    let run = |sampling| scripted(config(256, 32), &text, sampling);
    let ignoring = SamplingParams { ignore_eos: true, ..greedy(10) };
    assert_eq!(run(ignoring.clone()), (text.to_vec(), FinishReason::Length, 10));
    let (ids, reason, _) = run(SamplingParams { min_tokens: 6, ..greedy(10) });
    assert_eq!((ids[8], ids.len(), reason), (40, 9, FinishReason::Stop));
    assert!(ids[..6].iter().all(|id| ![40, 41].contains(id)), "no end before 6 tokens: {ids:?}");
    let stopping = SamplingParams { stop_token_ids: vec![7, 10], ..ignoring };
    assert_eq!(run(stopping.clone()).0, [5, 6, 7], "stop ids work with ignore_eos");
    let (ids, reason, _) = run(SamplingParams { min_tokens: 6, ..stopping });
    assert_eq!((ids.len(), ids[6], reason), (7, 10, FinishReason::Stop));
    assert!(!ids[..6].contains(&7) && ids[3..5] == [40, 41], "stop ids are masked, ignored ends are not: {ids:?}");
}

#[test]
fn case_70_and_72_neighbours_change_nothing() {
    let mut config = config(256, 400);
    config.max_num_seqs = 40;
    let mut seeded = SamplingParams { temperature: 0.9, seed: 42, logprobs: Some(5), ..greedy(40) };
    for temperature in [0.0, 0.9] {
        seeded.temperature = temperature;
        let wanted = request(prompt(1, 50), seeded.clone());
        let expected = oracle::alone(&wanted, &config);
        for n_neighbours in [0u32, 1, 7, 31] {
            let mut rig = Rig::new(config.clone());
            for i in 0..n_neighbours {
                let neighbour = SamplingParams { temperature: 1.3, seed: u64::from(i), ..greedy(10 + i) };
                rig.submit(request(prompt(i, 20 + 5 * i), neighbour));
                if i % 3 == 0 {
                    rig.turn();
                }
            }
            let id = rig.submit(wanted.clone());
            rig.run_to_idle(200);
            assert_eq!(oracle::without_cached_tokens(&rig.heard[&id]).0, expected, "{n_neighbours} neighbours");
        }
    }
}

#[test]
fn case_72_choices_differ_and_repeat() {
    let choice = |sample_index| {
        let mut rig = Rig::new(config(256, 32));
        let sampling = SamplingParams { temperature: 1.0, seed: 0, sample_index, ..greedy(20) };
        let id = rig.submit(request(prompt(1, 20), sampling));
        rig.run_to_idle(30);
        rig.ids(id)
    };
    assert_eq!(choice(0), choice(0));
    assert_eq!(choice(1), choice(1));
    assert_ne!(choice(0), choice(1));
}

#[test]
fn case_73_padding_ids_never_come_out() {
    let mut rig = Rig::new(config(256, 32));
    for temperature in [0.0, 1.0, 2.0] {
        let sampling = SamplingParams { temperature, logprobs: Some(20), ignore_eos: true, ..greedy(100) };
        let id = rig.submit(request(prompt(1, 20), sampling));
        rig.run_to_idle(200);
        for event in &rig.heard[&id] {
            if let Event::Token { id, logprobs: Some(logprobs) } = event {
                assert!(*id < 45 && logprobs.top.iter().all(|&(id, _)| id < 45));
            }
        }
    }
}

#[test]
fn case_85_a_prompt_cached_to_its_last_token_still_computes_one() {
    for (n_pages, while_running) in [(1, false), (2, false), (3, false), (1, true), (2, true), (3, true)] {
        let mut rig = Rig::new(config(256, 64));
        let wanted = request(prompt(1, n_pages * PAGE), SamplingParams { logprobs: Some(3), ..greedy(5) });
        rig.submit(wanted.clone());
        if while_running {
            rig.turn();
        } else {
            rig.run_to_idle(10);
        }
        let again = rig.submit(wanted.clone());
        rig.run_to_idle(20);
        assert_eq!(cached_tokens(&rig, again), (n_pages - 1) * PAGE);
        let events = oracle::without_cached_tokens(&rig.heard[&again]).0;
        assert_eq!(events, oracle::alone(&wanted, rig.engine.config()));
    }
}

#[test]
fn case_88_salts_share_nothing_and_none_is_not_empty() {
    let mut rig = Rig::new(config(256, 64));
    let salts = [None, Some(""), Some("a"), Some("ab"), Some("b")];
    for round in 0..2 {
        for salt in salts {
            let salted = Request { cache_salt: salt.map(str::to_owned), ..request(prompt(1, 40), greedy(1)) };
            let id = rig.submit(salted);
            rig.run_to_idle(10);
            assert_eq!(cached_tokens(&rig, id), round * 32, "round {round}, salt {salt:?}");
        }
    }
}

#[test]
fn case_91_preempted_requests_say_what_they_say_alone() {
    let mut rig = Rig::new(config(160, 25));
    let sampling = |i| SamplingParams { temperature: [0.0, 0.8][i as usize % 2], seed: 9, ..greedy(80) };
    let wanted: Vec<_> = (0..6).map(|i| request(prompt(i, 80), sampling(i))).collect();
    let ids: Vec<_> = wanted.iter().map(|request| rig.submit(request.clone())).collect();
    rig.run_to_idle(1000);
    for (id, request) in ids.into_iter().zip(&wanted) {
        assert_eq!(oracle::without_cached_tokens(&rig.heard[&id]).0, oracle::alone(request, rig.engine.config()));
    }
    let metrics = rig.engine.metrics();
    assert!((1..=6).contains(&metrics.preemptions), "{} preemptions: some, and no thrash", metrics.preemptions);
    assert_eq!((metrics.running, metrics.pages_used), (0, metrics.pages_cached));
}

#[test]
fn case_95_abort_frees_at_once_or_after_the_step_in_flight() {
    let mut rig = Rig::new(config(256, 64));
    let endless = || request(prompt(1, 30), SamplingParams { ignore_eos: true, ..greedy(200) });
    for steps in [0, 1, 3] {
        for in_flight in [false, true] {
            let ids = [rig.submit(endless()), rig.submit(endless())];
            (0..steps).for_each(|_| assert!(rig.turn()));
            let plan = if in_flight { rig.plan() } else { None };
            for id in ids {
                assert!(rig.abort(id));
                assert!(!rig.abort(id), "a second abort is a no-op");
                let Event::Finished { reason: FinishReason::Abort, usage } = rig.end(id) else { panic!("not aborted") };
                assert_eq!(usage.completion_tokens as usize, rig.ids(id).len());
            }
            let heard = rig.heard.clone();
            assert_eq!(rig.engine.metrics().running, 0);
            if let Some(plan) = plan {
                assert!(rig.engine.metrics().pages_used > 0, "the step in flight still writes them");
                rig.finish_step(plan);
            }
            assert!(rig.plan().is_none() && rig.heard == heard, "nothing more is heard");
            let metrics = rig.engine.metrics();
            assert_eq!(metrics.pages_used, metrics.pages_cached);
            rig.engine.check_conservation().unwrap();
        }
    }
    for _ in 0..20 {
        let id = rig.submit(request(prompt(2, 30), greedy(3)));
        rig.run_to_idle(10);
        assert!(!rig.abort(id), "a late abort is a no-op");
    }
    assert!(!rig.abort(RequestId(12345)));
    assert_eq!(rig.engine.metrics().finished, [0, 20, 12, 0]);
}

/// Public fault: two requests at once, or simply the second one, found shapes that nobody had tried.
#[test]
fn case_97_several_at_once_and_simply_the_second_one() {
    let mut rig = Rig::new(config(256, 600));
    let mut n_asked = 0;
    for n in [1, 2, 3, 17, 64, 1, 1] {
        let asked: Vec<_> = (0..n)
            .map(|i| {
                let (len, max_tokens) = (1 + i * 37 % 90, 1 + i * 11 % 50);
                let sampling =
                    SamplingParams { temperature: [0.0, 0.9][i as usize % 2], seed: 5, ..greedy(max_tokens) };
                let request = request(prompt(i % 5, len), sampling);
                // Some come while the others run.
                if i % 4 == 3 {
                    rig.turn();
                }
                (rig.submit(request.clone()), request)
            })
            .collect();
        rig.run_to_idle(400);
        assert!(!rig.turn() && rig.engine.is_idle(), "an empty batch is no step");
        for (id, request) in &asked {
            let (heard, _) = oracle::without_cached_tokens(&rig.heard[id]);
            assert_eq!(heard, oracle::alone(request, rig.engine.config()), "one of {n}");
        }
        rig.engine.check_conservation().expect("sound");
        n_asked += u64::from(n);
    }
    assert_eq!(rig.engine.metrics().finished.iter().sum::<u64>(), n_asked);
}

#[test]
fn a_row_that_is_not_a_number_ends_its_request_only() {
    let mut rig = Rig::new(config(256, 64));
    let wanted = request(prompt(2, 30), greedy(10));
    let (poisoned, healthy) = (rig.submit(request(prompt(1, 40), greedy(10))), rig.submit(wanted.clone()));
    rig.turn();
    let plan = rig.plan().unwrap();
    let mut logits = rig.device.run(&rig.step, Pass::Forward);
    logits[7] = f32::NAN;
    rig.finish_step_with(plan, &logits);
    rig.run_to_idle(20);
    let Event::Failed { message } = rig.end(poisoned) else { panic!("{:?}", rig.end(poisoned)) };
    assert!(message.contains("token id 7"), "{message}");
    assert_eq!(rig.heard[&poisoned].len(), 3, "started, a token, the failure");
    assert_eq!(oracle::without_cached_tokens(&rig.heard[&healthy]).0, oracle::alone(&wanted, rig.engine.config()));
    let retry = rig.submit(request(prompt(1, 40), greedy(2)));
    rig.run_to_idle(20);
    assert_eq!(cached_tokens(&rig, retry), 0, "its pages are not trusted");
    assert_eq!(rig.engine.metrics().finished, [0, 2, 0, 1]);
}

#[test]
fn masks_that_leave_nothing_fail_by_name() {
    let sampling = SamplingParams { allowed_token_ids: Some(vec![3]), bad_words: vec![vec![3]], ..greedy(4) };
    let mut rig = Rig::new(config(256, 64));
    let id = rig.submit(request(prompt(1, 20), sampling));
    rig.run_to_idle(10);
    assert!(matches!(rig.end(id), Event::Failed { message } if message.contains("allowed_token_ids")));
}

#[test]
fn submit_refuses_by_kind() {
    let mut small = config(256, 64);
    small.max_waiting = 1;
    let mut rig = Rig::new(small);
    let mut kind = |request| match rig.engine.submit(request, 0).unwrap_err() {
        SubmitError::Invalid(error) => error.kind(),
        error @ SubmitError::QueueFull { .. } => panic!("{error}"),
    };
    assert_eq!(kind(request(prompt(1, 300), greedy(1))), RequestErrorKind::ContextLength);
    assert_eq!(kind(request(vec![45], greedy(1))), RequestErrorKind::TokenOutOfRange, "padding ids do not exist");
    assert_eq!(kind(request(vec![], greedy(1))), RequestErrorKind::EmptyPrompt);
    rig.submit(request(vec![1], greedy(1)));
    let full = rig.engine.submit(request(vec![1], greedy(1)), 0);
    assert_eq!(full, Err(SubmitError::QueueFull { waiting: 1 }));
    assert_eq!(rig.engine.oldest_waiting_ns(5000), Some(5000));
    rig.run_to_idle(5);
    assert_eq!(rig.engine.oldest_waiting_ns(5000), None);
}

/// The ids of a cached prefix are not looked at again; those behind it are, and the error counts from the start.
#[test]
fn a_wrong_id_behind_a_cached_prefix_is_refused() {
    let mut rig = Rig::new(config(256, 64));
    let text = prompt(1, 100);
    rig.submit(request(text.clone(), greedy(1)));
    rig.run_to_idle(20);
    for at in [0, 20, 99] {
        let mut wrong = text.clone();
        wrong[at] = 45;
        let refused = rig.engine.submit(request(wrong, greedy(1)), 0).unwrap_err().to_string();
        assert!(refused.contains("45") && refused.contains(&format!("[{at}]")), "{refused}");
    }
    let again = rig.submit(request(text, greedy(1)));
    rig.run_to_idle(20);
    assert!(cached_tokens(&rig, again) > 64, "and nothing else came of them");
    rig.engine.flush_cache().unwrap();
    assert_eq!(rig.engine.n_namespaces(), 0);
}

#[test]
fn any_waiting_request_can_be_aborted() {
    // Few classes of priority, and more than are searched one by one.
    for n_classes in [1, 3, 200] {
        let mut rig = Rig::new(config(256, 64));
        let mut waiting: Vec<_> = (0..300)
            .map(|i| {
                let request = Request { priority: i * 7 % n_classes - 50, ..request(vec![1], greedy(1)) };
                rig.engine.submit(request, 0).unwrap()
            })
            .collect();
        // Neither in order of arrival nor of priority.
        waiting.sort_by_key(|id| id.0 * 101 % 307);
        for (left, &id) in (0..300u64).rev().zip(&waiting) {
            let mut heard = Vec::new();
            assert!(rig.engine.abort(id, &mut |id, event| heard.push((id, event))));
            assert!(matches!(heard[..], [(heard, Event::Finished { reason: FinishReason::Abort, .. })] if heard == id));
            assert!(!rig.engine.abort(id, &mut |_, _| panic!("it has ended")));
            assert_eq!(rig.engine.metrics().waiting, left);
        }
        assert!(rig.engine.is_idle());
    }
}

#[test]
fn decoding_and_prefill_never_starve_each_other() {
    for step_tokens in [0, 20, 10_000] {
        let mut config = config(2000, 1000);
        config.chunked_prefill_size = 64;
        let mut rig = Rig::new(config);
        rig.engine.set_step_tokens(step_tokens);
        let n_short = 24;
        let ids: Vec<_> = (0..n_short).map(|i| rig.submit(request(prompt(i, 10), greedy(600)))).collect();
        while ids.iter().any(|id| rig.ids(*id).is_empty()) {
            assert!(rig.turn());
        }
        let long = rig.submit(request(prompt(99, 1500), greedy(1)));
        let mut steps = 0;
        while rig.ids(long).is_empty() {
            let plan = rig.plan().unwrap();
            assert_eq!(plan.n_decode_tokens, n_short, "every decoding request is in every step");
            assert!(plan.n_tokens > plan.n_decode_tokens, "and so is a chunk of the prompt");
            assert!(plan.n_tokens <= step_tokens.max(n_short + PAGE));
            let step = StepReader::read(rig.step.bytes()).unwrap();
            assert!(step.rows[..n_short as usize].iter().all(|row| row.query_len == 1), "decoding rows come first");
            rig.finish_step(plan);
            steps += 1;
        }
        assert!(steps <= 1500 / PAGE + 1, "{steps} steps");
    }
}

#[test]
fn service_is_by_priority_then_arrival() {
    let mut config = config(256, 64);
    config.max_num_seqs = 1;
    let mut rig = Rig::new(config);
    let classes = [0, 5, -1, 0, 5, -1];
    let ids: Vec<_> = classes
        .into_iter()
        .map(|priority| rig.submit(Request { priority, ..request(prompt(1, 20), greedy(2)) }))
        .collect();
    let mut order = Vec::new();
    while rig.turn() {
        for &id in &ids {
            if !rig.ids(id).is_empty() && !order.contains(&id) {
                order.push(id);
            }
        }
    }
    assert_eq!(order, [2, 5, 0, 3, 1, 4].map(|at| ids[at]));
}

#[test]
fn equal_prompts_at_once_end_up_sharing_pages() {
    let mut rig = Rig::new(config(256, 64));
    let wanted = request(prompt(1, 4 * PAGE), greedy(10));
    let ids: Vec<_> = (0..8).map(|_| rig.submit(wanted.clone())).collect();
    rig.turn();
    rig.turn();
    assert_eq!(rig.engine.metrics().pages_used, 4 + 8, "4 shared, and one each for what they generate");
    rig.run_to_idle(20);
    for id in ids {
        assert_eq!(oracle::without_cached_tokens(&rig.heard[&id]).0, oracle::alone(&wanted, rig.engine.config()));
    }
}

#[test]
fn flush_is_refused_while_busy_and_fail_all_reaches_everyone() {
    let mut config = config(256, 64);
    config.max_num_seqs = 2;
    let mut rig = Rig::new(config);
    let ids: Vec<_> = (0..4).map(|i| rig.submit(request(prompt(i, 40), greedy(10)))).collect();
    rig.turn();
    let lost = rig.plan().unwrap();
    assert_eq!(rig.engine.flush_cache().unwrap_err().requests, 4);
    let heard = &mut rig.heard;
    rig.engine.fail_all("device 0 was lost", &mut |id, event| heard.entry(id).or_default().push(event));
    drop(lost);
    for id in ids {
        assert_eq!(rig.end(id), &Event::Failed { message: "device 0 was lost".into() });
    }
    assert!(rig.plan().is_none());
    rig.engine.flush_cache().unwrap();
    assert_eq!(rig.engine.metrics().pages_used, 0);
    rig.engine.check_conservation().unwrap();
    let again = rig.submit(request(prompt(0, 40), greedy(3)));
    rig.run_to_idle(10);
    assert_eq!(rig.ids(again).len(), 3, "the engine goes on");
}

#[test]
fn chunks_that_do_not_complete_a_prompt_end_on_the_grid() {
    for (chunk, grid) in [(40, PAGE), (100, PAGE), (16, 16), (5, 5)] {
        let mut config = config(2000, 1000);
        config.chunked_prefill_size = chunk;
        let mut rig = Rig::new(config);
        rig.engine.set_step_tokens(101);
        let lengths = [301, 77, 500, 16, 450];
        lengths.into_iter().zip(0..).for_each(|(n, salt)| _ = rig.submit(request(prompt(salt, n), greedy(50))));
        while let Some(plan) = rig.plan() {
            for row in StepReader::read(rig.step.bytes()).unwrap().rows {
                let end = row.computed + row.query_len;
                let is_decoding = row.query_len == 1;
                assert!(row.query_len <= chunk && (is_decoding || end % grid == 0 || lengths.contains(&end)), "{end}");
            }
            rig.finish_step(plan);
        }
    }
}

#[test]
fn memory_pressure_does_not_thrash() {
    // 16 requests that grow from 1 to 16 pages each, where 60 pages are: about 4 fit at full length.
    let mut config = config(256, 60);
    config.max_num_seqs = 16;
    config.chunked_prefill_size = 16;
    let mut rig = Rig::new(config);
    let ids: Vec<_> = (0..16).map(|i| rig.submit(request(prompt(i, 10), greedy(240)))).collect();
    let mut steps = 0;
    while rig.turn() {
        steps += 1;
    }
    assert!(ids.iter().all(|&id| rig.ids(id).len() == 240));
    let preemptions = rig.engine.metrics().preemptions;
    assert!((16..=48).contains(&preemptions), "{preemptions}: some, but few per request");
    assert!(steps < 16 * 240 / 4, "{steps} steps: about four run at a time");
}
