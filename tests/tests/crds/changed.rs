//! Documents with some place changed: what is drawn is of the same type mostly, so that many are still good.

use serde_json::{Value, json};

/// Makes some place of it into something else, or nothing.
pub(crate) fn change(value: &mut Value, draw: &mut impl FnMut(usize) -> usize) {
    const WORDS: [&str; 30] = [
        "",
        "*",
        "a",
        "deletes",
        "a:b (c)",
        "*/scale",
        "pods/*",
        "get",
        "watch",
        "LimiterOnly",
        "ForceClosed",
        "Manual",
        "Leg",
        "Stall",
        "Expire",
        "0",
        "0s",
        "1h2m3.5s",
        ".5s",
        "1.s",
        "1µs",
        "1μs",
        "720h",
        "5m",
        ".5",
        "007.",
        "9:00:00",
        "23:59:59",
        "Asia/Tokyo",
        "2030-01-01t00:00:00.5+01:00",
    ];
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let index = draw(fields.len() - 1);
            let name = fields.keys().nth(index).cloned().expect("it is below their number");
            match draw(9) {
                0 => drop(fields.remove(&name)),
                _ => change(&mut fields[&name], draw),
            }
        }
        Value::Array(items) if !items.is_empty() => {
            let index = draw(items.len() - 1);
            match draw(9) {
                0 => drop(items.remove(index)),
                _ => change(&mut items[index], draw),
            }
        }
        Value::Number(_) => *value = json!([0, 1, 5, 31, 200, 404, 599, 100_000][draw(7)]),
        Value::Bool(_) => *value = json!(draw(1) == 0),
        _ => *value = json!(WORDS[draw(WORDS.len() - 1)]),
    }
}
