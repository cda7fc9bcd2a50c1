//! Other people's clients. `cargo xtask test` names a Python with the packages of `tests/requirements.txt`.

use std::{path::Path, process::Command};

use crate::support::TestServer;

#[test]
fn official_openai_python_client() {
    let python = std::env::var("TOKENSPEED_PYTHON").expect("no TOKENSPEED_PYTHON: run this through `cargo xtask test`");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/clients/openai_client.py");
    let server = TestServer::start();
    let output = Command::new(python)
        .arg(script)
        .arg(format!("http://{}", server.address))
        .arg("--tools")
        .output()
        .expect("Python runs");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.ends_with("ok\n"), "{text}");
    server.wait_idle();
}
