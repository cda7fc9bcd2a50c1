//! The prefix index against a naive twin: a list of (salt, tokens) with a pin count and the time it was last let go,
//! searched from front to back. Random leases grow, publish and end in any order on a tiny pool.
//!
//! What must hold, and what shows it; of requests, copies and flushes, `engine/tests/simulation.rs` has the rest of the list.
//!
//! * **Pool.** Free, held and cached pages are all there are, each once, after every call (`Memory::check`, here and in both
//!   simulations). A handle is used up by giving it back, and a page is shared by moving its handle into the index, so the last
//!   owner returns exactly its slot: by type, `tests/compile_fail/`. Several pages are taken at once only where as many were
//!   counted as available, so all of them come or none is asked for (`Lease::grow_to` asserts it).
//! * **Tables.** Publishing twice changes nothing and leaves a page out that is not full: here. Rows are read through the
//!   tables at absolute positions, by devices that verify them: `engine/tests/fake.rs`, `tests/sim`. There are no sliding windows.
//! * **Hashing.** A hash depends on order, on everything before and on the namespace: `hash::tests`,
//!   [`case_88_namespaces_do_not_run_together`]. Page by page gives what one go gives: [`Asker::ask`].
//! * **Matching.** What is found is what the twin finds; equal hashes are not believed. Looking takes the index by shared
//!   reference: probing changes nothing, and an admission that is refused after it refreshes nothing. A hit is resumable in every
//!   component, under random orders of caching and eviction: `tier_tests` for pages with states in two tiers, `component` for
//!   the joint match.
//! * **Eviction.** Older first, suffix before prefix, never a page in use: the twin's order. Victims are taken one by one as they are
//!   needed, so none has to be restored. Of states, the one that saves least among the oldest: `snapshots::tests`.
//! * **Discarded pages** and what continues them are forgotten, other texts and other users keep theirs: the last two tests.

use super::{
    events::{BlockEvent, Mirror},
    hash,
    index::FoundPath,
    lease::Lease,
    memory::{Memory, MemorySize},
    namespace::Namespace,
    tally::Tally,
};

const PAGE_TOKENS: u32 = 3;
const SECRET: [u64; 2] = [11, 22];

struct Rng(u32);

impl Rng {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) % n
    }
}

#[derive(Debug)]
struct TwinPage {
    salt: Option<String>,
    /// Everything from the start to the end of this page.
    tokens: Vec<u32>,
    pins: u32,
    let_go_at: u64,
}

#[derive(Debug, Default)]
struct Twin {
    pages: Vec<TwinPage>,
    clock: u64,
}

impl Twin {
    fn page(&mut self, salt: &Option<String>, tokens: &[u32]) -> Option<&mut TwinPage> {
        self.pages.iter_mut().find(|page| page.salt == *salt && page.tokens == tokens)
    }

    fn n_found(&mut self, salt: &Option<String>, tokens: &[u32], max_pages: usize) -> usize {
        let prefix = |n: usize| &tokens[..n * PAGE_TOKENS as usize];
        let max_pages = max_pages.min(tokens.len() / PAGE_TOKENS as usize);
        (1..=max_pages).take_while(|&n| self.page(salt, prefix(n)).is_some()).count()
    }

    fn pin(&mut self, salt: &Option<String>, tokens: &[u32]) {
        match self.page(salt, tokens) {
            Some(page) => page.pins += 1,
            None => self.pages.push(TwinPage { salt: salt.clone(), tokens: tokens.to_vec(), pins: 1, let_go_at: 0 }),
        }
    }

    fn unpin(&mut self, salt: &Option<String>, tokens: &[u32]) {
        self.clock += 1;
        let clock = self.clock;
        let page = self.page(salt, tokens).unwrap();
        page.pins -= 1;
        page.let_go_at = clock;
    }

