//! JSON as template values that behave, and print, like Python's lists and dicts: order is kept, and wherever a template
//! turns one into text (`~`, `str.join`, `{{ }}`) it gets Python's `repr`.

use std::{collections::HashMap, fmt, sync::Arc};

use minijinja::{
    Value,
    value::{Enumerator, Object, ObjectRepr},
};

use super::py_text;

#[derive(Debug)]
struct Dict {
    entries: Vec<(Value, Value)>,
    places: HashMap<String, usize>,
}

#[derive(Debug)]
struct List(Vec<Value>);

fn render(value: Value, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut out = String::new();
    py_text::write_repr(&value, &mut out).map_err(|_| fmt::Error)?;
    f.write_str(&out)
}

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.places.get(key).map(|&place| self.entries[place].1.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let this = self.clone();
        Enumerator::Iter(Box::new((0..self.entries.len()).map(move |place| this.entries[place].0.clone())))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.entries.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(Value::from_dyn_object(self.clone()), f)
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(Value::from_dyn_object(self.clone()), f)
    }
}

/// A dict with these entries in this order.
pub fn dict(entries: impl IntoIterator<Item = (String, Value)>) -> Value {
    let mut dict = Dict { entries: Vec::new(), places: HashMap::new() };
    for (key, value) in entries {
        let place = *dict.places.entry(key.clone()).or_insert(dict.entries.len());
        match dict.entries.get_mut(place) {
            Some(entry) => entry.1 = value,
            None => dict.entries.push((Value::from(key), value)),
        }
    }
    Value::from_object(dict)
}

/// JSON to template value; numbers keep their kind.
pub fn from_json(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(flag) => Value::from(*flag),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Value::from(integer),
            (None, Some(integer)) => Value::from(integer),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(list) => Value::from_object(List(list.iter().map(from_json).collect())),
        serde_json::Value::Object(map) => dict(map.iter().map(|(key, value)| (key.clone(), from_json(value)))),
    }
}
