//! The most that a prefix cache could have provided, with unlimited memory.
//!
//! Per request: the longest token prefix it shares with any earlier prompt and answer, at most its prompt without the
//! last token, rounded down to whole pages. *Earlier* has two readings once requests overlap, and both are given:
//!
//! * **finished**: the other's answer was complete before this request was sent. Every cache that publishes at the end
//!   can reach it, so a shortfall is a fault. This is the bound that reports compare with.
//! * **sent**: the other was sent before; of one still running the prompt counts. A cache that publishes while it
//!   computes reaches part of the difference.

use super::pages::Path;

/// One request on the time line of all of them.
#[derive(Clone, Copy, Debug)]
pub struct Placed<'a> {
    /// When it was sent; numbers of sends and ends are all different.
    pub sent: u64,
    /// When its answer was complete.
    pub done: u64,
    /// Its pages.
    pub path: &'a Path,
    /// Whole pages of its prompt alone.
    pub n_prompt: usize,
}

/// Pages that could have been provided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maximum {
    /// By requests that had finished.
    pub finished: usize,
    /// By requests that had been sent.
    pub sent: usize,
}

/// The bounds of each request, in the order given.
pub fn maxima(requests: &[Placed<'_>]) -> Vec<Maximum> {
    let n_pages = requests.iter().flat_map(|r| &r.path.pages).max().map_or(0, |&most| most as usize + 1);
    let (mut finished, mut sent) = (vec![false; n_pages], vec![false; n_pages]);
    let mut moments: Vec<(u64, usize, bool)> = Vec::with_capacity(requests.len() * 2);
    for (at, request) in requests.iter().enumerate() {
        moments.push((request.sent, at, false));
        moments.push((request.done, at, true));
    }
    moments.sort_unstable();
    let mut maxima = vec![Maximum::default(); requests.len()];
    for (_, at, is_done) in moments {
        let Placed { path, n_prompt, .. } = requests[at];
        if is_done {
            path.pages.iter().for_each(|&page| {
                finished[page as usize] = true;
                sent[page as usize] = true;
            });
            continue;
        }
        let usable = &path.pages[..path.n_usable];
        let known = |seen: &[bool]| usable.iter().take_while(|&&page| seen[page as usize]).count();
        maxima[at] = Maximum { finished: known(&finished), sent: known(&sent) };
        path.pages[..n_prompt].iter().for_each(|&page| sent[page as usize] = true);
    }
    maxima
}

#[cfg(test)]
mod tests {
    use super::{
        super::{pages::Pages, random::Random},
        *,
    };

    /// Sent, done, prompt, answer.
    type Plain = (u64, u64, Vec<u32>, Vec<u32>);

    /// As the definition says it, token by token.
    fn naive(requests: &[Plain], page: usize) -> Vec<Maximum> {
        let shared = |a: &[u32], b: &[u32]| a.iter().zip(b).take_while(|(x, y)| x == y).count();
        let of = |at: usize, other: &dyn Fn(&Plain) -> Option<Vec<u32>>| {
            let prompt = &requests[at].2;
            let longest = requests.iter().filter_map(other).map(|o| shared(prompt, &o)).max().unwrap_or(0);
            longest.min(prompt.len() - 1) / page
        };
        (0..requests.len())
            .map(|at| {
                let sent = requests[at].0;
                Maximum {
                    finished: of(at, &|o| (o.1 < sent).then(|| [&o.2[..], &o.3].concat())),
                    sent: of(at, &|o| match (o.0 < sent, o.1 < sent) {
                        (_, true) => Some([&o.2[..], &o.3].concat()),
                        (true, false) => Some(o.2.clone()),
                        (false, false) => None,
                    }),
                }
            })
            .collect()
    }

    #[test]
    fn agrees_with_the_definition_on_random_traces() {
        let mut random = Random::new(3, 0);
        let mut n_differ = 0;
        for _ in 0..200 {
            let page = random.between(1, 4) as usize;
            let n = random.between(1, 8) as usize;
            let mut clock: Vec<u64> = (0..2 * n as u64).collect();
            for at in (1..clock.len()).rev() {
                clock.swap(at, random.between(0, at as u32) as usize);
            }
            let mut requests: Vec<Plain> = Vec::new();
            for at in 0..n {
                let (a, b) = (clock[2 * at], clock[2 * at + 1]);
                // Often a continuation of an older request.
                let mut prompt = match requests.len() as u32 {
                    n if n > 0 && random.chance(0.7) => {
                        let old = &requests[random.between(0, n - 1) as usize];
                        let all = [&old.2[..], &old.3].concat();
                        all[..random.between(0, all.len() as u32) as usize].to_vec()
                    }
                    _ => Vec::new(),
                };
                prompt.extend((0..random.between(1, 5)).map(|_| random.between(0, 1)));
                let answer = (0..random.between(0, 5)).map(|_| random.between(0, 1)).collect();
                requests.push((a.min(b), a.max(b), prompt, answer));
            }
            let mut pages = Pages::new(page as u32);
            let paths: Vec<Path> = requests.iter().map(|r| pages.path(&r.2, &r.3)).collect();
            let placed: Vec<Placed<'_>> = requests
                .iter()
                .zip(&paths)
                .map(|(r, path)| Placed { sent: r.0, done: r.1, path, n_prompt: r.2.len() / page })
                .collect();
            let maxima = maxima(&placed);
            assert_eq!(maxima, naive(&requests, page), "{requests:?}");
            n_differ += maxima.iter().filter(|m| m.finished != m.sent).count();
        }
        assert!(n_differ > 20, "the two readings were told apart");
    }
}
