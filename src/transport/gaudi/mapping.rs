//! `GAUDI_MAPPING_TABLE`: which card has which number, when the program says so.
//!
//! ```json
//! [{"index": 0, "module_id": 3, "bus_id": "0000:33:00.0"}, …]
//! ```
//! An entry gives the card at `bus_id` the number `index`, that of `MemoryType::Gaudi`. Cards without an entry have the numbers that are left, in the order
//! in which they would have been without the table. It names cards and makes none: each entry has to agree with a card that was found.

use serde_json::Value;

use crate::{
    driver::hlthunk::{BusId, CardInfo},
    error::{Error, ErrorKind, Result},
};

/// The variable.
pub(super) const VARIABLE: &str = "GAUDI_MAPPING_TABLE";
/// Longest text that is read, in bytes. An entry has about 60, and a server 8 cards.
const LONGEST: usize = 64 << 10;

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    index: u16,
    module_id: Option<u32>,
    bus_id: BusId,
}

/// Which cards have which numbers.
#[derive(Debug)]
pub(super) struct Table {
    /// The variable or the method, for errors.
    said_by: &'static str,
    entries: Vec<Entry>,
}

impl Table {
    /// Of the variable.
    /// Errors: `Configuration`, naming the entry.
    pub(super) fn parse(text: &str) -> Result<Self> {
        Ok(Self {
            said_by: VARIABLE,
            entries: parse(text)?,
        })
    }

    /// Of the program: the card at the first place is number 0.
    /// Errors: `Configuration`: one is no PCI place, or is there twice.
    pub(super) fn of_places(places: &[String]) -> Result<Self> {
        let said_by = "GaudiCopy::numbered";
        let mut entries: Vec<Entry> = Vec::new();
        for (index, place) in (0..).zip(places) {
            let bus_id: BusId = place.parse().map_err(|error| wrong(said_by, error))?;
            if entries.iter().any(|known| known.bus_id == bus_id) {
                return Err(wrong(said_by, format!("{bus_id} is there twice")));
            }
            entries.push(Entry {
                index,
                module_id: None,
                bus_id,
            });
        }
        Ok(Self { said_by, entries })
    }

    /// The cards in the order of their numbers.
    /// Errors: `Configuration`, naming the entry: no such card was found, it is another module, or there are not so many cards.
    pub(super) fn order(&self, cards: Vec<CardInfo>) -> Result<Vec<CardInfo>> {
        order(&self.entries, cards).map_err(|what| wrong(self.said_by, what))
    }
}

