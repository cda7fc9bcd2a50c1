//! The side tables of the op `sample`: what a row's fixed record cannot say. Which requests have rows in them, what these
//! hold, and what the device has to be told before a step.
//!
//! There are three tables with the same numbers of rows: counts of a request's tokens for the penalties, its biases, and which
//! ids its next token may have (`allowed_token_ids`, `bad_words`, `min_tokens`, its constraint). A request that needs any of them
//! gets a row of all three when it is first sampled, and keeps it while it runs; nothing gives a row back, but one whose request
//! is not running any more may be taken. What is in a row is a function of its request and of how many of its tokens were
//! counted, so a row that says the right thing already is left alone:
//!
//! * Counts are written once. After that the device counts what it samples, so a step behind the one in flight has them right
//!   although nobody here knows the token; rows are written again where the text grew otherwise, by guesses that were right or
//!   by a step that the host sampled.
//! * Biases are written once. Ids without one get -0.0, the number that changes no other when it is added.
//! * Masks are written when they change. Those of `bad_words` of several ids follow from the newest tokens: a step whose tokens
//!   nobody here has seen cannot have them ([`Side::follows_text`]).
//!
//! * Masks of a constraint are made while the device runs the step, so the step's record names a row that is written later, between
//!   the passes and their sampling (`engine/masks.rs`).
//!
//! A row of logits behind guesses has other counts, and perhaps another mask, than the one before it, and the device counts
//! into the row it is given; so for the one step it gets a row of the tables that nobody has. It shares the biases.
//!
//! Whole rows are sent, as a value for all ids and the entries that differ from it; they go to the device with the step
//! ([`SideUpdates`]). Rejected: changing single entries in place, which costs a device a copy each and saves it none. Rejected
//! too: a row per table row of the scheduler, always; a vocabulary of 160,000 ids takes 1.3 MB per row, and few requests need
//! one. Where there are too few, the host samples the step, and says so ([`HostOnly::SideRows`](super::device::HostOnly)).

use super::History;
use crate::{
    bug::seeded,
    grammar::TokenMask,
    request::{RequestId, SamplingParams},
};

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideTable {
    /// Per id how often it was generated, and bit 31 if it is in the text before that.
    Counts,
    /// Per id what is added to its logit, as f32.
    Bias,
    /// Per 32 ids which of them are allowed.
    Mask,
}

/// Of an entry of the counts: the id occurs in the text that was not generated.
const IN_TEXT: u32 = 1 << 31;

/// Entry `at` of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SideEntry {
    /// Id, or number of the word.
    pub at: u32,
    /// Its value.
    pub word: u32,
}

/// A row to be written.
#[derive(Clone, Copy, Debug)]
pub struct SideRow<'a> {
    /// Of this table.
    pub table: SideTable,
    /// Number of the row.
    pub handle: u32,
    /// Every entry,
    pub fill: u32,
    /// but these, in order: later ones count.
    pub entries: [&'a [SideEntry]; 2],
}

#[derive(Clone, Copy, Debug)]
struct Planned {
    table: SideTable,
    handle: u32,
    fill: u32,
    /// Ranges of entries.
    entries: [(u32, u32); 2],
}

/// Rows to be written before a step.
#[derive(Clone, Debug, Default)]
pub struct SideUpdates {
    rows: Vec<Planned>,
    entries: Vec<SideEntry>,
}

impl SideUpdates {
    /// Nothing to be written, with room for that many rows and entries.
    pub fn with_capacity(rows: usize, entries: usize) -> Self {
        Self { rows: Vec::with_capacity(rows), entries: Vec::with_capacity(entries) }
    }

    /// Become a copy of `other`.
    pub fn copy_from(&mut self, other: &Self) {
        self.clear();
        self.rows.extend_from_slice(&other.rows);
        self.entries.extend_from_slice(&other.entries);
    }

    /// Nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// All rows.
    pub fn rows(&self) -> impl Iterator<Item = SideRow<'_>> {
        let entries = |(start, end): (u32, u32)| &self.entries[start as usize..end as usize];
        self.rows.iter().map(move |row| SideRow {
            table: row.table,
            handle: row.handle,
            fill: row.fill,
            entries: row.entries.map(entries),
        })
    }

    /// Write nothing.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.entries.clear();
    }

    fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    fn push(&mut self, at: u32, word: u32) {
        self.entries.push(SideEntry { at, word });
    }
}

