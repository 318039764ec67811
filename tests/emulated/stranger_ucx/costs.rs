//! What an operation costs, of UCX and of wharf: calls of the driver and processor time, as the difference between a long run and a short one.
//!
//! Times hold for one machine and one build of the emulator alone: compare what was measured in one go, with the same settings. UCX's programs are
//! optimised; wharf and the emulator as the tests are built.

use std::collections::BTreeMap;

use wharf::MemoryType;

use super::{
    Ucx,
    programs::{Journal, Running, perftest},
    wharf_side::{self, What, measure},
};
use crate::support::this_test;

const SHORT: usize = 100;
const LONG: usize = 1100;
const SIZES: [usize; 2] = [4096, 1 << 20];

/// What is measured, and the words by which `ucx_perftest` does it.
const ROWS: &[(&str, What, &str)] = &[
    (
        "put host to device, one process",
        What::Put,
        "-l -t ucp_put_bw -m host,cuda",
    ),
    (
        "get device to host, one process",
        What::Get,
        "-l -t ucp_get -m host,cuda",
    ),
    (
        "tag host to device, two processes",
        What::Tag(MemoryType::Host),
        "-t tag_bw -m host,cuda",
    ),
    (
        "tag device to device, two processes",
        What::Tag(MemoryType::Cuda(0)),
        "-t tag_bw -m cuda",
    ),
];

/// Copies take no time of their own, so that polling does not hide what the operations cost.
const VARIABLES: &[(&str, &str)] = &[
    ("UCX_TLS", "cuda_copy,cuda_ipc,sm,self"),
    ("EMULATED_CUDA_DELAY_US", "0"),
];

#[test]
fn costs_of_an_operation() {
    if wharf_side::play().is_some() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let ucx = Ucx::find("costs");
    eprintln!(
        "| on the emulated driver | bytes | | driver calls | without queries | CPU us | most called |"
    );
    eprintln!("|---|---:|---|---:|---:|---:|---|");
    let mut dearer = Vec::new();
    for &(name, what, words) in ROWS {
        for len in SIZES {
            let by_wharf = |count| measure(this_test!(), &folder, what, len, count);
            let wharf = Cost::between(&by_wharf(SHORT), &by_wharf(LONG));
            wharf.show(name, len, "wharf");
            let Some(ucx) = &ucx else {
                continue;
            };
            let by_ucx = |count: usize| {
                let words = format!("{words} -s {len} -n {count} -w 10");
                match what {
                    What::Put | What::Get => {
                        vec![
                            Running::start(ucx, "ucx_perftest", &words, VARIABLES)
                                .end()
                                .1,
                        ]
                    }
                    What::Tag(_) => perftest(ucx, &words, VARIABLES)
                        .map(|(_, journal)| journal)
                        .into(),
                }
            };
            let ucx = Cost::between(&by_ucx(SHORT), &by_ucx(LONG));
            ucx.show(name, len, "UCX");
            if wharf.without_queries() > ucx.without_queries() {
                dearer.push((name, len));
            }
        }
    }
    assert!(
        dearer.is_empty(),
        "more calls of the driver than UCX makes: {dearer:?}"
    );
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

    /// How many queries there are depends on how fast is polled.
    fn without_queries(&self) -> f64 {
        self.calls(|name| !name.ends_with("Query"))
    }

    fn show(&self, name: &str, len: usize, who: &str) {
        let (all, without, most) = (self.calls(|_| true), self.without_queries(), self.most());
        eprintln!(
            "| {name} | {len} | {who} | {all:.1} | {without:.1} | {:.1} | {most} |",
            self.cpu
        );
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
