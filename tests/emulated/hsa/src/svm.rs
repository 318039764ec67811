//! Advice on memory of the host that devices share (SVM): kept by whole pages, as the kernel's driver keeps it.
//!
//! Where the memory lies is not emulated: it is the host's, and stays there.

use std::{collections::BTreeMap, fs};

use crate::{
    abi::{Outcome, Status},
    agent,
    runtime::runtime,
    settings,
};

const PAGE: u64 = 4096;

/// `hsa_amd_svm_attribute_pair_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Pair {
    attribute: u64,
    value: u64,
}

/// `hsa_amd_svm_attribute_t`, as far as it is kept here.
const PREFERRED_LOCATION: u64 = 4;
const PREFETCH_LOCATION: u64 = 5;
const READ_MOSTLY: u64 = 6;

/// Of a page: the agents that are preferred and that it was last prefetched to, 0 for none; whether it is mostly read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Advice {
    preferred: u64,
    prefetched: u64,
    read_mostly: bool,
}

/// What was said of pages, by their addresses.
#[derive(Debug, Default)]
pub(crate) struct Svm(BTreeMap<u64, Advice>);

impl Svm {
    /// Those of a range, as they are and as they become.
    fn change(&mut self, pages: &[u64], change: impl Fn(&mut Advice)) {
        for page in pages {
            change(self.0.entry(*page).or_default());
        }
    }

    /// What all pages have in common; `None`: they differ.
    fn common<T: PartialEq>(&self, pages: &[u64], of: impl Fn(&Advice) -> T) -> Option<T> {
        let known = |page: &u64| of(&self.0.get(page).copied().unwrap_or_default());
        let first = known(pages.first()?);
        pages[1..]
            .iter()
            .all(|page| known(page) == first)
            .then_some(first)
    }
}

/// The pages that a range touches.
///
/// Nothing but mapped memory of the host takes advice: the real one's kernel finds no mapping else, or a buffer of the driver's.
fn pages(address: u64, len: u64) -> Outcome<Vec<u64>> {
    if address == 0 || len == 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    let end = address.checked_add(len).ok_or(Status::INVALID_ARGUMENT)?;
    if !settings::SVM.on() {
        return Err(Status::ERROR);
    }
    let first = address / PAGE * PAGE;
    let end = end.next_multiple_of(PAGE);
    let memory = runtime().memory.lock();
    if (first..end)
        .step_by(PAGE as usize)
        .any(|page| memory.inspect(page).kind != 0)
    {
        return Err(Status::ERROR);
    }
    drop(memory);
    match is_mapped(first, end) {
        true => Ok((first..end).step_by(PAGE as usize).collect()),
        false => Err(Status::ERROR),
    }
}

/// Whether all of it is mapped in this process, by the kernel's own list.
fn is_mapped(mut first: u64, end: u64) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for line in maps.lines() {
        let range = line
            .split_once(' ')
            .and_then(|(range, _)| range.split_once('-'));
        let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        if let Some((from, to)) = range
            && (number(from)..number(to)).contains(&first)
        {
            first = number(to);
        }
        if first >= end {
            return true;
        }
    }
    false
}

/// `hsa_amd_svm_attributes_set`.
pub(crate) fn set(address: u64, len: u64, pairs: &[Pair]) -> Outcome {
    let mut seen = Vec::new();
    let agent_or_none = |value| match value {
        0 => Ok(0),
        agent => agent::find(agent).map(|_| agent),
    };
    for pair in pairs {
        if seen.contains(&pair.attribute) {
            return Err(Status::INVALID_ARGUMENT);
        }
        seen.push(pair.attribute);
        match pair.attribute {
            PREFERRED_LOCATION => drop(agent_or_none(pair.value)?),
            READ_MOSTLY => {}
            // What was prefetched can only be asked for.
            _ => return Err(Status::INVALID_ARGUMENT),
        }
    }
    let pages = pages(address, len)?;
    let mut svm = runtime().svm.lock();
    for pair in pairs {
        svm.change(&pages, |advice| match pair.attribute {
            PREFERRED_LOCATION => advice.preferred = pair.value,
            _ => advice.read_mostly = pair.value != 0,
        });
    }
    Ok(())
}

/// `hsa_amd_svm_attributes_get`: the pairs with their values.
pub(crate) fn get(address: u64, len: u64, pairs: &[Pair]) -> Outcome<Vec<Pair>> {
    let pages = pages(address, len)?;
    let svm = runtime().svm.lock();
    let answered = pairs.iter().map(|pair| {
        let value = match pair.attribute {
            PREFERRED_LOCATION => svm.common(&pages, |advice| advice.preferred),
            PREFETCH_LOCATION => svm.common(&pages, |advice| advice.prefetched),
            READ_MOSTLY => svm.common(&pages, |advice| advice.read_mostly.into()),
            _ => return Err(Status::INVALID_ARGUMENT),
        };
        // Where the pages differ, nothing is said.
        let value = value.unwrap_or(0);
        Ok(Pair { value, ..*pair })
    });
    answered.collect()
}

/// `hsa_amd_svm_prefetch_async`, but for its signals.
pub(crate) fn prefetch(address: u64, len: u64, to: u64) -> Outcome {
    agent::find(to)?;
    let pages = pages(address, len)?;
    runtime()
        .svm
        .lock()
        .change(&pages, |advice| advice.prefetched = to);
    Ok(())
}
