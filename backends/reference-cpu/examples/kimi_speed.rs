//! How far the kernels of Kimi Delta Attention and Attention Residuals are from what the machine can do.
//!
//! `kimi_speed [workers] [tier] [heads]`: one layer at Kimi K3's sizes (96 heads unless told otherwise, 128 keys and values,
//! hidden size 7168). Decode is compared with the bytes it must move, at the bandwidth of scaling as many bytes
//! in place; prefill with its multiplications and additions, at the rate of a loop of fused multiply-adds.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use tokenspeed_backend_api::{abi::ts_step_row, dtype::DType};
use tokenspeed_reference_cpu::{
    Level, Pool, Worker, attn_res,
    gated_rmsnorm::{GatedRmsNormArgs, gated_rmsnorm},
    kda::{
        self, KdaArgs,
        gate::{GateArgs, GateKind, kda_gate},
        kda,
    },
    l2norm::{L2NormArgs, l2norm},
    router::{self, RouterArgs, router_topk},
    short_conv::{self, ShortConvArgs, Window, short_conv},
    simd::{Kernel, LANES, Simd, dispatch},
};

const DIM: usize = 128;
const HIDDEN: usize = 7168;
const SNAPSHOTS: usize = 8;
const EXPERTS: usize = 896;
const TOP: usize = 16;
/// Layers whose states are streamed in turn, so that no cache holds them.
const LAYERS: usize = 24;

fn values(n: usize, scale: f32) -> &'static mut [f32] {
    let made: Vec<f32> = (0..n).map(|i| ((i * 7919 % 1013) as f32 / 1013.0 - 0.5) * scale).collect();
    Box::leak(made.into_boxed_slice())
}

/// Best of as many runs as fit into half a second.
fn best(pool: &mut Pool, mut job: impl FnMut(usize) -> Box<dyn Fn(&mut Worker<'_>) + Sync>) -> Duration {
    let (mut best, begin, mut run) = (Duration::MAX, Instant::now(), 0);
    while begin.elapsed() < Duration::from_millis(500) || run < 3 {
        let job = job(run);
        let start = Instant::now();
        pool.run(|w| job(w));
        best = best.min(start.elapsed());
        run += 1;
    }
    best
}

/// x ← a · x over a share of a buffer.
struct Scale(*mut f32, std::ops::Range<usize>);
impl Kernel for Scale {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for i in self.1.step_by(LANES) {
            // SAFETY: whole vectors of the buffer.
            unsafe { S::store(self.0.add(i), S::mul(S::load(self.0.add(i)), S::splat(1.000_000_1))) };
        }
    }
}

/// Fused multiply-adds in registers; `0` gets the result so that they are not left out.
struct Flops(*mut f32, usize);
impl Kernel for Flops {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: arithmetic, and one vector of the buffer.
        unsafe {
            let (a, mut sums) = (S::splat(black_box(0.7)), [S::splat(black_box(1.5)); 12]);
            for _ in 0..self.1 {
                for s in &mut sums {
                    *s = S::fma(*s, a, a);
                }
            }
            for s in sums {
                S::store(self.0, S::add(s, S::load(self.0)));
            }
        }
    }
}

/// Pointers for closures that several threads run.
#[derive(Clone, Copy)]
struct P(*mut f32);
// SAFETY: kernels touch disjoint shares.
unsafe impl Send for P {}
// SAFETY: as above.
unsafe impl Sync for P {}
impl P {
    fn at(self, i: usize) -> *mut f32 {
        self.0.wrapping_add(i)
    }
}

fn p(x: &mut [f32]) -> P {
    P(x.as_mut_ptr())
}

fn rows(requests: usize, tokens: usize, computed: usize) -> &'static [ts_step_row] {
    let row = |r: usize| ts_step_row {
        computed: computed as u32,
        query_start: (r * tokens) as u32,
        query_len: tokens as u32,
        state_read: r as u32 + 1,
        state_write: r as u32 + 1,
        state_tokens: computed as u32,
        ..Default::default()
    };
    Box::leak((0..requests).map(row).collect())
}

