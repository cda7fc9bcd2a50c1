//! A server process: started, waited for until it names its address, stopped with SIGTERM.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

/// A running server; dropping it kills the process.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// Starts the command, shows what it prints, and returns once a line names an `http://` address.
    pub fn start(command: &mut Command, timeout: Duration) -> Result<Self, String> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start the server: {e}"))?;
        let (send, receive) = mpsc::channel();
        let stdout = child.stdout.take().ok_or("no standard output")?;
        let stderr = child.stderr.take().ok_or("no standard error")?;
        watch(stdout, send.clone());
        watch(stderr, send);
        // Made before waiting, so that leaving early stops the process.
        let mut server = Self { child, address: String::new() };
        match receive.recv_timeout(timeout) {
            Ok(address) => server.address = address,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                return Err(format!("the server named no address within {} s", timeout.as_secs()));
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let status = server.child.wait().map_err(|e| e.to_string())?;
                return Err(format!("the server ended before it was ready ({status})"));
            }
        }
        Ok(server)
    }

    /// `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// SIGTERM, then a clean end within the time.
    pub fn stop(mut self, timeout: Duration) -> Result<(), String> {
        // The standard library sends only SIGKILL; the shell's `kill` is everywhere.
        let mut kill = Command::new("sh");
        crate::command::run(kill.args(["-c", "kill -TERM \"$0\"", &self.child.id().to_string()]))?;
        let status = self.wait(timeout)?;
        if status.success() { Ok(()) } else { Err(format!("the server ended with {status} after SIGTERM")) }
    }

    fn wait(&mut self, timeout: Duration) -> Result<ExitStatus, String> {
        let end = Instant::now() + timeout;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
                Ok(None) => return Err(format!("the server did not end within {} s of SIGTERM", timeout.as_secs())),
                Err(e) => return Err(format!("waiting for the server: {e}")),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            // Already gone is the only way these fail, and then there is nothing to stop.
            let _gone = self.child.kill();
            let _gone = self.child.wait();
        }
    }
}

/// Echoes a stream for as long as it lasts and sends the first address seen in it.
fn watch(stream: impl Read + Send + 'static, found: mpsc::Sender<String>) {
    std::thread::spawn(move || {
        let mut found = Some(found);
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            println!("  {line}");
            if let Some(address) = address(&line).filter(|_| line.contains("ready"))
                && let Some(found) = found.take()
            {
                // The receiver is gone once the other stream named the address.
                let _sent = found.send(address);
            }
        }
    });
}

/// `127.0.0.1:8000` of a line with `http://127.0.0.1:8000`.
fn address(line: &str) -> Option<String> {
    let rest = line.split_once("http://")?.1;
    let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || ".:-[]".contains(c))).unwrap_or(rest.len());
    let address = rest[..end].trim_end_matches(['.', ':']);
    if address.rsplit_once(':')?.1.parse::<u16>().is_ok() { Some(address.to_string()) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        command
    }

    #[test]
    fn finds_the_address() {
        assert_eq!(address("ready: http://127.0.0.1:8123"), Some("127.0.0.1:8123".into()));
        assert_eq!(address("ready (http://[::1]:80/v1)."), Some("[::1]:80".into()));
        assert_eq!(address("see http://127.0.0.1/"), None);
    }

    #[test]
    fn starts_and_stops() {
        let good = "trap 'exit 0' TERM; echo 'ready: http://127.0.0.1:1234' >&2; while :; do sleep 0.05; done";
        let server = Server::start(&mut script(good), Duration::from_secs(20)).unwrap();
        assert_eq!(server.address(), "127.0.0.1:1234");
        server.stop(Duration::from_secs(20)).unwrap();
    }

    #[test]
    fn an_unclean_end_is_an_error() {
        let bad = "trap 'exit 7' TERM; echo 'ready http://127.0.0.1:1234'; while :; do sleep 0.05; done";
        let server = Server::start(&mut script(bad), Duration::from_secs(20)).unwrap();
        assert!(server.stop(Duration::from_secs(20)).unwrap_err().contains('7'));
        let error = Server::start(&mut script("echo no model; exit 3"), Duration::from_secs(20)).unwrap_err();
        assert!(error.contains("before it was ready") && error.contains('3'), "{error}");
    }
}