/// Reads a table, and that it does not contradict itself.
/// Errors: `Configuration`, naming the entry.
fn parse(text: &str) -> Result<Vec<Entry>> {
    if text.len() > LONGEST {
        let what = format!(
            "{} bytes are too long; it has at most {LONGEST}",
            text.len()
        );
        return Err(wrong(VARIABLE, what));
    }
    let value: Value =
        serde_json::from_str(text).map_err(|error| wrong(VARIABLE, format!("no JSON: {error}")))?;
    let Value::Array(list) = value else {
        return Err(wrong(
            VARIABLE,
            "no array; it is [{\"index\":0,\"bus_id\":\"0000:33:00.0\"}]",
        ));
    };
    let mut entries: Vec<Entry> = Vec::new();
    for (place, value) in list.iter().enumerate() {
        let entry =
            entry(value).map_err(|what| wrong(VARIABLE, format!("entry {place}: {what}")))?;
        for (other, known) in entries.iter().enumerate() {
            let twice = if known.index == entry.index {
                format!("index {}", entry.index)
            } else if known.bus_id == entry.bus_id {
                format!("bus_id {}", entry.bus_id)
            } else if known.module_id.is_some() && known.module_id == entry.module_id {
                format!("module_id {}", entry.module_id.unwrap_or_default())
            } else {
                continue;
            };
            let what = format!("entry {place}: entry {other} has {twice} too");
            return Err(wrong(VARIABLE, what));
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn entry(value: &Value) -> std::result::Result<Entry, String> {
    let Value::Object(fields) = value else {
        return Err("no object".to_owned());
    };
    let number = |name: &str| match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            Some(number) => Ok(Some(number)),
            None => Err(format!("{name} is {}, no number from 0 on", cut(value))),
        },
    };
    let index = number("index")?.ok_or("without an index")?;
    let index = u16::try_from(index).map_err(|_| format!("index {index} is too large"))?;
    let module_id = number("module_id")?;
    let module_id = match module_id.map(u32::try_from) {
        None => None,
        Some(Ok(module)) => Some(module),
        Some(Err(_)) => return Err("module_id is too large".to_owned()),
    };
    let bus_id = match fields.get("bus_id") {
        None => return Err("without a bus_id".to_owned()),
        Some(Value::String(text)) => text.parse().map_err(|error: Error| error.to_string())?,
        Some(value) => return Err(format!("bus_id is {}, no text", cut(value))),
    };
    Ok(Entry {
        index,
        module_id,
        bus_id,
    })
}

/// A value as an error shows it.
fn cut(value: &Value) -> String {
    const SHOWN: usize = 40;
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// See [`Table::order`].
fn order(entries: &[Entry], cards: Vec<CardInfo>) -> std::result::Result<Vec<CardInfo>, String> {
    let count = cards.len();
    let mut places: Vec<Option<CardInfo>> = vec![None; count];
    let mut left: Vec<Option<CardInfo>> = cards.into_iter().map(Some).collect();
    for (place, entry) in entries.iter().enumerate() {
        let at = left.iter().position(|card| {
            card.as_ref()
                .is_some_and(|card| card.bus_id == entry.bus_id)
        });
        let Some(card) = at.and_then(|at| left[at].take()) else {
            let known: Vec<&str> = left
                .iter()
                .chain(&places)
                .flatten()
                .map(|card| card.bus_id.as_str())
                .collect();
            return Err(format!(
                "entry {place}: no Gaudi card at {} is here; there are {}",
                entry.bus_id,
                known.join(", ")
            ));
        };
        if let Some(module) = entry.module_id
            && module != card.hw.module_id
        {
            return Err(format!(
                "entry {place}: the card at {} is module {}, not {module}",
                entry.bus_id, card.hw.module_id
            ));
        }
        // An index is there once.
        let Some(slot) = places.get_mut(usize::from(entry.index)) else {
            return Err(format!(
                "entry {place}: index {} with {count} cards, which have 0 to {}",
                entry.index,
                count.saturating_sub(1)
            ));
        };
        *slot = Some(card);
    }
    let mut left = left.into_iter().flatten();
    let filled = places.into_iter().map(|slot| slot.or_else(|| left.next()));
    Ok(filled.flatten().collect())
}

#[cold]
fn wrong(said_by: &str, what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Configuration, format!("{said_by}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let error = parse(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        error.to_string()
    }

    #[test]
    fn what_a_table_has() {
        let table = r#"[{"index":1,"module_id":3,"bus_id":"0000:33:00.0"},
            {"bus_id":"44:00.0","index":0,"what":"else"}]"#;
        let entries = parse(table).unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!((entries[0].index, entries[0].module_id), (1, Some(3)));
        assert_eq!(entries[1].bus_id.as_str(), "0000:44:00.0");
        assert_eq!(entries[1].module_id, None);
        assert_eq!(parse("[]").unwrap(), []);
    }

    #[test]
    fn what_is_wrong_names_the_entry() {
        for (text, said) in [
            ("", "no JSON"),
            ("[", "no JSON"),
            ("{}", "no array"),
            ("null", "no array"),
            ("[1]", "entry 0: no object"),
            (r#"[{"bus_id":"33:00.0"}]"#, "entry 0: without an index"),
            (r#"[{"index":0}]"#, "entry 0: without a bus_id"),
            (
                r#"[{"index":-1,"bus_id":"33:00.0"}]"#,
                "entry 0: index is -1",
            ),
            (
                r#"[{"index":70000,"bus_id":"33:00.0"}]"#,
                "70000 is too large",
            ),
            (r#"[{"index":"0","bus_id":"33:00.0"}]"#, "no number"),
            (r#"[{"index":0,"bus_id":3}]"#, "entry 0: bus_id is 3"),
            (r#"[{"index":0,"bus_id":"here"}]"#, "entry 0: \"here\""),
            (
                r#"[{"index":0,"module_id":4294967296,"bus_id":"33:00.0"}]"#,
                "entry 0: module_id",
            ),
            (
                r#"[{"index":0,"bus_id":"33:00.0"},{"index":0,"bus_id":"44:00.0"}]"#,
                "entry 1: entry 0 has index 0",
            ),
            (
                r#"[{"index":0,"bus_id":"33:00.0"},{"index":1,"bus_id":"0000:33:00.0"}]"#,
                "entry 1: entry 0 has bus_id 0000:33:00.0",
            ),
            (
                r#"[{"index":0,"module_id":7,"bus_id":"33:00.0"},{"index":1,"module_id":7,"bus_id":"44:00.0"}]"#,
                "entry 1: entry 0 has module_id 7",
            ),
        ] {
            let error = refused(text);
            assert!(error.contains(said), "{text}: {error}");
        }
        assert!(refused(&"[".repeat(LONGEST)).contains("no JSON"));
        assert!(refused(&" ".repeat(LONGEST + 1)).contains("too long"));
        let long = format!(
            "[{{\"index\":[{}],\"bus_id\":\"1\"}}]",
            "1,".repeat(999) + "1"
        );
        assert!(refused(&long).len() < 300);
    }
}
