//! Chat templates render byte for byte as Python's jinja2 renders them.
//!
//! `data/text_templates.json` was written by `data/text_templates.py` with jinja2 3.1.6. Kind: chat template errors
//! (features missing, values written otherwise than in Python, faults only in the branch after a tool result).

use serde_json::Value;
use tokenspeed_models::text::{ChatTemplate, TemplateError};

/// Not supported, and said so at load by name.
const REFUSED_AT_LOAD: &[&str] = &["percent_operator"];

fn golden() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/text_templates.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn chat_template_errors_every_construct_renders_as_in_python() {
    let golden = golden();
    let mut wrong = Vec::new();
    let cases = golden["cases"].as_array().unwrap();
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let data = case["data"].as_str().map_or(&case["data"], |shared| &golden["shared"][shared]);
        let now = golden["now_unix_s"].as_i64().unwrap();
        let rendered = ChatTemplate::new(case["template"].as_str().unwrap())
            .and_then(|template| template.render_variables(data.as_object().unwrap(), now));
        match (rendered, case["expect"].as_str(), case["raised"].as_str()) {
            (Ok(text), Some(expected), _) if text == expected => {}
            (Err(TemplateError::Raised(message)), _, Some(expected)) if message == expected => {}
            (Err(TemplateError::Render(_)), None, None) => {}
            (Err(TemplateError::Unsupported(_)), _, _) if REFUSED_AT_LOAD.contains(&name) => {}
            (got, expected, raised) => wrong.push(format!("{name}:\n  want {expected:?} {raised:?}\n  got  {got:?}")),
        }
    }
    assert!(cases.len() > 60);
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
