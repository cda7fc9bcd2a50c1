//! A replay against a made-up target: what is counted, compared and shown.

use std::{sync::Mutex, time::Duration};

use super::{
    figures::Figures,
    replay::rotate,
    target::{Answer, Ask, EngineCounters, Prompt},
    trace::Kind,
    *,
};

/// A cache of unlimited memory and whole pages: answers are a function of the prompt, hits are exact.
struct Perfect {
    seen: Mutex<Vec<Vec<u32>>>,
    pool: Vec<u32>,
    /// Of each prompt, this much is never found.
    loses: u64,
}

const PAGE: usize = 4;

impl Perfect {
    fn new(loses: u64) -> Self {
        Self { seen: Mutex::default(), pool: (0..50).collect(), loses }
    }
}

impl Target for Perfect {
    fn ask(&self, ask: Ask) -> Result<Answer, String> {
        let Prompt::Ids(prompt) = ask.prompt else { return Err("ids only".into()) };
        let common = |old: &Vec<u32>| old.iter().zip(&prompt).take_while(|(a, b)| a == b).count();
        let longest = self.seen.lock().expect("unpoisoned").iter().map(common).max().unwrap_or(0);
        let cached = (longest.min(prompt.len() - 1) / PAGE * PAGE) as u64;
        let ids: Vec<u32> =
            (0..ask.max_tokens).map(|at| prompt.len() as u32 * 31 + at * 7 + ask.seed.unwrap_or(0) as u32).collect();
        self.seen.lock().expect("unpoisoned").push([&prompt[..], &ids].concat());
        Ok(Answer {
            first: Duration::from_micros(100 + (prompt.len() as u64 - cached)),
            whole: Duration::from_micros(1000),
            prompt_tokens: prompt.len() as u64,
            cached_tokens: Some(cached.saturating_sub(self.loses)),
            answer_tokens: ids.len() as u64,
            prompt: Some(prompt),
            ids: Some(ids),
            is_exact: true,
            text: String::new(),
        })
    }

    fn pool(&self) -> Option<&[u32]> {
        Some(&self.pool)
    }

    fn encode(&self, _prompt: &Prompt) -> Result<Option<Vec<u32>>, String> {
        Ok(None)
    }

    fn counters(&self) -> Option<EngineCounters> {
        None
    }

    fn page_tokens(&self) -> u32 {
        PAGE as u32
    }

    fn describe(&self) -> String {
        "a perfect <cache>".into()
    }
}

fn sizes() -> Sizes {
    Sizes { sessions: 6, first: 120, shared: 0.3, turn: 13, turns: (3, 5), answer: 5, forks: 0.3 }
}

fn manner(salt: &str) -> Manner<'_> {
    Manner { salt, think: Duration::ZERO, seed: 1, tells_shared: true }
}

#[test]
fn a_perfect_cache_reaches_the_maximum_at_every_concurrency() {
    for concurrency in [1, 3, 6] {
        let (target, work) = (Perfect::new(0), Work::Made(trace::generate(&sizes(), 5, 0)));
        let pass = replay(&target, &work, concurrency, manner("a"));
        let judged = judge(&target, &pass).expect("judged").expect("ids are known");
        let figures = Figures::of(concurrency, &pass, Some(&judged), PAGE as u32);
        let hits = figures.hits.expect("judged");
        assert_eq!((hits.share(), hits.n_short, pass.failures.len()), (1.0, 0, 0));
        assert!(hits.maximum > figures.prompt_tokens / 2 && hits.maximum_sent >= hits.maximum);
        let Work::Made(trace) = &work else { unreachable!("made above") };
        assert_eq!(figures.requests, trace.sessions.iter().map(|s| s.turns.len()).sum::<usize>());
    }
}

#[test]
fn a_cache_that_loses_a_page_is_found_out() {
    let (target, work) = (Perfect::new(PAGE as u64), Work::Made(trace::generate(&sizes(), 5, 0)));
    let pass = replay(&target, &work, 1, manner("a"));
    let judged = judge(&target, &pass).expect("judged").expect("ids are known");
    let hits = Figures::of(1, &pass, Some(&judged), PAGE as u32).hits.expect("judged");
    let n_later = pass.served.iter().filter(|s| s.turn > 0).count();
    assert!(hits.n_short >= n_later && hits.share() < 1.0, "{hits:?}");
}

