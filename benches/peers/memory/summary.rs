//! The median of each row, in one table, and what was promised.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;

/// Samples of rows by name, in nanoseconds.
#[derive(Default)]
pub(crate) struct Summary {
    rows: Mutex<BTreeMap<String, Vec<f64>>>,
    notes: Mutex<Vec<String>>,
}

/// Samples of each row.
pub(crate) const SAMPLES: usize = 10;

/// What a row may take, in nanoseconds above the null loop, or as a multiple of another row.
enum Promise {
    AtMost(&'static str, f64),
    Times(&'static str, &'static str, f64),
    Above(&'static str, &'static str, f64),
}

const PROMISES: [Promise; 8] = [
    Promise::AtMost("lookup/wharf lookup/64 hot/alone", 25.0),
    Promise::AtMost("lookup/wharf get/64 hot/alone", 25.0),
    Promise::Times(
        "lookup/wharf lookup/64 hot/writer",
        "lookup/wharf lookup/64 hot/alone",
        3.0,
    ),
    Promise::Times(
        "lookup/wharf lookup/10 k/writer",
        "lookup/wharf lookup/10 k/alone",
        3.0,
    ),
    Promise::AtMost("memory type/hit", 20.0),
    Promise::AtMost("memory type/no device runtime", 2.0),
    Promise::Above("munmap/4 KiB/hooks", "munmap/4 KiB/unwatched", 20.0),
    Promise::Above("munmap/4 KiB/watched", "munmap/4 KiB/unwatched", 50_000.0),
];

impl Summary {
    pub(crate) fn add(&self, row: &str, time: Duration, count: u64) {
        let each = time.as_nanos() as f64 / count as f64;
        let mut rows = self.rows.lock();
        rows.entry(row.to_owned()).or_default().push(each);
    }

    pub(crate) fn note(&self, text: String) {
        let mut notes = self.notes.lock();
        if !notes.contains(&text) {
            notes.push(text);
        }
    }

    /// Lookups as a table, the rest as lines.
    #[allow(clippy::print_stdout, reason = "the result of the program")]
    pub(crate) fn print(self) {
        let notes = self.notes.into_inner();
        let rows: BTreeMap<String, f64> = self
            .rows
            .into_inner()
            .into_iter()
            .map(|(row, samples)| (row, median(samples)))
            .collect();
        let mut tables: BTreeMap<&str, BTreeMap<(usize, &str), f64>> = BTreeMap::new();
        println!("\nmedians, ns each, loop included\n");
        for (row, each) in &rows {
            match row.split('/').collect::<Vec<_>>()[..] {
                ["lookup", table, queries, load] => {
                    let place = ["64 hot", "10 k", "1 M"]
                        .iter()
                        .position(|name| *name == queries);
                    let columns = tables.entry(table).or_default();
                    columns.insert((place.unwrap_or(3), load), *each);
                }
                _ => println!("{row:40} {each:12.1}"),
            }
        }
        if !tables.is_empty() {
            println!(
                "\n| lookup | 64 hot | + writer | + reader | 10 k | + writer | + reader | 1 M | + writer | + reader |\n|---|{}",
                "--:|".repeat(9)
            );
        }
        for (table, columns) in tables {
            print!("| {table} |");
            for place in 0..3 {
                for load in ["alone", "writer", "writer+reader"] {
                    match columns.get(&(place, load)) {
                        Some(each) => print!(" {each:.0} |"),
                        None => print!(" – |"),
                    }
                }
            }
            println!();
        }
        println!();
        let null = rows.get("lookup/null loop/64 hot/alone").copied();
        for promise in PROMISES {
            let found = match promise {
                Promise::AtMost(row, limit) => rows
                    .get(row)
                    .zip(null)
                    .map(|(each, null)| (row, each - null, limit, "ns")),
                Promise::Times(row, base, limit) => rows
                    .get(row)
                    .zip(rows.get(base))
                    .map(|(each, base)| (row, each / base, limit, "times as long")),
                Promise::Above(row, base, limit) => rows
                    .get(row)
                    .zip(rows.get(base))
                    .map(|(each, base)| (row, each - base, limit, "ns more")),
            };
            if let Some((row, is, limit, unit)) = found {
                let word = if is <= limit { "kept" } else { "MISSED" };
                println!("{word}: {row}: {is:.1} {unit}, promised {limit:.0}");
            }
        }
        for note in notes {
            println!("{note}");
        }
    }
}

/// Of the last samples: those before warmed up.
fn median(mut samples: Vec<f64>) -> f64 {
    let last = samples.len().saturating_sub(SAMPLES);
    let samples = &mut samples[last..];
    samples.sort_unstable_by(f64::total_cmp);
    samples[samples.len() / 2]
}
