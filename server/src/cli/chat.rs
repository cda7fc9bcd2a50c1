//! `tokenspeed chat`: a conversation on the terminal.
//!
//! The whole history is sent with every turn; the prefix cache makes that cheap, and the number of cached tokens is
//! shown so that one can see it does.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use clap::Args;
use serde_json::{Value, json};

use super::{engine_options::EngineOptions, sampling_options::SamplingOptions, session};
use crate::{engine_setup, error::CliError, frontend::ChatInput, log::Log, progress::Terminal};

/// Arguments of `chat`.
#[derive(Clone, Debug, Args)]
pub struct ChatArgs {
    /// Engine options.
    #[command(flatten)]
    pub engine: EngineOptions,
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Sampling options.
    #[command(flatten)]
    pub sampling: SamplingOptions,
}

/// What a line of the user is.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Say(&'a str),
    Nothing,
    Reset,
    Exit,
    Help,
    Unknown(&'a str),
}

fn read_line(line: &str) -> Line<'_> {
    match line.trim() {
        "" => Line::Nothing,
        "/exit" | "/quit" | "/bye" => Line::Exit,
        "/reset" | "/clear" => Line::Reset,
        "/help" | "/?" => Line::Help,
        // A path or a regular expression may start with a slash; a command is one plain word.
        word if word.starts_with('/') && word[1..].chars().all(|c| c.is_ascii_lowercase()) => Line::Unknown(word),
        _ => Line::Say(line.trim_end_matches(['\n', '\r'])),
    }
}

/// Lines typed by the user, read on a thread of their own so that Ctrl-C is heard meanwhile.
fn lines() -> tokio::sync::mpsc::Receiver<String> {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    std::thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        loop {
            let mut line = String::new();
            match input.read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if sender.blocking_send(line).is_err() => return,
                Ok(_) => {}
            }
        }
    });
    receiver
}

/// Run it.
pub fn run(args: ChatArgs) -> Result<(), CliError> {
    let loaded = engine_setup::load(&args.engine, &mut Terminal::new(Log::default(), false))?;
    if !loaded.frontend.has_chat_template() {
        return Err(CliError::new(
            "this model has no chat template",
            args.engine.model,
            "give one with --chat-template",
        ));
    }
    let person = std::io::stdin().is_terminal();
    if person {
        eprintln!("Chat with {}. /reset forgets, /exit or Ctrl-D leaves, Ctrl-C stops an answer.", loaded.info.name);
    }
    session::runtime()?.block_on(async {
        let mut lines = lines();
        let mut history: Vec<Value> = Vec::new();
        let system = args.system.as_ref().map(|system| json!({"role": "system", "content": system}));
        history.extend(system.clone());
        loop {
            if person {
                eprint!("> ");
                let _ = std::io::stderr().flush();
            }
            let line = tokio::select! {
                line = lines.recv() => line,
                _ = tokio::signal::ctrl_c() => {
                    eprintln!("\n(/exit or Ctrl-D leaves)");
                    continue;
                }
            };
            let Some(line) = line else { break };
            let text = match read_line(&line) {
                Line::Nothing => continue,
                Line::Exit => break,
                Line::Help => {
                    eprintln!("/reset forgets the conversation, /exit leaves.");
                    continue;
                }
                Line::Unknown(word) => {
                    eprintln!("unknown command {word}; there are /reset, /exit and /help");
                    continue;
                }
                Line::Reset => {
                    history.clear();
                    history.extend(system.clone());
                    eprintln!("(forgotten)");
                    continue;
                }
                Line::Say(text) => text.to_owned(),
            };
            history.push(json!({"role": "user", "content": text}));
            match turn(&loaded, &args, history.clone()).await {
                Ok(told) => {
                    println!();
                    eprintln!("({})", told.summary());
                    // A stopped answer stays in the history: the user saw it, and the next turn may refer to it.
                    history.push(said(told));
                }
                Err(error) => {
                    eprintln!("{}", error.render());
                    history.pop();
                }
            }
        }
        Ok(())
    })
}

/// An answer as the next turn sees it, with what was thought: models that think are made to see it again.
fn said(told: session::Told) -> Value {
    let mut message = json!({"role": "assistant", "content": told.text});
    if !told.reasoning.is_empty() {
        message["reasoning_content"] = told.reasoning.into();
    }
    message
}

async fn turn(loaded: &engine_setup::Loaded, args: &ChatArgs, messages: Vec<Value>) -> Result<session::Told, CliError> {
    let failed = |error: crate::frontend::FrontendError| CliError::new(error.to_string(), "", "/reset starts anew");
    let chat = ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() };
    let prompt = loaded.frontend.encode_chat(&chat).map_err(failed)?;
    let room = session::room(loaded, prompt.ids.len())?;
    let sampling = args.sampling.params(loaded.info.defaults, args.engine.seed, room);
    session::tell(loaded, prompt, sampling, args.sampling.stop.clone(), true, &mut std::io::stdout()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_turn_sees_what_was_thought() {
        let told =
            |reasoning: &str| session::Told { text: "4".into(), reasoning: reasoning.into(), ..Default::default() };
        assert_eq!(said(told("")), json!({"role": "assistant", "content": "4"}));
        let thought = json!({"role": "assistant", "content": "4", "reasoning_content": "2 and 2"});
        assert_eq!(said(told("2 and 2")), thought);
    }

    #[test]
    fn commands_are_single_words() {
        assert_eq!(read_line("/exit\n"), Line::Exit);
        assert_eq!(read_line("/etc/passwd is a file\n"), Line::Say("/etc/passwd is a file"));
        assert_eq!(read_line("/rset"), Line::Unknown("/rset"));
        assert_eq!(read_line("  \n"), Line::Nothing);
        assert_eq!(read_line("  indented\n"), Line::Say("  indented"));
    }
}