/// What a request needs of the tables, and which of their rows it had last.
#[derive(Clone, Copy, Debug, Default)]
pub struct Side {
    /// Penalties.
    pub has_counts: bool,
    has_bias: bool,
    /// Beside `min_tokens`.
    has_mask: bool,
    /// Its mask depends on its newest tokens.
    pub follows_text: bool,
    /// It has a constraint, whose masks are made while the device runs the step.
    is_guided: bool,
    /// An id has two biases: the host adds one after the other, a table has their sum.
    pub adds_twice: bool,
    slot: usize,
}

impl Side {
    /// Of a request, with a constraint or without.
    pub fn of(params: &SamplingParams, is_guided: bool) -> Self {
        let mut ids: Vec<u32> = params.logit_bias.iter().map(|&(id, _)| id).collect();
        ids.sort_unstable();
        Self {
            has_counts: params.repetition_penalty != 1.0
                || params.frequency_penalty != 0.0
                || params.presence_penalty != 0.0,
            has_bias: !params.logit_bias.is_empty(),
            has_mask: is_guided || params.allowed_token_ids.is_some() || !params.bad_words.is_empty(),
            follows_text: is_guided || params.bad_words.iter().any(|word| word.len() > 1),
            is_guided,
            adds_twice: ids.windows(2).any(|pair| pair[0] == pair[1]),
            slot: 0,
        }
    }

    /// Beside penalties and `min_tokens`.
    pub fn changes_logits(&self) -> bool {
        self.has_bias || self.has_mask
    }
}

/// A request as the tables see it.
#[derive(Clone, Copy, Debug)]
pub struct SideText<'a> {
    /// Which.
    pub id: RequestId,
    /// What it asks for.
    pub params: &'a SamplingParams,
    /// What was counted of its known tokens.
    pub history: &'a History,
    /// Its known tokens.
    pub tokens: &'a [u32],
    /// Those of its prompt.
    pub prompt_tokens: u32,
    /// Tokens it has when the row is sampled: the last one may not be known.
    pub len: u32,
}

impl SideText<'_> {
    /// Before `min_tokens`, behind `n` guesses.
    fn is_short(&self, n: usize) -> bool {
        self.len - self.prompt_tokens + (n as u32) < self.params.min_tokens
    }
}

/// Rows of `counts`, `bias` and `mask`, as in a record.
pub type Handles = [u32; 3];

/// A row of all tables.
#[derive(Clone, Debug, Default)]
struct Slot {
    owner: Option<RequestId>,
    /// By a request that runs, or in this step.
    is_taken: bool,
    /// Something was written to it, or read, in the planned step.
    is_touched: bool,
    /// Generated tokens that are counted in it; `None`: not to be trusted.
    counted: Option<u32>,
    has_bias: bool,
    /// It has the mask of a request whose mask follows from this alone: whether its answer is short of `min_tokens`.
    mask: Option<bool>,
}

/// The rows, and what of them has to be written before the step planned last.
#[derive(Debug)]
pub struct SideTables {
    /// Row n + 1 of the tables; row 0 is nobody's.
    slots: Vec<Slot>,
    /// Ids that end answers.
    eos_ids: Vec<u32>,
    updates: SideUpdates,
    /// Of the request looked at last: its slot, and the entries of its history, if they are there already.
    current: (usize, Option<(u32, u32)>),
    mask: Vec<u32>,
}

/// Entries of updates there is room for from the start, by row: more are made room for when they are first needed.
const ENTRIES: usize = 1024;

impl SideTables {
    /// With so many rows for requests, for logits of that width.
    pub fn new(rows: u32, vocab_size: u32, eos_ids: &[u32]) -> Self {
        let n = rows as usize;
        Self {
            slots: vec![Slot::default(); n],
            eos_ids: eos_ids.to_vec(),
            updates: SideUpdates::with_capacity(3 * n, ENTRIES.max(vocab_size as usize / 32) * n),
            current: (0, None),
            mask: if n > 0 { vec![0; vocab_size.div_ceil(32) as usize] } else { Vec::new() },
        }
    }

