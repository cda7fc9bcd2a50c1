//! Names a template uses that do not exist here, found at load.
//!
//! A missing filter, test, function or method would otherwise show only in the branch that uses it, often the one after
//! a tool result: first tries pass, later turns fail. A light scan of the tags (strings and comments left out) is
//! enough for names; the template engine's own parser tree is not part of its stable interface.

use minijinja::{Environment, ErrorKind, Value};

use super::py_methods;

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Name(String),
    Sign(char),
}

/// Names and signs inside `{{ }}` and `{% %}`; one list per tag.
fn tags(source: &str) -> Vec<Vec<Token>> {
    let mut tags = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find('{') {
        rest = &rest[at + 1..];
        let (close, body) = match rest.chars().next() {
            Some('#') => {
                rest = rest.find("#}").map_or("", |end| &rest[end + 2..]);
                continue;
            }
            Some('{') => ("}}", &rest[1..]),
            Some('%') => ("%}", &rest[1..]),
            _ => continue,
        };
        let (tokens, used) = tag(body, close);
        rest = &body[used..];
        if tokens == [Token::Name("raw".into())] {
            rest = rest.find("endraw").map_or("", |end| &rest[end..]);
        }
        tags.push(tokens);
    }
    tags
}

fn tag(body: &str, close: &str) -> (Vec<Token>, usize) {
    let mut tokens = Vec::new();
    let mut chars = body.char_indices().peekable();
    let mut depth = 0usize; // a dict literal may end in }}
    while let Some((at, c)) = chars.next() {
        if depth == 0 && body[at..].starts_with(close) {
            return (tokens, at + 2);
        }
        match c {
            '"' | '\'' => {
                while let Some((_, next)) = chars.next() {
                    match next {
                        '\\' => drop(chars.next()),
                        _ if next == c => break,
                        _ => {}
                    }
                }
                tokens.push(Token::Sign('"'));
            }
            _ if c.is_alphanumeric() || c == '_' => {
                let mut name = String::from(c);
                while let Some((_, next)) = chars.next_if(|(_, next)| next.is_alphanumeric() || *next == '_') {
                    name.push(next);
                }
                tokens.push(Token::Name(name));
            }
            '-' | '+' if body[at + 1..].starts_with(close) => {}
            '-' | '+' if tokens.is_empty() => {}
            _ if c.is_whitespace() => {}
            _ => {
                match c {
                    '{' => depth += 1,
                    '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                tokens.push(Token::Sign(c));
            }
        }
    }
    (tokens, body.len())
}

const KEYWORDS: &[&str] = &[
    "if", "elif", "else", "not", "in", "and", "or", "is", "for", "set", "call", "with", "import", "from", "include",
    "do",
];

/// Every name that does not exist, as "filter x", "test x", "method x", "function x", "operator x".
pub fn unknown_names(env: &Environment<'_>, source: &str) -> Vec<String> {
    let tags = tags(source);
    let mut unknown = Vec::new();
    let mut report = |kind: &str, name: &str| {
        let entry = format!("{kind} {name}");
        if !unknown.contains(&entry) {
            unknown.push(entry);
        }
    };
    // A name that also stands without a call is a variable or a macro.
    let is_variable = |wanted: &str| {
        tags.iter().any(|tag| {
            let macros = matches!(tag.as_slice(), [Token::Name(word), Token::Name(name), ..] if word == "macro" && name == wanted);
            let bare = tag.iter().enumerate().any(|(at, token)| {
                *token == Token::Name(wanted.into())
                    && tag.get(at + 1) != Some(&Token::Sign('('))
                    && (at == 0 || !matches!(tag[at - 1], Token::Sign('.' | '|')))
            });
            macros || bare
        })
    };
    for tag in &tags {
        if let [Token::Name(word), Token::Name(name), ..] = tag.as_slice()
            && word == "filter"
            && !has_filter(env, name)
        {
            report("filter", name);
        }
        for (at, token) in tag.iter().enumerate() {
            if *token == Token::Sign('%') && at > 0 && tag[at - 1] == Token::Sign('"') {
                report("operator", "% on a string (use the format filter)");
            }
            let Token::Name(name) = token else { continue };
            let before = at.checked_sub(1).map(|at| &tag[at]);
            let is_call = tag.get(at + 1) == Some(&Token::Sign('('));
            let is_test = match before {
                Some(Token::Name(word)) if word == "is" => name != "not",
                Some(Token::Name(word)) if word == "not" => at >= 2 && tag[at - 2] == Token::Name("is".into()),
                _ => false,
            };
            match before {
                Some(Token::Sign('|')) if !has_filter(env, name) => report("filter", name),
                Some(Token::Sign('|')) => {}
                _ if is_test && !has_test(env, name) => report("test", name),
                _ if is_test => {}
                Some(Token::Sign('.')) if is_call => {
                    let is_own = ["cycle", "changed"].contains(&name.as_str()) || is_variable(name);
                    if !is_own && !py_methods::exists(name) {
                        report("method", name);
                    }
                }
                Some(Token::Sign('.')) => {}
                _ if is_call && at > 0 && tag[at - 1] == Token::Name("macro".into()) => {}
                _ if is_call => {
                    let is_own =
                        KEYWORDS.contains(&name.as_str()) || ["caller", "loop", "super"].contains(&name.as_str());
                    let exists = env.globals().any(|(global, _)| global == name);
                    if !is_own && !exists && !is_variable(name) {
                        report("function", name);
                    }
                }
                _ => {}
            }
        }
    }
    unknown
}

fn probe(env: &Environment<'_>, expression: &str, missing: ErrorKind) -> bool {
    let outcome = env.compile_expression(expression).and_then(|expression| expression.eval(Value::UNDEFINED));
    !outcome.is_err_and(|error| error.kind() == missing)
}

fn has_filter(env: &Environment<'_>, name: &str) -> bool {
    probe(env, &format!("''|{name}"), ErrorKind::UnknownFilter)
}

fn has_test(env: &Environment<'_>, name: &str) -> bool {
    probe(env, &format!("'' is {name}"), ErrorKind::UnknownTest)
}

#[cfg(test)]
mod tests {
    use crate::text::{ChatTemplate, TemplateError};

    fn unknown(source: &str) -> Vec<String> {
        match ChatTemplate::new(source) {
            Ok(_) => Vec::new(),
            Err(TemplateError::Unsupported(names)) => names,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn chat_template_errors_unknown_names_are_found_at_load_in_any_branch() {
        let branches = "{% if false %}{{ a|nope(1)|upper }}{% elif x is weird %}{% endif %}                        {% if x is not odder %}{{ x.shout().upper() }}{{ call_me(1) }}{% endif %}                        {% filter shiny %}a{% endfilter %}{{ '%s' % x }}";
        assert_eq!(
            unknown(branches),
            [
                "filter nope",
                "test weird",
                "test odder",
                "method shout",
                "function call_me",
                "filter shiny",
                "operator % on a string (use the format filter)"
            ]
        );
    }

    #[test]
    fn names_in_strings_comments_and_raw_text_are_not_calls() {
        let fine = "{# x|nope #}{{ 'x|nope' }}{% raw %}{{ x|nope }}{% endraw %}{{ {'a': {'b': 1}} }}\
                    {% macro m(a) %}{{ caller() }}{% endmacro %}{{ m(1) }}{{ not (a) }}{% if (a) and (b) %}{% endif %}\
                    {% for x in (a) %}{{ loop.cycle('a') }}{% endfor %}{% set f = m %}{{ f(1) }}{{ x is not none }}";
        assert!(unknown(fine).is_empty(), "{:?}", unknown(fine));
    }

    #[test]
    fn a_broken_template_is_a_syntax_error_with_its_line() {
        let error = ChatTemplate::new("a\n{% if %}").unwrap_err();
        assert!(matches!(&error, TemplateError::Syntax(text) if text.contains("line 2")), "{error}");
        assert!(matches!(ChatTemplate::new("{% mystery %}"), Err(TemplateError::Syntax(_))));
    }
}