    fn evict(&mut self) {
        let oldest = (0..self.pages.len())
            .filter(|&at| self.pages[at].pins == 0)
            .min_by_key(|&at| self.pages[at].let_go_at)
            .unwrap();
        let gone = self.pages.remove(oldest);
        let continues = |page: &TwinPage| page.salt == gone.salt && page.tokens.starts_with(&gone.tokens);
        assert!(!self.pages.iter().any(continues), "suffix before prefix");
    }
}

/// A lease and what it is for.
struct User {
    lease: Lease,
    namespace: Namespace,
    salt: Option<String>,
    tokens: Vec<u32>,
    hashes: Vec<u64>,
    n_published: usize,
}

/// A text that waits.
struct Asker {
    namespace: Namespace,
    salt: Option<String>,
    tokens: Vec<u32>,
    hashes: Vec<u64>,
    found: FoundPath,
}

impl Asker {
    /// What the index finds is what the twin finds, and what a text that was never looked for before would find.
    fn ask(&mut self, memory: &Memory, twin: &mut Twin, max_pages: usize) -> usize {
        let Self { namespace, salt, tokens, hashes, found } = self;
        memory.index.find(namespace, tokens, max_pages, hashes, found);
        let (mut hashes_anew, mut anew) = (Vec::new(), FoundPath::default());
        memory.index.find(namespace, tokens, max_pages, &mut hashes_anew, &mut anew);
        let n = hashes_anew.len();
        let mut computed = Vec::new();
        memory.index.hash_pages(namespace, tokens, n, &mut computed);
        assert_eq!((&hashes_anew, &hashes[..n]), (&computed, &computed[..]), "hashes found are those computed");
        assert_eq!((found.nodes(), found.nodes().len()), (anew.nodes(), twin.n_found(salt, tokens, max_pages)));
        found.nodes().len()
    }
}

fn memory(pages: u32) -> Memory {
    Memory::new(MemorySize {
        page_tokens: PAGE_TOKENS,
        pages: pages + 1,
        table_rows: 6,
        states: None,
        prefix_cache: true,
        secret: SECRET,
        events: 1000,
        host: (0, 0),
    })
}

/// A reader of the events, which recomputes every name it is told.
#[derive(Default)]
struct Reader {
    mirror: Mirror,
    next: u64,
}

impl Reader {
    fn read(&mut self, memory: &Memory) {
        let events = memory.index.events();
        while self.next < events.next() {
            let event = events.get(self.next).expect("few events since the last look");
            if let BlockEvent::Stored { hash, parent, tokens, salt, .. } = &event {
                let before = parent.unwrap_or_else(|| hash::root(SECRET, "m", salt.as_deref()));
                assert_eq!(*hash, hash::extend(SECRET, before, tokens), "{event:?}");
            }
            self.mirror.apply(&event).unwrap();
            self.next += 1;
        }
        let told = self.mirror.blocks.iter().map(|(&(tier, hash), &parent)| (tier, hash, parent));
        let mut cached: Vec<_> = memory.index.blocks().collect();
        cached.sort_unstable();
        assert!(told.eq(cached), "what the events say is not what is cached");
    }
}

