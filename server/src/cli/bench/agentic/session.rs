//! A session on its way: which prompt comes next, given what was answered.

use serde_json::{Value, json};

use super::{
    conversations::Conversation,
    server::WORDS,
    target::{Answer, Prompt},
    trace::{Kind, Trace},
};

/// What is replayed.
#[derive(Clone, Debug)]
pub enum Work {
    /// Made from a seed.
    Made(Trace),
    /// Recorded, each answer of so many tokens.
    Recorded(Vec<Conversation>, u32),
}

impl Work {
    /// How many sessions there are.
    pub fn n_sessions(&self) -> usize {
        match self {
            Self::Made(trace) => trace.sessions.len(),
            Self::Recorded(conversations, _) => conversations.len(),
        }
    }
}

/// The next request of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Next {
    /// How it came about.
    pub kind: Kind,
    /// What is asked.
    pub prompt: Prompt,
    /// Tokens of the prompt that all sessions begin with, if that is known.
    pub shared: Option<u32>,
    /// Length of the answer.
    pub answer: u32,
}

/// A session that has come to some turn.
#[derive(Clone, Debug)]
pub struct Session<'a> {
    work: &'a Work,
    number: usize,
    /// Ids that content is made of; words without.
    pool: Option<&'a [u32]>,
    /// Prompts so far, each with its answer.
    said: Vec<Prompt>,
}

impl<'a> Session<'a> {
    /// Before its first turn.
    pub fn new(work: &'a Work, number: usize, pool: Option<&'a [u32]>) -> Self {
        Self { work, number, pool, said: Vec::new() }
    }

    /// Which session.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Turns that were answered.
    pub fn turn(&self) -> usize {
        self.said.len()
    }

    /// The next request; `None` at the end.
    pub fn next(&self) -> Option<Next> {
        let at = self.said.len();
        match self.work {
            Work::Recorded(conversations, answer) => {
                let conversation = &conversations[self.number];
                let messages = conversation.messages[..*conversation.turns.get(at)?].to_vec();
                let kind = if at == 0 { Kind::First } else { Kind::Next };
                let prompt = Prompt::Chat { messages, tools: conversation.tools.clone() };
                Some(Next { kind, prompt, shared: None, answer: *answer })
            }
            Work::Made(trace) => {
                let turn = trace.sessions[self.number].turns.get(at)?;
                let history = turn.history.map(|from| self.said[from].clone());
                let prompt = match (history, self.pool) {
                    (Some(Prompt::Ids(mut ids)), Some(pool)) => {
                        ids.extend(turn.new.iter().map(|&number| pool[number as usize % pool.len()]));
                        Prompt::Ids(ids)
                    }
                    (_, Some(pool)) => {
                        Prompt::Ids(turn.new.iter().map(|&number| pool[number as usize % pool.len()]).collect())
                    }
                    (Some(Prompt::Chat { mut messages, tools }), None) => {
                        messages.push(user(&turn.new));
                        Prompt::Chat { messages, tools }
                    }
                    (_, None) => {
                        let (system, own) = turn.new.split_at(trace.shared.min(turn.new.len()));
                        let mut messages = vec![json!({"role": "system", "content": words(system)}), user(own)];
                        messages.drain(..usize::from(system.is_empty()));
                        Prompt::Chat { messages, tools: Vec::new() }
                    }
                };
                let shared = matches!(prompt, Prompt::Ids(_)).then_some(trace.shared as u32);
                Some(Next { kind: turn.kind, prompt, shared, answer: turn.answer })
            }
        }
    }

    /// The answer to `next`; later turns may continue it. Errors when the target did not say enough to go on.
    pub fn answered(&mut self, next: Next, answer: &Answer) -> Result<(), String> {
        self.said.push(match next.prompt {
            Prompt::Ids(mut ids) => {
                let more = answer.ids.as_ref().ok_or("the server no longer tokenizes its answers")?;
                ids.extend(more);
                Prompt::Ids(ids)
            }
            Prompt::Chat { mut messages, tools } => {
                messages.push(json!({"role": "assistant", "content": answer.text}));
                Prompt::Chat { messages, tools }
            }
        });
        Ok(())
    }
}

fn user(numbers: &[u32]) -> Value {
    json!({"role": "user", "content": words(numbers)})
}

/// Numbers as words, about a token each.
pub fn words(numbers: &[u32]) -> String {
    let words: Vec<&str> = numbers.iter().map(|&number| WORDS[number as usize % WORDS.len()]).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::{
        super::trace::{Session as Turns, Turn},
        *,
    };

    fn work() -> Work {
        let turn = |kind, history, new: &[u32]| Turn { kind, history, new: new.to_vec(), answer: 2 };
        let turns = vec![
            turn(Kind::First, None, &[0, 1, 2]),
            turn(Kind::Next, Some(0), &[3]),
            turn(Kind::Fork, Some(0), &[4]),
            turn(Kind::Next, Some(1), &[5]),
        ];
        Work::Made(Trace { shared: 2, sessions: vec![Turns { turns }] })
    }

    #[test]
    fn ids_are_appended_to_prompt_and_answer() {
        let (work, pool) = (work(), [10, 11, 12, 13]);
        let mut session = Session::new(&work, 0, Some(&pool));
        let mut prompts = Vec::new();
        while let Some(next) = session.next() {
            let Prompt::Ids(ids) = &next.prompt else { panic!("{next:?}") };
            prompts.push(ids.clone());
            let answer = Answer { ids: Some(vec![90 + session.turn() as u32]), ..Answer::default() };
            session.answered(next, &answer).expect("ids are known");
        }
        assert_eq!(prompts[..3], [vec![10, 11, 12], vec![10, 11, 12, 90, 13], vec![10, 11, 12, 90, 10]]);
        assert_eq!(prompts[3], [10, 11, 12, 90, 13, 91, 11], "the fork was left behind");
    }

    #[test]
    fn without_ids_it_is_a_chat() {
        let work = work();
        let mut session = Session::new(&work, 0, None);
        let answer = Answer { text: "well".into(), ..Answer::default() };
        session.answered(session.next().expect("a turn"), &answer).expect("text is enough");
        let next = session.next().expect("a turn");
        let Prompt::Chat { messages, .. } = &next.prompt else { panic!("{next:?}") };
        let said: Vec<_> = messages.iter().map(|m| (m["role"].as_str(), m["content"].as_str())).collect();
        let expected = [("system", "river stone"), ("user", "the"), ("assistant", "well"), ("user", "of")];
        assert_eq!(said, expected.map(|(role, text)| (Some(role), Some(text))));
    }

    #[test]
    fn recorded_answers_are_the_history() {
        let messages: Vec<Value> =
            ["user", "assistant", "user"].map(|role| json!({"role": role, "content": role})).into();
        let conversation = Conversation { messages: messages.clone(), tools: vec![], turns: vec![1, 3] };
        let work = Work::Recorded(vec![conversation], 5);
        let mut session = Session::new(&work, 0, None);
        let next = session.next().expect("a turn");
        assert_eq!((next.kind, next.answer), (Kind::First, 5));
        session.answered(next, &Answer { text: "other".into(), ..Answer::default() }).expect("goes on");
        let prompt = session.next().map(|next| next.prompt);
        assert_eq!(prompt, Some(Prompt::Chat { messages, tools: vec![] }));
    }
}