    /// There are tables.
    pub fn exist(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Room as for [`SideTables::updates`].
    pub fn new_updates(&self) -> SideUpdates {
        SideUpdates::with_capacity(self.updates.rows.capacity(), self.updates.entries.capacity())
    }

    /// To be written before the step planned last.
    pub fn updates(&self) -> &SideUpdates {
        &self.updates
    }

    /// A step is about to be planned; these run.
    pub fn begin<'b>(&mut self, running: impl Iterator<Item = (RequestId, &'b Side)>) {
        self.updates.clear();
        if self.slots.iter().all(|slot| slot.owner.is_none()) {
            self.slots.iter_mut().for_each(|slot| (slot.is_taken, slot.is_touched) = (false, false));
            return;
        }
        for slot in &mut self.slots {
            (slot.is_taken, slot.is_touched) = (false, false);
        }
        for (id, side) in running {
            let slot = &mut self.slots[side.slot];
            slot.is_taken |= slot.owner == Some(id);
        }
    }

    /// The host samples the step after all: nothing of it is written, and nothing counted.
    pub fn leave_to_host(&mut self) {
        self.updates.clear();
        for slot in self.slots.iter_mut().filter(|slot| slot.is_touched) {
            (slot.counted, slot.has_bias, slot.mask) = (None, false, None);
        }
    }

    /// All requests are gone, and steps may be that were never run.
    pub fn clear(&mut self) {
        self.updates.clear();
        self.slots.fill(Slot::default());
    }

    /// Rows for the row of logits behind the text; `None` if the request needs one and there is none.
    pub fn behind_text(&mut self, text: &SideText<'_>, side: &mut Side) -> Option<Handles> {
        let needs = side.has_counts || side.has_bias || side.has_mask || text.is_short(0);
        self.current = (usize::MAX, None);
        if !needs {
            return Some([0; 3]);
        }
        if self.slots.get(side.slot)?.owner != Some(text.id) {
            side.slot = self.take()?;
            let kept = self.slots[side.slot].clone();
            self.slots[side.slot] = if seeded!(SideRowKeepsItsPast) {
                Slot { owner: Some(text.id), is_taken: true, ..kept }
            } else {
                Slot { owner: Some(text.id), is_taken: true, ..Slot::default() }
            };
        }
        self.slots[side.slot].is_touched = true;
        self.current.0 = side.slot;
        let handle = side.slot as u32 + 1;
        let mut handles = [0; 3];
        if side.has_counts {
            let generated = text.len - text.prompt_tokens;
            let counted = self.slots[side.slot].counted;
            let counted = if seeded!(RightGuessesAreNotCounted) { counted.map(|_| generated) } else { counted };
            if counted != Some(generated) {
                assert_eq!(text.len as usize, text.tokens.len(), "the device has counted what it sampled");
                self.count(handle, text, &[]);
            }
            // The device counts on.
            self.slots[side.slot].counted = Some(generated + 1);
            handles[0] = handle;
        }
        if side.has_bias {
            if !std::mem::replace(&mut self.slots[side.slot].has_bias, true) {
                let start = self.updates.len();
                for &(id, bias) in &text.params.logit_bias {
                    self.updates.push(id, bias.to_bits());
                }
                self.row(SideTable::Bias, handle, (-0.0f32).to_bits(), [(start, self.updates.len()), (0, 0)]);
            }
            handles[1] = if seeded!(BiasOfTheNeighbour) { handle % self.slots.len() as u32 + 1 } else { handle };
        }
        if side.has_mask || text.is_short(0) {
            let is_short = text.is_short(0);
            let is_known = !side.follows_text && self.slots[side.slot].mask == Some(is_short);
            let is_known = is_known || seeded!(MaskOutlivesMinTokens) && self.slots[side.slot].mask.is_some();
            if side.is_guided {
                self.slots[side.slot].mask = None;
                handles[2] = handle;
            } else if is_known || self.allow(handle, text, &[], None) {
                self.slots[side.slot].mask = (!side.follows_text).then_some(is_short);
                handles[2] = handle;
            }
        }
        Some(handles)
    }

    /// Rows for the row of logits behind `guesses`, of the request that [`SideTables::behind_text`] was last asked about and
    /// that has `own`.
    pub fn behind_guesses(
        &mut self,
        text: &SideText<'_>,
        side: &Side,
        own: Handles,
        guesses: &[u32],
    ) -> Option<Handles> {
        let mut handles = [0, own[1], 0];
        let is_short = text.is_short(guesses.len());
        let needs_mask = side.has_mask || is_short;
        let shares_mask = needs_mask && !side.follows_text && is_short == text.is_short(0);
        if shares_mask {
            handles[2] = own[2];
        }
        if !side.has_counts && (!needs_mask || shares_mask) {
            return Some(handles);
        }
        let slot = self.take()?;
        // For this step only, and nobody's afterwards.
        self.slots[slot] = Slot { is_taken: true, ..Slot::default() };
        let handle = slot as u32 + 1;
        if side.has_counts {
            let n = guesses.len() - usize::from(seeded!(CountsOfTheRowBefore));
            self.count(handle, text, &guesses[..n]);
            handles[0] = handle;
        }
        if side.is_guided || needs_mask && !shares_mask && self.allow(handle, text, guesses, None) {
            handles[2] = handle;
        }
        Some(handles)
    }

    /// A row that nobody has.
    fn take(&mut self) -> Option<usize> {
        let free = |slot: &Slot| !slot.is_taken && slot.owner.is_none();
        self.slots.iter().position(free).or_else(|| self.slots.iter().position(|slot| !slot.is_taken))
    }

    fn row(&mut self, table: SideTable, handle: u32, fill: u32, entries: [(u32, u32); 2]) {
        self.updates.rows.push(Planned { table, handle, fill, entries });
    }

    /// Write the counts behind all known tokens and `guesses`.
    fn count(&mut self, handle: u32, text: &SideText<'_>, guesses: &[u32]) {
        let occurrences = text.history.occurrences();
        let of_text = match self.current.1 {
            Some(range) => range,
            None => {
                let start = self.updates.len();
                for occurrence in occurrences {
                    self.updates.push(occurrence.id, if occurrence.count == 0 { IN_TEXT } else { occurrence.count });
                }
                (start, self.updates.len())
            }
        };
        self.current.1 = Some(of_text);
        let start = self.updates.len();
        for (n, &id) in (1..).zip(guesses) {
            let in_text = occurrences.binary_search_by_key(&id, |o| o.id).map_or(0, |at| occurrences[at].count);
            let guessed = guesses[..n].iter().filter(|guess| **guess == id).count() as u32;
            self.updates.push(id, in_text + guessed);
        }
        self.row(SideTable::Counts, handle, 0, [of_text, (start, self.updates.len())]);
    }

    /// The step planned last has run but for what follows from masks: nothing is to be written but these.
    pub fn begin_masks(&mut self) {
        self.updates.clear();
    }

    /// Write the mask of a row that has a handle already, behind all tokens and `guesses`: what its constraint allows, if it says,
    /// of what else may follow.
    pub fn guide(&mut self, handle: u32, text: &SideText<'_>, guesses: &[u32], of_grammar: Option<&TokenMask>) {
        if seeded!(MadeMaskIsNotWritten) {
            return;
        }
        if !self.allow(handle, text, guesses, of_grammar) {
            self.row(SideTable::Mask, handle, u32::MAX, [(0, 0); 2]);
        }
    }

    /// Write the mask behind all known tokens and `guesses`, unless everything is allowed.
    fn allow(&mut self, handle: u32, text: &SideText<'_>, guesses: &[u32], of_grammar: Option<&TokenMask>) -> bool {
        let params = text.params;
        let fill = if params.allowed_token_ids.is_some() { 0 } else { u32::MAX };
        let mask = &mut self.mask;
        mask.fill(fill);
        for &id in params.allowed_token_ids.iter().flatten() {
            mask[id as usize / 32] |= 1 << (id % 32);
        }
        let mut forbid = |id: u32| mask[id as usize / 32] &= !(1 << (id % 32));
        for word in &params.bad_words {
            let (&last, before) = word.split_last().expect("validated: not empty");
            if ends_with(text.tokens, guesses, before) {
                forbid(last);
            }
        }
        if text.is_short(guesses.len()) {
            let eos_ids = if params.ignore_eos { &[] } else { &self.eos_ids[..] };
            eos_ids.iter().chain(&params.stop_token_ids).for_each(|id| forbid(*id));
        }
        if let Some(allowed) = of_grammar {
            // What is behind the last id is nobody's.
            let words = allowed.words().iter().copied().chain(std::iter::repeat(0));
            self.mask.iter_mut().zip(words).for_each(|(word, allowed)| *word &= allowed);
        }
        let start = self.updates.len();
        for (at, &word) in (0..).zip(&self.mask) {
            if word != fill {
                self.updates.push(at, word);
            }
        }
        let is_needed = fill == 0 || self.updates.len() > start;
        if is_needed {
            self.row(SideTable::Mask, handle, fill, [(start, self.updates.len()), (0, 0)]);
        }
        is_needed
    }
}

/// Whether `tokens` and, behind them, `guesses` end with `word`.
fn ends_with(tokens: &[u32], guesses: &[u32], word: &[u32]) -> bool {
    match word.len().checked_sub(guesses.len()) {
        Some(n) if n > 0 => word.ends_with(guesses) && tokens.ends_with(&word[..n]),
        _ => guesses.ends_with(word),
    }
}