#[test]
fn rotating_sessions_keep_their_order_of_turns() {
    let (target, work) = (Perfect::new(0), Work::Made(trace::generate(&sizes(), 5, 0)));
    let pass = rotate(&target, &work, 4, manner("a"));
    let again = rotate(&Perfect::new(0), &work, 4, manner("b"));
    let order = |pass: &replay::Pass| pass.served.iter().map(|s| s.prompt.clone()).collect::<Vec<_>>();
    assert_eq!(order(&pass), order(&again), "the seed says whose turn it is");
    let judged = judge(&target, &pass).expect("judged").expect("ids are known");
    let enough = belady::memory_needed(&judged.paths);
    let sum = |pages| belady::found(&judged.paths, pages).map_or(0, |found| found.iter().sum::<usize>());
    let maximum: usize = judged.maxima.iter().map(|m| m.finished).sum();
    assert_eq!(sum(enough), maximum, "with enough memory Belady finds the maximum");
    assert!(sum(enough / 2) < maximum && sum(enough / 2) > 0);
    assert!(pass.served.windows(2).any(|two| two[1].turn > 0 && two[0].turn + 1 != two[1].turn), "sessions take turns");
}

#[test]
fn the_report_shows_every_pass() {
    let (target, work) = (Perfect::new(0), Work::Made(trace::generate(&sizes(), 5, 0)));
    let mut report = Report {
        target: target.describe(),
        workload: "six sessions".into(),
        page_tokens: PAGE as u32,
        notes: vec!["a note".into()],
        ..Report::default()
    };
    for concurrency in [1, 2] {
        let pass = replay(&target, &work, concurrency, manner("a"));
        let judged = judge(&target, &pass).expect("judged").expect("ids are known");
        report.passes.push(Figures::of(concurrency, &pass, Some(&judged), PAGE as u32));
        if concurrency == 1 {
            report.compared = reference::compare(&target, &pass, &judged, "x").expect("measured");
        }
    }
    report.half = Some(report::HalfMemory { pages: 5, found: 3, belady: 4, maximum: 8, ..Default::default() });
    let compared = report.compared.as_ref().expect("there are second turns");
    assert!(compared.ratio_second > 0.5 && compared.ratio_second < 2.0, "{compared:?}");
    let text = report.render();
    for part in ["sessions at once", "of the maximum", "100.00%", "75.00% of Belady", "second turn", "a note"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    let table: Vec<&str> = text.lines().filter(|line| line.starts_with("  ")).collect();
    assert!(table.iter().all(|line| line.len() == table[0].len()), "cells stand under each other: {text}");
    let json = report.to_json();
    assert_eq!(json["passes"][1]["concurrency"], 2);
    assert_eq!(json["passes"][0]["cache"]["share_of_maximum"], 1.0);
    assert_eq!(json["half_memory"]["share_of_belady"], 0.75);
    let page = page::render(&report);
    assert!(page.contains("a perfect &lt;cache&gt;") && !page.contains("NaN") && !page.contains("no data"), "{page}");
    assert_eq!((page.matches("<svg").count(), page.matches("</svg>").count()), (6, 6));
}

#[test]
fn failures_end_their_session_and_are_told() {
    struct Refuses(Perfect);
    impl Target for Refuses {
        fn ask(&self, ask: Ask) -> Result<Answer, String> {
            match &ask.prompt {
                Prompt::Ids(ids) if ids.len() > 160 => Err("too long".into()),
                _ => self.0.ask(ask),
            }
        }
        fn pool(&self) -> Option<&[u32]> {
            self.0.pool()
        }
        fn encode(&self, prompt: &Prompt) -> Result<Option<Vec<u32>>, String> {
            self.0.encode(prompt)
        }
        fn counters(&self) -> Option<EngineCounters> {
            self.0.counters()
        }
        fn page_tokens(&self) -> u32 {
            self.0.page_tokens()
        }
        fn describe(&self) -> String {
            self.0.describe()
        }
    }
    let work = Work::Made(trace::generate(&sizes(), 5, 0));
    let pass = replay(&Refuses(Perfect::new(0)), &work, 2, manner("a"));
    assert!(!pass.served.is_empty() && !pass.failures.is_empty());
    assert!(pass.failures.len() <= 6 && pass.failures.iter().all(|why| why == "too long"));
    assert!(pass.served.iter().any(|s| s.kind == Kind::First));
    let pass = rotate(&Refuses(Perfect::new(0)), &work, 3, manner("a"));
    assert!(!pass.failures.is_empty() && pass.failures.len() <= 6);
}