fn main() {
    let mut args = std::env::args().skip(1);
    let workers = args.next().map_or(2, |s| s.parse().expect("number of workers"));
    let level = args.next().map_or(Level::detect(), |s| s.parse::<Level>().and_then(Level::checked).expect("tier"));
    let heads: usize = args.next().map_or(96, |s| s.parse().expect("number of heads"));
    let mut pool = Pool::new(workers).expect("threads");
    pool.reserve_scratch(
        kda::scratch_bytes(DIM, DIM).max(router::scratch_bytes(EXPERTS, 1)).max(short_conv::scratch_bytes(4)),
    );
    let channels = heads * DIM;
    let state_len = heads * DIM * DIM;
    let slots = 5;
    let layer_len = slots * state_len;
    let state = p(values(LAYERS * layer_len, 0.1));

    // As many bytes at a time as a decoded token moves: long runs would measure the machine's other work too.
    let took = best(&mut pool, |run| {
        // SAFETY: shares of a layer's states.
        Box::new(move |w| unsafe {
            let layer = state.at(run % LAYERS * layer_len);
            dispatch(level, Scale(layer, w.part().aligned(state_len, 1024)));
        })
    });
    let bandwidth = 8.0 * state_len as f64 / took.as_secs_f64();
    let sink = p(values(64 * LANES, 1.0));
    let loops = 20_000;
    let took = best(&mut pool, |_| {
        // SAFETY: each worker its own vector.
        Box::new(move |w| unsafe { dispatch(level, Flops(sink.at(w.part().index * LANES), loops)) })
    });
    let flops = (workers * loops * 12 * LANES * 2) as f64 / took.as_secs_f64();
    println!(
        "{level}, {workers} workers, {heads} heads: {:.1} GB/s scaling, {:.0} GFLOP/s",
        bandwidth / 1e9,
        flops / 1e9
    );
    let moved = |name: &str, took: Duration, bytes: usize| {
        let floor = bytes as f64 / bandwidth;
        let share = 100.0 * floor / took.as_secs_f64();
        println!(
            "{name:>28}: {:8.1} us, {:9.1} KB, floor {:8.1} us, {share:3.0}%",
            took.as_secs_f64() * 1e6,
            bytes as f64 / 1e3,
            floor * 1e6
        );
    };

    let most = 2048;
    let [q, k, v, g] = [0.08, 0.2, 1.0, 0.0].map(|scale| p(values(most * channels, scale)));
    // SAFETY: the whole buffer.
    unsafe { std::slice::from_raw_parts_mut(g.at(0), most * channels) }.iter_mut().enumerate().for_each(|(i, g)| {
        *g = -((i * 31 % 997) as f32 / 997.0).powi(4) * 5.0;
    });
    let (beta, o) = (p(values(most * heads, 0.5)), p(values(most * channels, 1.0)));
    let recurrence = |rows: &'static [ts_step_row], layer: usize, tiles: bool| KdaArgs {
        q: q.at(0),
        k: k.at(0),
        v: v.at(0),
        g: g.at(0),
        beta: beta.at(0),
        state: state.at(layer * layer_len),
        o: o.at(0),
        rows,
        heads,
        keys: DIM,
        values: DIM,
        keep: true,
        tiles,
    };
    struct Send<T>(T);
    // SAFETY: pointers to leaked buffers, of which workers touch disjoint shares.
    unsafe impl<T> Sync for Send<T> {}
    impl<T> Send<T> {
        fn get(&self) -> &T {
            &self.0
        }
    }

    for requests in [1, 4] {
        let rows = rows(requests, 1, 1000);
        let took = best(&mut pool, |run| {
            let args = Send(recurrence(rows, run % LAYERS, true));
            // SAFETY: buffers have room for the rows.
            Box::new(move |w| unsafe { kda(level, w.part(), w.scratch(), args.get()) })
        });
        moved(&format!("kda_chunk, decode {requests}"), took, requests * (8 * state_len + 4 * 5 * channels));
    }
    for (tokens, tiles) in [(4, false), (512, false), (512, true), (2048, true)] {
        let rows = rows(1, tokens, 1024);
        let took = best(&mut pool, |run| {
            let args = Send(recurrence(rows, run % LAYERS, tiles));
            // SAFETY: as above.
            Box::new(move |w| unsafe { kda(level, w.part(), w.scratch(), args.get()) })
        });
        // The recurrence: decay, prediction, update, output. It is the fewest operations of all forms.
        let work = (tokens * heads * DIM * DIM * 7) as f64;
        let name = format!("{} of {tokens} tokens", if tiles { "kda_chunk" } else { "kda_step" });
        let share = 100.0 * work / flops / took.as_secs_f64();
        println!(
            "{name:>28}: {:8.1} us, {:.2} us a token, {share:3.0}% of the peak",
            took.as_secs_f64() * 1e6,
            took.as_secs_f64() * 1e6 / tokens as f64
        );
    }

    let taps = p(values(3 * channels * 4, 1.0));
    let window_bytes = slots * 9 * channels * 2;
    let window = p(values(LAYERS * window_bytes / 4, 0.0));
    for (requests, tokens) in [(1, 1), (1, 512)] {
        let rows = rows(requests, tokens, 1000);
        let took = best(&mut pool, |run| {
            let args = Send(ShortConvArgs {
                x: [q.at(0), k.at(0), v.at(0)],
                weights: [0, 1, 2].map(|i| taps.at(i * channels * 4).cast_const()),
                window: Window {
                    data: window.at(run % LAYERS * window_bytes / 4).cast(),
                    dtype: DType::BF16,
                    width: 3 * channels,
                },
                y: [o.at(0), g.at(0), o.at(0)],
                rows,
                channels,
                taps: 4,
                keep: true,
            });
            // SAFETY: as above; two streams write the same values' place, which nothing reads.
            Box::new(move |w| unsafe { short_conv(level, w.part(), w.scratch(), args.get()) })
        });
        moved(&format!("short_conv, {tokens} tokens"), took, 3 * channels * (8 * tokens + 16 + 12));
    }
    for tokens in [1, 512] {
        let took = best(&mut pool, |_| {
            let args = GateArgs {
                f: v.at(0),
                a_log: beta.at(0),
                dt_bias: v.at(0),
                g: o.at(0),
                tokens,
                heads,
                keys: DIM,
                kind: GateKind::Bounded(-5.0),
            };
            let args = Send(args);
            // SAFETY: as above.
            Box::new(move |w| unsafe { kda_gate(level, w.part(), *args.get()) })
        });
        moved(&format!("kda_gate, {tokens} tokens"), took, tokens * 8 * channels);
        let took = best(&mut pool, |_| {
            let args =
                Send(L2NormArgs { x: v.at(0), y: o.at(0), rows: tokens * heads, width: DIM, eps: 1e-6, scale: 1.0 });
            // SAFETY: as above.
            Box::new(move |w| unsafe { l2norm(level, w.part(), *args.get()) })
        });
        moved(&format!("l2norm, {tokens} tokens"), took, tokens * 8 * channels);
        let took = best(&mut pool, |_| {
            let args = GatedRmsNormArgs {
                x: v.at(0),
                gate: q.at(0),
                weight: k.at(0),
                y: o.at(0),
                rows: tokens * heads,
                width: DIM,
                eps: 1e-5,
            };
            let args = Send(args);
            // SAFETY: as above.
            Box::new(move |w| unsafe { gated_rmsnorm(level, w.part(), *args.get()) })
        });
        moved(&format!("gated_rmsnorm, {tokens} tokens"), took, tokens * 12 * channels);

        let bank = values((SNAPSHOTS + 2) * tokens * HIDDEN, 2.0);
        let candidates: &'static [*const f32] =
            Box::leak((0..=SNAPSHOTS).map(|i| bank[i * tokens * HIDDEN..].as_ptr()).collect());
        let y = P(bank[(SNAPSHOTS + 1) * tokens * HIDDEN..].as_mut_ptr());
        let weights = p(values(2 * HIDDEN, 0.1));
        let shared = p(values(attn_res::shared_len(candidates.len(), HIDDEN), 0.0));
        let scorer = move || attn_res::Scorer { norm: weights.at(0), proj: weights.at(HIDDEN), eps: 1e-5 };
        let took = best(&mut pool, |_| {
            let candidates = Send(candidates);
            Box::new(move |w| {
                let args = attn_res::MixArgs {
                    scorer: scorer(),
                    candidates: candidates.get(),
                    y: y.at(0),
                    tokens,
                    width: HIDDEN,
                };
                // SAFETY: as above.
                unsafe { attn_res::mix(level, w, attn_res::Shared { data: shared.at(0) }, &args) };
            })
        });
        moved(&format!("attn_res_mix, {tokens} tokens"), took, 4 * HIDDEN * (tokens * (SNAPSHOTS + 2) + 2));
        let took = best(&mut pool, |_| {
            Box::new(move |w| {
                let (acc, stats, sum) = (q.at(0), beta.at(0), v.at(0));
                let args =
                    attn_res::CombineArgs { scorer: scorer(), acc, stats, sum, y: y.at(0), tokens, width: HIDDEN };
                // SAFETY: as above.
                unsafe { attn_res::combine(level, w, attn_res::Shared { data: shared.at(0) }, &args) };
            })
        });
        moved(&format!("attn_res_combine, {tokens} tokens"), took, 4 * HIDDEN * (tokens * 3 + 2));

        let (logits, bias) = (p(values(tokens * EXPERTS, 6.0)), p(values(EXPERTS, 0.1)));
        let took = best(&mut pool, |_| {
            Box::new(move |w| {
                let args = RouterArgs {
                    logits: logits.at(0),
                    bias: bias.at(0),
                    ids: o.at(0).cast(),
                    weights: o.at(tokens * TOP),
                    tokens,
                    experts: EXPERTS,
                    k: TOP,
                    groups: 1,
                    chosen: 1,
                    renormalise: true,
                    scale: 1.0,
                };
                // SAFETY: as above.
                unsafe { router_topk(level, w.part(), w.scratch(), args) };
            })
        });
        moved(&format!("router_topk, {tokens} tokens"), took, tokens * 4 * EXPERTS);
    }
}
