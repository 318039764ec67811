//! What a transfer did, by the counters of the workers at its ends, held against the plan that was given for it.

use wharf::{Explanation, Mover, Party, Plan, When, Worker, WorkerMetrics};

/// What one worker counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    messages: u64,
    sent: u64,
    mapped: u64,
    kernel: u64,
    network: u64,
    engines: u64,
    staged: u64,
}

impl Counted {
    fn of(metrics: &WorkerMetrics) -> Self {
        let sent = || metrics.transports.iter().map(|one| one.sent);
        Self {
            messages: sent().map(|sent| sent.count).sum(),
            sent: sent().map(|sent| sent.bytes).sum(),
            mapped: metrics.mapped.bytes,
            kernel: metrics.cma.bytes,
            network: metrics.one_sided.bytes,
            engines: metrics.device_copies.bytes,
            staged: metrics.staged.bytes,
        }
    }

    fn by(&self, other: &Self, both: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            messages: both(self.messages, other.messages),
            sent: both(self.sent, other.sent),
            mapped: both(self.mapped, other.mapped),
            kernel: both(self.kernel, other.kernel),
            network: both(self.network, other.network),
            engines: both(self.engines, other.engines),
            staged: both(self.staged, other.staged),
        }
    }
}

/// The two ends of a transfer, before it.
pub(crate) struct Before<'a> {
    source: &'a Worker,
    target: Option<&'a Worker>,
    counted: [Counted; 2],
}

/// Waits until a worker does nothing more of what it was asked.
async fn quiet(worker: &Worker) {
    while worker.in_flight() > 0 {
        tokio::task::yield_now().await;
    }
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

impl<'a> Before<'a> {
    /// `target`: where it is another worker.
    pub(crate) async fn of(source: &'a Worker, target: Option<&'a Worker>) -> Self {
        let counted = Self::count(source, target).await;
        Self {
            source,
            target,
            counted,
        }
    }

    async fn count(source: &Worker, target: Option<&Worker>) -> [Counted; 2] {
        quiet(source).await;
        if let Some(target) = target {
            quiet(target).await;
        }
        let there = target.map(|target| Counted::of(&target.metrics()));
        [Counted::of(&source.metrics()), there.unwrap_or_default()]
    }

    /// What was done meanwhile.
    pub(crate) async fn end(self) -> Moved {
        let after = Self::count(self.source, self.target).await;
        let past = |end: usize| after[end].by(&self.counted[end], |after, before| after - before);
        Moved {
            source: past(0),
            target: past(1),
            own: self.target.is_none(),
        }
    }
}

/// What was done for one transfer.
#[derive(Debug)]
pub(crate) struct Moved {
    source: Counted,
    target: Counted,
    own: bool,
}

/// The plan whose condition holds.
#[track_caller]
pub(crate) fn taken(explained: &Explanation, holds: impl Fn(When) -> bool) -> Plan {
    assert!(explained.is_possible, "{explained}");
    let found = explained
        .plans
        .iter()
        .find(|plan| plan.when.is_none_or(&holds));
    *found.unwrap_or_else(|| panic!("no plan holds: {explained:?}"))
}

impl Moved {
    /// That a word was changed as the plan has it. What is changed in mapped memory is no message, and is counted nowhere.
    #[track_caller]
    pub(crate) fn check_word(&self, plan: &Plan, what: impl std::fmt::Display) {
        let told = self.is_told();
        assert_eq!(
            told,
            plan.mover == Mover::Messages,
            "{what}: {plan:?}, {self:?}"
        );
    }

    /// Whether there was a message.
    pub(crate) fn is_told(&self) -> bool {
        self.source.messages > 0
    }

    /// That `length` bytes went as the plan has it, and no other way; `out`, `into`: whether devices have the memory at the ends.
    #[track_caller]
    pub(crate) fn check(
        &self,
        plan: &Plan,
        length: usize,
        (out, into): (bool, bool),
        what: impl std::fmt::Display,
    ) {
        let length = length as u64;
        let all = self.source.by(&self.target, |one, other| one + other);
        let said = format!("{what}: {plan:?}, and {self:?}");
        let one = |mover| u64::from(plan.mover == mover) * length;
        if plan.by == Party::Both && matches!(plan.mover, Mover::Mapped | Mover::Kernel) {
            // The other end's share goes as it reaches this one's memory.
            assert_eq!(all.mapped + all.kernel, length, "{said}");
        } else {
            assert_eq!(all.mapped, one(Mover::Mapped), "{said}");
            assert_eq!(all.kernel, one(Mover::Kernel), "{said}");
        }
        assert_eq!(all.network, one(Mover::NetworkDevices), "{said}");
        // Whose counters: both take as much as they come to.
        let straight = |counted: &Counted| counted.mapped + counted.kernel + counted.network;
        match plan.by {
            Party::Source if !self.own => assert_eq!(straight(&self.target), 0, "{said}"),
            Party::Target if !self.own => assert_eq!(straight(&self.source), 0, "{said}"),
            _ => {}
        }
        // Each byte in a message, or none of them.
        let by_messages = matches!(plan.mover, Mover::Eager | Mover::Messages);
        match by_messages {
            true => assert!(self.source.sent >= length, "{said}"),
            false => assert!(all.sent < length.max(1000), "{said}"),
        }
        match plan.mover {
            // The other end may give back room.
            Mover::Eager if self.own => assert!(all.messages <= 2, "{said}"),
            Mover::Eager => assert_eq!(self.source.messages, 1, "{said}"),
            _ => {}
        }
        assert!(
            plan.mover != Mover::Eager || all.sent < length + 200,
            "{said}"
        );
        // Engines bring to and from fragments what they do not bring all the way.
        let local = matches!(plan.mover, Mover::Engine | Mover::Processor);
        let ends = u64::from(out) + u64::from(into);
        let engines = match plan.mover {
            Mover::NetworkDevices => 0,
            Mover::Engine if plan.copies == 3 => 2,
            _ if local => ends.min(1),
            _ => ends,
        };
        assert_eq!(all.engines, engines * length, "{said}");
        let stops = match plan.is_staged {
            false => 0,
            true if local => 1,
            true => ends,
        };
        assert_eq!(all.staged, stops * length, "{said}");
        if plan.mover != Mover::Processor {
            // One of the copies through a fragment within a process is the processor's, which counts none.
            let silent = u32::from(plan.is_staged && (local || plan.mover == Mover::Eager));
            let seen = all.mapped + all.kernel + all.network + all.engines;
            let seen = (seen / length) as u32 + 2 * u32::from(by_messages);
            assert_eq!(seen + silent, plan.copies, "{said}");
        }
    }

    /// Whether memory was used that both map.
    pub(crate) fn is_mapped(&self) -> bool {
        self.source.mapped + self.target.mapped > 0
    }

    /// That it was announced and agreed upon.
    #[track_caller]
    pub(crate) fn check_agreed(&self, what: impl std::fmt::Display) {
        let all = self.source.messages + self.target.messages;
        assert!(all >= 3, "{what}: {self:?}");
    }
}