#[test]
fn equals_the_naive_twin() {
    let mut tally = Tally::default();
    for seed in 0..60 {
        let rng = &mut Rng(seed);
        let n_pages = 5 + rng.below(40);
        let mut memory = memory(n_pages);
        let mut twin = Twin::default();
        let mut users: Vec<User> = Vec::new();
        // Texts that wait, with what was found of them last.
        let mut askers: Vec<Asker> = Vec::new();
        let mut reader = Reader::default();
        for _ in 0..400 {
            match rng.below(4) {
                0 if memory.has_seat() => {
                    // Two-letter texts: long shared prefixes are common.
                    let n_tokens = rng.below(30) as usize;
                    let tokens: Vec<u32> = (0..n_tokens).map(|_| u32::from(rng.below(6) == 0)).collect();
                    let salt = [None, Some(String::new()), Some("a".into())][rng.below(3) as usize].clone();
                    let namespace = memory.index.open("m", salt.as_deref());
                    let max_pages = rng.below(11) as usize;
                    askers.push(Asker { namespace, salt, tokens, hashes: Vec::new(), found: FoundPath::default() });
                    let at = rng.below(askers.len() as u32) as usize;
                    let n_found = askers[at].ask(&memory, &mut twin, max_pages);
                    if rng.below(2) > 0 {
                        continue;
                    }
                    let Asker { namespace, salt, tokens, hashes, found } = askers.swap_remove(at);
                    let lease = Lease::open(&mut memory, found.nodes(), 10);
                    for n in 1..=n_found {
                        twin.pin(&salt, &tokens[..n * PAGE_TOKENS as usize]);
                    }
                    users.push(User { lease, namespace, salt, tokens, hashes, n_published: n_found });
                }
                1 | 2 if !users.is_empty() => {
                    let at = rng.below(users.len() as u32) as usize;
                    let user = &mut users[at];
                    let whole = user.tokens.len() / PAGE_TOKENS as usize;
                    if (user.lease.n_pages() as usize) < whole && rng.below(3) > 0 {
                        let evicts = memory.pages.n_free() == 0;
                        let can_grow = memory.n_available() > 0;
                        assert_eq!(user.lease.grow(&mut memory), can_grow);
                        if evicts && can_grow {
                            twin.evict();
                        }
                    } else {
                        let n_computed = user.lease.n_pages() as usize * PAGE_TOKENS as usize;
                        let n_computed = n_computed.min(user.tokens.len()) as u32;
                        for _ in 0..2 {
                            // Twice: publishing again changes nothing.
                            let User { lease, namespace, tokens, hashes, .. } = user;
                            lease.publish(&mut memory, namespace, tokens, n_computed, hashes);
                        }
                        let n_whole = (n_computed / PAGE_TOKENS) as usize;
                        for n in user.n_published + 1..=n_whole {
                            twin.pin(&user.salt, &user.tokens[..n * PAGE_TOKENS as usize]);
                        }
                        user.n_published = user.n_published.max(n_whole);
                        while user.lease.next_renumbered().is_some() {}
                    }
                }
                3 if !users.is_empty() => {
                    let user = users.swap_remove(rng.below(users.len() as u32) as usize);
                    user.lease.release(&mut memory);
                    memory.index.close(user.namespace);
                    for n in (1..=user.n_published).rev() {
                        twin.unpin(&user.salt, &user.tokens[..n * PAGE_TOKENS as usize]);
                    }
                }
                _ => {}
            }
            memory.check(users.iter().map(|user| &user.lease), &mut tally).unwrap();
            reader.read(&memory);
            assert_eq!(memory.index.pages().count(), twin.pages.len());
            let unpinned = twin.pages.iter().filter(|page| page.pins == 0).count();
            assert_eq!(memory.index.n_unpinned() as usize, unpinned);
        }
        for user in users {
            user.lease.release(&mut memory);
            memory.index.close(user.namespace);
        }
        askers.into_iter().for_each(|asker| memory.index.close(asker.namespace));
        memory.flush();
        reader.read(&memory);
        assert_eq!((memory.pages.n_free(), memory.index.n_namespaces()), (n_pages, 0));
        memory.check([].into_iter(), &mut tally).unwrap();
    }
}

/// A lease over whole pages of `tokens`, computed and published.
fn published(memory: &mut Memory, namespace: &Namespace, tokens: &[u32]) -> Lease {
    let mut lease = Lease::open(memory, &[], 10);
    for _ in 0..tokens.len() as u32 / PAGE_TOKENS {
        assert!(lease.grow(memory));
    }
    lease.publish(memory, namespace, tokens, tokens.len() as u32, &mut Vec::new());
    lease
}

fn n_found(memory: &Memory, namespace: &Namespace, tokens: &[u32]) -> usize {
    let (mut hashes, mut path) = (Vec::new(), FoundPath::default());
    let whole = tokens.len() / PAGE_TOKENS as usize;
    memory.index.find(namespace, tokens, whole, &mut hashes, &mut path);
    path.nodes().len()
}

