//! The registration cache's and the memory-type cache's hits beside other structures, and what watching memory costs.
//!
//! ```sh
//! cd benches/peers
//! cargo bench --bench memory --features mem-hooks    # everything; the table at the end is what counts
//! cargo bench --bench memory -- munmap               # rows by name
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `cache` | the registration cache as one of the tables |
//! | `events` | hits that ask the monitor, and unmapping with and without one; memory types |
//! | `summary` | the median of each row, and what was promised |
//! | `tables` | what it is measured beside |
//! | `types` | the memory-type cache |

mod cache;
mod events;
mod summary;
mod tables;
mod types;

use std::{
    hint::black_box,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use criterion::Criterion;
use summary::{SAMPLES, Summary};
use tables::{BASE, LENGTH, LeftRight, Locked, Ranges, STRIDE, Skips, Swapped, Table, Ucx, table};

/// Regions that the writer takes out and puts in again; nobody looks for them.
const CHURNED: u64 = 64;

/// What else goes on.
#[derive(Clone, Copy, PartialEq)]
enum Load {
    Alone,
    /// One thread changes the table as fast as it can.
    Writer,
    /// And one more reads. Three threads.
    WriterAndReader,
}

const ALL: [Load; 3] = [Load::Alone, Load::Writer, Load::WriterAndReader];

impl Load {
    fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Writer => "writer",
            Self::WriterAndReader => "writer+reader",
        }
    }
}

/// Which addresses are looked for.
#[derive(Clone, Copy)]
struct Queries {
    name: &'static str,
    regions: u64,
    /// Regions of these that are looked for.
    used: u64,
}

const HOT: Queries = Queries {
    name: "64 hot",
    regions: 10_000,
    used: 64,
};
const MANY: Queries = Queries {
    name: "10 k",
    regions: 10_000,
    used: 10_000,
};
const MOST: Queries = Queries {
    name: "1 M",
    regions: 1_000_000,
    used: 1_000_000,
};

impl Queries {
    /// Addresses in random order: 2 MiB of them, read one after the other.
    fn addresses(self) -> Vec<u64> {
        let mut state = 0x5eed_u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 33
        };
        let spread = self.regions / self.used;
        (0..1 << 18)
            .map(|_| BASE + (random() % self.used) * spread * STRIDE + random() % (LENGTH - 64))
            .collect()
    }
}

struct Null;

table!(Null, _this, |address| address != 0, |_index| ());

/// Measures lookups in `table`.
fn lookups(
    criterion: &mut Criterion,
    summary: &Summary,
    name: &str,
    table: &impl Table,
    queries: Queries,
    loads: &[Load],
) {
    let addresses = queries.addresses();
    let mask = addresses.len() - 1;
    for &load in loads {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            if load != Load::Alone {
                scope.spawn(|| {
                    for index in (queries.regions..queries.regions + CHURNED).cycle() {
                        if stop.load(Relaxed) {
                            break;
                        }
                        table.churn(index);
                    }
                });
            }
            if load == Load::WriterAndReader {
                scope.spawn(|| {
                    let mut find = table.reader();
                    for &address in addresses.iter().cycle() {
                        if stop.load(Relaxed) {
                            break;
                        }
                        black_box(find(address));
                    }
                });
            }
            let mut find = table.reader();
            let mut next = 0;
            let id = format!("lookup/{name}/{}/{}", queries.name, load.name());
            criterion.bench_function(&id, |bencher| {
                bencher.iter_custom(|count| {
                    let start = Instant::now();
                    let mut found = 0;
                    for _ in 0..count {
                        found += u64::from(find(black_box(addresses[next & mask])));
                        next += 1;
                    }
                    let time = start.elapsed();
                    assert_eq!(found, count, "{id}: a region was not found");
                    summary.add(&id, time, count);
                    time
                });
            });
            stop.store(true, Relaxed);
        });
    }
}

fn all_tables(criterion: &mut Criterion, summary: &Summary, queries: &[Queries]) {
    let regions = queries[0].regions + CHURNED;
    // Each is gone before the next comes, so that none has the other's memory around it.
    macro_rules! rows {
        ($name:literal, $table:expr, $loads:expr) => {{
            let table = $table;
            for queries in queries {
                lookups(criterion, summary, $name, &table, *queries, $loads);
            }
        }};
    }
    rows!("null loop", Null, &[Load::Alone]);
    rows!("wharf lookup", cache::Lookup::new(regions), &ALL);
    rows!("wharf get", cache::Get::new(regions), &ALL);
    // It remembers up to 2^20 allocations: near that, some are forgotten.
    if regions < 1 << 19 {
        rows!("wharf memory type", types::Types::new(regions), &ALL);
    }
    rows!("RwLock<BTreeMap>", Locked::new(regions), &ALL);
    rows!("RwLock<RangeMap>", Ranges::new(regions), &ALL);
    rows!("SkipMap", Skips::new(regions), &ALL);
    rows!("ArcSwap<Vec>", Swapped::new(regions), &ALL);
    rows!("left-right", LeftRight::new(regions), &ALL);
    match (Ucx::new(regions, false), Ucx::new(regions, true)) {
        (Ok(bare), Ok(locked)) => {
            rows!("UCX bare", bare, &[Load::Alone]);
            rows!("UCX spinlock", locked, &ALL);
        }
        (Err(error), _) | (_, Err(error)) => {
            summary.note(format!("no rows of UCX (Debian: libucx0): {error}"));
        }
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(SAMPLES)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(300))
        .nresamples(1000)
        .without_plots()
        .configure_from_args();
    let summary = Summary::default();
    types::rows(&mut criterion, &summary);
    all_tables(&mut criterion, &summary, &[HOT, MANY]);
    all_tables(&mut criterion, &summary, &[MOST]);
    events::types(&mut criterion, &summary);
    events::rows(&mut criterion, &summary);
    criterion.final_summary();
    summary.print();
}
