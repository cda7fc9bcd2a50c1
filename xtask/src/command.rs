//! Running other programs: with the terminal, quietly, or echoing while keeping a copy of the output.

use std::{
    ffi::OsString,
    io::{BufRead, BufReader, Read, Write},
    process::{Command, Stdio},
};

/// The cargo that runs this program, so that a chosen toolchain stays chosen.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(crate::workspace::root());
    command
}

/// Runs with this terminal; an exit status other than 0 is an error naming the program.
pub fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("cannot start {}: {e}", describe(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} failed ({status})", describe(command))) }
}

/// Runs and returns standard output; on failure the error carries standard error.
pub fn capture(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("cannot start {}: {e}", describe(command)))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{} failed ({})\n{}", describe(command), output.status, text.trim_end()));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("{} printed bytes that are not UTF-8", describe(command)))
}

/// Runs, echoing both streams line by line as they come, and returns (success, everything printed).
pub fn tee(command: &mut Command) -> Result<(bool, String), String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot start {}: {e}", describe(command)))?;
    let stderr = child.stderr.take().ok_or("no standard error")?;
    let stdout = child.stdout.take().ok_or("no standard output")?;
    let reader = std::thread::spawn(move || echo(stderr, &mut std::io::stderr()));
    let mut text = echo(stdout, &mut std::io::stdout());
    text += &reader.join().map_err(|_| "the output reader failed".to_string())?;
    let status = child.wait().map_err(|e| format!("waiting for {}: {e}", describe(command)))?;
    Ok((status.success(), text))
}

fn echo(from: impl Read, to: &mut impl Write) -> String {
    let mut from = BufReader::new(from);
    let (mut all, mut line) = (String::new(), Vec::new());
    while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        // A closed terminal must not end the run whose result is still wanted.
        let _closed = to.write_all(&line);
        all += &String::from_utf8_lossy(&line);
        line.clear();
    }
    all
}

fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().take(4).map(|a| a.to_string_lossy().into_owned()));
    format!("`{}`", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_program() {
        let error = run(Command::new("sh").args(["-c", "exit 3"])).unwrap_err();
        assert!(error.contains("`sh -c exit 3`") && error.contains('3'), "{error}");
        assert!(run(&mut Command::new("no-such-program")).unwrap_err().contains("no-such-program"));
    }

    #[test]
    fn tee_keeps_both_streams() {
        let (ok, text) = tee(Command::new("sh").args(["-c", "echo one; echo two >&2; exit 1"])).unwrap();
        assert!(!ok && text.contains("one\n") && text.contains("two\n"), "{text}");
    }
}
