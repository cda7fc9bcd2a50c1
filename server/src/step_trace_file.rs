//! `serve --trace-steps FILE`: a Chrome trace of every step, written beside the engine and never by it.
//!
//! A thread of its own copies finished steps from the engine's ring a few times a second and appends them. Each append is
//! one write that begins where the closing bracket was and ends with a new one, so the file is whole, valid JSON whenever
//! it is read, also after a crash. Steps that the ring gave up before they were copied leave a marked gap. Rejected: the
//! format's permission to leave the bracket out. Only trace viewers know of it.

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, SeekFrom},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use tokenspeed_core::{
    client::Engine,
    scheduler::{
        decision::{Decision, What},
        trace::StepRecord,
    },
};

use crate::error::CliError;

/// How often finished steps are written. The ring holds thousands of steps, far more than run meanwhile.
const INTERVAL: Duration = Duration::from_millis(25);
/// Steps copied at once.
const AT_ONCE: usize = 1024;
const BEGIN: &str = "[\n\
    {\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"steps\"}},\n\
    {\"ph\":\"M\",\"pid\":2,\"name\":\"process_name\",\"args\":{\"name\":\"requests\"}}";
const END: &str = "\n]\n";

/// The file and the thread that writes it.
#[derive(Debug)]
pub struct StepTraceFile {
    file: Mutex<Option<TraceWriter<File>>>,
    thread: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

impl StepTraceFile {
    /// Create the file, empty but valid.
    pub fn create(path: &Path) -> Result<Self, CliError> {
        let writer = File::create(path).and_then(TraceWriter::new).map_err(|error| {
            CliError::new(
                format!("cannot write: {error}"),
                path.display().to_string(),
                "give another --trace-steps FILE",
            )
        })?;
        Ok(Self { file: Mutex::new(Some(writer)), thread: Mutex::new(None) })
    }

    /// Write the steps of `engine` from now on. A second engine is not followed.
    pub fn follow(&self, engine: Arc<dyn Engine>) {
        let Some(mut writer) = self.file.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("step-trace".into()).spawn(move || {
            loop {
                let is_over = !matches!(stopped.recv_timeout(INTERVAL), Err(RecvTimeoutError::Timeout));
                if let Err(error) = writer.drain(&*engine, is_over) {
                    // A full disk must not end the server; the file stays as it was after the last good write.
                    eprintln!("warning: the step trace ends here: {error}");
                    return;
                }
                if is_over {
                    return;
                }
            }
        });
        let Ok(thread) = thread else { return eprintln!("warning: no thread for the step trace can be started") };
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some((stop, thread));
    }

    /// Write what is left.
    pub fn finish(self) {
        if let Some((stop, thread)) = self.thread.into_inner().unwrap_or_else(PoisonError::into_inner) {
            drop(stop);
            // A panic of that thread has already been reported, and costs the end of the trace only.
            let _ = thread.join();
        }
    }
}

/// Turns steps into trace events.
#[derive(Debug)]
pub struct TraceWriter<F> {
    file: F,
    /// Where the closing bracket stands.
    end: u64,
    /// Last step written.
    last: u64,
    text: String,
}

impl<F: io::Write + io::Seek> TraceWriter<F> {
    /// Begin an empty trace.
    pub fn new(mut file: F) -> io::Result<Self> {
        file.write_all(BEGIN.as_bytes())?;
        file.write_all(END.as_bytes())?;
        Ok(Self { file, end: BEGIN.len() as u64, last: 0, text: String::new() })
    }

    /// Append what the engine has done since; `is_over`: also the step that has not ended.
    fn drain(&mut self, engine: &dyn Engine, is_over: bool) -> io::Result<()> {
        loop {
            let steps = engine.steps(self.last, AT_ONCE);
            let n_written = self.append(&steps, is_over)?;
            if n_written < AT_ONCE {
                return Ok(());
            }
        }
    }

    /// Append steps, in order, up to the first that may still run; returns how many.
    pub fn append(&mut self, steps: &[StepRecord], is_over: bool) -> io::Result<usize> {
        self.text.clear();
        let mut n = 0;
        for (at, step) in steps.iter().enumerate() {
            // Two may be on their way. One that is older and never ended has failed.
            if step.ended_ns.is_none() && at + 2 >= steps.len() && !is_over {
                break;
            }
            if step.decisions.sequence > self.last + 1 && self.last > 0 {
                self.gap(step);
            }
            self.step(step);
            self.last = step.decisions.sequence;
            n += 1;
        }
        if n > 0 {
            let added = self.text.len() as u64;
            self.text.push_str(END);
            self.file.seek(SeekFrom::Start(self.end))?;
            self.file.write_all(self.text.as_bytes())?;
            self.file.flush()?;
            self.end += added;
        }
        Ok(n)
    }

    fn event(&mut self, event: std::fmt::Arguments<'_>) {
        self.text.push_str(",\n");
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(event);
    }

    fn gap(&mut self, next: &StepRecord) {
        let (ts, n) = (us(next.decisions.planned_ns), next.decisions.sequence - self.last - 1);
        self.event(format_args!(
            r#"{{"ph":"i","s":"p","pid":1,"tid":1,"ts":{ts},"name":"{n} steps are missing or did nothing"}}"#
        ));
    }

