//! From a wish to a compiled grammar, off the server's own threads.
//!
//! A hostile schema may take a while and a lot of stack. So each is compiled on a thread of its own with a stack of its
//! own, at most [`AT_ONCE`] at a time; the rest wait, and nobody else notices. Rejected: compiling on the connection's
//! thread, where one request blocks every client.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use llguidance::{
    Matcher,
    api::{GrammarInit, GrammarWithLexer, TopLevelGrammar},
    toktrie::InferenceCapabilities,
};
use tokenspeed_core::grammar::Constraint;
use tokio::sync::{Semaphore, oneshot};

use super::{
    GrammarError, Wish,
    constraint::{Compiled, plain},
    text,
    vocabulary::Vocabulary,
};
use crate::frontend::TextFrontend;

/// Grammars compiled at the same time.
const AT_ONCE: usize = 2;
/// Grammars remembered.
const REMEMBERED: usize = 32;
/// The library descends into a schema; 128 levels of JSON need less than this even in a debug build.
const STACK_BYTES: usize = 64 << 20;

/// Compiles grammars for one model.
pub struct Grammars {
    frontend: Arc<dyn TextFrontend>,
    /// Made with the first grammar: most servers never see one.
    vocabulary: OnceLock<Result<Arc<Vocabulary>, GrammarError>>,
    turns: Arc<Semaphore>,
    /// The latest first.
    remembered: Mutex<VecDeque<(Wish, Arc<Compiled>)>>,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Grammars")
    }
}

impl Grammars {
    /// For the model behind `frontend`.
    pub fn new(frontend: Arc<dyn TextFrontend>) -> Arc<Self> {
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        Arc::new(Self { frontend, vocabulary: OnceLock::new(), turns, remembered: Mutex::default() })
    }

    /// Compile a wish for answers that start inside a reasoning block or not.
    pub async fn compile(
        self: &Arc<Self>,
        wish: Wish,
        in_reasoning: bool,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        let stopped = || GrammarError::Wrong("the grammar could not be compiled".into());
        let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| stopped())?;
        let (answer, answered) = oneshot::channel();
        let grammars = Arc::clone(self);
        let work = move || {
            let _turn = turn;
            // Whoever asked may have gone.
            let _ = answer.send(grammars.compile_here(wish, in_reasoning));
        };
        std::thread::Builder::new()
            .name("grammar".into())
            .stack_size(STACK_BYTES)
            .spawn(work)
            .map_err(|e| GrammarError::Unsupported(format!("no thread could be started for the grammar: {e}")))?;
        // An error means that the thread panicked; that the library's parts did not catch it is its business.
        answered.await.map_err(|_| stopped())?
    }

    /// The same on this thread, with this thread's stack.
    pub fn compile_here(&self, wish: Wish, in_reasoning: bool) -> Result<Box<dyn Constraint>, GrammarError> {
        let vocabulary = self.vocabulary.get_or_init(|| Vocabulary::new(&*self.frontend).map(Arc::new)).clone()?;
        // Where the answer starts is part of what is compiled, and of what is looked up.
        let wish = Wish { param: in_reasoning.to_string(), ..wish };
        if let Some(known) = self.recall(&wish) {
            return Ok(known.open());
        }
        let markup = self.frontend.answer_markup();
        let written = text::write(&wish.answer, wish.is_chat.then_some(markup), in_reasoning, &vocabulary.specials)?;
        let mut grammars = vec![GrammarWithLexer::from_lark(written.lark)];
        if let Some(user) = written.user {
            grammars.push(GrammarWithLexer { name: Some(text::USER.into()), ..GrammarWithLexer::from_lark(user) });
        }
        let init = GrammarInit::Serialized(TopLevelGrammar { grammars, max_tokens: None });
        let factory = &vocabulary.factory;
        let made = llguidance::panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let (logger, caps) = (llguidance::Logger::new(0, 0), InferenceCapabilities::default());
            factory.create_parser_from_init_ext(init, logger, caps, factory.limits().clone())
        }));
        let mut matcher = Matcher::new(made);
        if let Some(error) = matcher.get_error() {
            return Err(GrammarError::Wrong(plain(&error)));
        }
        // What has no answer at all shows in the first mask.
        matcher.deep_clone().compute_mask().map_err(|e| GrammarError::Wrong(plain(&e)))?;
        matcher.invalidate_bias_cache();
        let compiled = Arc::new(Compiled::new(matcher, &vocabulary.eos_ids));
        let constraint = compiled.open();
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.push_front((wish, compiled));
        remembered.truncate(REMEMBERED);
        Ok(constraint)
    }

    fn recall(&self, wish: &Wish) -> Option<Arc<Compiled>> {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let at = remembered.iter().position(|(known, _)| known == wish)?;
        let entry = remembered.remove(at)?;
        let compiled = Arc::clone(&entry.1);
        remembered.push_front(entry);
        Some(compiled)
    }
}
