//! Memory: who knows it, who tells when it goes away, what is remembered of it.

use serde_json::{Value, json};
use wharf::{
    Context, Report,
    memory::{DomainCapabilities, EventClasses, MemoryMonitor, MonitorKind, Timing, monitor},
};

use crate::Failure;

/// The domains, in the order in which they are asked.
pub(super) fn domains(context: &Context) -> Value {
    let one = |domain: &std::sync::Arc<dyn wharf::memory::MemoryDomain>| {
        let attributes = domain.attributes();
        let can: Vec<&str> = [
            (DomainCapabilities::DETECT, "detect"),
            (DomainCapabilities::ALLOCATE, "allocate"),
            (DomainCapabilities::REGISTER, "register"),
            (DomainCapabilities::ADVISE, "advise"),
            (DomainCapabilities::EXPORT, "export"),
        ]
        .into_iter()
        .filter_map(|(what, name)| attributes.capabilities.contains(what).then_some(name))
        .collect();
        let types: Vec<String> = attributes
            .memory_types
            .iter()
            .map(ToString::to_string)
            .collect();
        json!({
            "name": domain.name(),
            "in_use": domain.is_loaded(),
            "capabilities": can,
            "memory_types": types,
        })
    };
    context.memory_domains().iter().map(one).collect()
}

/// The monitors: which there are, and what the self-test of each saw.
pub(super) fn monitors(context: &Context) -> Result<Value, Failure> {
    let chosen = context.memory_monitor()?;
    let kinds = MonitorKind::ALL
        .into_iter()
        .filter(|kind| *kind != MonitorKind::Auto);
    let one = |kind: MonitorKind| match monitor(kind) {
        Ok(found) => seen(kind, &*found, found.name() == chosen.name()),
        Err(error) => json!({
            "name": kind.name(),
            "available": false,
            "chosen": false,
            "reason": crate::chain(&error),
            "sees": Value::Null,
            "timing": Value::Null,
            "covers_all_memory": Value::Null,
        }),
    };
    Ok(kinds.map(one).collect())
}

fn seen(kind: MonitorKind, monitor: &dyn MemoryMonitor, chosen: bool) -> Value {
    let classes = monitor.classes();
    let sees: Vec<&str> = [
        (EventClasses::UNMAP, "munmap"),
        (EventClasses::OVERMAP, "mmap over"),
        (EventClasses::REMAP, "mremap"),
        (EventClasses::DISCARD, "madvise"),
        (EventClasses::BREAK, "brk"),
        (EventClasses::SYSV, "shmdt"),
        (EventClasses::DIRECT, "direct system calls"),
        (EventClasses::RUST_HEAP, "Rust heap"),
        (EventClasses::NOTIFIED, "notified"),
    ]
    .into_iter()
    .filter_map(|(class, name)| classes.contains(class).then_some(name))
    .collect();
    json!({
        "name": kind.name(),
        "available": true,
        "chosen": chosen,
        "reason": Value::Null,
        "sees": sees,
        "timing": match monitor.timing() {
            Timing::Before => "before",
            Timing::After => "after",
        },
        "covers_all_memory": classes.covers_foreign_memory(),
    })
}

/// The caches and their limits, in bytes and counts.
pub(super) fn caches(context: &Context, report: &Report) -> Value {
    let options = context.registration_cache_options();
    json!({
        "registrations": {
            "enabled": options.enabled,
            "max_regions": options.max_regions,
            "max_bytes": options.max_bytes,
            "max_unreleased": options.max_unreleased,
            "merge_max": options.merge_max,
            "whole_allocation_max": options.whole_allocation_max,
        },
        "memory_types": {
            "in_use": report.type_cache.is_in_use,
            "capacity": report.type_cache.capacity,
        },
    })
}