    fn step(&mut self, step: &StepRecord) {
        let d = &step.decisions;
        let ts = us(d.planned_ns);
        let dur = us(step.ended_ns.unwrap_or(d.planned_ns).saturating_sub(d.planned_ns));
        let name = if step.ended_ns.is_some() { "step" } else { "step that did not end" };
        let (sequence, decode, prefill) = (d.sequence, d.decode_tokens, d.prefill_tokens);
        self.event(format_args!(
            r#"{{"ph":"X","pid":1,"tid":1,"ts":{ts},"dur":{dur},"name":"{name}","args":{{"step":{sequence},"budget_tokens":{},"decode_tokens":{decode},"prefill_tokens":{prefill}}}}}"#,
            d.budget_tokens
        ));
        self.event(format_args!(
            r#"{{"ph":"C","pid":1,"ts":{ts},"name":"requests","args":{{"running":{},"waiting":{}}}}}"#,
            d.running, d.waiting
        ));
        self.event(format_args!(
            r#"{{"ph":"C","pid":1,"ts":{ts},"name":"tokens","args":{{"decode":{decode},"prefill":{prefill}}}}}"#
        ));
        for Decision { id, what } in &d.list {
            let id = id.0;
            match *what {
                What::Admitted { cached, returns } => {
                    let name = if returns { "returns" } else { "admitted" };
                    self.event(format_args!(
                        r#"{{"ph":"i","s":"t","pid":2,"tid":{id},"ts":{ts},"name":"{name}","args":{{"cached_tokens":{cached}}}}}"#
                    ));
                }
                What::Preempted { by } => self.event(format_args!(
                    r#"{{"ph":"i","s":"t","pid":2,"tid":{id},"ts":{ts},"name":"preempted","args":{{"by":{}}}}}"#,
                    by.0
                )),
                What::Prefills { computed, tokens } => self.event(format_args!(
                    r#"{{"ph":"X","pid":2,"tid":{id},"ts":{ts},"dur":{dur},"name":"prefill","args":{{"tokens":{tokens},"computed_tokens":{computed}}}}}"#
                )),
                What::Decodes { computed, tokens } => self.event(format_args!(
                    r#"{{"ph":"X","pid":2,"tid":{id},"ts":{ts},"dur":{dur},"name":"decode","args":{{"tokens":{tokens},"computed_tokens":{computed}}}}}"#
                )),
                What::Waits(why) => self.event(format_args!(
                    r#"{{"ph":"X","pid":2,"tid":{id},"ts":{ts},"dur":{dur},"name":"waits: {}"}}"#,
                    why.text()
                )),
            }
        }
    }
}

/// Microseconds, the format's unit.
fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use serde_json::Value;
    use tokenspeed_core::{
        request::RequestId,
        scheduler::decision::{Decisions, Why},
    };

    use super::*;

    fn record(sequence: u64, ended_ns: Option<u64>, list: Vec<Decision>) -> StepRecord {
        let decisions = Decisions { sequence, planned_ns: sequence * 1000, list, ..Decisions::default() };
        StepRecord { decisions, ended_ns }
    }

    fn events(writer: &TraceWriter<Cursor<Vec<u8>>>) -> Vec<Value> {
        serde_json::from_slice(writer.file.get_ref()).expect("valid at any moment")
    }

    fn names(writer: &TraceWriter<Cursor<Vec<u8>>>) -> Vec<String> {
        events(writer).iter().map(|event| event["name"].as_str().expect("named").to_owned()).collect()
    }

    #[test]
    fn the_file_is_valid_after_every_append_and_says_what_happened() {
        let mut writer = TraceWriter::new(Cursor::new(Vec::new())).expect("memory");
        assert_eq!(events(&writer).len(), 2, "process names");
        let all = [
            What::Admitted { cached: 64, returns: false },
            What::Prefills { computed: 64, tokens: 10 },
            What::Decodes { computed: 74, tokens: 1 },
            What::Waits(Why::NoPages),
            What::Preempted { by: RequestId(3) },
        ];
        let list = all.map(|what| Decision { id: RequestId(7), what }).to_vec();
        let steps = [record(1, Some(1500), list), record(2, None, vec![])];
        assert_eq!(writer.append(&steps, false).expect("memory"), 1, "the second may still run");
        assert_eq!(
            names(&writer)[2..],
            ["step", "requests", "tokens", "admitted", "prefill", "decode", "waits: no pages", "preempted"]
        );
        let step = &events(&writer)[2];
        assert_eq!((step["ts"].as_f64(), step["dur"].as_f64()), (Some(1.0), Some(0.5)));
        assert_eq!(writer.append(&steps[1..], false).expect("memory"), 0);
        let before = events(&writer).len();
        let steps = [record(2, Some(3000), vec![]), record(9, None, vec![])];
        assert_eq!(writer.append(&steps, true).expect("memory"), 2, "nothing runs any more");
        assert_eq!(events(&writer).len(), before + 3 + 1 + 3);
        assert!(names(&writer).contains(&"6 steps are missing or did nothing".to_owned()), "{:?}", names(&writer));
    }
}
