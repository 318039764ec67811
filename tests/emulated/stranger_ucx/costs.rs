//! What an operation of UCX costs: calls of the driver and processor time, as the difference between a long run and a short one.
//!
//! Times hold for one machine and one build of the emulator alone: compare what was measured in one go, with the same settings.

use std::collections::BTreeMap;

use super::{
    Ucx,
    programs::{Journal, Running, perftest},
};

const SHORT: i64 = 100;
const LONG: i64 = 1100;
const SIZES: [u32; 2] = [4096, 1 << 20];

/// What `ucx_perftest` runs, its words, and whether both ends are one process.
const ROWS: &[(&str, &str, bool)] = &[
    (
        "put host to device, one process",
        "-l -t ucp_put_bw -m host,cuda",
        true,
    ),
    (
        "get device to host, one process",
        "-l -t ucp_get -m host,cuda",
        true,
    ),
    (
        "tag host to device, two processes",
        "-t tag_bw -m host,cuda",
        false,
    ),
    (
        "tag device to device, two processes",
        "-t tag_bw -m cuda",
        false,
    ),
];

/// Copies take no time of their own, so that polling does not hide what the operations cost.
const VARIABLES: &[(&str, &str)] = &[
    ("UCX_TLS", "cuda_copy,cuda_ipc,sm,self"),
    ("EMULATED_CUDA_DELAY_US", "0"),
];

#[test]
fn costs_of_an_operation() {
    let Some(ucx) = Ucx::find("costs") else {
        return;
    };
    eprintln!(
        "| UCX on the emulated driver | bytes | driver calls | without queries | CPU us | most called |"
    );
    eprintln!("|---|---:|---:|---:|---:|---|");
    for &(name, words, alone) in ROWS {
        for len in SIZES {
            let run = |count: i64| {
                let words = format!("{words} -s {len} -n {count} -w 10");
                if alone {
                    let (_, journal) =
                        Running::start(&ucx, "ucx_perftest", &words, VARIABLES).end();
                    vec![journal]
                } else {
                    perftest(&ucx, &words, VARIABLES)
                        .map(|(_, journal)| journal)
                        .into()
                }
            };
            let cost = Cost::between(&run(SHORT), &run(LONG));
            assert!(
                cost.calls(|_| true) > 0.0,
                "{name}: an operation without a call"
            );
            eprintln!(
                "| {name} | {len} | {:.1} | {:.1} | {:.1} | {} |",
                cost.calls(|_| true),
                cost.calls(|name| !name.ends_with("Query")),
                cost.cpu,
                cost.most()
            );
        }
    }
}

/// Of one operation, both ends together.
struct Cost {
    counts: BTreeMap<String, f64>,
    cpu: f64,
}

impl Cost {
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    fn between(short: &[Journal], long: &[Journal]) -> Self {
        let more = (LONG - SHORT) as f64;
        let total = |journals: &[Journal], name: &str| {
            journals
                .iter()
                .map(|journal| journal.calls(|called| called == name))
                .sum::<i64>()
        };
        let names = long.iter().flat_map(|journal| journal.counts.keys());
        let counts = names.map(|name| {
            (
                name.clone(),
                (total(long, name) - total(short, name)) as f64 / more,
            )
        });
        let cpu = |journals: &[Journal]| journals.iter().map(|journal| journal.cpu).sum::<i64>();
        Self {
            counts: counts.collect(),
            cpu: (cpu(long) - cpu(short)) as f64 / more,
        }
    }

    fn calls(&self, of: impl Fn(&str) -> bool) -> f64 {
        self.counts
            .iter()
            .filter(|(name, _)| of(name))
            .map(|(_, count)| count)
            .sum()
    }

    /// The six that are called most.
    fn most(&self) -> String {
        let mut counts: Vec<_> = self.counts.iter().collect();
        counts.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        let words = counts
            .iter()
            .take(6)
            .map(|(name, count)| format!("{name} {count:.1}"));
        words.collect::<Vec<_>>().join(", ")
    }
}
