//! The memory-type cache: what a context remembers of memory by its address.

use std::time::Instant;

use criterion::Criterion;
use wharf::{
    Context, MemoryType,
    memory::{AddressRange, MemoryAttributes},
};

use crate::{
    HOT,
    summary::Summary,
    tables::{Table, region, table},
};

fn attributes(index: u64) -> MemoryAttributes {
    let (start, end) = region(index);
    let range = AddressRange::new(start, end - start).expect("a range");
    MemoryAttributes::new(MemoryType::Cuda(0), range).id(index)
}

fn at(address: u64) -> AddressRange {
    AddressRange::new(address, 64).expect("a range")
}

/// Device memory that an allocator told of.
pub(crate) struct Types(Context);

impl Types {
    pub(crate) fn new(regions: u64) -> Self {
        let context = Context::builder().build().expect("a context");
        for index in 0..regions {
            context.notify_allocated(&attributes(index));
        }
        Self(context)
    }
}

table!(
    Types,
    this,
    |address| {
        let known = this.0.known_memory_attributes(at(address));
        known.is_some_and(|known| known.memory_type == MemoryType::Cuda(0))
    },
    |index| {
        let attributes = attributes(index);
        this.0.notify_freed(attributes.allocation);
        this.0.notify_allocated(&attributes);
    }
);

/// Before any device's driver is in use, and after. Comes first: a process has a device runtime for good.
pub(crate) fn rows(criterion: &mut Criterion, summary: &Summary) {
    let context = Context::builder().build().expect("a context");
    row(
        criterion,
        summary,
        "memory type/no device runtime",
        &context,
    );
    let Types(context) = Types::new(HOT.regions);
    row(criterion, summary, "memory type/hit", &context);
}

fn row(criterion: &mut Criterion, summary: &Summary, id: &str, context: &Context) {
    let ranges: Vec<_> = HOT.addresses().into_iter().map(at).collect();
    let mask = ranges.len() - 1;
    let mut next = 0;
    criterion.bench_function(id, |bencher| {
        bencher.iter_custom(|count| {
            let start = Instant::now();
            let mut found = 0;
            for _ in 0..count {
                let range = std::hint::black_box(ranges[next & mask]);
                found += u64::from(context.known_memory_attributes(range).is_some());
                next += 1;
            }
            let time = start.elapsed();
            assert_eq!(found, count, "{id}: unknown memory");
            summary.add(id, time, count);
            time
        });
    });
}