#[test]
fn an_equal_hash_is_not_believed() {
    let mut memory = memory(8);
    let namespace = memory.index.open("m", None);
    let lease = published(&mut memory, &namespace, &[1, 2, 3]);
    let mut hashes = Vec::new();
    memory.index.hash_pages(&namespace, &[1, 2, 3], 1, &mut hashes);
    let n_found = |memory: &Memory, hashes: &[u64], tokens: &[u32]| {
        let mut path = FoundPath::default();
        memory.index.find(&namespace, tokens, 2, &mut hashes.to_vec(), &mut path);
        path.nodes().len()
    };
    assert_eq!(n_found(&memory, &hashes, &[1, 2, 4]), 0, "same hash, other tokens");
    assert_eq!(n_found(&memory, &hashes, &[1, 2, 3]), 1);

    // A page found under its own hash, but after another page than it continues.
    let long = published(&mut memory, &namespace, &[1, 2, 3, 4, 5, 6]);
    let other = published(&mut memory, &namespace, &[7, 8, 9]);
    let (mut forged, mut genuine) = (Vec::new(), Vec::new());
    memory.index.hash_pages(&namespace, &[7, 8, 9], 1, &mut forged);
    memory.index.hash_pages(&namespace, &[1, 2, 3, 4, 5, 6], 2, &mut genuine);
    forged.push(genuine[1]);
    let n = n_found(&memory, &forged, &[7, 8, 9, 4, 5, 6]);
    assert_eq!(n, 1, "same hash and tokens, other history");
    for lease in [lease, long, other] {
        lease.release(&mut memory);
    }
    memory.index.close(namespace);
}

#[test]
fn case_88_namespaces_do_not_run_together() {
    let mut memory = memory(8);
    let tokens = [1, 2, 3, 4, 5, 6];
    let base = memory.index.open("ab", Some("c"));
    published(&mut memory, &base, &tokens).release(&mut memory);
    for (model_id, salt, wanted) in
        [("ab", Some("c"), 2), ("a", Some("bc"), 0), ("abc", None, 0), ("abc", Some(""), 0), ("c", Some("ab"), 0)]
    {
        let namespace = memory.index.open(model_id, salt);
        assert_eq!(n_found(&memory, &namespace, &tokens), wanted, "{model_id} {salt:?}");
        memory.index.close(namespace);
    }
    memory.index.close(base);
}

#[test]
fn discarded_pages_are_forgotten_unless_others_use_them() {
    let mut memory = memory(8);
    let namespace = memory.index.open("m", None);
    let tokens = [1, 2, 3, 4, 5, 6];
    let doubted = published(&mut memory, &namespace, &tokens);
    let mut reader = Lease::open(&mut memory, &[], 10);
    assert!(reader.grow(&mut memory));
    reader.publish(&mut memory, &namespace, &tokens[..3], 3, &mut Vec::new());
    assert_eq!(reader.next_renumbered(), Some(0), "the page turned out to be cached");
    doubted.discard(&mut memory);
    assert_eq!(n_found(&memory, &namespace, &tokens), 1);
    memory.check([&reader].into_iter(), &mut Tally::default()).unwrap();
    reader.release(&mut memory);
    memory.index.close(namespace);
}

/// A page that nobody uses but that was computed after a doubtful one is as doubtful.
#[test]
fn what_continues_a_discarded_page_is_forgotten_with_it() {
    let mut memory = memory(8);
    let namespace = memory.index.open("m", None);
    let tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    let doubted = published(&mut memory, &namespace, &tokens[..6]);
    let other = published(&mut memory, &namespace, &[4, 5, 6]);
    published(&mut memory, &namespace, &tokens).release(&mut memory);
    assert_eq!(n_found(&memory, &namespace, &tokens), 3);
    doubted.discard(&mut memory);
    assert_eq!(n_found(&memory, &namespace, &tokens), 0);
    assert_eq!(n_found(&memory, &namespace, &[4, 5, 6]), 1, "another text is not in doubt");
    memory.check([&other].into_iter(), &mut Tally::default()).unwrap();
    other.release(&mut memory);
    memory.index.close(namespace);
}
