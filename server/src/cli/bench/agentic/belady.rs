//! What a cache of limited memory could have provided at best: Belady's rule, which knows the future.
//!
//! Requests are taken one after another. While one runs it holds all its pages; when memory is short, the page goes whose
//! next use is farthest away, and of equally distant ones the deepest, so that what remains can be reused. All pages are
//! the same size and a request needs all of its pages at once, so no other choice of victims finds more pages in total.
//!
//! Snapshots of recurrent states are not part of it: it is a bound for pages.

use std::collections::BTreeSet;

use super::pages::Path;

/// Never again.
const NEVER: usize = usize::MAX;

/// Pages found by each request in a cache of `capacity` pages; `None` if a request does not fit at all.
pub fn found(requests: &[Path], capacity: usize) -> Option<Vec<usize>> {
    if requests.iter().any(|path| needs(path) > capacity) {
        return None;
    }
    let n_pages = requests.iter().flat_map(|path| &path.pages).max().map_or(0, |&most| most as usize + 1);
    // For each request, when each of its pages is wanted next, before it is computed again for nothing.
    let mut wanted = vec![NEVER; n_pages];
    let mut next_uses: Vec<Vec<usize>> = Vec::with_capacity(requests.len());
    for (at, path) in requests.iter().enumerate().rev() {
        next_uses.push(path.pages.iter().map(|&page| wanted[page as usize]).collect());
        // Pages that this request computes again whatever is cached are worth nothing until then.
        for (place, &page) in path.pages.iter().enumerate() {
            wanted[page as usize] = if place < path.n_usable { at } else { NEVER };
        }
    }
    next_uses.reverse();

    // (next use, depth, page) of what is cached, and the entry of each page in it.
    let mut cached: BTreeSet<(usize, usize, u32)> = BTreeSet::new();
    let mut entries: Vec<Option<(usize, usize, u32)>> = vec![None; n_pages];
    let found = requests.iter().zip(&next_uses).map(|(path, next_uses)| {
        let n_found = path.pages[..path.n_usable].iter().take_while(|&&page| entries[page as usize].is_some()).count();
        for &page in &path.pages {
            if let Some(entry) = entries[page as usize].take() {
                cached.remove(&entry);
            }
        }
        while cached.len() + needs(path) > capacity {
            let (_, _, page) = cached.pop_last().expect("the request alone fits");
            entries[page as usize] = None;
        }
        for (depth, (&page, &next)) in path.pages.iter().zip(next_uses).enumerate() {
            cached.insert((next, depth, page));
            entries[page as usize] = Some((next, depth, page));
        }
        n_found
    });
    Some(found.collect())
}

/// Pages that a request holds while it runs.
fn needs(path: &Path) -> usize {
    path.pages.len() + usize::from(path.has_tail)
}

/// The fewest pages with which as much is found as with any number of them.
pub fn memory_needed(requests: &[Path]) -> usize {
    let sum = |capacity: usize| found(requests, capacity).map(|found| found.iter().sum::<usize>());
    let mut low = requests.iter().map(needs).max().unwrap_or(0);
    let mut high = requests.iter().flat_map(|path| &path.pages).collect::<BTreeSet<_>>().len() + 1;
    let most = sum(high.max(low));
    while low < high {
        let middle = (low + high) / 2;
        if sum(middle) == most { high = middle } else { low = middle + 1 }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::{
        super::{pages::Pages, random::Random},
        *,
    };

    /// The best over every choice of victims.
    fn best(requests: &[Path], cached: &BTreeSet<u32>, capacity: usize) -> usize {
        let Some((path, rest)) = requests.split_first() else { return 0 };
        let n_found = path.pages[..path.n_usable].iter().take_while(|page| cached.contains(page)).count();
        let others: Vec<u32> = cached.iter().copied().filter(|page| !path.pages.contains(page)).collect();
        let n_kept = (capacity - needs(path)).min(others.len());
        let mut most = 0;
        for choice in 0u32..1 << others.len() {
            if choice.count_ones() as usize != n_kept {
                continue;
            }
            let kept = (0..others.len()).filter(|at| choice >> at & 1 == 1).map(|at| others[at]);
            let next: BTreeSet<u32> = kept.chain(path.pages.iter().copied()).collect();
            most = most.max(best(rest, &next, capacity));
        }
        n_found + most
    }

    /// Mostly continuations of a whole older text, so that there is something to find.
    fn random_requests(random: &mut Random) -> Vec<Path> {
        let mut pages = Pages::new(2);
        let mut texts: Vec<Vec<u32>> = Vec::new();
        let n_requests = random.between(3, 7);
        let paths = (0..n_requests).map(|_| {
            let mut text = match texts.len() as u32 {
                n if n > 1 && random.chance(0.8) => texts[random.between(0, n - 1) as usize].clone(),
                _ => vec![random.between(0, 5), 0],
            };
            text.truncate(6);
            text.extend((0..random.between(1, 3)).map(|_| random.between(0, 1)));
            texts.push(text.clone());
            let n_answer = random.between(0, 1) as usize;
            pages.path(&text[..text.len() - n_answer], &text[text.len() - n_answer..])
        });
        paths.collect()
    }

    #[test]
    fn no_choice_of_victims_finds_more() {
        let mut random = Random::new(11, 0);
        let mut n_short = 0;
        for _ in 0..300 {
            let requests = random_requests(&mut random);
            let least = requests.iter().map(needs).max().expect("some");
            for capacity in least..least + 4 {
                let found = found(&requests, capacity).expect("each fits").iter().sum::<usize>();
                assert_eq!(found, best(&requests, &BTreeSet::new(), capacity), "{capacity} pages: {requests:?}");
                let unlimited = best(&requests, &BTreeSet::new(), 100);
                n_short += usize::from(found < unlimited);
            }
        }
        assert!(n_short > 20, "memory was short in {n_short} cases");
    }

    #[test]
    fn needed_memory_is_the_least_that_finds_everything() {
        let mut random = Random::new(12, 0);
        for _ in 0..200 {
            let requests = random_requests(&mut random);
            let sum = |capacity| found(&requests, capacity).map(|found| found.iter().sum::<usize>());
            let needed = memory_needed(&requests);
            assert_eq!(sum(needed), sum(1000));
            assert!(needed == 0 || sum(needed - 1) != sum(1000), "{needed}: {requests:?}");
        }
    }

    #[test]
    fn a_request_that_does_not_fit_is_no_result() {
        let mut pages = Pages::new(2);
        let path = pages.path(&[1, 2, 3], &[]);
        assert_eq!(found(std::slice::from_ref(&path), 1), None);
        assert_eq!(found(&[path], 2), Some(vec![0]));
    }
}
