//! Other people's clients. Needs a Python with the packages of `tests/clients/requirements.txt`.

use std::{path::Path, process::Command};

use crate::support::TestServer;

#[test]
#[ignore = "needs TOKENSPEED_TEST_PYTHON, a Python with the openai package; cargo xtask test provides it"]
fn official_openai_python_client() {
    let python = std::env::var("TOKENSPEED_TEST_PYTHON").expect("TOKENSPEED_TEST_PYTHON names a Python interpreter");
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
