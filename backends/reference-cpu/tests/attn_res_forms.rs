//! Attention Residuals, whole and split, on any number of workers.

use tokenspeed_reference_cpu::{
    Level, Pool,
    attn_res::{self, CombineArgs, MixArgs, PartialArgs, Scorer, ScoresArgs, Shared},
};

const EPS: f32 = 1e-5;

fn values(n: usize, seed: f32, scale: f32) -> Vec<f32> {
    (0..n).map(|i| ((i as f32 + seed) * 12.9898).sin() * scale).collect()
}

/// A pointer that the region's closure may carry.
#[derive(Clone, Copy)]
struct P(*mut f32);
// SAFETY: workers write disjoint shares.
unsafe impl Send for P {}
// SAFETY: as above.
unsafe impl Sync for P {}
impl P {
    fn get(self) -> *mut f32 {
        self.0
    }
}

/// A mixture of some snapshots and a sum.
struct Mixture {
    tokens: usize,
    width: usize,
    norm: Vec<f32>,
    proj: Vec<f32>,
    candidates: Vec<Vec<f32>>,
}

impl Mixture {
    fn new(tokens: usize, width: usize, snapshots: usize) -> Self {
        let candidates = (0..=snapshots).map(|i| values(tokens * width, i as f32, 1.0 + i as f32)).collect();
        let proj = values(width, 5.0, (9.0 / width as f32).sqrt());
        Self { tokens, width, norm: values(width, 3.0, 1.0), proj, candidates }
    }

    fn scorer(&self) -> Scorer {
        Scorer { norm: self.norm.as_ptr(), proj: self.proj.as_ptr(), eps: EPS }
    }

    fn pool(&self, workers: usize) -> Pool {
        let mut pool = Pool::new(workers).unwrap();
        pool.reserve_scratch(attn_res::scratch_bytes(self.candidates.len()));
        pool
    }

    fn whole(&self, level: Level, workers: usize) -> Vec<f32> {
        let (tokens, width) = (self.tokens, self.width);
        let mut y = vec![f32::NAN; tokens * width];
        let mut shared = vec![f32::NAN; attn_res::shared_len(self.candidates.len(), width)];
        let (y_at, shared_at) = (P(y.as_mut_ptr()), P(shared.as_mut_ptr()));
        self.pool(workers).run(|w| {
            let candidates: Vec<*const f32> = self.candidates.iter().map(Vec::as_ptr).collect();
            let args = MixArgs { scorer: self.scorer(), candidates: &candidates, y: y_at.get(), tokens, width };
            // SAFETY: shapes as documented; the tier is available.
            unsafe { attn_res::mix(level, w, Shared { data: shared_at.get() }, &args) };
        });
        y
    }

    fn split(&self, level: Level, workers: usize) -> Vec<f32> {
        let (tokens, width) = (self.tokens, self.width);
        let snapshots = self.candidates.len() - 1;
        let [mut y, mut acc] = [0; 2].map(|_| vec![f32::NAN; tokens * width]);
        let mut stats = vec![f32::NAN; 2 * tokens];
        // Two scores each; the first is this mixture's.
        let mut scores = vec![vec![f32::NAN; 2 * tokens]; snapshots];
        let mut shared = vec![f32::NAN; attn_res::shared_len(1, width)];
        let at = |x: &mut Vec<f32>| P(x.as_mut_ptr());
        let (y_at, acc_at, stats_at, shared_at) = (at(&mut y), at(&mut acc), at(&mut stats), at(&mut shared));
        let scores_at: Vec<P> = scores.iter_mut().map(at).collect();
        self.pool(workers).run(|w| {
            let bank: Vec<*const f32> = self.candidates[..snapshots].iter().map(Vec::as_ptr).collect();
            // SAFETY: shapes as documented; the tier is available.
            unsafe {
                for (snapshot, y) in bank.iter().zip(&scores_at) {
                    let args = ScoresArgs {
                        snapshot: *snapshot,
                        norms: &[self.norm.as_ptr(), self.proj.as_ptr()],
                        projs: &[self.proj.as_ptr(), self.proj.as_ptr()],
                        y: y.get(),
                        tokens,
                        width,
                        eps: EPS,
                    };
                    attn_res::scores(level, w.part(), &args);
                }
                w.barrier();
                let scores: Vec<(*const f32, usize)> = scores_at.iter().map(|s| (s.get().cast_const(), 2)).collect();
                let (acc, stats) = (acc_at.get(), stats_at.get());
                let args = PartialArgs { snapshots: &bank, scores: &scores, left: 2, acc, stats, tokens, width };
                attn_res::partial(level, w.part(), w.scratch(), &args);
                w.barrier();
                let sum = self.candidates[snapshots].as_ptr();
                let y = y_at.get();
                let args = CombineArgs { scorer: self.scorer(), acc, stats, sum, y, tokens, width };
                attn_res::combine(level, w, Shared { data: shared_at.get() }, &args);
            }
        });
        y
    }
}

/// Few tokens are divided by columns, many by tokens; a token alone, in a batch and on any workers has the same bits.
#[test]
fn workers_and_neighbours_change_no_bit_and_both_forms_agree() {
    for level in [Level::Portable, Level::Avx2, Level::Avx512].into_iter().filter(|l| l.available()) {
        for (width, snapshots) in [(7168, 8), (1500, 3), (17, 1)] {
            let mixture = Mixture::new(19, width, snapshots);
            let (whole, split) = (mixture.whole(level, 1), mixture.split(level, 1));
            let worst = whole.iter().zip(&split).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            assert!(worst <= 1e-5, "{level}, {width} columns: {worst}");
            for workers in [2, 5] {
                assert_eq!(mixture.whole(level, workers), whole, "{level}, {width} columns, {workers} workers");
                assert_eq!(mixture.split(level, workers), split, "{level}, {width} columns, {workers} workers");
            }
            for tokens in [1, 3] {
                let mut few = Mixture::new(19, width, snapshots);
                few.tokens = tokens;
                for workers in [1, 2, 3] {
                    assert_eq!(few.whole(level, workers), whole[..tokens * width], "{level} {tokens} tokens");
                    assert_eq!(few.split(level, workers), split[..tokens * width], "{level} {tokens} tokens");
                }
            }
        }
    }
}
