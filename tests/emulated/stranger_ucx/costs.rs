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

/// How much is measured: bytes, operations of the long run, and how often. Without optimisation times say little, so the runs are short and few.
const SIZES: &[(usize, usize)] = match cfg!(debug_assertions) {
    true => &[(4 << 10, 1100), (1 << 20, 1100)],
    false => &[
        (8, 10_100),
        (4 << 10, 10_100),
        (64 << 10, 5100),
        (1 << 20, 1100),
        (16 << 20, 200),
    ],
};
const TIMES: usize = if cfg!(debug_assertions) { 1 } else { 3 };

/// What is measured, and the words by which `ucx_perftest` does it. Its host memory is registered with the driver once and for all.
const ROWS: &[(&str, What, &str)] = &[
    (
        "put host to device, one process",
        What::Put(MemoryType::Host),
        "-l -t ucp_put_bw -m host,cuda",
    ),
    (
        "the same, pinned memory",
        What::Put(MemoryType::HostPinned),
        "-l -t ucp_put_bw -m host,cuda",
    ),
    (
        "get device to host, one process",
        What::Get(MemoryType::Host),
        "-l -t ucp_get -m host,cuda",
    ),
    (
        "the same, pinned memory",
        What::Get(MemoryType::HostPinned),
        "-l -t ucp_get -m host,cuda",
    ),
    (
        "put device to device, one process",
        What::Put(MemoryType::Cuda(0)),
        "-l -t ucp_put_bw -m cuda",
    ),
    (
        "tag host to device, two processes",
        What::Tag(MemoryType::Host),
        "-t tag_bw -m host,cuda",
    ),
    (
        "tag device to host, two processes",
        What::TagToHost,
        "-t tag_bw -m cuda,host",
    ),
    (
        "tag device to device, two processes",
        What::Tag(MemoryType::Cuda(0)),
        "-t tag_bw -m cuda",
    ),
];

/// Copies take no time of their own, so that polling does not hide what the operations cost. Device memory has its pages from the start, as wharf's has,
/// which is zeroed: UCX's program reads from memory that it never wrote, which the emulator would otherwise not have at all.
const VARIABLES: &[(&str, &str)] = &[
    ("UCX_TLS", "cuda_copy,cuda_ipc,sm,self"),
    ("EMULATED_CUDA_DELAY_US", "0"),
    ("EMULATED_CUDA_POISON", "1"),
];

#[test]
#[ignore = "needs the package libucx-cu12: UCX_WHEEL"]
fn costs_of_an_operation() {
    if wharf_side::play().is_some() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let ucx = Ucx::find();
    eprintln!(
        "| on the emulated driver | bytes | | driver calls | without queries | CPU us | most called |"
    );
    eprintln!("|---|---:|---|---:|---:|---:|---|");
    let mut dearer = Vec::new();
    for &(name, what, words) in ROWS {
        for &(len, long) in SIZES {
            let by_wharf = |count| measure(this_test!(), &folder, what, len, count);
            let by_ucx = |count| {
                let words = format!("{words} -s {len} -n {count} -w 10");
                match what {
                    What::Put(_) | What::Get(_) => {
                        let run = Running::start(&ucx, "ucx_perftest", &words, VARIABLES);
                        vec![run.end().1]
                    }
                    What::Tag(_) | What::TagToHost => perftest(&ucx, &words, VARIABLES)
                        .map(|(_, journal)| journal)
                        .into(),
                }
            };
            // In turns, so that both see the same machine.
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..TIMES {
                ours.push(Cost::of(long, by_wharf));
                theirs.push(Cost::of(long, by_ucx));
            }
            let wharf = Cost::median(ours);
            wharf.show(name, len, "wharf");
            let ucx = Cost::median(theirs);
            ucx.show(name, len, "UCX");
            // Longer ones in ordinary memory go in pieces, and from so few runs how often UCX polled is not known.
            if len <= 1 << 20 && wharf.calls(|_| true) > ucx.without_queries() {
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
    /// From a short and a long run.
    fn of(long: usize, run: impl Fn(usize) -> Vec<Journal>) -> Self {
        Self::between(&run(SHORT), &run(long), long - SHORT)
    }

    /// The one whose time is in the middle.
    fn median(mut costs: Vec<Self>) -> Self {
        costs.sort_by(|one, other| one.cpu.total_cmp(&other.cpu));
        costs.swap_remove(costs.len() / 2)
    }

    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    fn between(short: &[Journal], long: &[Journal], more: usize) -> Self {
        let more = more as f64;
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
